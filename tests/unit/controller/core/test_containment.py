"""A mistake that one pipeline brings out stops nobody else."""

from collections import Counter
from collections.abc import Callable

import pytest
from builders import ENCODER, VAD, a_pool, a_snapshot, a_spec, a_state, a_target, pools

import controller.core.containment as containment
from controller.core.containment import decide_contained
from controller.core.cycle import decide
from controller.core.state.decision import Decision
from controller.core.state.policy import Policy
from controller.core.state.snapshot import Snapshot, TargetMissing, TargetState
from optimizer.model import PipelineKey, PlacementKey

BAD = PipelineKey("speech/bad")


@pytest.fixture(autouse=True)
def mistaken(monkeypatch: pytest.MonkeyPatch) -> None:
    """`decide` fails on whatever is called bad."""

    def fails(snapshot: Snapshot, policy: Policy, beat: Callable[[], None] | None = None) -> Decision:
        if any(state.spec.name.startswith("bad") for state in snapshot.pipelines):
            raise ZeroDivisionError("float division by zero")
        return decide(snapshot, policy, beat=beat)

    monkeypatch.setattr(containment, "decide", fails)


def a_fleet(*names: str) -> Snapshot:
    replicas: dict[PlacementKey, int | TargetState | TargetMissing] = {
        VAD: 4,
        ENCODER: a_target(2, existing=3, terminating=1),
    }
    fleet = pools(a_pool("cpu"), a_pool("inferentia", unaccounted={2: 1}), a_pool("gpu"))
    return a_snapshot(*(a_state(a_spec(name=name), replicas=replicas) for name in names), fleet=fleet)


def test_the_others_are_decided_on_and_what_the_one_runs_stays_in_the_books() -> None:
    found = decide_contained(a_fleet("a", "b", "bad", "c", "d"), Policy())
    assert {key: str(error) for key, error in found.failed.items()} == {BAD: "float division by zero"}
    assert [own.key for own in found.decision.pipelines] == ["speech/a", "speech/b", "speech/c", "speech/d"]
    assert [state.spec.name for state in found.snapshot.pipelines] == ["a", "b", "c", "d"]
    unaccounted = {name: +Counter(pool.unaccounted) for name, pool in found.snapshot.pools.items()}
    assert unaccounted == {"cpu": {4: 4}, "inferentia": {1: 4, 2: 1}, "gpu": {}}
    assert decide(found.snapshot, Policy()) == found.decision, "it can be made again"


def test_where_nothing_fails_nothing_changes() -> None:
    snapshot = a_fleet("a", "b")
    found = decide_contained(snapshot, Policy())
    assert (found.snapshot, found.failed, found.decision) == (snapshot, {}, decide(snapshot, Policy()))


def test_a_mistake_that_is_nobody_s_own_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        decide_contained(a_fleet(*(f"bad-{number}" for number in range(40))), Policy())
