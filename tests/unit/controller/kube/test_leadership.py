"""The lease against a scripted server: which requests are sent, and what is reported."""

import threading
from typing import Any, cast

import pytest
from waiting import until

from controller.kube.gateway import Conflict, Gateway, KubeError, NotFound, NotLeading, Resource, Unavailable
from controller.kube.leadership import Leadership
from controller.kube.lease import Terms

TERMS = Terms(duration_s=1.0)


class Server:
    """Has one Lease, or none, and increases its version with each write."""

    def __init__(self, holder: str | None = None, *, exists: bool = True) -> None:
        self.spec: dict[str, Any] | None = {"holderIdentity": holder, "leaseTransitions": 4} if exists else None
        self.version = 1
        self.problem: KubeError | None = None
        self.lock = threading.Lock()

    def _body(self) -> dict[str, Any]:
        return {"metadata": {"resourceVersion": str(self.version)}, "spec": dict(self.spec or {})}

    def get(self, _resource: Resource, _namespace: str, _name: str) -> dict[str, Any]:
        with self.lock:
            if self.problem is not None:
                raise self.problem
            if self.spec is None:
                raise NotFound("no such lease")
            return self._body()

    def create(self, _resource: Resource, _namespace: str, body: dict[str, Any]) -> dict[str, Any]:
        with self.lock:
            if self.spec is not None:
                raise Conflict("exists")
            self.spec, self.version = body["spec"], self.version + 1
            return self._body()

    def patch(self, _resource: Resource, _namespace: str, _name: str, patch: dict[str, Any]) -> dict[str, Any]:
        with self.lock:
            if self.problem is not None:
                raise self.problem
            if self.spec is None:
                raise NotFound("no such lease")
            if patch["metadata"]["resourceVersion"] != str(self.version):
                raise Conflict("changed")
            self.spec, self.version = {**self.spec, **patch["spec"]}, self.version + 1
            return self._body()

    def take(self, holder: str | None) -> None:
        with self.lock:
            assert self.spec is not None
            self.spec, self.version = {**self.spec, "holderIdentity": holder}, self.version + 1


def a_replica(server: Server, ended: list[str] | None = None) -> Leadership:
    return Leadership(
        cast("Gateway", server),
        namespace="sluice-system",
        name="sluice",
        identity="a_1",
        terms=TERMS,
        beat=lambda _: None,
        ended=(lambda _: None) if ended is None else ended.append,
    )


def test_a_free_lease_is_taken_and_released_at_the_end() -> None:
    server = Server()
    with a_replica(server) as replica:
        assert replica.wait(10)
        replica.check()
        assert server.spec is not None
        assert server.spec["holderIdentity"] == "a_1"
        assert (server.spec["leaseDurationSeconds"], server.spec["leaseTransitions"]) == (1, 5)
    assert server.spec["holderIdentity"] is None
    with pytest.raises(NotLeading, match="this replica has given up the lease sluice-system/sluice"):
        replica.check()


def test_a_standby_names_the_leader_and_may_not_write() -> None:
    with a_replica(Server("b_2")) as replica:
        until(lambda: replica.standing() == "standby, leader is b_2")
        with pytest.raises(NotLeading, match="this replica does not hold the lease sluice-system/sluice"):
            replica.check()


def test_a_standby_that_cannot_read_the_lease_says_why() -> None:
    server = Server("b_2")
    server.problem = Unavailable("connection refused")
    with a_replica(server) as replica:

        def fails() -> bool:
            try:
                replica.standing()
            except KubeError as error:
                return str(error) == "connection refused"
            return False

        until(fails)


def test_a_holder_that_cannot_renew_stops_writing_in_time_and_says_why() -> None:
    server = Server()
    with a_replica(server) as replica:
        assert replica.wait(10)
        server.problem = Unavailable("connection refused")
        until(lambda: not replica.leads())
        with pytest.raises(NotLeading, match=r"was last renewed \d\.\d s ago, .*: connection refused"):
            replica.check()
        server.problem = None
        until(replica.leads)


@pytest.mark.parametrize(
    ("holder", "why"),
    [
        ("b_2", "the lease sluice-system/sluice is now held by b_2; this replica ends"),
        (None, "the lease sluice-system/sluice was released by another process; this replica ends"),
    ],
)
def test_a_holder_that_loses_the_lease_ends_and_says_why(holder: str | None, why: str) -> None:
    ended: list[str] = []
    server = Server()
    with a_replica(server, ended) as replica:
        assert replica.wait(10)
        server.take(holder)
        until(lambda: ended == [why])
        assert not replica.leads()
    assert server.spec is not None
    assert server.spec["holderIdentity"] == holder, "it does not release a lease that it has lost"


def test_a_missing_lease_is_created_after_its_duration() -> None:
    server = Server(exists=False)
    with a_replica(server) as replica:
        until(lambda: replica.standing() == "standby, there is no leader yet")
        assert server.spec is None, "a former holder may not know yet that it was deleted"
        assert replica.wait(10)
        assert server.spec is not None
