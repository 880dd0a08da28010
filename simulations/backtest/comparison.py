"""What ran against what Sluice would have run, in cost and SLA, and how far the simulator is from what was measured.

Pure.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from controller.core.messages.phrases import duration, share_words, timestamp
from controller.core.state.spec import DemandUnit, PoolSpec
from optimizer.model import PipelineKey, PoolName, pool_of
from profiler.sources.prometheus_api import Period
from simulations.backtest.pieces import Piece
from simulations.backtest.record import PipelineRecord
from simulations.experiment.experiment import SLUICE
from simulations.policies.recorded import RECORDED
from simulations.report import formats
from simulations.report.conclusions import served_sentence
from simulations.results.results import PipelineSeries, RunResult
from simulations.results.users import Users

_FAR = 1.25
"""Simulated over measured latency (or its inverse) from which the difference is called large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """The measures of one pipeline over all scored steps; None where a number is not known.

    `cost` is in USD. `sla_share` is the share (0–1) of the windows within the SLA, of the `windows` that can be judged.
    `latency_s` is the median over the windows of the percentile of the SLA as measured, or of the
    p95 as simulated. `unanswered` is the share of the items that were lost, refused or shed.
    """

    cost: float | None
    windows: int
    sla_share: float | None
    latency_s: float | None
    unanswered: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One pipeline: as recorded, the recorded replicas simulated (None if not known), and Sluice simulated."""

    key: PipelineKey
    sla_s: float
    percentile: float
    recorded: Measures
    recorded_simulated: Measures | None
    sluice: Measures

    @property
    def saving(self) -> float | None:
        """Return the share of the simulated cost of what ran that Sluice would have saved; None if not known."""
        ran = self.recorded_simulated
        if ran is None or not ran.cost or self.sluice.cost is None:
            return None
        return 1 - self.sluice.cost / ran.cost

    def calibration(self) -> str:
        """Return how the simulated latency of what ran compares with the measured one, as a sentence."""
        ran, seen = self.recorded_simulated, self.recorded
        if ran is None:
            return "calibration: none, because the replicas that ran are not recorded: the latencies are the model's"
        if seen.latency_s is None or seen.sla_share is None:
            return "calibration: none, because no latency was measured: the simulated latencies are the model's"
        words = (
            f"calibration: what ran was within the SLA in {formats.share(seen.sla_share)} of the measured steps, and "
            f"in {formats.share(ran.sla_share)} of the simulated windows"
        )
        if self.percentile != 95:
            return f"{words}; the measured p{self.percentile:g} and the simulated p95 are not compared"
        words += f"; median p95 {duration(seen.latency_s)} measured, {formats.latency(ran.latency_s)} simulated"
        if ran.latency_s is None or not seen.latency_s:
            return words
        ratio = ran.latency_s / seen.latency_s
        words += f" ({formats.ratio(ratio)})"
        if max(ratio, 1 / ratio) > _FAR:
            words += ". The service times do not fit what ran: measure them (`sluice explain -o json`, --learned)"
        return words


def comparison(
    record: PipelineRecord,
    pools: Mapping[PoolName, PoolSpec],
    pieces: Sequence[Piece],
    results: Sequence[RunResult],
    period: Period,
) -> Comparison:
    """Return the comparison for the pipeline of `record` over `pieces`, from all `results` of their runs."""
    spec = record.spec
    series: dict[str, list[tuple[PipelineSeries, tuple[float, ...]]]] = {}
    for result in results:
        own = next(one for one in result.series.pipelines if one.pipeline == spec.key)
        series.setdefault(result.policy, []).append((own, result.series.length_s))
    return Comparison(
        key=spec.key,
        sla_s=spec.sla.latency_s,
        percentile=spec.sla.percentile,
        recorded=_recorded(record, pools, pieces, period),
        recorded_simulated=_simulated(series[RECORDED]) if RECORDED in series else None,
        sluice=_simulated(series[SLUICE]),
    )


def document(comparisons: Sequence[Comparison], notes: Sequence[str], period: Period, steps: int) -> dict[str, Any]:
    """Return the document of `-o json`; `steps` is the number of scored steps."""
    return {
        "from": timestamp(period.start_s),
        "until": timestamp(period.end_s),
        "step_s": period.step_s,
        "scored_s": steps * period.step_s,
        "pipelines": [
            {
                "namespace": str(one.key).partition("/")[0],
                "name": str(one.key).partition("/")[2],
                "sla_s": one.sla_s,
                "percentile": one.percentile,
                "recorded": asdict(one.recorded),
                "recorded_simulated": None if one.recorded_simulated is None else asdict(one.recorded_simulated),
                "sluice": asdict(one.sluice),
                "saving": one.saving,
                "calibration": one.calibration(),
            }
            for one in comparisons
        ],
        "notes": list(notes),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What happened to the users of all pipelines under one policy, in the scored time of all pieces."""

    name: str
    users: tuple[Users, ...]
    sessions_cut: int

    def sentence(self) -> str:
        """Return how many users were served as promised, and how many were refused, cut, late or lost."""
        return served_sentence(self.name, self.users, self.sessions_cut)


_NAMES = {SLUICE: "Sluice", RECORDED: "What ran (simulated)"}


def served(results: Sequence[RunResult], pieces: int) -> tuple[Served, ...]:
    """Return the users under Sluice and under what ran, from all `results`; a policy without all `pieces` is left out.

    Streams are a mean number over the scored time, so that a piece counts by its length; requests are added.
    """
    found = []
    for policy, name in _NAMES.items():
        own = [result for result in results if result.policy == policy]
        if len(own) == pieces:
            cut = sum(result.sessions_cut for result in own)
            found.append(Served(name=name, users=_users_of_all(own), sessions_cut=cut))
    return tuple(found)


def _users_of_all(results: Sequence[RunResult]) -> tuple[Users, ...]:
    lengths_s = [math.fsum(result.series.length_s) for result in results]

    def total(of_pieces: Sequence[Users], name: str) -> float:
        if of_pieces[0].unit is DemandUnit.REQUESTS:
            return math.fsum(getattr(users, name) for users in of_pieces)
        weighted = zip(of_pieces, lengths_s, strict=True)
        return math.fsum(getattr(users, name) * length_s for users, length_s in weighted) / math.fsum(lengths_s)

    return tuple(
        replace(
            of_pieces[0],
            offered=total(of_pieces, "offered"),
            as_promised=total(of_pieces, "as_promised"),
            refused=total(of_pieces, "refused"),
            late=total(of_pieces, "late"),
            lost=total(of_pieces, "lost"),
        )
        for of_pieces in zip(*(result.users for result in results), strict=True)
    )


COLUMNS = ("", ">cost", ">windows in SLA", ">median latency", ">without an answer")


def head(one: Comparison, period: Period, steps: int) -> str:
    """Return the title of the table of one pipeline; `steps` is the number of scored steps."""
    return (
        f"{one.key}: {formats.span(steps * period.step_s)} of {formats.span(period.count * period.step_s)}, "
        f"{timestamp(period.start_s)} to {timestamp(period.end_s)}, SLA p{one.percentile:g} {duration(one.sla_s)}"
    )


def rows(one: Comparison) -> list[tuple[str, ...]]:
    """Return the rows of the table of one pipeline, with the columns of COLUMNS."""
    named = [
        ("what ran, as recorded", one.recorded, one.percentile),
        ("what ran, simulated", one.recorded_simulated, None),
        ("Sluice, simulated", one.sluice, None),
    ]
    return [_row(name, own, measured) for name, own, measured in named if own is not None]


def sentences(one: Comparison) -> Iterator[str]:
    """Yield the result for one pipeline in sentences."""
    if one.saving is None:
        yield "what ran is not known, so no saving can be stated"
    else:
        ran = one.recorded_simulated
        assert ran is not None
        less = "less" if one.saving >= 0 else "more"
        yield (
            f"Sluice would have cost {formats.money(one.sluice.cost)}, {share_words(abs(one.saving))} {less} than what "
            f"ran ({formats.money(ran.cost)}), within the SLA in {formats.share(one.sluice.sla_share)} of the windows "
            f"instead of {formats.share(ran.sla_share)}, both simulated"
        )
    yield one.calibration()


def _row(name: str, own: Measures, measured: float | None) -> tuple[str, ...]:
    """Return a row; `measured` is the percentile of a measured latency, None for a simulated p95."""
    if measured is None:
        latency = f"p95 {formats.latency(own.latency_s)}"
    else:
        latency = "not measured" if own.latency_s is None else f"p{measured:g} {duration(own.latency_s)}"
    return (
        name,
        "not recorded" if own.cost is None else formats.money(own.cost),
        "not measured" if own.sla_share is None else f"{formats.share(own.sla_share)} of {own.windows:,}",
        latency,
        "not measured" if own.unanswered is None else formats.share(own.unanswered),
    )


def _recorded(
    record: PipelineRecord, pools: Mapping[PoolName, PoolSpec], pieces: Sequence[Piece], period: Period
) -> Measures:
    scored = np.concatenate([np.arange(piece.scored, piece.end) for piece in pieces])
    prices = {
        key: pools[pool_of(key[1])].replica_price_per_hour(placement.prior.per_instance)
        for key, placement in record.spec.placements().items()
    }
    per_hour = record.cost_per_hour(prices)
    seen = np.empty(0) if record.latency_s is None else record.latency_s[scored]
    seen = seen[np.isfinite(seen)]
    return Measures(
        cost=None if per_hour is None else float(per_hour[scored].sum()) * period.step_s / 3600,
        windows=len(seen),
        sla_share=float((seen <= record.spec.sla.latency_s).mean()) if len(seen) else None,
        latency_s=float(np.median(seen)) if len(seen) else None,
        unanswered=None,
    )


def _simulated(series: Sequence[tuple[PipelineSeries, tuple[float, ...]]]) -> Measures:
    def items(name: str) -> float:
        return math.fsum(
            rate * length_s
            for own, lengths_s in series
            for rate, length_s in zip(getattr(own, name), lengths_s, strict=True)
        )

    met = [one for own, _ in series for one in own.met if one is not None]
    # A window without a finite p95 (None) counts as infinitely late where items were offered.
    p95 = [
        math.inf if value is None else value
        for own, _ in series
        for value, rate, filtered in zip(own.p95_s, own.offered_rps, own.filtered_rps, strict=True)
        if value is not None or rate > filtered
    ]
    median = float(np.median(p95)) if p95 else math.inf
    offered = items("offered_rps") - items("filtered_rps")
    return Measures(
        cost=items("cost_per_hour") / 3600,
        windows=len(met),
        sla_share=sum(met) / len(met) if met else None,
        latency_s=median if math.isfinite(median) else None,
        unanswered=(items("lost_rps") + items("refused_rps") + items("shed_rps")) / offered if offered > 0 else None,
    )
