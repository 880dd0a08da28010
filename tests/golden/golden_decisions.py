"""Decision records: what was decided about recorded snapshots, without the words of it, and what is decided now."""

import re
from typing import Any

from golden_conversion import converted
from golden_files import parted, plain, read

from controller.core.codec import encode
from controller.core.cycle import decide
from controller.core.record import decision_record, recorded_inputs
from controller.core.state.decision import Decision

NAME, TEXTS = "decisions", "decisions-texts"

Record = dict[str, Any]

_PROSE = re.compile(r"(^|[.\]])(message|detail|because)$|(memory|outage|lost)\.reason$")
_MORE = ("memory", "metrics", "admitted_meanwhile")


def load_records() -> dict[str, Record]:
    """Return the records by name; where fields of the stored values have been renamed, this is where to convert."""
    records: dict[str, Record] = converted(read(NAME))
    return records


def load_texts() -> dict[str, dict[str, str]]:
    """Return the recorded words of each decision by their paths in it."""
    texts: dict[str, dict[str, str]] = read(TEXTS)
    return texts


def record_of(record: dict[str, Any], decision: Decision) -> tuple[Record, dict[str, str]]:
    """Return a golden record, made from a decision record, and its texts."""
    answer, texts = answer_of(record, decision)
    return {**plain({name: record[name] for name in ("schema", "policy", "snapshot")}), "decision": answer}, texts


def answer_of(record: dict[str, Any], decision: Decision) -> tuple[Any, dict[str, str]]:
    """Return all that was decided, what is remembered included, without its words, and the words by path.

    `record` is the decision record of it.
    """
    more = {each.key: {name: encode(getattr(each, name)) for name in _MORE} for each in decision.pipelines}
    return without_words({**record["decision"], "more": more})


def without_words(answer: Any) -> tuple[Any, dict[str, str]]:
    """Return an answer with null in place of words, and the words by path."""
    return parted(plain(answer), _is_prose)


def answer_now(record: Record) -> tuple[Any, dict[str, str]]:
    """Return what is decided now about the snapshot of a record, without its words, and the words by path."""
    snapshot, policy = recorded_inputs(record)
    decision = decide(snapshot, policy)
    return answer_of(decision_record(snapshot, decision), decision)


def _is_prose(path: str) -> bool:
    return _PROSE.search(path) is not None
