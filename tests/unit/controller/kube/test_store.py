from typing import Any

from controller.kube.gateway import Listing
from controller.kube.store import ResourceStore


def an_object(name: str, version: int, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": "speech", "name": name, "resourceVersion": str(version)}, "spec": spec}


def a_listing(version: int, *items: dict[str, Any]) -> Listing:
    return Listing(items=items, resource_version=str(version))


def names(store: ResourceStore) -> list[str]:
    return [name for _, name in store.snapshot()]


def test_an_older_version_that_comes_late_does_not_replace_a_newer_one() -> None:
    store = ResourceStore()
    store.put(an_object("captions", 12, mode="Auto"))
    store.put(an_object("captions", 11, mode="Paused"))
    assert store.snapshot()["speech", "captions"]["spec"] == {"mode": "Auto"}


def test_a_deletion_that_the_watch_missed_is_swept_by_the_next_list() -> None:
    store = ResourceStore()
    store.put(an_object("ghost", 3))
    store.put(an_object("captions", 4))
    store.resync(a_listing(9, an_object("captions", 4)))
    assert names(store) == ["captions"]


def test_an_object_created_after_the_list_was_taken_survives_the_sweep() -> None:
    store = ResourceStore()
    store.put(an_object("young", 10))
    store.resync(a_listing(9))
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
    assert "managedFields" not in store.snapshot()["speech", "captions"]["metadata"]


def test_a_copy_taken_earlier_does_not_change_under_its_reader() -> None:
    store = ResourceStore()
    store.put(an_object("captions", 1))
    before = store.snapshot()
    store.put(an_object("batch", 2))
    assert list(before) == [("speech", "captions")]
