"""From zero nodes to a peak and back, with a change of the NodePool's template in the middle of the peak."""

from pathlib import Path
from typing import Any

import pytest
from bounded import bounded, most_of
from karpenter_lab import KarpenterOnLab
from karpenter_runs import POOL, ElasticRun, Sight, elastic_run

from controller.core.bounds.availability import find_availability
from controller.core.bounds.outages import OUTAGE
from simulations.lab.host.binaries import Binaries, Karpenter

pytestmark = pytest.mark.lab

PEAK_NODES = 3
DEADLINE_S = 4.0
DRIFT = {"spec": {"template": {"metadata": {"annotations": {"example.org/image": "2"}}}}}


class Drift:
    """Changes the template when the peak has its nodes; `before` are those nodes."""

    def __init__(self) -> None:
        self.before: frozenset[str] = frozenset()

    def look(self, sight: Sight, karpenter: KarpenterOnLab) -> None:
        if not self.before and len(set(sight.serving())) >= PEAK_NODES and not sight.pending():
            self.before = sight.nodes
            karpenter.patch_node_pool(POOL, DRIFT)


@pytest.fixture(scope="module")
def drift() -> Drift:
    return Drift()


@pytest.fixture(scope="module")
def peak(
    drift: Drift,
    scenarios: Path,
    node_pool: dict[str, Any],
    programs: tuple[Binaries, Karpenter],
    tmp_path_factory: pytest.TempPathFactory,
) -> ElasticRun:
    return elastic_run(scenarios / "peak.yaml", node_pool, programs, tmp_path_factory.mktemp("peak"), also=drift.look)


def test_nodes_come_with_the_load_from_none_and_their_replicas_serve_it(peak: ElasticRun) -> None:
    first = peak.snapshots[0]
    assert [pool.ready_instances for pool in first.pools.values()] == [0]
    assert len(peak.sights[0].nodes) <= 1
    assert all(set(sight.serving()) <= sight.nodes for sight in peak.sights), "every replica is on a node of Karpenter"
    high = max(peak.report["windows"], key=lambda window: window["offered_rps"])
    assert high["served_rps"] > 0.9 * high["offered_rps"] > 80


def test_nodes_leave_after_the_peak(peak: ElasticRun) -> None:
    assert max(len(set(sight.serving())) for sight in peak.sights) >= PEAK_NODES
    assert len(peak.sights[-1].nodes) < PEAK_NODES
    assert peak.last(POOL)["ready"] >= 1


def test_a_replica_waits_for_its_node_for_longer_than_the_deadline_and_no_pool_fails(peak: ElasticRun) -> None:
    since_s: dict[str, float] = {}
    waited_s = [
        sight.seen.at_s - since_s.setdefault(pod, sight.seen.at_s) for sight in peak.sights for pod in sight.pending()
    ]
    assert max(waited_s) > DEADLINE_S
    assert not any(sight.failed for sight in peak.sights)
    assert "CannotDeliver" not in {event["reason"] for event in peak.sights[-1].seen.pool_events}


def test_drift_replaces_every_node_of_the_peak_while_replicas_serve(peak: ElasticRun, drift: Drift) -> None:
    assert len(drift.before) >= PEAK_NODES, "the template was changed at the peak"
    meanwhile = [sight for sight in peak.sights if sight.nodes & drift.before and sight.nodes - drift.before]
    assert meanwhile
    assert all(sight.serving() for sight in meanwhile)
    assert not drift.before & peak.sights[-1].nodes


def test_replicas_that_drift_evicts_are_no_failure_and_bound_nothing_below_what_is_ready(peak: ElasticRun) -> None:
    for snapshot in peak.snapshots:
        availability = find_availability(snapshot)
        assert not any(availability.failures.values())
        assert all(memory.unavailable_until_s is None for memory in availability.pools.values())
        for state in snapshot.pipelines:
            most = most_of(bounded(state, snapshot), OUTAGE)
            assert all((most.get(key) or target.ready) >= target.ready for key, target in state.found())


def test_few_items_are_lost(peak: ElasticRun) -> None:
    summary = peak.report["summary"]
    assert summary["served"] > 0.95 * summary["offered"]
