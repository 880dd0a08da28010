"""A watch against a scripted server and clock."""

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from controller.kube.gateway import (
    DEPLOYMENTS,
    Expired,
    Forbidden,
    Gateway,
    KubeError,
    Listing,
    Unavailable,
    WatchEvent,
)
from controller.kube.watch import Watch

Act = Callable[[], WatchEvent | None]


def an_object(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"namespace": "speech", "name": name, "resourceVersion": str(version)}}


def event(kind: str, name: str, version: int) -> Act:
    return lambda: WatchEvent(kind=kind, object=an_object(name, version))


@dataclass
class Script:
    """A server that answers the lists and watches it was given, one after the other, and then ends the test."""

    lists: list[Listing | KubeError]
    watches: list[list[Act] | KubeError] = field(default_factory=list)
    now_s: float = 0.0
    asked: list[str] = field(default_factory=list)
    paused_s: list[float] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def pages(self, *_: object, **__: object) -> Iterator[Listing]:
        self.asked.append("list")
        answer = self.lists.pop(0)
        if isinstance(answer, KubeError):
            raise answer
        yield answer

    def watch(self, _resource: object, _namespace: object, version: str, **_more: object) -> Iterator[WatchEvent]:
        self.asked.append(f"watch {version}")
        if not self.watches:
            self.stop.set()
            return iter(())
        answer = self.watches.pop(0)
        if isinstance(answer, KubeError):
            raise answer
        return (found for act in answer if (found := act()) is not None)

    def passes(self, seconds: float) -> Act:
        def act() -> None:
            self.now_s += seconds

        return act

    def a_watch(self) -> Watch[str]:
        watch = Watch(
            cast("Gateway", self), DEPLOYMENTS, lambda kept: kept["metadata"]["name"], monotonic=lambda: self.now_s
        )
        self.stop.wait = self.pause  # type: ignore[method-assign]
        return watch

    def pause(self, timeout: float | None = None) -> bool:
        if not self.stop.is_set():
            self.paused_s.append(timeout or 0.0)
        return self.stop.is_set()


def a_listing(version: int, *names: str) -> Listing:
    return Listing(items=tuple(an_object(name, 1) for name in names), resource_version=str(version))


def test_it_goes_on_from_the_last_version_it_heard_of() -> None:
    script = Script(
        lists=[a_listing(10, "asr", "vad")],
        watches=[
            [event("ADDED", "text", 11), event("DELETED", "vad", 12), event("BOOKMARK", "", 40)],
            [event("MODIFIED", "asr", 41)],
        ],
    )
    watch = script.a_watch()
    watch.follow(script.stop)
    assert list(watch.objects().values()) == ["asr", "text"]
    assert script.asked == ["list", "watch 10", "watch 40", "watch 41"]


def test_where_the_server_has_forgotten_the_past_a_new_list_finds_what_was_deleted() -> None:
    script = Script(lists=[a_listing(10, "ghost", "asr"), a_listing(99, "asr")], watches=[Expired("too old")])
    watch = script.a_watch()
    watch.follow(script.stop)
    assert list(watch.objects().values()) == ["asr"]
    assert script.asked == ["list", "watch 10", "list", "watch 99"]


def test_a_watch_that_breaks_off_goes_on_where_it_was() -> None:
    def breaks() -> WatchEvent:
        raise Unavailable("connection reset")

    script = Script(lists=[a_listing(10, "asr")], watches=[[event("ADDED", "vad", 11), breaks], []])
    watch = script.a_watch()
    watch.follow(script.stop)
    assert list(watch.objects().values()) == ["asr", "vad"]
    assert script.asked == ["list", "watch 10", "watch 11", "watch 11"]


def test_streams_that_end_at_once_without_a_word_are_asked_for_ever_less_often() -> None:
    script = Script(lists=[a_listing(10, "asr")], watches=[[] for _ in range(7)])
    watch = script.a_watch()
    watch.follow(script.stop)
    assert script.paused_s == [0.2, 0.4, 0.8, 1.6, 2.0, 2.0]  # not after the first: the list before it was word enough
    assert list(watch.objects().values()) == ["asr"]


def test_a_stream_that_has_lasted_or_told_something_is_followed_by_the_next_right_away() -> None:
    script = Script(lists=[a_listing(10, "asr")])
    script.watches = [[script.passes(20.0)], [event("BOOKMARK", "", 40)], [event("MODIFIED", "asr", 41)]]
    script.a_watch().follow(script.stop)
    assert script.paused_s == []


def test_attempts_that_fail_slowly_are_made_ever_less_often_too() -> None:
    script = Script(lists=[a_listing(10, "asr")])

    def hangs() -> WatchEvent:
        script.now_s += 3.0
        raise Unavailable("timed out")

    heard = event("MODIFIED", "asr", 41)
    script.watches = [[], [hangs], [hangs], [hangs], [hangs], [heard, hangs], [hangs]]
    script.a_watch().follow(script.stop)
    assert script.paused_s == [0.2, 0.4, 0.8, 1.6, 0.2, 0.4]


def test_a_server_to_which_every_list_is_too_old_is_not_asked_for_lists_all_the_time() -> None:
    script = Script(lists=[a_listing(10 + index, "asr") for index in range(6)], watches=[Expired("too old")] * 5)
    script.a_watch().follow(script.stop)
    assert script.paused_s == [0.2, 0.4, 0.8, 1.6, 2.0]


def test_what_was_heard_is_not_relied_on_while_the_server_does_not_answer() -> None:
    script = Script(lists=[a_listing(10, "asr")])
    watch = script.a_watch()
    watch.resync()
    script.lists = [Unavailable("refused")]
    with pytest.raises(Unavailable):
        watch.resync()
    assert list(watch.objects().values()) == ["asr"], "a moment is nothing"
    script.now_s += 5.0
    with pytest.raises(Unavailable, match="refused"):
        watch.objects()
    script.lists = [a_listing(12, "asr", "vad")]
    watch.resync()
    assert list(watch.objects().values()) == ["asr", "vad"]


def test_a_server_that_has_fallen_silent_is_not_relied_on() -> None:
    script = Script(lists=[a_listing(10, "asr")])
    watch = script.a_watch()
    watch.resync()
    script.now_s += 49.0
    assert watch.objects()
    script.now_s += 2.0
    with pytest.raises(Unavailable, match="the watch of deployments has received nothing for 51 s"):
        watch.objects()


def test_a_refusal_that_lasts_keeps_nothing_of_what_reads_it() -> None:
    watch = Script(lists=[Forbidden("may not list")]).a_watch()
    with pytest.raises(Forbidden):
        watch.resync()

    def read() -> "weakref.ref[Script]":
        own = Script(lists=[])
        with contextlib.suppress(Forbidden):
            watch.objects()
        return weakref.ref(own)

    assert read()() is None


def test_a_refusal_is_told_until_it_ends() -> None:
    script = Script(lists=[Forbidden("may not list"), a_listing(10, "asr")])
    watch = script.a_watch()
    with pytest.raises(Forbidden):
        watch.resync()
    with pytest.raises(Forbidden, match="may not list"):
        watch.objects()
    watch.follow(script.stop)
    assert list(watch.objects().values()) == ["asr"]
