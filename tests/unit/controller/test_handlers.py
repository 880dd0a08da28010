"""The watches of own resources: when they start, how their end is reported, and what garbage they leave."""

import asyncio
import gc
import getpass
import threading
import weakref
from typing import Any, cast

import kopf
import pytest

from controller.handlers import ResourceWatches
from controller.kube.gateway import Gateway, Resource, Unavailable
from controller.kube.store import ResourceStore


class Empty:
    """An API server with no resources."""

    def pages(self, *_: object) -> list[object]:
        return []


async def failing(*, stop_flag: threading.Event, **_: Any) -> None:
    """Fail as kopf does: while a thread of the event loop waits for the stop flag."""
    asyncio.get_running_loop().run_in_executor(None, stop_flag.wait)
    raise RecursionError("a document nested too deeply")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_watches_that_fail_are_heard_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kopf, "operator", failing)
    died = threading.Event()
    watches = ResourceWatches(
        cast("Gateway", Empty()),
        pipelines=ResourceStore(),
        pools=ResourceStore(),
        budgets=ResourceStore(),
        beat=lambda: None,
        died=died.set,
    )
    with watches:
        watches.resync()
        watches.start()
        assert died.wait(10)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_watches_start_where_the_user_has_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    # As in a container whose user is not in /etc/passwd.
    monkeypatch.setattr(getpass, "getuser", nameless)
    started = threading.Event()

    async def starting(**arguments: Any) -> None:
        tasks = await kopf.spawn_tasks(**arguments)
        started.set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    monkeypatch.setattr(kopf, "operator", starting)
    died = threading.Event()
    watches = ResourceWatches(
        cast("Gateway", Empty()),
        pipelines=ResourceStore(),
        pools=ResourceStore(),
        budgets=ResourceStore(),
        beat=lambda: None,
        died=died.set,
    )
    with watches:
        watches.resync()
        watches.start()
        assert died.wait(10)
    assert started.is_set()


def nameless() -> str:
    raise OSError("No username set in the environment")


def test_nothing_is_watched_before_the_resources_could_be_read() -> None:
    class Away(Empty):
        def pages(self, *_: object) -> list[object]:
            raise Unavailable("connection refused")

    threads_before = threading.active_count()
    watches = ResourceWatches(
        cast("Gateway", Away()),
        pipelines=ResourceStore(),
        pools=ResourceStore(),
        budgets=ResourceStore(),
        beat=lambda: None,
        died=lambda: None,
    )
    with watches:
        with pytest.raises(Unavailable):
            watches.resync()
        watches.start()
        assert threading.active_count() == threads_before, "no watch, which would end for want of CRDs"


def test_an_operator_of_some_namespaces_lists_and_watches_pipelines_there_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listed: list[tuple[str, str | None]] = []
    watched: list[tuple[bool, tuple[str, ...]]] = []

    class Noted:
        def pages(self, resource: Resource, namespace: str | None) -> list[object]:
            listed.append((resource.plural, namespace))
            return []

    async def watching(*, clusterwide: bool, namespaces: tuple[str, ...], **_: Any) -> None:
        watched.append((clusterwide, namespaces))

    monkeypatch.setattr(kopf, "operator", watching)
    for namespaces in ((), ("speech", "batch")):
        died = threading.Event()
        watches = ResourceWatches(
            cast("Gateway", Noted()),
            pipelines=ResourceStore(),
            pools=ResourceStore(),
            budgets=ResourceStore(),
            beat=lambda: None,
            died=died.set,
            namespaces=namespaces,
        )
        with watches:
            watches.resync()
            watches.start()
            assert died.wait(10)
    of_the_cluster = [("computepools", None), ("computebudgets", None)]
    here = [("speechpipelines", "speech"), ("speechpipelines", "batch")]
    assert listed == [("speechpipelines", None), *of_the_cluster, *here, *of_the_cluster]
    assert watched == [(True, ()), (False, ("speech", "batch"))]


def test_what_a_long_list_leaves_behind_is_cleared_within_a_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: list[Any] = []
    monkeypatch.setattr(kopf.on, "event", lambda *_, **__: handlers.append)
    left: list[weakref.ref[Any]] = []

    async def listing(**_: Any) -> None:
        for number in range(1000):
            knot = Knot()  # as a worker of kopf is when it ends
            left.append(weakref.ref(knot))
            del knot
            metadata = {"name": f"pool-{number}", "uid": "u", "generation": 1, "resourceVersion": "1"}
            await handlers[0](event={"type": None, "object": {"metadata": metadata}})

    monkeypatch.setattr(kopf, "operator", listing)
    died = threading.Event()
    watches = ResourceWatches(
        cast("Gateway", Empty()),
        pipelines=ResourceStore(),
        pools=ResourceStore(),
        budgets=ResourceStore(),
        beat=lambda: None,
        died=died.set,
    )
    gc.disable()
    try:
        with watches:
            watches.resync()
            watches.start()
            assert died.wait(10)
        assert len(left) == 1000
        assert sum(knot() is not None for knot in left) < 500
    finally:
        gc.enable()


class Knot:
    def __init__(self) -> None:
        self.self = self
