"""The tables of `docs/metrics.md` that are made from the presets: what each reads, and the metrics of `generic`.

`PYTHONPATH=tests/support python -m metrics_document docs/metrics.md` writes them into the document.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from corpus import ROOT

from profiler.samples import Answer, Quantity
from profiler.sources.presets import Combine, Edge, Formula, Preset, load_presets
from profiler.sources.promql import fill
from profiler.sources.promql_syntax import metric_names

DOCUMENT = ROOT / "docs" / "metrics.md"
_MARKED = re.compile(r"(<!-- metrics of (?P<kind>[\w-]+) -->\n)(?P<table>(?:.*\n)*?)(<!-- end -->)")
_SNIPPET = re.compile(r"^```(?P<language>python|go)\n(?P<code>(?:.*\n)*?)```$", re.MULTILINE)
_SUFFIXES = ("_bucket", "_sum", "_count")

MEANINGS = {
    "speech_stage_arrivals_total": ("items", "items offered to the stage, refused ones too"),
    "speech_stage_items_total": ("items", "items completed"),
    "speech_stage_batches_total": ("batches", "batches completed; without batching, equal to items"),
    "speech_stage_busy_seconds_total": ("seconds", "time in service, summed over batches"),
    "speech_stage_capacity": ("batches", "batches that the replica serves at once, as `concurrency`"),
    "speech_stage_queue_depth": ("items", "items that wait; 0 from the start of the pod"),
    "speech_stage_latency_seconds": ("seconds", "time of an item from arrival to answer, with bounds around the SLA"),
    "speech_stage_sessions": ("sessions", "sessions that hold a slot; for stages with sessions"),
    "speech_stage_sessions_refused_total": ("sessions", "sessions refused because no slot was free, from 0"),
    "speech_nic_rx_queue_pressure": (
        "0–1",
        "how near the kernel is to losing what arrives; `sluice nic-exporter` exports it for every pod",
    ),
}
"""Unit and meaning of the metrics of `generic`."""

_COMBINED = {
    Combine.SUM: "sum; needs every pod",
    Combine.MEAN: "mean",
    Combine.MAX: "the worst pod",
    Combine.RATIO: "ratio of sums",
    Combine.QUANTILE: "percentile of the summed histogram",
    Combine.VARIATION: "standard deviation over mean of the summed histogram",
}


def renewed(text: str) -> str:
    """Return the document with the tables of the present presets."""
    now = tables()
    return _MARKED.sub(lambda found: f"{found[1]}{now[found['kind']]}{found[4]}", text)


def snippets(language: str) -> list[str]:
    """Return the pieces of code of the document in `language`."""
    return [each["code"] for each in _SNIPPET.finditer(DOCUMENT.read_text()) if each["language"] == language]


def snippet(language: str) -> str:
    """Return the one piece of code of the document in `language`."""
    (found,) = snippets(language)
    return found


def tables() -> dict[str, str]:
    """Return the Markdown tables by kind."""
    presets = load_presets()
    return {"contract": _contract(presets["generic"]), "servers": _servers(presets)} | {
        name: _preset(preset) for name, preset in presets.items()
    }


def exported(preset: Preset) -> list[str]:
    """Return the names of the metrics that a preset reads, each once; those of histograms without their suffixes."""
    names = (name for formula in preset.formulas.values() for name in _names(formula))
    return list(dict.fromkeys(map(_family, names)))


def _contract(preset: Preset) -> str:
    rows = "".join(
        f"| `{name}` | {_type(preset, name)} | {MEANINGS[name][0]} | {MEANINGS[name][1]} |\n"
        for name in exported(preset)
    )
    return f"| metric | type | unit | meaning |\n|---|---|---|---|\n{rows}"


def _servers(presets: dict[str, Preset]) -> str:
    rows = "".join(
        f"| `{name}` | `{preset.freshness}` | {preset.port or 'by annotation'} | "
        f"{f'`{preset.model_label}`' if preset.model_label else 'none'} |\n"
        for name, preset in sorted(presets.items())
    )
    return (
        f"| preset | every pod exports, from its start | default port | label of the model |\n|---|---|---|---|\n{rows}"
    )


def _preset(preset: Preset) -> str:
    rows = "".join(_row(preset, quantity) for quantity in Quantity)
    return f"| quantity | metrics | over the pods |\n|---|---|---|\n{rows}"


def _row(preset: Preset, quantity: Quantity) -> str:
    formula = preset.formula(quantity, Answer.WHOLE)
    if formula is None or formula.edge is not Edge.INSIDE:
        return ""
    names = [f"`{name}`" for name in _names(formula)]
    if quantity in preset.first:
        names.append("with `answer: First` " + ", ".join(f"`{name}`" for name in _names(preset.first[quantity])))
    return f"| `{quantity.value}` | {', '.join(names)} | {_COMBINED[formula.combine]} |\n"


def _names(formula: Formula) -> Iterator[str]:
    expressions = [formula.value, *([] if formula.over is None else [formula.over])]
    found = (name for each in expressions for name in metric_names(fill(each, pods='namespace="n"', window_s=60.0)))
    return iter(dict.fromkeys(found))


def _family(name: str) -> str:
    return next((name.removesuffix(suffix) for suffix in _SUFFIXES if name.endswith(suffix)), name)


def _type(preset: Preset, name: str) -> str:
    read = {each for formula in preset.formulas.values() for each in _names(formula)}
    if f"{name}_bucket" in read:
        return "histogram"
    return "counter" if name.endswith("_total") else "gauge"


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(renewed(path.read_text()))
