"""What the cluster's state is read from: lists from a scripted server, and our own writes."""

from collections.abc import Iterator
from typing import Any, cast

import pytest

from controller.core.state.shards import Shard, shard_of
from controller.core.state.spec import LabelSelector, Target
from controller.kube.cluster import Cluster
from controller.kube.gateway import (
    AUTOSCALERS,
    DEPLOYMENTS,
    NAMESPACES,
    NODE_CLAIMS,
    NODE_POOLS,
    NODES,
    PIPELINES,
    PODS,
    SCALED_OBJECTS,
    STATEFUL_SETS,
    Forbidden,
    Gateway,
    KubeError,
    Listing,
    NotFound,
    Resource,
    Scale,
)
from controller.kube.moves import follow_moves
from controller.kube.other_writers import OtherWriter
from controller.kube.shards import Members
from controller.kube.store import ResourceStore

SELECTOR = LabelSelector(labels={"app": "captions"})
TARGET = Target(api_version="apps/v1", kind="Deployment", name="captions")


def an_object(namespace: str, name: str, version: int = 1, **more: Any) -> dict[str, Any]:
    metadata = {"namespace": namespace, "name": name, "resourceVersion": str(version), "labels": {"app": "captions"}}
    return {"metadata": metadata, **more}


def a_deployment(namespace: str, replicas: int, version: int = 1) -> dict[str, Any]:
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "captions"}}}
    return an_object(namespace, "captions", version, spec=spec)


class Server:
    """Lists what it has of each kind and namespace, or refuses."""

    def __init__(self) -> None:
        self.objects: dict[tuple[Resource, str | None], list[dict[str, Any]] | KubeError] = {}
        self.listed: list[tuple[Resource, str | None]] = []

    def pages(self, resource: Resource, namespace: str | None, **_: str) -> Iterator[Listing]:
        self.listed.append((resource, namespace))
        objects = self.objects.get((resource, namespace), [])
        if isinstance(objects, KubeError):
            raise objects
        yield Listing(items=tuple(objects), resource_version="5")


def a_cluster(server: Server, *namespaces: str) -> Cluster:
    cluster = Cluster(cast("Gateway", server), namespaces=namespaces)
    cluster.resync()
    return cluster


def test_a_workload_is_found_with_the_pods_of_its_namespace() -> None:
    server = Server()
    server.objects[DEPLOYMENTS, None] = [a_deployment("speech", 2)]
    server.objects[PODS, None] = [an_object("speech", "captions-0"), an_object("other", "captions-1")]
    found = a_cluster(server).view().workload("speech", TARGET)
    assert found is not None
    assert found[0].replicas == 2
    assert [pod["metadata"]["name"] for pod in found[1]] == ["captions-0"]


def test_a_missing_workload_and_a_kind_that_is_not_watched_differ() -> None:
    view = a_cluster(Server()).view()
    with pytest.raises(NotFound, match="not found in namespace speech"):
        view.workload("speech", TARGET)
    assert view.workload("speech", Target(api_version="apps/v1", kind="ReplicaSet", name="captions")) is None


def test_a_kind_that_cannot_be_listed_fails_only_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.kube.watch._BRIEF_S", 0.0)
    server = Server()
    server.objects[PODS, None] = Forbidden("may not list pods")
    server.objects[NODES, None] = [an_object("", "node-1")]
    server.objects[DEPLOYMENTS, None] = [a_deployment("speech", 2)]
    view = a_cluster(server).view()
    assert [node["metadata"]["name"] for node in view.nodes()] == ["node-1"]
    with pytest.raises(Forbidden, match="may not list pods"):
        view.workload("speech", TARGET)


def test_with_namespaces_only_those_are_listed_and_merged() -> None:
    server = Server()
    server.objects[DEPLOYMENTS, "a"] = [a_deployment("a", 1)]
    server.objects[DEPLOYMENTS, "b"] = [a_deployment("b", 2)]
    view = a_cluster(server, "a", "b").view()
    for namespace, replicas in (("a", 1), ("b", 2)):
        found = view.workload(namespace, TARGET)
        assert found is not None
        assert found[0].replicas == replicas
    namespaced = {(kind, namespace) for kind in (DEPLOYMENTS, STATEFUL_SETS, PODS) for namespace in ("a", "b")}
    assert namespaced | {(NODES, None)} <= set(server.listed)
    wide = {kind for kind, namespace in server.listed if namespace is None}
    assert wide == {NODES, NAMESPACES, NODE_POOLS, NODE_CLAIMS}


@pytest.mark.parametrize("namespaces", [(), ("speech",)])
def test_a_write_is_seen_at_once_and_an_older_list_does_not_undo_it(namespaces: tuple[str, ...]) -> None:
    server = Server()
    server.objects[DEPLOYMENTS, namespaces[0] if namespaces else None] = [a_deployment("speech", 2)]
    cluster = a_cluster(server, *namespaces)
    cluster.written("speech", TARGET, Scale(replicas=5, selector="", resource_version="9"))
    cluster.resync()
    found = cluster.view().workload("speech", TARGET)
    assert found is not None
    assert (found[0].replicas, found[0].resource_version) == (5, "9")


def test_what_is_in_no_namespace_and_other_writers_where_the_operator_is_are_kept_by_their_fields_alone() -> None:
    server = Server()
    big = "x" * 100_000
    theirs = an_object("speech", "asr", spec={"scaleTargetRef": {"name": "asr"}, "metrics": [{"type": big}]})
    server.objects[AUTOSCALERS, "speech"] = [theirs]
    server.objects[NAMESPACES, None] = [{"metadata": {"name": "speech", "resourceVersion": "1", "labels": {"a": "b"}}}]
    server.objects[SCALED_OBJECTS, "speech"] = NotFound("404")
    view = a_cluster(server, "speech").view()
    (kept,) = view.others(AUTOSCALERS)
    assert kept == OtherWriter(
        name="HorizontalPodAutoscaler/asr",
        of=("speech", Target(api_version="apps/v1", kind="Deployment", name="asr")),
    )
    assert view.others(NAMESPACES) == [{"name": "speech", "labels": {"a": "b"}}]
    with pytest.raises(NotFound):
        view.others(SCALED_OBJECTS)
    assert (AUTOSCALERS, None) not in server.listed


MINE, OTHERS = (next(f"team-{n}" for n in range(99) if shard_of(f"team-{n}", 2) == index) for index in (0, 1))


def names(cluster: Cluster) -> list[str]:
    view = cluster.view()
    return sorted(pod["metadata"]["name"] for namespace in (MINE, OTHERS) for pod in view.pods(namespace, SELECTOR))


def test_of_a_shard_only_what_is_in_its_namespaces_is_kept() -> None:
    server = Server()
    server.objects[PODS, None] = [an_object(MINE, "mine"), an_object(OTHERS, "theirs")]
    server.objects[NODES, None] = [an_object("", "node-1")]
    cluster = Cluster(cast("Gateway", server), members=Members(Shard(index=0, count=2), "sluice-system/sluice-0"))
    cluster.resync()
    assert names(cluster) == ["mine"]
    assert len(cluster.view().nodes()) == 1


def test_a_namespace_that_joins_is_read_and_one_that_leaves_is_dropped() -> None:
    value = next(f"v{n}" for n in range(99) if shard_of(f"v{n}", 2) == 0)
    server, members = Server(), Members(Shard(index=0, count=2, label="team"), "sluice-system/sluice-0")
    for namespace, name in ((MINE, "one"), (OTHERS, "two")):
        server.objects[PODS, namespace] = [an_object(namespace, name)]
    server.objects[PODS, None] = [*server.objects[PODS, MINE], *server.objects[PODS, OTHERS]]  # type: ignore[misc]

    def labelled(**teams: str) -> None:
        for name, team in zip((MINE, OTHERS), teams.values(), strict=True):
            members.seen({"metadata": {"name": name, "labels": {"team": team}}})

    cluster, pipelines = Cluster(cast("Gateway", server), members=members), ResourceStore(members.keeps_pipeline)
    labelled(mine=value, others="elsewhere" if shard_of("elsewhere", 2) else "there")
    members.begin()
    cluster.resync()
    assert names(cluster) == ["one"]
    pipeline = {"namespace": OTHERS, "name": "captions", "uid": "uid", "generation": 1, "resourceVersion": "3"}
    server.objects[PIPELINES, OTHERS] = [{"metadata": pipeline}]
    labelled(mine="elsewhere" if shard_of("elsewhere", 2) else "there", others=value)
    follow_moves(members, cast("Gateway", server), cluster, pipelines)
    assert names(cluster) == ["two"]
    assert list(pipelines.snapshot()) == [(OTHERS, "captions")]

    server.objects[PODS, MINE] = Forbidden("may not list pods")
    labelled(mine=value, others=value)
    follow_moves(members, cast("Gateway", server), cluster, pipelines)
    assert not members.has(MINE)
    server.objects[PODS, MINE] = [an_object(MINE, "one")]
    follow_moves(members, cast("Gateway", server), cluster, pipelines)
    assert names(cluster) == ["one", "two"]
