import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
from annotated_lease import LeaseLog
from backlogs import a_backlog
from builders import (
    ENCODER,
    NOW_S,
    VAD,
    a_placement,
    a_pool,
    a_snapshot,
    a_spec,
    a_stage,
    a_state,
    applied,
    pools,
)

from controller.core.cycle import decide
from controller.core.messages.events import events
from controller.core.messages.phrases import MOST_CHARACTERS
from controller.core.state.policy import Policy
from controller.core.state.schedule import EventFloor
from controller.core.state.snapshot import Snapshot
from controller.kube import reporter
from controller.kube.actuator import Write, WriteOutcome
from controller.kube.claims import Claims
from controller.kube.durable import memory_from
from controller.kube.events import EventRecorder
from controller.kube.gateway import (
    EVENTS,
    LEASES,
    PIPELINES,
    Conflict,
    Failed,
    Forbidden,
    Gateway,
    Hung,
    Invalid,
    KubeError,
    Listing,
    NotFound,
    NotLeading,
    Resource,
    Silent,
    Unavailable,
)
from controller.kube.kept_memory import KeptMemory
from controller.kube.reader import InvalidObject, Observation
from controller.kube.reporter import Reporter
from controller.kube.status import pipeline_status
from controller.kube.store import ResourceStore
from optimizer.model import PipelineKey, PoolName, StageName

CAPTIONS = PipelineKey("speech/captions")


@dataclass
class StatusLog:
    """Merges status patches into the objects as the API server does, and notes Events."""

    objects: dict[str, dict[str, Any]]
    error: KubeError | None = None
    errors: dict[str, KubeError] = field(default_factory=dict)
    replaced: frozenset[str] = frozenset()
    asked: list[str] = field(default_factory=list)
    patches: list[str] = field(default_factory=list)
    events: list[tuple[str, str]] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    leases: LeaseLog = field(default_factory=LeaseLog)

    def patch_status(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        uid: str,
        status: dict[str, Any],
        version: str | None = None,
    ) -> dict[str, Any]:
        self.asked.append(name)
        if error := self.errors.get(name, self.error):
            raise error
        before = self.objects[name]
        if version is not None and version != before["metadata"]["resourceVersion"]:
            raise Conflict("the object has been modified")
        self.patches.append(name)
        version = str(int(before["metadata"]["resourceVersion"]) + 1)
        self.objects[name] = {
            **before,
            "metadata": {**before["metadata"], "resourceVersion": version},
            "status": _merged(before.get("status", {}), status),
        }
        return self.objects[name]

    def get(self, resource: Resource, namespace: str | None, name: str) -> dict[str, Any]:
        if (resource, namespace) == (LEASES, "other-system"):
            return {"metadata": {"resourceVersion": "7"}, "spec": {"leaseDurationSeconds": 15}}
        if resource is LEASES:
            return self.leases.get(resource, namespace, name)
        uid = f"uid-{name}" if name not in self.replaced else "another"
        return {"metadata": {**self.objects[name]["metadata"], "uid": uid}}

    def create(self, resource: Resource, namespace: str, event: dict[str, Any]) -> None:
        assert resource is EVENTS
        assert 0 < len(event["message"]) <= MOST_CHARACTERS
        self.events.append((event["involvedObject"]["name"], event["reason"]))
        self.messages.append(event["message"])

    def patch(self, resource: Resource, namespace: str, name: str, patch: dict[str, Any]) -> dict[str, Any]:
        return self.leases.patch(resource, namespace, name, patch)


def _merged(document: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    result = dict(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merged(result.get(key), value)
    return result


class World:
    """The default snapshot of the builders, its resources, and a reporter."""

    def __init__(self, *, pool_status: bool = True, lease: bool = True, operator: str = "sluice-system/sluice") -> None:
        self.snapshot = a_snapshot(a_state(demand=50.0, replicas={VAD: 1, ENCODER: 1}))
        names = [("SpeechPipeline", "captions", {"namespace": "speech"})]
        names += [("ComputePool", name, {}) for name in self.snapshot.pools]
        self.log = StatusLog(
            {
                name: {
                    "apiVersion": "sluice.dev/v1alpha1",
                    "kind": kind,
                    "metadata": {"name": name, "uid": f"uid-{name}", "generation": 1, "resourceVersion": "1", **scope},
                }
                for kind, name, scope in names
            }
        )
        self.pipelines, self.pools = ResourceStore(), ResourceStore()
        for name, resource in self.log.objects.items():
            (self.pipelines if name == "captions" else self.pools).put(resource)
        gateway = cast(Gateway, self.log)
        looks = itertools.count(step=3.0)
        self.kept = KeptMemory(gateway, namespace="sluice-system", name="sluice", identity=LeaseLog.HOLDER)
        self.claims = Claims(gateway, operator)
        self.reporter = Reporter(
            gateway,
            EventRecorder(gateway),
            pipelines=self.pipelines,
            pools=self.pools,
            budgets=ResourceStore(),
            interval_s=10.0,
            kept=self.kept if lease else None,
            pool_status=pool_status,
            claims=self.claims,
            clock=lambda: next(looks),
        )

    def add(self, *names: str) -> None:
        """Create pipelines that have no status yet."""
        for name in names:
            metadata = {**self.log.objects["captions"]["metadata"], "name": name, "uid": f"uid-{name}"}
            self.log.objects[name] = {**self.log.objects["captions"], "metadata": metadata}
            self.pipelines.put(self.log.objects[name])

    def observation(self, snapshot: Snapshot) -> Observation:
        return Observation(
            snapshot=snapshot,
            pipelines={
                state.spec.key: self.pipelines.snapshot()["speech", state.spec.name] for state in snapshot.pipelines
            },
            pools={name: self.pools.snapshot()["", name] for name in snapshot.pools},
            invalid_pipelines=(),
            invalid_pools=(),
        )

    def report(self, snapshot: Snapshot | None = None, *writes: Write) -> frozenset[PipelineKey]:
        snapshot = snapshot or self.snapshot
        observation, decision = self.observation(snapshot), decide(snapshot, Policy())
        writable = self.reporter.report(observation, decision)
        self.reporter.record_events(observation, [each for each in decision.pipelines if each.key in writable], writes)
        return writable


@pytest.fixture
def world() -> World:
    return World()


def test_a_cycle_like_the_one_before_writes_nothing(world: World) -> None:
    steady = a_snapshot(a_state(demand=1.0, replicas={VAD: 1, ENCODER: 1}))
    world.report(steady)
    world.log.patches.clear()
    for cycle in range(1, 10):
        world.report(replace(steady, now_s=NOW_S + 15 * cycle))
    assert world.log.patches == []


@pytest.mark.parametrize(("items", "waits"), [(20_000.0, True), (120_000.0, False)])
def test_a_backlog_that_goes_on_as_expected_is_written_seldom(world: World, items: float, waits: bool) -> None:
    """What is expected moves a little in every cycle: the finish, and the end of a wait for the live pipeline's day."""
    world.add("archive")
    gpu, dear = PoolName("gpu"), PoolName("inferentia")
    day = EventFloor(name="day", demand=190.0, start_s=0.0, end_s=NOW_S + 14_400)
    live = replace(a_spec(a_stage("encoder", a_placement(gpu))), at_least=(day,))
    spec = a_backlog(a_placement(gpu, service_s=2.0), a_placement(dear, service_s=2.0), due_s=NOW_S + 28_800)
    own = a_state(spec, demand=items)
    own = replace(own, memory=replace(own.memory, begun_s=NOW_S))
    fleet = pools(a_pool(gpu, instances=10, ready=10), a_pool(dear, price=4.0, instances=10, ready=10))
    snapshot = a_snapshot(a_state(live, demand=1.0, replicas={(StageName("encoder"), gpu): 10}), own, fleet=fleet)
    for _ in range(80):
        decision = decide(snapshot, Policy())
        assert waits is (decision.pipelines[1].backlog.waits_until_s is not None)  # type: ignore[union-attr]
        world.reporter.report(world.observation(snapshot), decision)
        snapshot = applied(snapshot, decision)
        first, own = snapshot.pipelines
        items -= 15 / 2.0 * sum(own.desired(*key) for key in own.spec.placement_keys())
        snapshot = replace(snapshot, pipelines=(first, replace(own, demand=items)))
    assert 1 <= len([name for name in world.log.patches if name == "archive"]) <= 8


def test_each_condition_of_a_pool_that_becomes_bad_has_an_event(world: World) -> None:
    pools = dict(world.snapshot.pools)
    gpu = pools[PoolName("gpu")]
    shared = replace(gpu, shared_nodes={PoolName("cpu"): ("node-1",)})
    for found, told in ((gpu, []), (shared, ["NodesShared"]), (shared, []), (gpu, ["AllOwn"])):
        world.log.events.clear()
        world.report(replace(world.snapshot, pools={**pools, PoolName("gpu"): found}))
        assert [reason for name, reason in world.log.events if name == "gpu"] == told


def test_an_operator_that_shares_the_pools_with_others_only_reads_them() -> None:
    world = World(pool_status=False)
    assert world.report() == {CAPTIONS}
    assert world.log.patches == ["captions"]
    pool = InvalidObject(resource=next(iter(world.pools.snapshot().values())), problem="spec.price: required")
    world.reporter.record_events(replace(unusable(), invalid_pools=(pool,)), (), ())
    assert world.log.patches == ["captions"]


def test_a_pipeline_that_is_gone_is_not_acted_on_and_forgotten(world: World) -> None:
    world.log.error = NotFound("gone")
    assert world.report() == frozenset()
    assert world.pipelines.snapshot() == {}


def test_a_pipeline_that_is_another_one_by_now_is_not_acted_on_and_forgotten(world: World) -> None:
    world.log.error = Conflict("the uid differs")
    world.log.replaced = frozenset({"captions"})
    assert world.report() == frozenset()
    assert world.pipelines.snapshot() == {}


def test_a_conflict_about_the_same_pipeline_does_not_make_it_forgotten() -> None:
    world = World(operator="")
    world.log.error = Conflict("the object has been modified")
    assert world.report() == {CAPTIONS}
    assert world.pipelines.snapshot() != {}


def test_a_pipeline_is_claimed_before_it_is_scaled_and_of_two_operators_one_gets_it() -> None:
    first, second = World(), World(operator="other-system/sluice")
    second.log = first.log
    assert first.report() == {CAPTIONS}
    assert first.log.objects["captions"]["status"]["operator"] == "sluice-system/sluice"
    assert first.log.objects["gpu"]["status"]["operator"] == "sluice-system/sluice"

    late = World(operator="other-system/sluice")
    late.log.objects["captions"] = first.log.objects["captions"]  # written since it was read
    assert late.report() == frozenset()
    assert late.log.objects["captions"]["status"]["operator"] == "sluice-system/sluice"
    assert "captions" not in late.log.leases.annotations


def test_what_another_operator_scales_is_only_told_and_the_other_one_keeps_the_words(world: World) -> None:
    world.report()
    for name in ("captions", "gpu"):
        world.log.objects[name]["status"]["operator"] = "other-system/sluice"
    for name, resource in world.log.objects.items():
        (world.pipelines if name == "captions" else world.pools).put(
            {**resource, "metadata": {**resource["metadata"], "resourceVersion": "100"}}
        )
        resource["metadata"]["resourceVersion"] = "100"
    stores = (world.pipelines, world.pools)
    world.claims.begin(each for store in stores for each in store.snapshot().values())
    before = world.log.objects["captions"]["status"]
    world.log.patches.clear()
    world.log.events.clear()

    for _ in range(3):
        foreign = {CAPTIONS: world.pipelines.snapshot()["speech", "captions"]}
        snapshot = replace(world.snapshot, pipelines=())
        observation = replace(world.observation(snapshot), foreign=foreign)
        world.reporter.report(observation, decide(snapshot, Policy()))
        world.reporter.record_events(observation, (), ())

    assert [name for name in world.log.patches if name in ("captions", "gpu")] == ["captions"]
    assert world.log.events == [("captions", "ScaledByAnotherOperator")]
    after = world.log.objects["captions"]["status"]
    told = after["conditions"][-1]
    assert (told["type"], told["status"]) == ("OneOperator", "False")
    assert (
        "operator sluice-system/sluice leaves this pipeline alone: status.operator is other-system/sluice"
        in (told["message"])
    )
    assert {**after, "conditions": after["conditions"][:-1]} == before
    for later_s, kept in ((60.0, True), (2000.0, False)):
        told = a_written_status(replace(world.snapshot, now_s=NOW_S + later_s), old=after)["conditions"]
        assert any(each["type"] == "OneOperator" for each in told) is kept


def a_written_status(snapshot: Snapshot, old: dict[str, Any]) -> dict[str, Any]:
    decision = decide(snapshot, Policy())
    return pipeline_status(snapshot, snapshot.pipelines[0], decision.pipelines[0], decision, old)


@pytest.mark.parametrize("error", [NotLeading("another leads"), Silent("timeout")])
def test_what_must_last_is_written_or_nothing_is_done(world: World, error: KubeError) -> None:
    world.log.error = error
    assert world.report() == frozenset()
    assert world.kept.uids == frozenset()


REFUSALS = [
    Unavailable("429 too many requests"),
    Invalid("status.gap: must match"),
    Forbidden("denied by a webhook"),
    Failed("500 the webhook failed"),
]


@pytest.mark.parametrize("error", REFUSALS)
def test_a_pipeline_whose_status_is_refused_is_scaled_when_its_memory_is_in_the_lease(
    world: World, error: KubeError
) -> None:
    world.log.errors["captions"] = error
    assert world.report() == {CAPTIONS}
    assert world.log.patches == ["cpu", "gpu", "inferentia"], "the pools are told"
    kept = KeptMemory(cast(Gateway, world.log), namespace="sluice-system", name="sluice", identity="the next leader")
    kept.load()
    assert memory_from(kept.document("uid-captions")).memory == decide(world.snapshot, Policy()).pipelines[0].memory
    assert ("captions", "StatusRefused") in world.log.events
    told = next(message for message in world.log.messages if str(error) in message)
    assert "the pipeline is scaled" in told
    assert world.reporter.unwritten(world.observation(world.snapshot)) == {CAPTIONS}

    world.log.errors.clear()
    assert world.report() == {CAPTIONS}
    assert world.reporter.unwritten(world.observation(world.snapshot)) == frozenset()
    assert world.log.leases.annotations == {}, "the status has it"


@pytest.mark.parametrize("cause", ["refused", "held by another", "disabled"])
def test_a_pipeline_whose_memory_is_nowhere_safe_is_not_scaled_and_says_why(cause: str) -> None:
    world = World(lease=cause != "disabled")
    world.log.errors["captions"] = Failed("500 the webhook failed")
    if cause == "refused":
        world.log.leases.error = Forbidden("no right to patch leases")
    if cause == "held by another":
        world.log.leases.holder = "sluice-1_b"
    assert world.report() == frozenset()
    told = next(message for message in world.log.messages if "500 the webhook failed" in message)
    words = {"refused": "no right to patch leases", "held by another": "held by sluice-1_b"}
    assert "replicas left unchanged" in told
    assert words.get(cause, "leader election is disabled") in told


def test_no_room_in_the_lease_is_a_reason(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.kube.kept_memory._MOST_BYTES", 10)
    world.log.errors["captions"] = Failed("500 the webhook failed")
    assert world.report() == frozenset()
    assert any("have no room for it" in message for message in world.log.messages)


def test_a_pipeline_that_does_not_act_waits_for_its_status_while_the_server_is_busy(world: World) -> None:
    world.log.errors["captions"] = Unavailable("429 too many requests")
    steady = a_snapshot(a_state(demand=1.0, replicas={VAD: 1, ENCODER: 1}))
    assert world.report(steady) == frozenset()
    assert world.kept.uids == frozenset()
    assert world.log.events == []


def test_a_refused_status_does_not_keep_others_from_being_written_and_is_tried_last(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.reporter, "_threads", ThreadPoolExecutor(1))  # one after the other
    names = ("a", "b", "c")
    world.add(*names)
    world.log.errors["a"] = Failed("500 the webhook failed")
    orders = []
    for cycle in range(3):
        world.log.asked.clear()
        states = [a_state(a_spec(name=name), demand=50.0 + cycle, replicas={VAD: 1, ENCODER: 1}) for name in names]
        snapshot = a_snapshot(*states, now_s=NOW_S + 61 * cycle)
        written = world.reporter.report(world.observation(snapshot), decide(snapshot, Policy()))
        assert written == {state.spec.key for state in states}, "the memory of a is in the Lease"
        orders.append("".join(name for name in world.log.asked if name in names))
    assert orders == ["abc", "bca", "bca"]


def raising(broken: str, works: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function `works`, which raises where one of its arguments is about the pipeline `broken`."""

    def made(*given: Any, **named: Any) -> Any:
        if any(getattr(each, "key", None) == PipelineKey(f"speech/{broken}") for each in given):
            raise ValueError("year 8269 is out of range")
        return works(*given, **named)

    return made


@pytest.mark.parametrize("lease", [True, False])
def test_a_defect_about_one_pipeline_keeps_no_other_from_being_written_and_scaled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, lease: bool
) -> None:
    monkeypatch.setattr(reporter, "pipeline_status", raising("a", pipeline_status))
    monkeypatch.setattr(reporter, "events", raising("a", events))
    world = World(lease=lease)
    world.add("a", "b")
    states = [a_state(a_spec(name=name), demand=50.0, replicas={VAD: 1, ENCODER: 1}) for name in ("a", "b")]
    written = world.report(a_snapshot(*states))
    # What a restart needs of the first is in the Lease, if there is one.
    assert written == {PipelineKey("speech/b"), *([PipelineKey("speech/a")] if lease else [])}
    assert "b" in world.log.patches
    assert "a" not in world.log.patches
    assert world.reporter.unwritten(world.observation(a_snapshot(*states))) == {PipelineKey("speech/a")}
    (said,) = [message for message in world.log.messages if "year 8269" in message]
    assert "internal error: ValueError" in said
    assert [record.exc_info is not None for record in caplog.records if "speech/a: its status" in record.message] == [
        True
    ]


def test_a_memory_that_cannot_be_kept_anywhere_stops_its_own_pipeline_only(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter, "pipeline_status", raising("a", pipeline_status))
    monkeypatch.setattr(reporter, "planned_text", lambda planned: 1 / 0)
    world.add("a", "b")
    states = [a_state(a_spec(name=name), demand=50.0, replicas={VAD: 1, ENCODER: 1}) for name in ("a", "b")]
    assert world.report(a_snapshot(*states)) == {PipelineKey("speech/b")}
    (said,) = [message for message in world.log.messages if "year 8269" in message]
    assert "replicas left unchanged" in said
    assert "internal error: ZeroDivisionError" in said


def test_a_webhook_that_hangs_on_the_status_of_a_pool_does_not_stop_the_pipelines_for_ever(world: World) -> None:
    world.log.errors["cpu"] = Silent("timed out")
    assert world.report() == frozenset(), "the server may be away"
    assert world.report() == {CAPTIONS}


def test_a_webhook_that_hangs_on_one_status_stops_no_other_and_its_pipeline_is_scaled(world: World) -> None:
    world.log.errors["captions"] = Hung("timed out")
    assert world.report() == {CAPTIONS}, "its memory is in the Lease"
    assert world.kept.uids == {"uid-captions"}
    assert ("captions", "StatusRefused") in world.log.events


@pytest.mark.parametrize("hung", [["cpu"], ["cpu", "gpu", "inferentia"]])
def test_a_webhook_that_hangs_on_statuses_of_pools_is_waited_for_once_in_a_cycle(world: World, hung: list[str]) -> None:
    world.log.errors.update(dict.fromkeys(hung, Hung("timed out")))
    asked = []
    for _ in range(5):
        world.log.asked.clear()
        assert world.report() == {CAPTIONS}
        asked.append([name for name in world.log.asked if name != "captions"])
    one_hangs = [["cpu"], ["gpu", "inferentia", "cpu"], ["cpu"], ["cpu"], ["cpu"]]
    assert asked == (one_hangs if hung == ["cpu"] else [["cpu"], ["gpu"], ["inferentia"], ["cpu"], ["gpu"]])


def test_webhooks_that_hang_in_many_namespaces_end_the_writing_of_statuses(world: World) -> None:
    world.reporter._hung = {(EVENTS, namespace): Hung(namespace) for namespace in "abc"}
    resource = world.pipelines.snapshot()["speech", "captions"]
    world.reporter._write(PIPELINES, resource, {}, {"demand": "1"}, NOW_S)
    assert world.log.asked == []
    assert world.reporter.unwritten(world.observation(world.snapshot)) == {CAPTIONS}


def test_a_scaling_is_told_when_it_was_made_and_its_failure_when_it_was_not(world: World) -> None:
    change = decide(world.snapshot, Policy()).pipelines[0].changes[0]
    world.report(None, Write(pipeline=CAPTIONS, change=change, outcome=WriteOutcome.CONFLICT, detail="set to 7"))
    assert ("captions", "ScaleConflict") in world.log.events
    assert ("captions", "Scaled") not in world.log.events


def unusable(*resources: Any) -> Observation:
    return Observation(
        snapshot=Snapshot(now_s=NOW_S, pipelines=(), pools={}),
        pipelines={},
        pools={},
        invalid_pipelines=tuple(InvalidObject(resource=each, problem="spec.stages: required") for each in resources),
        invalid_pools=(),
    )


def test_an_unusable_resource_is_told_once(world: World) -> None:
    for _ in range(3):
        world.reporter.record_events(unusable(world.pipelines.snapshot()["speech", "captions"]), (), ())
    assert world.log.patches == ["captions"]
    assert world.log.events == [("captions", "InvalidSpec")]


def test_many_unusable_resources_are_told_in_the_time_that_others_can_spare(world: World) -> None:
    world.add(*map(str, range(30)))
    told = []
    for _ in range(4):
        resources = [r for (_, name), r in world.pipelines.snapshot().items() if name != "captions"]
        world.reporter.record_events(unusable(*resources), (), ())
        told.append(len(world.log.patches))
    assert told == [16, 30, 30, 30], "eight in 3 s, of 5"


def test_of_more_statuses_than_there_is_time_for_every_one_has_its_turn(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.kube.reporter._PARALLEL", 1)  # in 3 s, of 2
    monkeypatch.setattr("controller.kube.reporter.IDLE_SHARE", 0.2)
    names = ("a", "b", "c")
    world.add(*names)
    for cycle in range(6):
        # A minute later all have something else to tell: what was only observed.
        states = [a_state(a_spec(name=name), demand=1.0 + cycle % 2, replicas={VAD: 1, ENCODER: 1}) for name in names]
        snapshot = a_snapshot(*states, now_s=NOW_S + 61 * cycle)
        world.reporter.report(world.observation(snapshot), decide(snapshot, Policy()))
    assert [name for name in world.log.patches if name in names] == [*"abcabc"]


def test_what_was_decided_anew_is_told_before_what_was_only_observed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.kube.reporter._PARALLEL", 1)
    monkeypatch.setattr("controller.kube.reporter.IDLE_SHARE", 0.0)
    names = ("a", "b", "c")
    world.add(*names)
    states = [a_state(a_spec(name=name), demand=1.0, replicas={VAD: 1, ENCODER: 1}) for name in names]
    snapshot = a_snapshot(*states, now_s=NOW_S)
    told = world.reporter.report(world.observation(snapshot), decide(snapshot, Policy()), news={states[2].spec.key})
    assert world.log.patches[-1] == "c"
    assert told == {states[2].spec.key}


@pytest.mark.parametrize(("acting", "hurried", "told"), [(False, False, 2), (True, False, 1), (True, True, 3)])
def test_statuses_have_more_time_in_a_cycle_that_changes_no_replicas_and_while_first_plans_are_made(
    world: World, monkeypatch: pytest.MonkeyPatch, acting: bool, hurried: bool, told: int
) -> None:
    monkeypatch.setattr("controller.kube.reporter._PARALLEL", 1)  # in 3 s, of 5 or of 2
    names = ("a", "b", "c")
    world.add(*names)
    states = [a_state(a_spec(name=name), demand=1.0, replicas={VAD: 1, ENCODER: 1}) for name in names]
    if acting:
        states.append(a_state(demand=50.0, replicas={VAD: 1, ENCODER: 1}))
    snapshot = a_snapshot(*states, now_s=NOW_S)
    world.reporter.report(world.observation(snapshot), decide(snapshot, Policy()), (), hurried)
    assert sum(name in names for name in world.log.patches) == told


def test_the_store_knows_what_was_written_before_the_watch_tells(world: World) -> None:
    world.report()
    assert world.pipelines.snapshot()["speech", "captions"].status()["demand"] == "50"
    world.pipelines.resync([Listing(items=(world.log.objects["captions"],), resource_version="9")])
    assert world.pipelines.snapshot()["speech", "captions"].whole()["metadata"]["resourceVersion"] == "2"


def test_a_server_that_does_not_answer_is_not_asked_for_every_status(world: World) -> None:
    world.log.error = Silent("timeout")
    assert world.report() == frozenset()
    assert len(world.log.asked) == 1
    assert world.reporter.is_delayed()
    world.log.error = None
    assert world.report() == {CAPTIONS}
    assert not world.reporter.is_delayed()


def test_a_server_too_busy_for_the_statuses_of_pools_is_asked_for_those_of_pipelines(world: World) -> None:
    world.log.errors.update(dict.fromkeys(("cpu", "gpu", "inferentia"), Unavailable("429")))
    assert world.report() == {CAPTIONS}
    assert world.log.asked == ["cpu", "captions"]
    assert world.reporter.is_delayed()


def test_while_claims_are_postponed_a_pipeline_of_no_operator_is_neither_claimed_nor_scaled() -> None:
    world = World()
    world.claims.postponed = True
    assert world.report() == frozenset()
    assert "operator" not in world.log.objects["captions"].get("status", {})
    world.claims.unaffected = frozenset({CAPTIONS})
    assert world.report() == {CAPTIONS}
    assert "operator" in world.log.objects["captions"]["status"]


def test_once_claims_are_not_postponed_any_more_a_pipeline_is_claimed() -> None:
    world = World()
    world.claims.postponed = True
    world.report()
    world.claims.postponed = False
    assert world.report() == {CAPTIONS}


def test_a_memory_that_cannot_be_read_is_replaced_at_once(world: World) -> None:
    world.report()
    before = world.log.objects["captions"]["status"]
    world.report()
    assert world.log.patches.count("captions") == 1

    metadata = world.log.objects["captions"]["metadata"]
    edited = {**before, "memory": {**before["memory"], "samples": "many"}}
    world.log.objects["captions"] |= {"status": edited, "metadata": {**metadata, "resourceVersion": "9"}}
    world.pipelines.put(world.log.objects["captions"])
    world.report()
    assert memory_from(world.log.objects["captions"]["status"]["memory"]).lost == ()
