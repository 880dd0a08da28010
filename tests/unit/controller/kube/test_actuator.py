from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import cast
from unittest.mock import Mock

from controller.core.state.decision import ChangeReason, PipelineDecision, ReplicaChange
from controller.core.state.spec import Target
from controller.kube.actuator import Actuator, WriteOutcome
from controller.kube.gateway import (
    PODS,
    Conflict,
    Failed,
    Forbidden,
    Gateway,
    HeldBack,
    Hung,
    KubeError,
    NotFound,
    NotLeading,
    Resource,
    Scale,
    Silent,
    Unavailable,
)
from optimizer.model import PipelineKey, PoolName, StageName


@dataclass
class ScriptedGateway:
    """Answers writes from a script and notes them."""

    answers: dict[str, list[KubeError | None]] = field(default_factory=dict)
    replicas: dict[str, int] = field(default_factory=dict)
    written: list[tuple[str, int, str]] = field(default_factory=list)
    marked: list[tuple[str, dict[str, str], int]] = field(default_factory=list)
    refuses_marks: KubeError | None = None

    def patch(self, resource: Resource, namespace: str, name: str, patch: dict[str, dict[str, dict[str, str]]]) -> None:
        assert (resource, namespace) == (PODS, "speech")
        ((_, values),) = patch["metadata"].items()
        self.marked.append((name, values, len(self.written)))
        if self.refuses_marks is not None:
            raise self.refuses_marks

    def patch_scale(self, namespace: str, target: Target, replicas: int, resource_version: str) -> None:
        self.written.append((target.name, replicas, resource_version))
        script = self.answers.get(target.name, [])
        if script and (error := script.pop(0)):
            raise error

    def read_scale(self, namespace: str, target: Target) -> Scale:
        return Scale(replicas=self.replicas[target.name], selector="a=b", resource_version="new")


def a_change(name: str, before: int, after: int) -> ReplicaChange:
    return ReplicaChange(
        stage=StageName(name),
        placement=PoolName("cpu"),
        target=Target(api_version="apps/v1", kind="Deployment", name=name),
        before=before,
        after=after,
        reason=ChangeReason.DEMAND,
        resource_version="old",
    )


def a_decision(namespace: str, *changes: ReplicaChange) -> PipelineDecision:
    decision = Mock(changes=changes, takes_sessions={})
    decision.spec = Mock(key=PipelineKey(f"{namespace}/captions"), namespace=namespace)
    return cast(PipelineDecision, decision)


def apply(
    gateway: ScriptedGateway,
    *changes: ReplicaChange,
    actuator: Actuator | None = None,
    takes_sessions: Mapping[str, bool] | None = None,
) -> list[WriteOutcome]:
    decision = Mock(changes=changes, takes_sessions=takes_sessions or {})
    decision.spec = Mock(key=PipelineKey("speech/captions"), namespace="speech")
    writes = (actuator or Actuator(cast(Gateway, gateway))).apply([decision])
    return [write.outcome for write in writes]


COST = "controller.kubernetes.io/pod-deletion-cost"


def test_pods_are_told_who_goes_first_before_there_are_fewer() -> None:
    gateway = ScriptedGateway()
    change = replace(a_change("a", 3, 1), deletion_costs={"a-1": -5, "a-2": 0})
    assert apply(gateway, change) == [WriteOutcome.APPLIED]
    assert gateway.marked == [("a-1", {COST: "-5"}, 0), ("a-2", {COST: "0"}, 0)]


def test_which_pods_get_new_sessions_is_written_before_the_scales() -> None:
    gateway = ScriptedGateway()
    assert apply(gateway, a_change("a", 1, 2), takes_sessions={"a-1": True, "a-2": False}) == [WriteOutcome.APPLIED]
    label = "sluice.dev/sessions"
    assert gateway.marked == [("a-1", {label: "open"}, 0), ("a-2", {label: "closed"}, 0)]


def test_a_label_that_cannot_be_written_keeps_nothing_from_going() -> None:
    gateway = ScriptedGateway(refuses_marks=Forbidden("no right to patch pods"))
    assert apply(gateway, a_change("a", 1, 2), takes_sessions={"a-1": False}) == [WriteOutcome.APPLIED]


def test_a_pod_that_cannot_be_told_keeps_nothing_from_going() -> None:
    change = replace(a_change("a", 3, 1), deletion_costs={"a-1": -5, "a-2": 0})
    for error in (NotFound("gone"), Forbidden("no right to patch pods"), Failed("500 a webhook failed")):
        gateway = ScriptedGateway(refuses_marks=error)
        assert apply(gateway, change) == [WriteOutcome.APPLIED]
        assert len(gateway.marked) == 2


def test_a_webhook_that_hangs_on_pods_is_waited_for_once_in_a_turn() -> None:
    gateway = ScriptedGateway(refuses_marks=Hung("timed out"))
    changes = [replace(a_change(name, 3, 1), deletion_costs={f"{name}-1": -5, f"{name}-2": 0}) for name in "ab"]
    assert apply(gateway, *changes) == [WriteOutcome.APPLIED] * 2
    assert [pod for pod, _, _ in gateway.marked] == ["a-1"]


def test_who_may_not_write_marks_no_pod_either() -> None:
    gateway = ScriptedGateway(refuses_marks=NotLeading("it has another holder"))
    assert apply(gateway, replace(a_change("a", 3, 1), deletion_costs={"a-1": -5, "a-2": 0})) == [
        WriteOutcome.NOT_LEADING
    ]
    assert (len(gateway.marked), gateway.written) == (1, [])


def test_what_adds_replicas_comes_before_what_removes_them_and_the_order_decided_is_kept() -> None:
    gateway = ScriptedGateway()
    apply(gateway, a_change("a", 3, 1), a_change("b", 1, 2), a_change("c", 5, 4), a_change("d", 2, 4))
    assert [name for name, _, _ in gateway.written] == ["b", "d", "a", "c"]


def test_a_refused_change_does_not_stop_the_others() -> None:
    gateway = ScriptedGateway(
        {
            "a": [Forbidden("no")],
            "b": [NotFound("gone")],
            "c": [Failed("500 a webhook failed")],
            "d": [Unavailable("429")],
        }
    )
    assert apply(gateway, *(a_change(name, 1, 2) for name in "abcde")) == [
        WriteOutcome.FORBIDDEN,
        WriteOutcome.NOT_FOUND,
        WriteOutcome.FAILED,
        WriteOutcome.UNAVAILABLE,
        WriteOutcome.APPLIED,
    ]


def test_a_change_that_was_held_back_is_skipped_and_keeps_its_place() -> None:
    gateway = ScriptedGateway({"a": [HeldBack("not sent")]})
    actuator = Actuator(cast(Gateway, gateway))
    changes = a_change("a", 1, 2), a_change("b", 1, 2)
    assert apply(gateway, *changes, actuator=actuator) == [WriteOutcome.SKIPPED, WriteOutcome.APPLIED]
    gateway.written.clear()
    apply(gateway, *changes, actuator=actuator)
    assert [name for name, _, _ in gateway.written] == ["a", "b"]


def test_what_failed_goes_last_next_time() -> None:
    gateway = ScriptedGateway({"a": [Failed("500")] * 2, "b": [None, Failed("500")]})
    actuator = Actuator(cast(Gateway, gateway))
    changes = a_change("a", 1, 2), a_change("b", 1, 2), a_change("c", 1, 2), a_change("d", 2, 1)
    orders = []
    for _ in range(4):
        gateway.written.clear()
        apply(gateway, *changes, actuator=actuator)
        orders.append("".join(name for name, _, _ in gateway.written))
    assert orders == ["abcd", "bcda", "cdab", "abcd"]


def test_webhooks_that_hang_keep_the_others_waiting_for_one_cycle_each() -> None:
    gateway = ScriptedGateway({"a": [Silent("timed out")] * 9, "b": [Silent("timed out")] * 9})
    actuator = Actuator(cast(Gateway, gateway))
    changes = a_change("a", 1, 2), a_change("b", 1, 2), a_change("c", 1, 2), a_change("d", 2, 1)
    applied: set[str] = set()
    for _ in range(3):
        gateway.written.clear()
        outcomes = apply(gateway, *changes, actuator=actuator)
        applied |= {
            name for (name, _, _), o in zip(gateway.written, outcomes, strict=False) if o is WriteOutcome.APPLIED
        }
    assert applied == {"c", "d"}


def test_nothing_more_is_tried_once_the_server_does_not_answer() -> None:
    gateway = ScriptedGateway({"a": [Silent("timeout")]})
    outcomes = apply(gateway, a_change("a", 1, 2), a_change("b", 1, 2))
    assert outcomes == [WriteOutcome.UNAVAILABLE, WriteOutcome.SKIPPED]
    assert len(gateway.written) == 1


def test_changes_of_other_namespaces_are_made_although_a_webhook_hangs() -> None:
    """Each change without an answer takes the whole time limit, and a webhook is that of a namespace."""
    hung: list[KubeError | None] = [Hung("timed out")] * 9
    gateway = ScriptedGateway({"a": hung.copy(), "b": hung.copy()})
    actuator = Actuator(cast(Gateway, gateway))
    stuck, well = a_decision("one", a_change("a", 1, 2), a_change("b", 1, 2)), a_decision("two", a_change("c", 1, 2))
    assert [write.outcome for write in actuator.apply([stuck, well])] == [
        *(WriteOutcome.FAILED, WriteOutcome.SKIPPED, WriteOutcome.APPLIED)
    ]
    gateway.written.clear()
    actuator.apply([stuck, well])
    assert [name for name, *_ in gateway.written] == ["c", "a"]


def test_a_webhook_that_hangs_in_all_namespaces_ends_the_cycle() -> None:
    names = "abcdef"
    gateway = ScriptedGateway({name: [Hung("timed out")] for name in names})
    decisions = [a_decision(f"n-{name}", a_change(name, 1, 2)) for name in names]
    Actuator(cast(Gateway, gateway)).apply(decisions)
    assert len(gateway.written) == 3


def test_nothing_more_is_tried_once_this_replica_may_not_write() -> None:
    gateway = ScriptedGateway({"a": [NotLeading("the lease was last renewed 9 s ago")]})
    outcomes = apply(gateway, a_change("a", 1, 2), a_change("b", 1, 2))
    assert outcomes == [WriteOutcome.NOT_LEADING, WriteOutcome.SKIPPED]
    assert len(gateway.written) == 1


def test_a_lease_lost_between_a_refusal_and_the_second_try_ends_it() -> None:
    gateway = ScriptedGateway({"a": [Conflict("modified"), NotLeading("it has another holder")]}, replicas={"a": 1})
    assert apply(gateway, a_change("a", 1, 2)) == [WriteOutcome.NOT_LEADING]


def test_a_workload_whose_status_moved_is_scaled_at_its_new_version() -> None:
    gateway = ScriptedGateway({"a": [Conflict("modified")]}, replicas={"a": 1})
    assert apply(gateway, a_change("a", 1, 2)) == [WriteOutcome.APPLIED]
    assert gateway.written == [("a", 2, "old"), ("a", 2, "new")]


def test_replicas_that_somebody_else_set_are_not_fought_over() -> None:
    gateway = ScriptedGateway({"a": [Conflict("modified")]}, replicas={"a": 7})
    assert apply(gateway, a_change("a", 1, 2)) == [WriteOutcome.CONFLICT]
    assert gateway.written == [("a", 2, "old")]
