"""`sluice simulate MANIFEST... --trace FILE`: writes the scenario file of manifests and recorded load."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import yaml

from controller.commands.findings import refused
from controller.commands.plan_request import instances_of, loads_of, specs_of
from controller.core.messages.phrases import duration, timestamp
from controller.core.state.shared import resolved
from controller.core.state.spec import DemandUnit, PipelineSpec, PoolSpec
from controller.resources.validation import validate_files
from optimizer.model import PipelineKey, PoolName
from simulations.backtest.pieces import without_session
from simulations.scenario.scenario import InvalidScenario, load_scenario
from simulations.scenario.traces import Column, InvalidTrace, Trace, bundled_names, read_trace

LONGEST_S = 86400
"""The longest run that is written; `duration` in the file can be longer."""
CONSTANT_S = 3600
"""The length of a run with constant load alone."""
_WARMUP_S = 300
_LONG_S = 3600
_MONDAY = "2026-01-05T00:00:00Z"
_SESSION = "5m"
_SESSION_CV = "1.3"
"""Coefficient of variation of session lengths: that of call-centre recordings (`SessionLength`)."""
_SCRAPES = "15s"
_HEAD = """\
# Written by `sluice simulate`. Edit it and run `sluice simulate {file}`; docs/reference/scenario.md has every field.
"""
_TAIL = """\
# faults:
#   - {{at: 10m, for: 5m, spike: {{pipeline: {pipeline}, factor: 2}}}}
# whatIf:
#   - {{name: double-load, load: {{copies: 2}}}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The options of the command line that say what a run of manifests has: the values of each as they were given."""

    traces: Sequence[str] = ()
    series: Sequence[str] = ()
    demands: Sequence[str] = ()
    limits: Sequence[str] = ()
    session: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    """The load of one pipeline: a trace, or else a constant `level` in the pipeline's unit."""

    spec: PipelineSpec
    column: Column
    file: str = ""
    series: str | None = None
    trace: Trace | None = None
    level: float = 0.0


def write_scenario(files: Sequence[Path], wanted: Wanted, path: Path) -> list[str]:
    """Write the scenario of the manifests `files` to `path`, and the loads of --demand beside it; return notes on it.

    Files that are there already stay as they are.

    Raises:
        click.UsageError: an option is wrong or missing, or a file is there and has another content.
        click.exceptions.Exit: the manifests are invalid; the errors are printed.
    """
    checked = validate_files(files)
    if checked.findings:
        raise refused(checked.findings)
    declared, pools = specs_of(checked)
    if not declared:
        raise click.UsageError("MANIFEST...: there is no SpeechPipeline in these files")
    specs, _ = resolved(declared.values())
    instances = _instances(specs, pools, wanted.limits)
    loads = _loads(specs, wanted)
    spans = [each.trace.span_s for each in loads if each.trace is not None]
    run_s = max(1, round(min(LONGEST_S, max(spans, default=CONSTANT_S))))
    dated = any(spec.at_least for spec in specs.values()) or any(each.spec.periods for each in checked.budgets)
    begins = _begins(loads, dated=dated)
    lasting = [key for key in without_session(specs.values()) if key in specs]
    entries = [_entry(each, path, wanted.session, sticky=each.spec.key in lasting) for each in loads]
    document = {
        "name": loads[0].spec.name if len(loads) == 1 else f"{loads[0].spec.name} and {len(loads) - 1} more",
        "manifests": [_relative(file, path) for file in files],
        "duration": f"{run_s}s",
        "warmup": f"{min(_WARMUP_S, run_s // 6)}s",
        "window": "1m" if run_s >= _LONG_S else "10s",
        "scrapeInterval": _SCRAPES,
        **({"begins": begins} if begins else {}),
        **({"instances": instances} if instances else {}),
        "load": entries,
        "policies": ["sluice"],
    }
    text = _HEAD.format(file=path) + yaml.safe_dump(document, sort_keys=False, width=1000)
    written = {path: text + _TAIL.format(pipeline=loads[0].spec.key)}
    for each in loads:
        if each.trace is None:
            rows = f"t_s,{each.column.value}\n0,{each.level:.12g}\n{run_s},{each.level:.12g}\n"
            written[_constant(each.spec, path)] = rows
    created = _write(written)
    try:
        load_scenario(path, own_servers=True)
    except InvalidScenario as error:
        for file in created:
            file.unlink()
        raise refused(error.findings) from None
    return [*_notes(loads, entries, wanted, run_s, begins, path)]


def _instances(
    specs: Mapping[PipelineKey, PipelineSpec], pools: Mapping[PoolName, PoolSpec], limits: Sequence[str]
) -> dict[str, int]:
    """Return the sizes of pools that differ from the manifests."""
    found = instances_of(specs, pools, limits)
    used = {placement.pool for spec in specs.values() for stage in spec.stages for placement in stage.placements}
    return {str(name): count for name, count in found.items() if name in used and count != pools[name].instances}


def _loads(specs: Mapping[PipelineKey, PipelineSpec], wanted: Wanted) -> list[_Load]:
    levels = loads_of(wanted.demands, specs)
    for key, level in levels.items():
        if len(level) > 1:
            raise click.UsageError(f"--demand: {key}: a range of loads is for `sluice plan`; a run needs one")
    files = _named("--trace", wanted.traces, specs)
    series = _named("--series", wanted.series, specs)
    if both := sorted(levels.keys() & files.keys()):
        raise click.UsageError(f"--demand: {both[0]}: has --trace too; give one of them")
    if alone := sorted(series.keys() - files.keys()):
        raise click.UsageError(f"--series: {alone[0]}: needs --trace, the file that has the series")
    if missing := sorted(specs.keys() - levels.keys() - files.keys()):
        raise click.UsageError(
            f"--trace: {', '.join(missing)}: missing; every pipeline in the files needs one (--trace {missing[0]}=FILE)"
            f", or a constant load (--demand {missing[0]}=N)"
        )
    return [
        _traced(spec, files[key], series.get(key))
        if key in files
        else _Load(spec=spec, column=_level_of(spec), level=levels[key][0])
        for key, spec in specs.items()
    ]


def _named(option: str, texts: Iterable[str], specs: Mapping[PipelineKey, PipelineSpec]) -> dict[PipelineKey, str]:
    """Return the values of [NAMESPACE/NAME=]VALUE options; a value may contain `=` too."""
    found: dict[PipelineKey, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        key = PipelineKey(name)
        if not sign or key not in specs:
            if len(specs) > 1:
                raise click.UsageError(
                    f"{option}: {text!r}: must begin with NAMESPACE/NAME=; the files have {', '.join(sorted(specs))}"
                )
            key, value = next(iter(specs)), text
        if key in found:
            raise click.UsageError(f"{option}: {str(key)!r}: is given twice")
        found[key] = value
    return found


def _level_of(spec: PipelineSpec) -> Column:
    return Column.STREAMS if spec.unit is DemandUnit.STREAMS else Column.RATE_PER_S


def _traced(spec: PipelineSpec, file: str, series: str | None) -> _Load:
    """Return the load in `file`: a level, as queries of the demand give it, or what its columns are named."""
    first: InvalidTrace | None = None
    for column in dict.fromkeys([_level_of(spec), Column.ARRIVALS, Column.RATE_PER_S]):
        try:
            trace = read_trace(file, column, folder=Path(), series=series)
        except InvalidTrace as error:
            first = first or error
        else:
            return _Load(spec=spec, column=column, file=file, series=series, trace=trace)
    raise click.UsageError(f"--trace: {first}")


def _begins(loads: Sequence[_Load], *, dated: bool) -> str | None:
    """Return the date of the run: that of the earliest trace, or a Monday where one is needed and no trace has it."""
    known = [each.trace.begins_s for each in loads if each.trace is not None and each.trace.begins_s is not None]
    if known:
        return timestamp(min(known))
    return _MONDAY if dated else None


def _entry(load: _Load, path: Path, session: str | None, *, sticky: bool) -> dict[str, Any]:
    if load.trace is None:
        name = _constant(load.spec, path).name
    elif not Path(load.file).is_file() and load.file in bundled_names():
        name = load.file
    else:
        name = _relative(Path(load.file), path)
    entry: dict[str, Any] = {"pipeline": str(load.spec.key), "trace": name, "column": load.column.value}
    if load.series is not None:
        entry["series"] = load.series
    if load.spec.unit is DemandUnit.STREAMS and (session or sticky or load.column is not Column.STREAMS):
        entry["session"] = {"mean": session or _SESSION, "cv": _SESSION_CV}
    return entry


def _constant(spec: PipelineSpec, path: Path) -> Path:
    return path.with_name(f"{path.stem}-{spec.namespace}-{spec.name}.csv")


def _relative(file: Path, path: Path) -> str:
    """Return `file` as it is named in the scenario file `path`."""
    return os.path.relpath(file, path.parent)


def _write(files: Mapping[Path, str]) -> list[Path]:
    """Write the files that are not there; return them."""
    for path, text in files.items():
        if path.exists() and (not path.is_file() or path.read_text() != text):
            raise click.UsageError(
                f"--scenario: {path}: exists with other content, perhaps your changes; run it with "
                f"`sluice simulate {path}`, or name another file"
            )
    missing = [path for path in files if not path.exists()]
    for path in missing:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files[path])
        except OSError as error:
            raise click.UsageError(f"--scenario: {path}: cannot be written: {error.strerror}") from None
    return missing


def _notes(
    loads: Sequence[_Load],
    entries: Sequence[Mapping[str, Any]],
    wanted: Wanted,
    run_s: int,
    begins: str | None,
    path: Path,
) -> Iterator[str]:
    """Yield what the options did not say and the file has: what to check there, one sentence each."""
    yield f"scenario: {path}: edit it, and run `sluice simulate {path}`"
    longest_s = max((each.trace.span_s for each in loads if each.trace is not None), default=0.0)
    if longest_s > run_s + 1:
        yield f"the run is the first {duration(run_s)} of {duration(longest_s)} of load (duration)"
    starts = {each.trace.begins_s for each in loads if each.trace is not None} - {None}
    if len(starts) > 1:
        yield "the traces begin at different times: each is replayed from its own beginning"
    if begins == _MONDAY and not starts:
        yield f"the load begins on a Monday, {begins}, because no trace says when (begins)"
    if wanted.session is None:
        for entry in entries:
            if "session" in entry:
                yield f"{entry['pipeline']}: streams last {_SESSION} on average, which is assumed (--session)"
