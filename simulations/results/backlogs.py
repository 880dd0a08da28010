"""How the work that can wait was done in a run. Pure; times are in seconds since the run began, money is in USD."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from controller.core.state.spec import PipelineSpec
from simulations.results import scoring, spending
from simulations.results.scoring import FILTERED, SERVED, Clock, Items
from simulations.results.spending import Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogResult:
    """The backlog of one pipeline (`namespace/name`): `done` of its `items`, the last of them at `last_done_s`.

    `due_s` is its deadline; where it was empty before the last items were added, that of these. `met` says whether all
    items were done by their deadlines, None if the run ended before. `cost` is that of the pipeline in the whole run.
    """

    pipeline: str
    items: int
    done: int
    last_done_s: float | None
    due_s: float | None
    met: bool | None
    cost: float


def backlog_result(
    pipeline: PipelineSpec, items: Items, observations: Sequence[Observation], clock: Clock
) -> BacklogResult:
    """Return the result of a pipeline with a backlog, whose deadline is in the time of the run."""
    done = np.isin(items.outcome, (SERVED, FILTERED))
    parts = list(_parts(pipeline, items))
    verdicts = [_met(part, due_s, clock) for part, due_s in parts]
    cost_per_hour = spending.steps(observations, lambda seen: sum(spending.placement_costs(seen, pipeline).values()))
    return BacklogResult(
        pipeline=str(pipeline.key),
        items=len(done),
        done=int(np.count_nonzero(done)),
        last_done_s=float(np.max((items.arrival_s + items.latency_s)[done])) if done.any() else None,
        due_s=parts[-1][1] if parts else None,
        met=False if False in verdicts else None if None in verdicts or not verdicts else True,
        cost=scoring.cost(cost_per_hour, replace(clock, warmup_s=0.0)),
    )


def _parts(pipeline: PipelineSpec, items: Items) -> Iterator[tuple[Items, float]]:
    """Yield the items that were left together, from an empty backlog to the next, with their deadline."""
    assert pipeline.backlog is not None
    ended_s = np.where(np.isin(items.outcome, (SERVED, FILTERED)), items.arrival_s + items.latency_s, np.inf)
    begins_s = [at_s for at_s in np.unique(items.arrival_s) if not np.any((items.arrival_s < at_s) & (ended_s > at_s))]
    for begin_s, next_s in zip(begins_s, [*begins_s[1:], np.inf], strict=False):
        part = items.select((items.arrival_s >= begin_s) & (items.arrival_s < next_s))
        yield part, pipeline.backlog.due_s(float(begin_s))


def _met(items: Items, due_s: float, clock: Clock) -> bool | None:
    done = np.isin(items.outcome, (SERVED, FILTERED))
    if np.any((items.arrival_s + items.latency_s)[done] > due_s):
        return False
    if done.all():
        return True
    return False if clock.duration_s >= due_s else None


def backlog_words(found: BacklogResult) -> str:
    """Return the result in one sentence."""
    words = f"{found.pipeline}: {found.done:,} of {found.items:,} items done"
    if found.last_done_s is not None:
        words += f", the last after {found.last_done_s:.0f} s"
    if found.due_s is not None:
        verdict = {True: "met", False: "missed", None: "after the end of the run"}[found.met]
        words += f"; deadline {found.due_s:.0f} s: {verdict}"
    return f"{words}; cost ${found.cost:.4f}"
