"""The parts of a record that are replayed, and the scenario of each. Pure, but for the files of `write_scenario`.

Every piece is a scenario of its own, which `sluice simulate` runs too. It begins with load from the record that is not
scored: the simulated pipelines start with their least replicas, as no record says what was in flight.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from controller.core.messages.phrases import duration, timestamp
from controller.core.state.schedule import field_of
from controller.core.state.spec import DemandUnit, PipelineSpec, PlacementSpec
from optimizer.model import PipelineKey, PoolName, Routing, ServiceLaw
from profiler.sources.prometheus_api import Period
from simulations.backtest.record import PipelineRecord, runs_of
from simulations.cluster.replacements import runnable
from simulations.policies.recorded import RecordedSettings

WARMUP_S = 600
"""Recorded load at the begin of a piece that is replayed and not scored."""
SHORTEST_S = 1800
"""The shortest part of a record that is replayed, warm-up included."""
LONGEST_S = 86400
_MOST_REQUESTS = 3e6
"""Most requests in a piece; a scenario can have 5 million."""
_SCRAPES = "15s"
_SESSION_CV = 1.3
"""Coefficient of variation of session lengths: that of call-centre recordings (`SessionLength`)."""
SCENARIO = "scenario.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The steps [`first`, `end`) of a record, of which those from `scored` on count."""

    first: int
    scored: int
    end: int


def pieces(known: NDArray[np.bool_], requests_per_s: NDArray[np.float64], step_s: int) -> tuple[Piece, ...]:
    """Return the pieces to replay: every run of known steps that is long enough, cut where it is too long or too large.

    `requests_per_s` is the load of pipelines with unit Requests in each step, which bounds the size of a piece.
    """
    warmup = math.ceil(WARMUP_S / step_s)
    found = []
    for run in runs_of(known):
        steps = run.stop - run.start
        if steps * step_s < SHORTEST_S or steps < 2 * warmup:
            continue
        count = max(
            math.ceil(steps * step_s / LONGEST_S),
            math.ceil(float(requests_per_s[run].sum()) * step_s / _MOST_REQUESTS),
        )
        edges = np.linspace(run.start + warmup, run.stop, count + 1).round().astype(int)
        found += [
            Piece(first=int(begin) - warmup, scored=int(begin), end=int(end))
            for begin, end in pairwise(edges)
            if begin < end
        ]
    return tuple(found)


def requests_per_s(records: Sequence[PipelineRecord]) -> NDArray[np.float64]:
    """Return the requests per second of all pipelines with that unit in each step; 0 where a number is missing."""
    own = [np.nan_to_num(record.demand) for record in records if record.spec.unit is DemandUnit.REQUESTS]
    return np.asarray(np.sum([np.zeros(len(records[0].demand)), *own], axis=0))


def recorded_settings(records: Sequence[PipelineRecord], piece: Piece, step_s: int) -> RecordedSettings | None:
    """Return the recorded replicas of a piece as a policy; None unless those of every pipeline are known."""
    counts = {
        (record.spec.key, *key): tuple(int(value) for value in np.rint(values[piece.first : piece.end]))
        for record in records
        for key, values in (record.replicas or {}).items()
    }
    return (
        None if any(record.replicas is None for record in records) else RecordedSettings(step_s=step_s, counts=counts)
    )


def write_scenario(
    folder: Path,
    piece: Piece,
    records: Sequence[PipelineRecord],
    documents: Sequence[Mapping[str, Any]],
    period: Period,
    *,
    session_s: float | None = None,
) -> Path:
    """Write the scenario of a piece into `folder`, with its `documents` (see `documents_of`) and loads; return it.

    `session_s` is the mean length of a stream; None: a stream lasts until the number of streams falls.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifests.yaml").write_text(yaml.safe_dump_all(documents, sort_keys=False))
    load = []
    for record in records:
        name = f"{record.spec.namespace}-{record.spec.name}.csv"
        played = record.demand[piece.first : piece.end]
        entry = {"pipeline": str(record.spec.key), **_trace(folder / f"load-{name}", record.spec, played, period)}
        if session_s is not None and record.spec.unit is DemandUnit.STREAMS:
            entry["session"] = {"mean": f"{session_s:g}s", "cv": str(_SESSION_CV)}
        if record.spec.history is not None and (before := _before(record, piece)).size:
            entry["history"] = _trace(folder / f"past-{name}", record.spec, before, period)
        load.append(entry)
    scenario = {
        "name": f"backtest from {timestamp(period.start_s + piece.scored * period.step_s)}",
        "manifests": ["manifests.yaml"],
        "duration": f"{(piece.end - piece.first) * period.step_s}s",
        "warmup": f"{(piece.scored - piece.first) * period.step_s}s",
        "window": f"{period.step_s}s",
        "scrapeInterval": _SCRAPES,
        "load": load,
        "policies": ["sluice"],
    }
    (folder / SCENARIO).write_text(yaml.safe_dump(scenario, sort_keys=False))
    return folder / SCENARIO


def _before(record: PipelineRecord, piece: Piece) -> NDArray[np.float64]:
    """Return the recorded demand until `piece` begins, from the last gap on: a gap is not a load."""
    earlier = record.demand[: piece.first]
    gaps = np.flatnonzero(~np.isfinite(earlier))
    return earlier[gaps[-1] + 1 :] if gaps.size else earlier


def _trace(path: Path, spec: PipelineSpec, demand: NDArray[np.float64], period: Period) -> dict[str, Any]:
    """Write `demand`, one value for each step, to `path`, and return what a scenario says of it."""
    column = "streams" if spec.unit is DemandUnit.STREAMS else "rate_per_s"
    rows = (f"{index * period.step_s},{value:.6g}" for index, value in enumerate(demand))
    path.write_text("\n".join([f"t_s,{column}", *rows]) + "\n")
    return {"trace": path.name, "column": column}


def documents_of(
    written: Sequence[Mapping[str, Any]],
    specs: Mapping[PipelineKey, PipelineSpec],
    instances: Mapping[PoolName, int],
) -> tuple[Mapping[str, Any], ...]:
    """Return the `written` resources as the simulator can run them; `assumptions` names what that changes.

    `specs` are those of the pipelines with learned numbers filled in, `instances` the size of each pool.
    """
    found = []
    for document in written:
        meta = document["metadata"]
        if document["kind"] == "ComputePool":
            spec = {**document["spec"], "capacity": {"instances": instances[PoolName(meta["name"])]}}
            found.append({**_head(document), "metadata": {"name": meta["name"]}, "spec": spec})
        else:
            own = specs[PipelineKey(f"{meta.get('namespace') or 'default'}/{meta['name']}")]
            named = {"name": own.name, "namespace": own.namespace}
            found.append({**_head(document), "metadata": named, "spec": _pipeline(document["spec"], own)})
    return tuple(found)


def without_session(specs: Iterable[PipelineSpec]) -> tuple[PipelineKey, ...]:
    """Return the pipelines whose replay needs a session length: streams that stay on a replica as long as they last.

    With endless streams, replicas that are added would get no load.
    """
    return tuple(
        spec.key
        for spec in specs
        if spec.unit is DemandUnit.STREAMS and any(stage.routing is Routing.STICKY for stage in spec.stages)
    )


def assumptions(specs: Sequence[PipelineSpec], step_s: int, session_s: float | None) -> Iterator[str]:
    """Yield what a replay takes as given because the record does not have it, one sentence each."""
    yield "service times, start-up times, pass ratios and memory are the declared ones, or those of --learned"
    yield f"metrics are scraped every {_SCRAPES.removesuffix('s')} s, and the operator has its default settings"
    yield f"the load is constant within each step of {step_s} s; shorter bursts are not in the record"
    if any(spec.unit is DemandUnit.STREAMS for spec in specs):
        yield (
            "the record has no session lengths: a stream lasts until the number of streams falls"
            if session_s is None
            else f"streams last {duration(session_s)} on average (--session), log-normal with a coefficient of "
            f"variation of {_SESSION_CV}"
        )
    for spec in specs:
        if spec.history is not None:
            yield f"{spec.key}: demand.history is what the record has before each part, from its last gap on"
        for field in sorted({field_of(floor) for floor in spec.at_least}):
            yield f"{spec.key}: demand.{field} is left out: a simulated run has no date"
        for stage in spec.stages:
            if stage.metric_overrides:
                yield f"{spec.key} {stage.name}: metrics.overrides are left out: the simulated pods export the preset's"
            if dropped := [rule.name for rule in stage.rules if rule.query is not None]:
                yield f"{spec.key} {stage.name}: rules with a query are left out: {', '.join(dropped)}"
            for placement in stage.placements:
                if not placement.declared.startup and placement.startup_s:
                    yield f"{spec.key} {stage.name} on {placement.name}: start-up time {placement.startup_s:g} s"


def _head(document: Mapping[str, Any]) -> dict[str, Any]:
    return {"apiVersion": document["apiVersion"], "kind": document["kind"]}


def _pipeline(written: Mapping[str, Any], spec: PipelineSpec) -> dict[str, Any]:
    changed = runnable(written, spec, ())  # no query is answered: those of the record are of other pods
    demand = {name: value for name, value in changed["demand"].items() if name not in {"atLeast", "expected"}}
    stages = [
        {
            **stage,
            "placements": [
                _placement(placement, [known for known in own.placements if known.pool == placement["pool"]])
                for placement in stage["placements"]
            ],
        }
        if stage.get("placements")
        else stage
        for stage, own in zip(changed["stages"], spec.stages, strict=True)
    ]
    return {**changed, "demand": demand, "stages": stages}


def _law(law: ServiceLaw) -> dict[str, Any]:
    prefill = {"prefill": _us(law.prefill_s)} if law.prefill_s else {}
    if law.points:
        return {"points": {str(size): _us(time_s) for size, time_s in law.points}, **prefill}
    floor = {"floor": _us(law.floor_s)} if law.floor_s else {}
    return {"fixed": _us(law.fixed_s), "perItem": _us(law.per_item_s), **floor, **prefill}


def _us(seconds: float) -> str:
    return f"{round(seconds * 1e6)}us"


def _placement(written: Mapping[str, Any], known: Sequence[PlacementSpec]) -> dict[str, Any]:
    variants = written.get("variants")
    if not variants:
        return _workload(written, known[0])
    return {**written, "variants": [_workload(each, own) for each, own in zip(variants, known, strict=True)]}


def _workload(written: Mapping[str, Any], known: PlacementSpec) -> dict[str, Any]:
    law = known.prior.service
    found = {**written, "startup": _us(known.startup_s)}
    if not (written.get("serviceTime") or {}).get("cv"):
        found["serviceTime"] = {**_law(law), "cv": f"{law.cv:.6f}"}
    if not written.get("memory") and known.prior.session_slots is not None:
        found["memory"] = {"sessions": known.prior.session_slots}
    return found
