"""The lists of mechanisms in the documents, in order of precedence, made from the code.

`PYTHONPATH=tests/support python -m bounds_document` writes them into the documents.
"""

import inspect
import re
from itertools import groupby

from corpus import ROOT

from controller.core import bounds
from controller.core.bounds.mechanisms import MECHANISMS
from controller.core.state.bound import Level, Mechanism

ARCHITECTURE = ROOT / "ARCHITECTURE.md"
FOR_USERS = ROOT / "docs" / "how-it-decides.md"
_MARKED = re.compile(r"(<!-- bounds for (?P<reader>\w+) -->\n)(?:.*\n)*?(<!-- end -->)")


def module_of(mechanism: Mechanism) -> str:
    """Return the file of a mechanism, below `controller/core/bounds`."""
    modules = dict(inspect.getmembers(bounds, inspect.ismodule))
    (name,) = (own for own in modules if f'name="{mechanism.name}"' in inspect.getsource(modules[own]))
    return f"{name}.py"


def table(reader: str) -> str:
    """Return the Markdown of the list: with the files for `developers`, without them for `users`."""
    lines: list[str] = []
    for level, own in groupby(MECHANISMS, key=lambda mechanism: mechanism.level):
        lines += [f"{level.value}. **{TITLES[level]}** {level.reason}", ""]
        for mechanism in own:
            where = f" (`{module_of(mechanism)}`; {mechanism.evidence.value})" if reader == "developers" else ""
            lines.append(f"    * *{mechanism.name}*{where}: {mechanism.does}.")
        lines.append("")
    return "\n".join(lines)


TITLES = {
    Level.NOT_OURS: "What Sluice does not write.",
    Level.CAP: "Budgets and pools.",
    Level.PERSON: "A person's pin.",
    Level.MISSING_DATA: "Never down on missing data.",
    Level.DECLARED: "The declared bounds.",
    Level.SLA: "The SLA.",
    Level.FLOOR: "Floors.",
    Level.COST: "Cost.",
    Level.STEP: "One step.",
}


def renewed(document: str) -> str:
    """Return the text of a document with its list made anew."""
    return _MARKED.sub(lambda found: f"{found[1]}{table(found['reader'])}{found[3]}", document)


if __name__ == "__main__":
    for path in (ARCHITECTURE, FOR_USERS):
        path.write_text(renewed(path.read_text()))
