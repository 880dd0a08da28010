"""Batch settings in ConfigMaps: what is read, what is written, and what a failure says."""

import json
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
from builders import a_placement, a_snapshot, a_spec, a_stage, a_state

from controller.core.cycle import decide
from controller.core.state.decision import BatchWrite, PipelineDecision
from controller.core.state.policy import Policy
from controller.core.state.spec import AppliedBatching, ConfigKey, PipelineSpec
from controller.kube.batching import BatchingConfigs, settings_of, text_of
from controller.kube.gateway import CONFIG_MAPS, Forbidden, Gateway, Invalid, Json, KubeError, NotFound, Resource
from optimizer.model import BatchSettings, PlacementKey, PoolName, StageName

ASR: PlacementKey = (StageName("asr"), PoolName("gpu"))
AT = ConfigKey(config_map="batching", key="asr")
SETTINGS = BatchSettings(limit=8, wait_s=0.005)
TEXT = '{"max": 8, "waitMicroseconds": 5000}'


def a_pipeline(*keys: str) -> PipelineSpec:
    """Return a pipeline with a stage for each of `keys`, whose settings are written there."""
    applied = [
        AppliedBatching(at=ConfigKey(config_map="batching", key=key), sizes=(1, 8), waits_s=(0.0,)) for key in keys
    ]
    stages = [a_stage(f"s{k}", a_placement("gpu", stage=f"s{k}")) for k in range(len(keys))]
    return a_spec(
        *(
            replace(stage, placements=(replace(stage.placements[0], applied=own),))
            for stage, own in zip(stages, applied, strict=True)
        )
    )


def a_decision(spec: PipelineSpec, *keys: str) -> PipelineDecision:
    (decision,) = decide(a_snapshot(a_state(spec)), Policy()).pipelines
    writes = (
        BatchWrite(
            stage=StageName(f"s{k}"),
            placement=PoolName("gpu"),
            at=ConfigKey(config_map="batching", key=key),
            settings=SETTINGS,
            before=None,
            restores=False,
        )
        for k, key in enumerate(keys)
    )
    return replace(decision, batch_writes=tuple(writes))


@dataclass(slots=True)
class Server:
    """One ConfigMap. `meanwhile` changes it right before the next patch."""

    data: dict[str, str] | None = field(default_factory=dict)
    error: KubeError | None = None
    meanwhile: dict[str, str] | None = None
    version: int = 1
    requests: list[tuple[str, Resource, str]] = field(default_factory=list)

    def get(self, resource: Resource, namespace: str, name: str) -> Json:
        self.requests.append(("GET", resource, f"{namespace}/{name}"))
        if self.error is not None:
            raise self.error
        body: Json = {"metadata": {"resourceVersion": str(self.version)}}
        return body if self.data is None else {**body, "data": dict(self.data)}

    def patch_json(self, resource: Resource, namespace: str, name: str, operations: list[Json]) -> Json:
        self.requests.append(("PATCH", resource, f"{namespace}/{name}"))
        if self.meanwhile is not None:
            self.data, self.version, self.meanwhile = self.meanwhile, self.version + 1, None
        if isinstance(self.error, Forbidden):
            raise self.error
        test, add = operations
        assert test["op"] == "test"
        if test["value"] != str(self.version):
            raise Invalid("the test failed")
        if add["path"] == "/data":
            self.data = dict(add["value"])
        else:
            assert self.data is not None, "a JSON patch cannot add to what is missing"
            self.data[add["path"].removeprefix("/data/")] = add["value"]
        self.version += 1
        self.error = None
        return self.get(resource, namespace, name)


def configs(server: Server) -> BatchingConfigs:
    return BatchingConfigs(cast("Gateway", server))


@pytest.mark.parametrize("data", [None, {}, {"other": "1"}, {"s0": "x"}])
def test_settings_are_written_as_servers_read_them_and_nothing_else_is_changed(data: dict[str, str] | None) -> None:
    server, spec = Server(data=None if data is None else dict(data)), a_pipeline("s0")
    own = configs(server)
    own.refresh([spec])
    (done,) = own.apply([a_decision(spec, "s0")])
    assert done.problem == ""
    assert server.data == {**(data or {}), "s0": TEXT}
    own.refresh([spec])
    assert own.states(spec)[StageName("s0"), PoolName("gpu")].settings == SETTINGS


def test_two_keys_of_one_config_map_are_read_once_and_written_in_one_cycle() -> None:
    server, spec = Server(), a_pipeline("one", "two")
    own = configs(server)
    own.refresh([spec])
    assert [request[0] for request in server.requests] == ["GET"]
    assert [done.problem for done in own.apply([a_decision(spec, "one", "two")])] == ["", ""]
    assert server.data == {"one": TEXT, "two": TEXT}


def test_without_settings_to_write_nothing_is_read() -> None:
    server = Server()
    own = configs(server)
    own.refresh([a_spec()])
    assert own.states(a_spec()) == {}
    assert server.requests == []


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (NotFound("GET configmaps/batching: not found"), "it does not exist: create it"),
        (
            Forbidden("GET configmaps/batching: forbidden"),
            "grant get and patch on configmaps (chart: rbac.batching: true)",
        ),
    ],
)
def test_a_config_map_that_cannot_be_read_says_object_field_and_remedy(error: KubeError, words: str) -> None:
    spec = a_pipeline("s0")
    own = configs(Server(error=error))
    own.refresh([spec])
    (state,) = own.states(spec).values()
    assert state.problem.startswith("ConfigMap batching, key s0: cannot be read: ")
    assert words in state.problem


def test_a_refused_write_stops_no_other_and_is_said_in_the_next_cycle() -> None:
    server, spec = Server(), a_pipeline("s0")
    own = configs(server)
    own.refresh([spec])
    server.error = Forbidden("PATCH configmaps/batching: forbidden")
    (done,) = own.apply([a_decision(spec, "s0")])
    assert done.problem.startswith("ConfigMap batching, key s0: cannot be written: PATCH")
    server.error = None
    own.refresh([spec])
    (state,) = own.states(spec).values()
    assert state.refused == done.problem
    own.apply([a_decision(spec, "s0")])
    own.refresh([spec])
    (state,) = own.states(spec).values()
    assert state.refused == ""


def test_a_change_by_another_client_since_it_was_read_is_not_overwritten() -> None:
    server, spec = Server(), a_pipeline("s0")
    own = configs(server)
    own.refresh([spec])
    server.meanwhile = {"s0": "by a person"}
    (done,) = own.apply([a_decision(spec, "s0")])
    assert "changed by another client" in done.problem
    assert server.data == {"s0": "by a person"}


def test_a_key_that_two_pipelines_name_is_written_for_one_of_them() -> None:
    one = a_pipeline("s0")
    two = replace(one, key=type(one.key)("speech/zz"))
    own = configs(Server())
    own.refresh([two, one])
    assert [state.problem for state in own.states(one).values()] == [""]
    (state,) = own.states(two).values()
    assert state.problem.startswith("ConfigMap batching, key s0: not written for two placements: pipeline ")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "8",
        "[]",
        "null",
        "{}",
        "x",
        '{"max": 0}',
        '{"max": true}',
        '{"max": 8, "waitMicroseconds": -1}',
        '{"max": 1e9}',
        '{"max": "8"}',
        '{"max": 8, "waitMicroseconds": null}',
        "[" * 100_000,
    ],
)
def test_a_value_that_no_server_can_use_is_none(text: str) -> None:
    assert settings_of(text) is None


def test_what_is_written_is_read_again() -> None:
    for wait_us in (0, 1, 1500, 5000, 20_000, 333_333):
        settings = BatchSettings(limit=8, wait_s=wait_us / 1e6)
        assert settings_of(text_of(settings)) == settings
        assert json.loads(text_of(settings)) == {"max": 8, "waitMicroseconds": wait_us}
    assert settings_of('{"max": 4}') == BatchSettings(limit=4)


def test_config_maps_are_the_kind_that_is_asked_for() -> None:
    server, spec = Server(), a_pipeline("s0")
    own: Any = configs(server)
    own.refresh([spec])
    assert server.requests == [("GET", CONFIG_MAPS, "speech/batching")]
