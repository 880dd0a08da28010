"""The provider has no more capacity for the elastic pool: the stage moves to the next pool, and back."""

from pathlib import Path
from typing import Any

import pytest
from karpenter_lab import KarpenterOnLab
from karpenter_runs import POOL, RESERVE, ElasticRun, Moment, elastic_run

from simulations.lab.host.binaries import Binaries, Karpenter

pytestmark = pytest.mark.lab

FALLBACK_S = 15.0
"""How long the shortage lasts once the other pool serves."""


class Shortage:
    """Begins when the first replica has its node, and ends some time after a replica on the other pool is ready."""

    def __init__(self) -> None:
        self.begun = self.ended = False
        self.fallen_back_s: float | None = None

    def __call__(self, moment: Moment, karpenter: KarpenterOnLab) -> None:
        if not self.begun and moment.ready_nodes():
            karpenter.set_shortage(on=True)
            self.begun = True
        if self.fallen_back_s is None and moment.seen.pods_of(RESERVE, "Ready", "True"):
            self.fallen_back_s = moment.seen.at_s
        if not self.ended and self.fallen_back_s is not None and moment.seen.at_s > self.fallen_back_s + FALLBACK_S:
            karpenter.set_shortage(on=False)
            self.ended = True


@pytest.fixture(scope="module")
def shortage() -> Shortage:
    return Shortage()


@pytest.fixture(scope="module")
def short(
    shortage: Shortage,
    scenarios: Path,
    node_pool: dict[str, Any],
    programs: tuple[Binaries, Karpenter],
    tmp_path_factory: pytest.TempPathFactory,
) -> ElasticRun:
    folder = tmp_path_factory.mktemp("shortage")
    return elastic_run(scenarios / "shortage.yaml", node_pool, programs[1], folder, also=shortage)


def failed(run: ElasticRun) -> list[dict[str, Any]]:
    """Return the conditions of the pool while it fails."""
    conditions = (moment.seen.available(POOL) for moment in run.moments)
    return [condition for condition in conditions if condition.get("status") == "False"]


def test_the_pool_fails_with_the_words_of_karpenters_event(short: ElasticRun) -> None:
    conditions = failed(short)
    assert {condition["reason"] for condition in conditions} == {"CannotDeliver"}
    assert "insufficient capacity" in conditions[0]["message"]
    assert '"out-of-capacity" not found' in conditions[0]["message"], "what the provider said"


def test_it_fails_by_the_second_launch_that_fails_and_not_by_the_deadline(short: ElasticRun) -> None:
    first = next(moment for moment in short.moments if moment.seen.available(POOL).get("status") == "False")
    earlier = short.moments[: short.moments.index(first)]
    waited_s = first.seen.at_s - min(moment.seen.at_s for moment in earlier if moment.pending())
    assert waited_s < 60.0, "the deadline of this pool is five minutes"


def test_the_other_pool_serves_meanwhile_and_what_has_a_node_stays(short: ElasticRun, shortage: Shortage) -> None:
    assert shortage.fallen_back_s is not None
    down = [moment for moment in short.moments if moment.seen.available(POOL).get("status") == "False"]
    assert all(moment.ready_nodes() for moment in down)
    assert short.run.summary["served"] > 0.9 * short.run.summary["offered"]


def test_work_returns_when_karpenter_can_launch_again(short: ElasticRun, shortage: Shortage) -> None:
    assert shortage.ended
    last = short.moments[-1]
    assert last.seen.available(POOL)["status"] == "True"
    assert len(last.ready_nodes()) > 1
    assert short.run.report["windows"][-1]["replicas"]["encoder"]["reserve"]["desired"] == 0
