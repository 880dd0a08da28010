"""The Lease kept on the real API server: taken, renewed, released, lost."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client
from tcp_relay import Link, TcpRelay
from waiting import DEADLINE_S, until

from controller.kube.gateway import EVENTS, Gateway, KubeError, NotLeading
from controller.kube.leadership import Leadership
from controller.kube.lease import Terms
from simulations.lab.cluster.control_plane import ControlPlane

pytestmark = pytest.mark.lab

TERMS = Terms(duration_s=2.0)
NAME = "sluice"

Start = Callable[..., Leadership]


@pytest.fixture
def leases(admin: client.ApiClient, namespace: str) -> client.CoordinationV1Api:
    """The API of leases, with one in the namespace that nobody holds."""
    api = client.CoordinationV1Api(admin)
    api.create_namespaced_lease(namespace, {"metadata": {"name": NAME, "labels": {"app": "sluice"}}})
    return api


@pytest.fixture
def relay(control_plane: ControlPlane) -> Iterator[TcpRelay]:
    with TcpRelay(int(control_plane.url.rpartition(":")[2])) as relay:
        yield relay


@pytest.fixture
def kubeconfig(control_plane: ControlPlane, relay: TcpRelay, tmp_path: Path) -> Path:
    """The way to the API server through the relay."""
    document = yaml.safe_load(control_plane.kubeconfig.read_text())
    document["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{relay.port}"
    path = tmp_path / "relayed.kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.fixture
def stand(control_plane: ControlPlane, namespace: str) -> Iterator[Start]:
    """Let a replica of some name stand for the lease; `ends` collects why it lost it."""
    with ExitStack() as parts:

        def start(identity: str, ends: list[str] | None = None, kubeconfig: Path | None = None) -> Leadership:
            gateway = parts.enter_context(
                Gateway(kubeconfig or control_plane.kubeconfig, timeout_s=TERMS.timeout_s, always_send=True)
            )
            leadership = Leadership(
                gateway,
                namespace=namespace,
                name=NAME,
                identity=identity,
                terms=TERMS,
                beat=lambda _: None,
                ended=(lambda _: None) if ends is None else ends.append,
            )
            return parts.enter_context(leadership)

        yield start


def holder(leases: client.CoordinationV1Api, namespace: str) -> Any:
    return leases.read_namespaced_lease(NAME, namespace).spec.holder_identity


def test_a_lease_that_nobody_holds_is_taken_at_once_and_kept(
    stand: Start, leases: client.CoordinationV1Api, namespace: str
) -> None:
    first = stand("a_1")
    assert first.wait(DEADLINE_S)
    second = stand("b_2")
    until(lambda: second.standing() == "standby, leader is a_1")

    for _ in range(8):
        renewed = leases.read_namespaced_lease(NAME, namespace).spec.renew_time
        until(lambda: leases.read_namespaced_lease(NAME, namespace).spec.renew_time > renewed)  # noqa: B023

    assert first.leads()
    assert not second.leads()
    with pytest.raises(NotLeading, match=f"does not hold the lease {namespace}/sluice"):
        second.check()
    lease = leases.read_namespaced_lease(NAME, namespace)
    assert (lease.spec.lease_duration_seconds, lease.metadata.labels) == (2, {"app": "sluice"})


def test_who_has_taken_the_lease_is_waited_for_until_it_may_write(
    stand: Start, leases: client.CoordinationV1Api, namespace: str
) -> None:
    first = stand("a_1")
    until(lambda: "a_1" in first.standing())
    assert first.wait(0.0)
    assert first.leads()


def test_a_clean_end_lets_the_next_one_lead_without_waiting(
    stand: Start, leases: client.CoordinationV1Api, namespace: str
) -> None:
    first = stand("a_1")
    assert first.wait(DEADLINE_S)
    second = stand("b_2")
    until(lambda: second.standing() == "standby, leader is a_1")
    before = leases.read_namespaced_lease(NAME, namespace).spec.lease_transitions

    first.__exit__()

    assert not first.leads()
    assert second.wait(DEADLINE_S)
    lease = leases.read_namespaced_lease(NAME, namespace).spec
    assert (lease.holder_identity, lease.lease_transitions) == ("b_2", before + 1)


def test_whoever_finds_another_holder_is_told_once_and_writes_no_more(
    stand: Start, leases: client.CoordinationV1Api, namespace: str
) -> None:
    ends: list[str] = []
    first = stand("a_1", ends)
    assert first.wait(DEADLINE_S)

    leases.patch_namespaced_lease(NAME, namespace, {"spec": {"holderIdentity": "b_2"}})

    until(lambda: ends)
    assert ends == [f"the lease {namespace}/sluice is now held by b_2; this replica ends"]
    with pytest.raises(NotLeading):
        first.check()
    first.__exit__()
    assert holder(leases, namespace) == "b_2", "what it does not hold it does not release"


def test_a_lease_that_somebody_deletes_is_made_again_by_its_holder(
    stand: Start, leases: client.CoordinationV1Api, namespace: str
) -> None:
    ends: list[str] = []
    first = stand("a_1", ends)
    assert first.wait(DEADLINE_S)
    uid = leases.read_namespaced_lease(NAME, namespace).metadata.uid

    leases.delete_namespaced_lease(NAME, namespace)

    until(lambda: leases.list_namespaced_lease(namespace).items)
    lease = leases.read_namespaced_lease(NAME, namespace)
    assert (lease.spec.holder_identity, lease.metadata.uid != uid) == ("a_1", True)
    until(first.leads)
    assert ends == []


@pytest.mark.parametrize("link", [Link.CUT, Link.HELD])
def test_a_leader_out_of_reach_stops_and_goes_on_when_nobody_has_come(
    stand: Start,
    leases: client.CoordinationV1Api,
    kubeconfig: Path,
    relay: TcpRelay,
    link: Link,
) -> None:
    ends: list[str] = []
    first = stand("a_1", ends, kubeconfig)
    assert first.wait(DEADLINE_S)

    relay.set(link)

    until(lambda: not first.leads())
    with pytest.raises(NotLeading, match=r"was last renewed \d+\.\d s ago, nothing is written until it is renewed: "):
        first.check()
    relay.set(Link.OPEN)
    until(first.leads)
    assert ends == []


def test_a_standby_that_cannot_read_the_lease_says_why(stand: Start, kubeconfig: Path, relay: TcpRelay) -> None:
    relay.set(Link.CUT)
    standby = stand("b_2", kubeconfig=kubeconfig)

    def complains() -> bool:
        try:
            standby.standing()
        except KubeError as error:
            return "leases/sluice" in str(error)
        return False

    until(complains)


def test_a_gateway_that_may_not_write_reads_and_sends_nothing_else(
    control_plane: ControlPlane, admin: client.ApiClient, leases: client.CoordinationV1Api, namespace: str
) -> None:
    def permit() -> None:
        raise NotLeading("this replica does not hold the lease")

    event = {"metadata": {"name": "e"}, "involvedObject": {"namespace": namespace}, "reason": "Test"}
    with Gateway(control_plane.kubeconfig, permit=permit) as gateway:
        with pytest.raises(NotLeading):
            gateway.create(EVENTS, namespace, event)
        assert leases.list_namespaced_lease(namespace).items
    assert client.CoreV1Api(admin).list_namespaced_event(namespace).items == []


def test_a_thread_that_keeps_nothing_up_ends_with_the_block(stand: Start, leases: client.CoordinationV1Api) -> None:
    first = stand("a_1")
    assert first.wait(DEADLINE_S)
    first.__exit__()
    assert "lease" not in {thread.name for thread in threading.enumerate()}
