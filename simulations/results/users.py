"""How many users were served as promised, and how many were refused, late or lost, for the simulator and the lab.

Pure. A user is a stream or a request, as the pipeline's demand has it. Streams are counted as the mean number that is
open at a time, and share their chunks' fate: ten open streams of which one chunk in ten is late count as one late
stream. Requests are counted one by one. What VAD filters is no promise and is left out.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from controller.core.state.spec import DemandUnit, PipelineSpec
from simulations.results.scoring import Clock, ItemScore


@dataclass(frozen=True, slots=True, kw_only=True)
class Users:
    """The users of one pipeline (`namespace/name`) in the scored time, by what happened to them.

    `promised_share` (0–1) is the percentile of the SLA, as the mean over the users where it changes. `refused` were
    shed by the ingress or found no slot, `late` were answered after the SLA's latency, `lost` got no answer. Users
    whose last item was under way when the run ended are in `offered` alone.
    """

    pipeline: str
    unit: DemandUnit
    promised_share: float
    offered: float
    as_promised: float
    refused: float
    late: float
    lost: float

    @property
    def share(self) -> float | None:
        """Return the share (0–1) of the users that were served as promised; None without users."""
        return self.as_promised / self.offered if self.offered else None

    @property
    def kept(self) -> bool | None:
        """Return whether as many users were served as promised as the SLA asks for; None without users."""
        return None if self.share is None else self.share >= self.promised_share - 1e-12


def users_of(pipeline: PipelineSpec, score: ItemScore, clock: Clock) -> Users:
    """Return the users of `pipeline`, from the score of its items over the scored time of `clock`."""
    unfiltered = score.offered - score.filtered
    per_item = 1.0
    if pipeline.unit is DemandUnit.STREAMS and unfiltered:
        streams = score.offered / (clock.duration_s - clock.warmup_s) / pipeline.items_per_unit_s
        per_item = streams / unfiltered
    promises = [(window.sla.percentile, window.offered - window.filtered) for window in score.windows]
    weight = sum(items for _, items in promises)
    promised = sum(percentile * items for percentile, items in promises) / weight if weight else pipeline.sla.percentile
    return Users(
        pipeline=str(pipeline.key),
        unit=pipeline.unit,
        promised_share=promised / 100,
        offered=unfiltered * per_item,
        as_promised=(score.served - score.late) * per_item,
        refused=(score.shed + score.refused) * per_item,
        late=score.late * per_item,
        lost=score.lost * per_item,
    )


def mean_users(runs: Sequence[Sequence[Users]]) -> tuple[Users, ...]:
    """Return the mean over `runs`, pipeline by pipeline; every run has the same pipelines."""
    return tuple(
        Users(
            pipeline=of_one[0].pipeline,
            unit=of_one[0].unit,
            promised_share=max(one.promised_share for one in of_one),
            **{name: sum(getattr(one, name) for one in of_one) / len(of_one) for name in _COUNTS},
        )
        for of_one in zip(*runs, strict=True)
    )


def by_unit(users: Iterable[Users]) -> tuple[Users, ...]:
    """Return the users of all pipelines together: one entry for streams, one for requests, as there are any.

    The promised share is the mean over the users, each with the share of the user's own pipeline.
    """
    units: dict[DemandUnit, list[Users]] = defaultdict(list)
    for one in users:
        units[one.unit].append(one)
    return tuple(
        Users(
            pipeline=", ".join(one.pipeline for one in several),
            unit=unit,
            promised_share=_mean_promise(several),
            **{name: sum(getattr(one, name) for one in several) for name in _COUNTS},
        )
        for unit, several in units.items()
    )


def share_as_promised(users: Iterable[Users]) -> float | None:
    """Return the share (0–1) of all users that were served as promised; None without users.

    Streams and requests cannot be added, so that each pipeline counts as much as any other where both occur.
    """
    shares = [one.share for one in by_unit(users) if one.share is not None]
    return sum(shares) / len(shares) if shares else None


def promise_kept(users: Iterable[Users]) -> bool | None:
    """Return whether every pipeline with users served as many of them as its own SLA asks for; None without users."""
    found = [one.kept for one in users if one.kept is not None]
    return all(found) if found else None


_COUNTS = ("offered", "as_promised", "refused", "late", "lost")


def _mean_promise(several: Sequence[Users]) -> float:
    offered = sum(one.offered for one in several)
    if not offered:
        return max(one.promised_share for one in several)
    return sum(one.promised_share * one.offered for one in several) / offered
