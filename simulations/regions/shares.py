"""What the Sluice of each cluster is given: the share of the load that is sent there, as its least demand. Pure.

`spec.demand.atLeast` has one entry for the steps of the day in which the share is the same. It has at most
`MAX_FLOORS` entries, those of the user included; where more are needed, neighbouring steps get the higher of their
shares, so that the least load is added.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from controller.resources.pipeline import SpeechPipeline
from controller.resources.schedule import MAX_FLOORS
from simulations.regions.scenario import SHARE_PREFIX, Cluster, Regions
from simulations.regions.study import Study

_DAY_S = 86_400.0
_MINUTE_S = 60.0
_DECIMALS = 6
_TOLERANCE = 1e-6


class NoSchedule(ValueError):
    """The shares of a region cannot be stated by time of day; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The least demand in the pipeline's unit from one time of day (UTC, in seconds) until another."""

    from_s: float
    until_s: float
    demand: float


def shares(loads: Sequence[float], step_s: float, *, most: int) -> tuple[Share, ...]:
    """Return at most `most` entries for the `loads` of the steps of a day; no entry is below a load of its steps.

    Of all ways to join neighbouring steps, that with the least added load is taken. Steps without load have no entry.

    Raises:
        NoSchedule: the steps are not those of a day of 24 hours, or not whole minutes, or there is no room.
    """
    if not math.isclose(step_s * len(loads), _DAY_S) or not math.isclose(step_s % _MINUTE_S, 0.0, abs_tol=_TOLERANCE):
        raise NoSchedule("needs a day of 24h in steps of whole minutes: clusters repeat their demand by time of day")
    if most < 1:
        raise NoSchedule(f"spec.demand.atLeast has no room for another entry; it has at most {MAX_FLOORS}")
    steps = len(loads)
    # best[k][n]: the least added load if the first n steps are k entries, and where the last of them begins.
    best: list[list[tuple[float, int]]] = [[(0.0, 0)] + [(math.inf, 0)] * steps]
    for _ in range(min(most, steps)):
        row = [(math.inf, 0)] * (steps + 1)
        for end in range(1, steps + 1):
            for begin in range(end):
                joined = loads[begin:end]
                added = best[-1][begin][0] + max(joined) * len(joined) - sum(joined)
                if added < row[end][0] - _TOLERANCE:
                    row[end] = (added, begin)
        best.append(row)
    count = min(range(1, len(best)), key=lambda k: (round(best[k][steps][0], 6), k))
    found: list[Share] = []
    end = steps
    for k in range(count, 0, -1):
        begin = best[k][end][1]
        found.append(Share(from_s=begin * step_s, until_s=end * step_s, demand=max(loads[begin:end])))
        end = begin
    return tuple(share for share in reversed(found) if share.demand > 0)


def shares_of(study: Study, regions: Regions, cluster: Cluster) -> tuple[Share, ...]:
    """Return the least demand of a cluster over the day.

    Raises:
        NoSchedule: it cannot be stated by time of day.
    """
    name = cluster.region.name
    loads = [study.shifted.served(name, hour) for hour in range(len(cluster.loads))]
    return shares(loads, regions.step_s, most=MAX_FLOORS - len(_own(cluster.pipeline)))


def fragment(study: Study, regions: Regions, cluster: Cluster) -> dict[str, Any]:
    """Return the part of the SpeechPipeline of a cluster that a server-side apply adds to it.

    It has the shares, and the latency of the SLA without the longest way to the users that are served there. The
    latency is always stated: the API server deletes a field that the same field manager leaves out.

    Raises:
        NoSchedule: the shares cannot be stated by time of day.
    """
    pipeline, name = cluster.pipeline, cluster.region.name
    streams = pipeline.spec.demand.unit == "Streams"
    entries = [
        {
            "name": f"{SHARE_PREFIX}{_clock(share.from_s).replace(':', '')}",
            "demand": _decimal(share.demand, 0 if streams else _DECIMALS),
            "from": _clock(share.from_s),
            "until": _clock(share.until_s),
        }
        for share in shares_of(study, regions, cluster)
    ]
    latency_s = study.specs[name].sla.latency_s - study.way_s(name)
    metadata = {"name": pipeline.metadata.name, "namespace": pipeline.metadata.namespace}
    return {
        "apiVersion": pipeline.api_version,
        "kind": pipeline.kind,
        "metadata": {key: value for key, value in metadata.items() if value is not None},
        "spec": {"demand": {"atLeast": entries}, "sla": {"latency": _duration(latency_s)}},
    }


def _own(pipeline: SpeechPipeline) -> list[str]:
    """Return the names of the user's own entries."""
    return [entry.name for entry in pipeline.spec.demand.at_least if not entry.name.startswith(SHARE_PREFIX)]


def _clock(time_s: float) -> str:
    minutes = round(time_s / _MINUTE_S)
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def _duration(time_s: float) -> str:
    """Return a time in whole milliseconds or microseconds, rounded down; without what floats add or lack."""
    time_us = math.floor(round(time_s * 1e6, 3))
    return f"{time_us}us" if time_us % 1000 else f"{time_us // 1000}ms"


def _decimal(value: float, digits: int) -> str:
    """Return a number as a decimal string, rounded up; what a solver leaves beside a whole number does not count."""
    scale = 10.0**digits
    text = f"{math.ceil(round(value * scale, 3)) / scale:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
