"""The provider has no more capacity for the elastic pool: the stage moves to the next pool, and back."""

from pathlib import Path
from typing import Any

import pytest
from karpenter_lab import KarpenterOnLab
from karpenter_runs import POOL, RESERVE, ElasticRun, Sight, elastic_run

from simulations.lab.host.binaries import Binaries, Karpenter

pytestmark = pytest.mark.lab

FALLBACK_S = 15.0
"""How long the shortage lasts once the other pool serves."""
DEADLINE_S = 300.0


class Shortage:
    """Begins when the first replica has its node, and ends some time after a replica on the other pool is ready."""

    def __init__(self) -> None:
        self.begun_s: float | None = None
        self.fallen_back_s: float | None = None
        self.over = False

    def look(self, sight: Sight, karpenter: KarpenterOnLab) -> None:
        now_s = sight.seen.at_s
        if self.begun_s is None and sight.serving():
            karpenter.set_shortage(on=True)
            self.begun_s = now_s
        if self.fallen_back_s is None and sight.serving(RESERVE):
            self.fallen_back_s = now_s
        if not self.over and self.fallen_back_s is not None and now_s > self.fallen_back_s + FALLBACK_S:
            karpenter.set_shortage(on=False)
            self.over = True


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
    return elastic_run(scenarios / "shortage.yaml", node_pool, programs, folder, also=shortage.look)


def first_failure(run: ElasticRun) -> Sight:
    return next(sight for sight in run.sights if sight.failed)


def test_the_pool_fails_with_the_words_of_karpenters_event(short: ElasticRun) -> None:
    conditions = [sight.seen.available(POOL) for sight in short.sights if sight.failed]
    assert {condition["reason"] for condition in conditions} == {"CannotDeliver"}
    assert "insufficient capacity" in conditions[0]["message"]
    assert '"out-of-capacity" not found' in conditions[0]["message"], "what the provider said"


def test_launches_that_fail_are_what_fails_it_and_not_the_deadline(short: ElasticRun) -> None:
    failed = first_failure(short)
    waiting_s = min(sight.seen.at_s for sight in short.sights if sight.pending())
    assert 0 < failed.seen.at_s - waiting_s < DEADLINE_S / 2


def test_the_other_pool_serves_meanwhile_and_what_has_a_node_stays(short: ElasticRun, shortage: Shortage) -> None:
    assert shortage.fallen_back_s is not None
    assert shortage.fallen_back_s > first_failure(short).seen.at_s
    assert all(sight.serving() for sight in short.sights if sight.failed)
    assert short.report["summary"]["served"] > 0.9 * short.report["summary"]["offered"]


def test_work_returns_when_karpenter_can_launch_again(short: ElasticRun, shortage: Shortage) -> None:
    assert shortage.over
    assert not short.sights[-1].failed
    assert len(short.sights[-1].nodes) > 1
    assert short.last(POOL)["ready"] > 1
    assert short.last(RESERVE)["desired"] == 0
