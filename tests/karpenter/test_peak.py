"""From zero nodes to a peak and back, with a change of the NodePool's template in the middle of the peak."""

from pathlib import Path
from typing import Any

import pytest
from karpenter_lab import KarpenterOnLab
from karpenter_runs import POOL, REGISTRATION_DELAY_S, ElasticRun, Moment, elastic_run

from controller.core.assess.availability import find_availability
from simulations.lab.host.binaries import Binaries, Karpenter

pytestmark = pytest.mark.lab

PEAK_NODES = 3
DRIFT = {"spec": {"template": {"metadata": {"annotations": {"example.org/image": "2"}}}}}


class Drift:
    """Changes the template when the peak has its nodes; `before` are those nodes."""

    def __init__(self) -> None:
        self.before: frozenset[str] = frozenset()

    def __call__(self, moment: Moment, karpenter: KarpenterOnLab) -> None:
        if not self.before and len(moment.ready_nodes()) >= PEAK_NODES and not moment.pending():
            self.before = moment.nodes
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
    return elastic_run(scenarios / "peak.yaml", node_pool, programs[1], tmp_path_factory.mktemp("peak"), also=drift)


def test_nodes_come_with_the_load_from_none_and_their_pods_serve_it(peak: ElasticRun) -> None:
    assert not peak.moments[0].nodes
    assert max(len(moment.ready_nodes()) for moment in peak.moments) >= PEAK_NODES
    assert all(moment.ready_nodes() <= moment.nodes for moment in peak.moments), (
        "every replica is on a node of Karpenter"
    )
    high = max(peak.run.report["windows"], key=lambda window: window["offered_rps"])
    assert high["served_rps"] > 0.9 * high["offered_rps"] > 80


def test_nodes_leave_after_the_peak(peak: ElasticRun) -> None:
    assert len(peak.moments[-1].nodes) < PEAK_NODES
    assert peak.run.report["windows"][-1]["replicas"]["encoder"][POOL]["ready"] >= 1


def test_replicas_wait_for_nodes_for_longer_than_the_deadline_and_no_pool_fails(peak: ElasticRun) -> None:
    waited_s: dict[str, float] = {}
    first_s: dict[str, float] = {}
    for moment in peak.moments:
        for pod in moment.pending():
            since_s = first_s.setdefault(pod["metadata"]["uid"], moment.seen.at_s)
            waited_s[pod["metadata"]["uid"]] = moment.seen.at_s - since_s
    assert max(waited_s.values()) > REGISTRATION_DELAY_S - 2, "the deadline of this pool is 4 s"
    assert not any(moment.seen.available(POOL).get("status") == "False" for moment in peak.moments)
    assert not any(event["type"] == "Warning" for moment in peak.moments for event in moment.seen.pool_events)
    assert not any(moment.seen.pods_of("encoder-reserve") for moment in peak.moments), "no fallback was needed"


def test_drift_replaces_every_node_of_the_peak_while_the_streams_are_served(peak: ElasticRun, drift: Drift) -> None:
    assert len(drift.before) >= PEAK_NODES, "the template was changed at the peak"
    assert not drift.before & peak.moments[-1].nodes
    while_replaced = [moment for moment in peak.moments if moment.nodes & drift.before and moment.nodes - drift.before]
    assert while_replaced
    assert all(moment.ready_nodes() for moment in while_replaced)


def test_what_drift_evicts_is_no_failure_and_bounds_nothing_below_what_is_ready(peak: ElasticRun) -> None:
    for snapshot in peak.snapshots():
        availability = find_availability(snapshot)
        assert not any(availability.failures.values())
        assert all(memory.unavailable_until_s is None for memory in availability.pools.values())
        for state in snapshot.pipelines:
            most = availability.at_most(state)
            assert all(most.get(key, target.ready) >= target.ready for key, target in state.found())


def test_few_items_are_lost(peak: ElasticRun) -> None:
    summary = peak.run.summary
    assert summary["served"] > 0.95 * summary["offered"], summary
