"""Following one object: each version once, over interrupted watches, until it is deleted."""

from collections.abc import Iterator
from typing import Any, cast

import pytest

from controller.commands.watching import versions
from controller.kube.gateway import PIPELINES, Expired, Gateway, NotFound, Silent, WatchEvent


def an_object(version: int) -> dict[str, Any]:
    return {"metadata": {"name": "captions", "resourceVersion": str(version)}}


class Server:
    """Answers each read with the next of `reads`, and each watch with the next of `watches`."""

    def __init__(self, reads: list[Any], watches: list[list[Any]]) -> None:
        self.reads, self.watches = iter(reads), iter(watches)
        self.asked: list[str] = []

    def get(self, *_: object) -> dict[str, Any]:
        return cast("dict[str, Any]", self._answer(next(self.reads)))

    def watch(self, *_: object, **options: object) -> Iterator[WatchEvent]:
        assert options["fieldSelector"] == "metadata.name=captions"
        self.asked.append(str(_[2]))
        return map(self._answer, next(self.watches))

    @staticmethod
    def _answer(answer: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer


def followed(server: Server) -> list[str]:
    found = versions(cast("Gateway", server), PIPELINES, "speech", "captions")
    return [each["metadata"]["resourceVersion"] for each in found]


def changed(kind: str, version: int) -> WatchEvent:
    return WatchEvent(kind=kind, object=an_object(version))


def test_every_change_is_yielded_until_the_object_is_deleted() -> None:
    server = Server([an_object(1)], [[changed("MODIFIED", 2), changed("BOOKMARK", 5)], [changed("DELETED", 6)]])
    assert followed(server) == ["1", "2"]
    assert server.asked == ["1", "5"]


@pytest.mark.parametrize("error", [Expired("too old"), Silent("no answer")])
def test_an_interrupted_watch_begins_again_with_what_is_there_now(error: Exception) -> None:
    server = Server([an_object(1), an_object(8)], [[error], [changed("DELETED", 9)]])
    assert followed(server) == ["1", "8"]
    assert followed(Server([an_object(1), NotFound("gone")], [[error]])) == ["1"]


def test_an_object_that_was_never_there_is_an_error() -> None:
    with pytest.raises(NotFound):
        followed(Server([NotFound("gone")], []))
