"""What Karpenter's objects and Events say about an elastic pool. The objects have the fields of karpenter.sh/v1."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar, cast

import pytest

from controller.core.state.snapshot import ExpectedNode, LaunchFailure, NodePoolProblem, NodePoolState
from controller.core.state.spec import Target
from controller.kube.gateway import (
    EVENTS,
    NODE_CLAIMS,
    NODE_POOLS,
    Forbidden,
    Gateway,
    KubeError,
    Listing,
    NotFound,
    Resource,
    Unavailable,
)
from controller.kube.karpenter import (
    Karpenter,
    expected_node,
    kept_node_claim,
    kept_node_pool,
    node_pool_state,
    refusal,
)

LABELS = {"karpenter.sh/nodepool": "inf2"}
SIZE = {"cpu": "4", "memory": "16Gi", "aws.amazon.com/neuron": "1"}


def at(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def a_node_pool(**limits: str) -> dict[str, Any]:
    return {"metadata": {"name": "inf2"}, "spec": {"limits": limits}}


def a_node(name: str, capacity: Mapping[str, str] = SIZE, labels: Mapping[str, str] = LABELS) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": dict(labels)}, "status": {"capacity": dict(capacity)}}


def a_claim(
    name: str,
    *,
    launched_s: float | None = None,
    registered_s: float | None = None,
    created_s: float = 100.0,
    node: str | None = None,
    capacity: Mapping[str, str] = SIZE,
) -> dict[str, Any]:
    times = {"Launched": launched_s, "Registered": registered_s}
    conditions = [
        {
            "type": kind,
            "status": "Unknown" if since_s is None else "True",
            "lastTransitionTime": at(since_s or created_s),
        }
        for kind, since_s in times.items()
    ]
    status: dict[str, Any] = {"conditions": conditions}
    if launched_s is not None:
        status["capacity"] = dict(capacity)
    if node is not None:
        status["nodeName"] = node
    return {"metadata": {"name": name, "labels": LABELS, "creationTimestamp": at(created_s)}, "status": status}


def an_event(reason: str, name: str, message: str, at_s: float, kind: str = "Pod") -> dict[str, Any]:
    return {
        "metadata": {"name": f"{name}.{at_s}", "creationTimestamp": at(at_s)},
        "involvedObject": {"kind": kind, "name": name},
        "reason": reason,
        "message": message,
        "firstTimestamp": at(at_s),
        "lastTimestamp": at(at_s),
    }


def state(
    node_pool: dict[str, Any],
    claims: Sequence[Any] = (),
    nodes: Sequence[Any] = (),
    selector: Mapping[str, str] = {},
) -> NodePoolState:
    return node_pool_state(node_pool, selector, claims, nodes, ())


class TestLimits:
    def test_a_limit_of_nodes_is_a_number_of_instances(self) -> None:
        assert state(a_node_pool(nodes="7")) == NodePoolState(instances=7)

    def test_the_smallest_limit_counts_in_nodes_of_the_largest_kind(self) -> None:
        nodes = [a_node("a"), a_node("b", {"cpu": "8", "memory": "16Gi"})]
        # 12 of 40 cores are taken: 3 more nodes of 8 cores; 32 of 320 GiB: 18 more nodes.
        assert state(a_node_pool(cpu="40", memory="320Gi"), (), nodes).instances == 5
        assert state(a_node_pool(cpu="40", memory="64Gi"), (), nodes).instances == 4
        assert state(a_node_pool(cpu="40", nodes="3"), (), nodes).instances == 3

    @pytest.mark.parametrize("text", ["1e3.5", "1e400", "1.2.3", "lots"])
    def test_a_limit_that_is_no_number_limits_nothing(self, text: str) -> None:
        found = state(a_node_pool(cpu=text), [a_claim("inf2-a") | {"status": None}], [a_node("a")])
        assert (found.instances, found.problem) == (None, NodePoolProblem.UNLIMITED)
        assert state(a_node_pool(cpu=text, nodes="7"), (), [a_node("a", {"cpu": text})]).instances == 7

    def test_nodes_that_are_there_fit_whatever_the_limit(self) -> None:
        """Karpenter removes no node because a limit was lowered, so replicas need not leave."""
        assert state(a_node_pool(cpu="4"), (), [a_node("a"), a_node("b")]).instances == 2

    def test_a_claim_shows_the_capacity_before_its_node_registers_and_is_not_counted_twice(self) -> None:
        claims = [a_claim("inf2-x", launched_s=110), a_claim("inf2-y", launched_s=105, registered_s=120, node="a")]
        found = state(a_node_pool(cpu="16"), claims, [a_node("a")])
        assert (found.instances, found.unseen) == (4, False)

    def test_a_claim_that_is_not_launched_takes_a_node_of_the_largest_kind(self) -> None:
        assert state(a_node_pool(cpu="16"), [a_claim("inf2-x")], [a_node("a")]).instances == 4

    def test_until_a_node_was_seen_one_is_allowed(self) -> None:
        assert state(a_node_pool(cpu="64")) == NodePoolState(instances=1, unseen=True)
        assert state(a_node_pool(cpu="64"), [a_claim("inf2-x")]).unseen
        assert state(a_node_pool(cpu="0")) == NodePoolState(instances=0, unseen=True)

    @pytest.mark.parametrize("limits", [{}, {"example.com/fpga": "4"}])
    def test_limits_that_do_not_convert_are_a_problem_with_words(self, limits: Mapping[str, str]) -> None:
        found = state(a_node_pool(**limits), (), [a_node("a")])
        assert (found.instances, found.problem) == (None, NodePoolProblem.UNLIMITED)
        assert found.detail == "NodePool inf2 has no limits that convert to instances"

    def test_nodes_of_other_node_pools_do_not_count(self) -> None:
        other = a_node("c", {"cpu": "96"}, {"karpenter.sh/nodepool": "gpu"})
        assert state(a_node_pool(cpu="16"), (), [a_node("a"), other]).instances == 4


class TestTwoPoolsOfOneNodePool:
    """A NodePool of spot and on-demand nodes, and a ComputePool for each."""

    SPOT: ClassVar = {"karpenter.sh/capacity-type": "spot"}
    ON_DEMAND: ClassVar = {"karpenter.sh/capacity-type": "on-demand"}

    def nodes(self, spot: int, on_demand: int) -> list[dict[str, Any]]:
        kinds = [self.SPOT] * spot + [self.ON_DEMAND] * on_demand
        return [a_node(f"n{number}", labels=LABELS | kind) for number, kind in enumerate(kinds)]

    @pytest.mark.parametrize("limits", [{"cpu": "40"}, {"nodes": "10"}])
    def test_nodes_of_the_other_use_the_limits_up_and_are_no_instances(self, limits: Mapping[str, str]) -> None:
        nodes = self.nodes(spot=2, on_demand=3)
        assert state(a_node_pool(**limits), (), nodes, self.SPOT).instances == 7
        assert state(a_node_pool(**limits), (), nodes, self.ON_DEMAND).instances == 8
        assert state(a_node_pool(**limits), (), nodes).instances == 10

    def test_limits_that_the_other_has_used_up_allow_what_is_there(self) -> None:
        nodes = self.nodes(spot=1, on_demand=4)
        assert state(a_node_pool(nodes="4"), (), nodes, self.SPOT).instances == 1
        assert state(a_node_pool(cpu="16"), (), self.nodes(0, 4), self.SPOT).instances == 0

    def test_claims_of_the_other_are_not_on_their_way_to_this_pool(self) -> None:
        claim = a_claim("inf2-a", launched_s=120)
        claim["metadata"]["labels"] = LABELS | self.SPOT
        assert state(a_node_pool(nodes="9"), [claim], (), self.SPOT).claims
        other = state(a_node_pool(nodes="9"), [claim], (), self.ON_DEMAND)
        assert (other.claims, other.created_at_s, other.instances) == ((), None, 8)

    def test_a_label_that_the_claim_does_not_have_yet_may_come_with_its_node(self) -> None:
        claim = a_claim("inf2-a", launched_s=120)
        assert state(a_node_pool(nodes="9"), [claim], (), {"example.com/pool": "inf2"}).claims


class TestNodesOnTheirWay:
    def test_a_claim_that_is_launched_and_not_registered_is_on_its_way(self) -> None:
        gone = a_claim("inf2-gone", launched_s=120)
        gone["metadata"]["deletionTimestamp"] = at(121)
        claims = [
            a_claim("inf2-b", launched_s=130, created_s=125),
            a_claim("inf2-a", launched_s=120),
            a_claim("inf2-new"),
            a_claim("inf2-ready", launched_s=105, registered_s=115, node="a"),
            gone,
        ]
        found = state(a_node_pool(nodes="9"), claims)
        assert found.claims == (ExpectedNode(name="inf2-a", since_s=120), ExpectedNode(name="inf2-b", since_s=130))
        assert (found.created_at_s, found.registered_at_s) == (125, 115)

    def test_the_time_that_nodes_took_is_the_median_of_those_that_registered(self) -> None:
        registered = [a_claim(f"inf2-{at_s}", launched_s=105, registered_s=at_s) for at_s in (130, 160, 400)]
        assert state(a_node_pool(nodes="9"), [*registered, a_claim("inf2-b", launched_s=130)]).launch_s == 60
        assert state(a_node_pool(nodes="9"), [a_claim("inf2-b", launched_s=130)]).launch_s is None

    def test_failures_are_those_of_the_claims_of_this_node_pool_in_their_order(self) -> None:
        failures = [LaunchFailure(claim=name, at_s=at_s, reason="r") for name, at_s in (("inf2-b", 2), ("inf2-a", 1))]
        other = LaunchFailure(claim="inf2-spot-a", at_s=1, reason="r")
        found = node_pool_state(a_node_pool(nodes="9"), {}, (), (), [*failures, other])
        assert [failure.claim for failure in found.failures] == ["inf2-a", "inf2-b"]

    def test_events_about_a_pod_name_the_node_that_it_waits_for(self) -> None:
        nominated = "Pod should schedule on: nodeclaim/inf2-x7k2p, node/ip-10-0-0-7"
        assert expected_node(an_event("Nominated", "p", nominated, 7)) == ExpectedNode(name="inf2-x7k2p", since_s=7)
        words = "pod triggered scale-up: [{asg-gpu 1->2 (max: 5)}]"
        assert expected_node(an_event("TriggeredScaleUp", "p", words, 8)) == ExpectedNode(name=words, since_s=8)

    def test_an_event_that_is_repeated_does_not_make_the_node_a_later_one(self) -> None:
        repeated = an_event("Nominated", "p", "Pod should schedule on: nodeclaim/inf2-x7k2p", 7)
        assert expected_node({**repeated, "count": 9, "lastTimestamp": at(900)}).since_s == 7


class Server:
    """Stands for the gateway: lists what it has, or raises; `asked` has the selectors of Events."""

    def __init__(self, **lists: Sequence[Any] | KubeError) -> None:
        self.lists = lists
        self.asked: list[tuple[str | None, str]] = []

    def watched(self, resource: Resource) -> list[dict[str, Any]]:
        found = self.lists.get(resource.plural, ())
        if isinstance(found, KubeError):
            raise found
        keep = kept_node_pool if resource == NODE_POOLS else kept_node_claim
        return [keep(each) for each in found]

    def pages(self, resource: Resource, namespace: str | None, **selectors: str) -> Iterator[Listing]:
        assert resource == EVENTS
        self.asked.append((namespace, selectors["fieldSelector"]))
        wanted = dict(part.split("=") for part in selectors["fieldSelector"].split(","))
        found = self.lists.get("events", ())
        if isinstance(found, KubeError):
            raise found
        yield Listing(
            items=tuple(
                event
                for event in found
                if event["reason"] == wanted["reason"]
                and event["involvedObject"]["kind"]
                == wanted.get("involvedObject.kind", event["involvedObject"]["kind"])
            ),
            resource_version="1",
        )


def karpenter(server: Server) -> Karpenter:
    found = Karpenter(cast("Gateway", server))
    found.refresh(server.watched)
    return found


class TestReading:
    def test_what_cannot_be_read_is_a_problem_with_the_server_s_words(self) -> None:
        missing = karpenter(Server(nodepools=NotFound("404 page not found"))).state("inf2", {}, (), {})
        assert (missing.problem, missing.instances) == (NodePoolProblem.NOT_FOUND, None)
        assert missing.detail == "Karpenter is not installed: 404 page not found"
        other = karpenter(Server(nodepools=[a_node_pool(nodes="3")])).state("gpu", {}, (), {})
        assert (other.problem, other.detail) == (NodePoolProblem.NOT_FOUND, "there is no NodePool gpu")
        refused = karpenter(Server(nodepools=Forbidden("403 nodepools"))).state("inf2", {}, (), {})
        assert (refused.problem, refused.detail) == (NodePoolProblem.UNREADABLE, "403 nodepools")

    @pytest.mark.parametrize("lost", ["nodepools", "nodeclaims"])
    def test_what_was_known_stays_while_it_cannot_be_read(self, lost: str) -> None:
        server = Server(nodepools=[a_node_pool(nodes="3")])
        found = karpenter(server)
        server.lists[lost] = Unavailable("timed out")
        found.refresh(server.watched)
        kept = found.state("inf2", {}, (), {})
        assert (kept.instances, kept.problem, kept.detail) == (3, NodePoolProblem.UNREADABLE, "timed out")
        del server.lists[lost]
        server.lists["nodepools"] = [a_node_pool(nodes="4")]
        found.refresh(server.watched)
        assert found.state("inf2", {}, (), {}) == NodePoolState(instances=4)

    def test_failed_launches_are_read_where_events_about_claims_are(self) -> None:
        words = "NodeClaim inf2-x event: creating instance, insufficient capacity, with fleet error(s)"
        server = Server(
            events=[
                an_event("InsufficientCapacityError", "inf2-x", words, 9, "NodeClaim"),
                an_event("Launched", "inf2-x", "other", 8, "NodeClaim"),
            ]
        )
        failures = karpenter(server).launch_failures()
        assert failures == {"inf2-x": LaunchFailure(claim="inf2-x", at_s=9, reason=words)}
        assert [namespace for namespace, _ in server.asked] == ["default"]

    def test_an_operator_of_some_namespaces_asks_for_no_events_that_it_may_not_read(self) -> None:
        server = Server()
        assert Karpenter(cast("Gateway", server), ("speech",)).launch_failures() == {}
        assert server.asked == []
        Karpenter(cast("Gateway", server), ("speech", "default")).launch_failures()
        assert [namespace for namespace, _ in server.asked] == ["default"]

    def test_the_cluster_autoscaler_says_which_group_it_cannot_scale(self) -> None:
        refused = "Scale-up failed for group inf2 spot: AccessDenied: not authorized to perform: SetDesiredCapacity"
        none_left = "Failed adding 2 nodes to group inf2 spot due to OutOfResource.placeholder; source errors: none"
        server = Server(
            events=[
                an_event("ScaleUpFailed", "cluster-autoscaler-status", none_left, 9, "ConfigMap"),
                an_event("FailedToScaleUpGroup", "cluster-autoscaler-status", refused, 5, "ConfigMap"),
                an_event("FailedToScaleUpGroup", "status", "Scale-up failed for group inf2 spot b: no", 7, "ConfigMap"),
                an_event("ScaledUpGroup", "status", "Scale-up: group inf2 spot size set to 2", 3, "ConfigMap"),
            ]
        )
        found = karpenter(server).scale_up_failures(["inf2 spot", "other"])
        assert [(each.at_s, each.reason) for each in found["inf2 spot"]] == [(5, refused), (9, none_left)]
        assert found["other"] == ()
        assert {namespace for namespace, _ in server.asked} == {"kube-system"}

    @pytest.mark.parametrize(("namespaces", "groups"), [(("speech",), ["inf2"]), ((), [])])
    def test_events_of_groups_are_not_read_without_a_group_or_the_right(
        self, namespaces: tuple[str, ...], groups: list[str]
    ) -> None:
        server = Server()
        assert Karpenter(cast("Gateway", server), namespaces).scale_up_failures(groups) == {}
        assert server.asked == []

    def test_a_pod_may_be_announced_several_nodes_and_a_node_is_counted_once(self) -> None:
        server = Server(
            events=[
                an_event("Nominated", "p", "Pod should schedule on: nodeclaim/inf2-b", 9),
                an_event("Nominated", "p", "Pod should schedule on: nodeclaim/inf2-a", 5),
                an_event("Nominated", "p", "Pod should schedule on: nodeclaim/inf2-a", 7),
                an_event("FailedScheduling", "p", "no", 4),
                an_event("Nominated", "q", "Pod should schedule on: nodeclaim/inf2-c", 6),
            ]
        )
        expected = karpenter(server).expected("speech")
        assert [(node.name, node.since_s) for node in expected["p"]] == [("inf2-a", 5), ("inf2-b", 9)]
        assert set(expected) == {"p", "q"}

    def test_events_that_cannot_be_listed_for_a_moment_count_as_last_known(self) -> None:
        """Otherwise one answer of 500 would end the wait for a node, and fail the pool."""
        server = Server(events=[an_event("Nominated", "p", "Pod should schedule on: nodeclaim/inf2-a", 5)])
        found = karpenter(server)
        known = found.expected("speech")
        server.lists["events"] = Unavailable("500")
        assert found.expected("speech") == known
        assert found.expected("elsewhere") == {}
        server.lists["events"] = []
        assert found.expected("speech") == {}

    def test_what_tenants_write_into_events_cannot_stop_the_cycle(self) -> None:
        nothing = {"metadata": {"creationTimestamp": at(3)}, "reason": "Nominated", "involvedObject": {"kind": "Pod"}}
        long = {**nothing, "reason": "FailedCreate", "message": "x" * 10**6, "lastTimestamp": None}
        found = karpenter(Server(events=[nothing, long]))
        assert found.expected("speech") == {"": (ExpectedNode(name="", since_s=3),)}
        assert [(each.owner, len(each.message)) for each in found.failed_creations("speech")] == [("", 1024)]

    @pytest.mark.parametrize(
        "time", ["0000-01-01T00:00:00Z", "10000-01-01T00:00:00Z", "99999-12-31T23:59:59Z", "soon", 7]
    )
    def test_no_time_of_an_event_hides_the_events_of_others(self, time: Any) -> None:
        odd = {**an_event("Nominated", "pod-1", "x", 3), "firstTimestamp": time, "lastTimestamp": time}
        failed = {**an_event("FailedCreate", "a", "odd", 3), "lastTimestamp": time}
        found = karpenter(
            Server(
                events=[odd, failed, an_event("Nominated", "pod-2", "y", 4), an_event("FailedCreate", "b", "why", 4)]
            )
        )
        assert "pod-2" in found.expected("speech")
        assert "b" in [each.owner for each in found.failed_creations("speech")]

    def test_without_the_right_to_list_events_nothing_is_expected(self) -> None:
        assert karpenter(Server(events=Forbidden("403 events"))).expected("speech") == {}
        assert karpenter(Server(events=Forbidden("403 events"))).launch_failures() == {}

    def test_the_kinds_are_those_of_karpenter(self) -> None:
        assert (NODE_POOLS.path(), NODE_CLAIMS.path()) == (
            "/apis/karpenter.sh/v1/nodepools",
            "/apis/karpenter.sh/v1/nodeclaims",
        )


class TestRefusals:
    def words(self, kind: str, name: str, *events: tuple[str, float], since_s: float = 100.0) -> str:
        server = Server(
            events=[an_event("FailedCreate", owner, f"quota {owner} {at_s}", at_s) for owner, at_s in events]
        )
        target = Target(api_version="apps/v1", kind=kind, name=name)
        return refusal(karpenter(server).failed_creations("speech"), target, since_s)

    def test_the_last_words_of_the_replica_set_or_the_stateful_set_count(self) -> None:
        assert self.words("StatefulSet", "asr", ("asr", 110), ("asr", 120), ("vad", 130)) == "quota asr 120"
        assert self.words("Deployment", "asr", ("asr-7d9f", 110), ("asr-gpu-7d9f", 120)) == "quota asr-7d9f 110"

    def test_words_of_long_before_are_about_something_else(self) -> None:
        assert self.words("StatefulSet", "asr", ("asr", 41)) == "quota asr 41"
        assert self.words("StatefulSet", "asr", ("asr", 39)) == ""
