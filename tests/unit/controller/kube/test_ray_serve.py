"""Deployments of Ray Serve as workloads, from answers as Ray gives them. Real Ray: tests/ray_serve."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
from builders import a_placement, a_spec, a_stage

from controller.core.state.decision import ChangeReason, ReplicaChange
from controller.core.state.snapshot import TargetMissing, TargetState
from controller.core.state.spec import LabelSelector, PipelineSpec, ServeDeployment, Target
from controller.kube import ray_serve
from controller.kube.gateway import Conflict, Failed, Gateway, Invalid, Json, NotFound
from controller.kube.ray_serve import Hosts, RayServe, ServeActuator
from controller.kube.workloads import NodeNames
from controller.ray.applications import Applications, ServeFailure, ServeRefusal, ServeReplica, ServeState

ADDRESS = "http://head.speech.svc:8265"
NOW_S = 1000.0
"""Made answers stand in for Ray: what Ray itself answers is recorded in tests/unit/controller/ray."""


def a_target(**changes: str) -> Target:
    serve = replace(ServeDeployment(application="captions", deployment="ASR", address=ADDRESS), **changes)
    name = f"{serve.application}/{serve.deployment}"
    return Target(api_version="sluice.dev/v1alpha1", kind="RayServe", name=name, serve=serve)


def replicas(*states: str, address: str | None = "10.0.0.1") -> tuple[ServeReplica, ...]:
    return tuple(
        ServeReplica(name=f"r{number}", state=state, since_s=900.0, address=address)
        for number, state in enumerate(states)
    )


def a_state(*states: str, target: int | None = None, **changes: Any) -> ServeState:
    own = replicas(*states)
    return replace(
        ServeState(target=len(own) if target is None else target, replicas=own, autoscaled=False, grace_s=20.0),
        **changes,
    )


@dataclass(slots=True)
class Ray:
    """Answers of Ray by address, and what it was asked to do."""

    answers: dict[str, ServeState | ServeFailure] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    scaled: list[tuple[str, str, str, int]] = field(default_factory=list)
    refusal: ServeFailure | None = None

    def read(self, address: str) -> Applications:
        self.asked.append(address)
        found = self.answers[address]
        if isinstance(found, ServeFailure):
            raise found
        return Applications(deployments={"captions": {"ASR": found}}, words={"captions": ""})

    def scale(self, address: str, application: str, deployment: str, replicas: int) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.scaled.append((address, application, deployment, replicas))


def a_pipeline(*targets: Target, drain_s: float = 60.0) -> PipelineSpec:
    stages = [
        replace(stage, placements=(replace(stage.placements[0], target=target),))
        for number, target in enumerate(targets)
        for stage in (a_stage(f"s{number}", a_placement("cpu")),)
    ]
    spec = a_spec(*stages)
    return replace(spec, scaling=replace(spec.scaling, drain_s=drain_s))


class NoCluster:
    """No RayService is asked for."""

    services: Mapping[str, Json] = {}

    def get(self, _: object, __: str, name: str) -> Json:
        return self.services[name]


@pytest.fixture
def ray() -> Ray:
    return Ray()


@pytest.fixture
def serve(ray: Ray) -> Iterator[RayServe]:
    own = RayServe(cast(Gateway, NoCluster()), ray, Hosts())
    yield own
    own.close()


def no_pods(_: LabelSelector) -> Sequence[Json]:
    return ()


def seen(serve: RayServe, target: Target | None = None, now_s: float = NOW_S) -> TargetState | TargetMissing:
    target = target or a_target()
    serve.refresh([a_pipeline(target)])
    return serve.workload("speech", target, no_pods, NodeNames(), now_s).state


def known(state: TargetState | TargetMissing) -> TargetState:
    assert isinstance(state, TargetState)
    return state


class TestStates:
    def test_replicas_count_by_what_they_do(self, serve: RayServe, ray: Ray) -> None:
        ray.answers[ADDRESS] = a_state("RUNNING", "PENDING_MIGRATION", "STARTING", "STOPPING", target=4)
        found = known(seen(serve))
        assert (found.desired, found.existing, found.ready, found.terminating) == (4, 3, 2, 1)
        assert [each.name for each in found.starting] == ["r2"]

    def test_a_replica_without_a_ray_node_is_pending_with_the_reason(self, serve: RayServe, ray: Ray) -> None:
        ray.answers[ADDRESS] = a_state("STARTING", replicas=replicas("STARTING", address=None))
        (pending,) = known(seen(serve)).pending
        assert pending.since_s == 900.0
        assert pending.reason == "no Ray node has the resources that it asks for (ray_actor_options)"

    def test_a_start_is_timed_only_where_it_was_seen(self, serve: RayServe, ray: Ray) -> None:
        ray.answers[ADDRESS] = a_state("RUNNING")
        (old,) = known(seen(serve)).serving
        assert (old.startup_s, old.start_seen, old.ready_s) == (None, False, 900.0)
        new = ServeReplica(name="new", state="STARTING", since_s=1001.0, address=None)
        ray.answers[ADDRESS] = a_state(replicas=(*replicas("RUNNING"), new))
        seen(serve, now_s=1005.0)
        ray.answers[ADDRESS] = a_state(replicas=(*replicas("RUNNING"), replace(new, address="10.0.0.2")))
        seen(serve, now_s=1010.0)
        ready = replace(new, address="10.0.0.2", state="RUNNING")
        ray.answers[ADDRESS] = a_state(replicas=(*replicas("RUNNING"), ready))
        own = {each.name: each for each in known(seen(serve, now_s=1040.0)).serving}["new"]
        assert (own.startup_s, own.start_seen, own.ready_s) == (30.0, True, 1040.0)

    def test_a_start_within_a_cycle_counts_from_the_creation(self, serve: RayServe, ray: Ray) -> None:
        ray.answers[ADDRESS] = a_state("RUNNING")
        seen(serve)
        new = ServeReplica(name="new", state="RUNNING", since_s=1002.0, address="10.0.0.2")
        ray.answers[ADDRESS] = a_state(replicas=(*replicas("RUNNING"), new))
        own = {each.name: each for each in known(seen(serve, now_s=1005.0)).serving}["new"]
        assert own.startup_s == 3.0

    def test_replicas_report_once_they_have_run_for_the_grace(self, serve: RayServe, ray: Ray) -> None:
        ray.answers[ADDRESS] = a_state("RUNNING")
        serve.refresh([a_pipeline(a_target())])
        found = serve.workload("speech", a_target(), no_pods, NodeNames(), NOW_S)
        assert found.long_running(900.0) == {"r0"}
        assert found.long_running(899.0) == frozenset()

    def test_rays_own_autoscaler_is_named(self, serve: RayServe, ray: Ray) -> None:
        ray.answers[ADDRESS] = a_state("RUNNING", autoscaled=True)
        serve.refresh([a_pipeline(a_target())])
        found = serve.workload("speech", a_target(), no_pods, NodeNames(), NOW_S)
        assert found.autoscaler == "autoscaling_config/captions/ASR"


class TestWhatCannotBeRead:
    def test_a_cluster_that_does_not_answer_delays_nobody_else(
        self, serve: RayServe, ray: Ray, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        answer = threading.Event()
        other = "http://other.speech.svc:8265"
        ray.answers[ADDRESS] = a_state("RUNNING")
        answered = ray.read(ADDRESS)
        monkeypatch.setattr(ray_serve, "_WAIT_S", 0.2)

        def read(address: str) -> Applications:
            if address == other:
                answer.wait(30)
            return answered

        monkeypatch.setattr(Ray, "read", lambda _, address: read(address))
        serve.refresh([a_pipeline(a_target(), a_target(address=other))])
        silent = serve.workload("speech", a_target(address=other), no_pods, NodeNames(), NOW_S).state
        assert silent == TargetMissing(reason="RayServe/captions/ASR: Ray did not answer within 0.2 s", unreadable=True)
        assert known(serve.workload("speech", a_target(), no_pods, NodeNames(), NOW_S).state).ready == 1
        answer.set()

    def test_an_answer_that_is_no_answer_says_why_and_its_cost_is_unknown(self, serve: RayServe, ray: Ray) -> None:
        ray.answers[ADDRESS] = ServeFailure("GET http://x: no answer: refused")
        assert seen(serve) == TargetMissing(
            reason="RayServe/captions/ASR: GET http://x: no answer: refused", unreadable=True
        )

    def test_a_deployment_that_is_not_there_costs_nothing(self, serve: RayServe, ray: Ray) -> None:
        ray.answers[ADDRESS] = a_state("RUNNING")
        missing = seen(serve, a_target(deployment="VAD"))
        assert isinstance(missing, TargetMissing)
        assert missing.reason.endswith("application captions has no deployment VAD; it has: ASR")
        assert not missing.unreadable

    @pytest.mark.parametrize(
        ("address", "asked"),
        [
            ("http://head.speech.svc:8265", True),
            ("http://head.speech.svc.cluster.local:8265", True),
            ("https://ray.example.com:8265", True),
            ("http://head.batch.svc:8265", False),
            ("http://169.254.169.254", False),
            ("http://head.speech:8265", False),
            ("http://head.speech.svc.evil.com@x:8265", False),
        ],
    )
    def test_only_dashboards_of_the_namespace_and_allowed_hosts_are_asked(self, address: str, asked: bool) -> None:
        ray = Ray(answers={address: a_state("RUNNING")})
        serve = RayServe(cast(Gateway, NoCluster()), ray, Hosts(allowed=frozenset({"ray.example.com:8265"})))
        found = seen(serve, a_target(address=address))
        serve.close()
        assert bool(ray.asked) is asked
        if not asked:
            assert isinstance(found, TargetMissing)
            assert "must be a Service of the namespace, as in http://NAME.speech.svc:8265" in found.reason


class TestDrains:
    def test_the_drain_is_what_ray_gives_its_replicas(self, serve: RayServe, ray: Ray) -> None:
        ray.answers[ADDRESS] = a_state("RUNNING", grace_s=300.0)
        spec = a_pipeline(a_target())
        serve.refresh([spec])
        assert serve.drains(spec).scaling.drain_s == 300.0
        ray.answers[ADDRESS] = a_state("RUNNING", grace_s=5.0)
        serve.refresh([spec])
        assert serve.drains(spec).scaling.drain_s == 5.0

    def test_beside_other_workloads_it_is_at_least_theirs(self, serve: RayServe, ray: Ray) -> None:
        ray.answers[ADDRESS] = a_state("RUNNING", grace_s=5.0)
        spec = a_pipeline(a_target(), Target(api_version="apps/v1", kind="Deployment", name="vad"))
        serve.refresh([spec])
        assert serve.drains(spec).scaling.drain_s == 60.0

    def test_where_ray_does_not_answer_it_is_the_declared_one(self, serve: RayServe, ray: Ray) -> None:
        ray.answers[ADDRESS] = ServeFailure("no answer")
        spec = a_pipeline(a_target())
        serve.refresh([spec])
        assert serve.drains(spec) == spec


class TestScaling:
    @staticmethod
    def change(before: int, after: int) -> ReplicaChange:
        return ReplicaChange(
            stage=a_spec().stages[0].name,
            placement=a_placement("cpu").name,
            target=a_target(),
            before=before,
            after=after,
            resource_version=str(before),
            reason=ChangeReason.DEMAND,
        )

    def scale(self, ray: Ray, before: int, after: int) -> None:
        ServeActuator(cast(Gateway, NoCluster()), ray, Hosts()).scale("speech", self.change(before, after))

    def test_the_replicas_are_set(self, ray: Ray) -> None:
        ray.answers[ADDRESS] = a_state("RUNNING")
        self.scale(ray, 1, 3)
        assert ray.scaled == [(ADDRESS, "captions", "ASR", 3)]

    def test_what_another_has_set_meanwhile_is_not_overwritten(self, ray: Ray) -> None:
        ray.answers[ADDRESS] = a_state("RUNNING", target=5)
        with pytest.raises(Conflict, match="was set to 5 replicas by another client"):
            self.scale(ray, 1, 3)
        assert ray.scaled == []

    @pytest.mark.parametrize(
        ("refusal", "error", "words"),
        [
            (ServeRefusal("POST …: 412 no", 412), Invalid, "captions must have external_scaler_enabled: true"),
            (ServeRefusal("POST …: 404 no", 404), NotFound, "404 no"),
            (ServeRefusal("POST …: 500 no", 500), Failed, "500 no"),
            (ServeFailure("POST …: no answer"), Failed, "no answer"),
        ],
    )
    def test_a_refusal_says_what_to_do(
        self, ray: Ray, refusal: ServeFailure, error: type[Exception], words: str
    ) -> None:
        ray.answers[ADDRESS] = a_state("RUNNING")
        ray.refusal = refusal
        with pytest.raises(error, match=words):
            self.scale(ray, 1, 3)
