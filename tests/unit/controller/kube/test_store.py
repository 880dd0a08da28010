import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from controller.commands.operator import DEEPEST
from controller.kube.gateway import Listing, Unavailable
from controller.kube.store import ResourceStore, Store


def an_object(name: str, version: int, **spec: Any) -> dict[str, Any]:
    metadata = {
        "namespace": "speech",
        "name": name,
        "uid": f"uid-{name}",
        "generation": 1,
        "resourceVersion": str(version),
    }
    return {"metadata": metadata, "spec": spec}


def a_listing(version: int, *items: dict[str, Any]) -> Listing:
    return Listing(items=items, resource_version=str(version))


def names(store: ResourceStore) -> list[str]:
    return [name for _, name in store.snapshot()]


def test_an_older_version_that_comes_late_does_not_replace_a_newer_one() -> None:
    store = ResourceStore()
    store.put(an_object("captions", 12, mode="Auto"))
    store.put(an_object("captions", 11, mode="Paused"))
    assert store.snapshot()["speech", "captions"].whole()["spec"] == {"mode": "Auto"}


def test_a_deletion_that_the_watch_missed_is_swept_by_the_next_list() -> None:
    store = ResourceStore()
    store.put(an_object("ghost", 3))
    store.put(an_object("captions", 4))
    assert store.resync([a_listing(9, an_object("captions", 4))]) == "9"
    assert names(store) == ["captions"]


def test_a_list_that_repeats_what_is_known_leaves_it_as_it_is() -> None:
    store = ResourceStore()
    store.put(an_object("captions", 4))
    known = store.snapshot()["speech", "captions"]
    store.resync([a_listing(9, an_object("captions", 4))])
    assert store.snapshot()["speech", "captions"] is known
    store.resync([a_listing(12, an_object("captions", 11, mode="Paused"))])
    assert store.snapshot()["speech", "captions"].whole()["spec"] == {"mode": "Paused"}


def test_an_object_created_after_the_list_was_taken_survives_the_sweep() -> None:
    store = ResourceStore()
    store.put(an_object("young", 10))
    store.resync([a_listing(9)])
    assert names(store) == ["young"]


def test_the_late_deletion_of_an_object_that_exists_again_is_ignored() -> None:
    store = ResourceStore()
    store.put(an_object("captions", 20))
    store.remove(an_object("captions", 15))
    assert names(store) == ["captions"]
    store.remove(an_object("captions", 21))
    assert names(store) == []


def test_the_bookkeeping_of_the_api_server_is_not_kept() -> None:
    store = ResourceStore()
    resource = an_object("captions", 1)
    resource["metadata"]["managedFields"] = [{"manager": "kubectl"}]
    store.put(resource)
    assert "managedFields" not in store.snapshot()["speech", "captions"].whole()["metadata"]


def test_a_resource_as_deep_as_the_api_server_takes_it_is_kept() -> None:
    deep: Any = 1
    for _ in range(10_000):
        deep = {"x": deep}
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(DEEPEST)
    try:
        store = ResourceStore()
        feeder = threading.Thread(target=lambda: store.put(an_object("captions", 1, x=deep)))
        feeder.start()
        feeder.join()
        assert store.snapshot()["speech", "captions"].whole()["spec"] == {"x": deep}
    finally:
        sys.setrecursionlimit(before)


def test_a_copy_taken_earlier_does_not_change_under_its_reader() -> None:
    store = ResourceStore()
    store.put(an_object("captions", 1))
    before = store.snapshot()
    store.put(an_object("batch", 2))
    assert list(before) == [("speech", "captions")]


def test_a_list_of_several_pages_sweeps_only_what_none_of_them_has() -> None:
    store = ResourceStore()
    for name in ("captions", "batch", "ghost"):
        store.put(an_object(name, 3))
    store.resync([a_listing(9, an_object("captions", 3)), a_listing(9, an_object("batch", 3))])
    assert names(store) == ["batch", "captions"]


def test_what_appears_while_the_lists_of_several_namespaces_are_read_stays() -> None:
    store = ResourceStore()
    store.put(an_object("ghost", 3))

    def pages() -> Iterator[Listing]:
        yield a_listing(9, an_object("captions", 3))
        store.put(an_object("new", 10))  # in the first namespace, after it was listed
        yield a_listing(11, an_object("batch", 3))

    assert store.resync(pages()) == "9"
    assert names(store) == ["batch", "captions", "new"]


def test_a_list_that_breaks_off_sweeps_nothing() -> None:
    def pages() -> Iterator[Listing]:
        yield a_listing(9, an_object("captions", 5))
        raise Unavailable("the server has gone")

    store = ResourceStore()
    store.put(an_object("batch", 3))
    with pytest.raises(Unavailable):
        store.resync(pages())
    assert names(store) == ["batch", "captions"]


def replicas(resource: dict[str, Any]) -> int:
    count: int = resource["spec"]["replicas"]
    return count


def test_what_a_write_of_ours_has_answered_stands_until_something_newer_comes() -> None:
    store = Store(replicas)
    store.put(an_object("asr", 5, replicas=1))
    store.amend(("speech", "asr"), "7", lambda known: known + 3)
    store.put(an_object("asr", 6, replicas=2))  # the watch is behind
    assert store.snapshot()["speech", "asr"] == 4
    store.amend(("speech", "asr"), "6", lambda known: 9)  # an answer that was overtaken
    store.put(an_object("asr", 8, replicas=3))
    assert store.snapshot()["speech", "asr"] == 3


def test_a_write_to_an_object_that_is_not_known_makes_none_up() -> None:
    store = Store(replicas)
    store.amend(("speech", "asr"), "7", lambda known: known + 3)
    assert ("speech", "asr") not in store.snapshot()


def test_what_is_not_wanted_is_not_stored_and_what_is_no_longer_wanted_goes() -> None:
    wanted = {"captions", "other"}
    store = ResourceStore(lambda each: each["metadata"]["name"] in wanted)
    for name in ("captions", "other", "foreign"):
        store.put(an_object(name, 4))
    assert names(store) == ["captions", "other"]
    wanted.discard("captions")
    store.put(an_object("captions", 5))
    assert names(store) == ["other"]
    wanted.clear()
    store.sift("elsewhere")
    assert names(store) == ["other"]
    store.sift("speech")
    assert names(store) == []
