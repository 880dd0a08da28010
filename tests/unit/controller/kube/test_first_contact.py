"""What the log says while the API server has not answered since the start."""

import logging
import threading
from pathlib import Path

import pytest
from api_server import api_server

from controller.kube.first_contact import FirstContact
from controller.kube.gateway import PIPELINES, Gateway, KubeError, Silent

SERVER = "https://10.0.0.1:6443"
REFUSED = Silent("GET /leases: connection refused")


class Pauses:
    """Passes each pause at once, `most` of them."""

    def __init__(self, most: int) -> None:
        self.seconds: list[float] = []
        self.over = threading.Event()
        self._most = most

    def __call__(self, seconds: float) -> bool:
        if len(self.seconds) == self._most:
            self.over.set()
            return True
        self.seconds.append(seconds)
        return False


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.endswith("first_contact")]


def test_a_server_that_does_not_answer_is_named_at_once_and_again_with_growing_pauses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pauses = Pauses(10)
    with FirstContact(SERVER, wait=pauses) as contact:
        contact.heard(REFUSED)
        assert lines(caplog)[0] == (
            f"the API server at {SERVER} does not answer, so nothing is scaled; retrying: {REFUSED}"
        )
        contact.heard(REFUSED)  # further attempts say nothing themselves
        assert pauses.over.wait(10)
    assert pauses.seconds == [2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    assert len(lines(caplog)) == 11
    assert {record.levelno for record in caplog.records} == {logging.ERROR}


def test_each_line_has_the_newest_error(caplog: pytest.LogCaptureFixture) -> None:
    errors = [Silent("no route to host"), Silent("certificate has expired")]

    def wait(_: float) -> bool:
        if not errors:
            return True
        contact.heard(errors.pop(0))
        return False

    with FirstContact(SERVER, wait=wait) as contact:
        contact.heard(REFUSED)
        assert contact._thread is not None
        contact._thread.join(10)
    assert [line.rpartition(": ")[2] for line in lines(caplog)] == [
        "connection refused",
        "no route to host",
        "certificate has expired",
    ]


def test_the_first_answer_ends_it_for_good(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with FirstContact(SERVER) as contact:
        contact.heard(REFUSED)
        contact.heard(None)
        contact.heard(REFUSED)  # from now on the loop and the lease report failures
        thread = contact._thread
        assert thread is not None
        thread.join(10)
        assert not thread.is_alive()
    assert [line.partition(" does not")[0] for line in lines(caplog)] == [
        f"the API server at {SERVER}",
        f"the API server at {SERVER} answers",
    ]


def test_a_server_that_answers_from_the_start_is_no_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with FirstContact(SERVER) as contact:
        contact.heard(None)
    assert lines(caplog) == []


def test_the_gateway_passes_on_whether_there_was_an_answer(tmp_path: Path) -> None:
    heard: list[KubeError | None] = []
    with api_server(tmp_path, {}) as kubeconfig, Gateway(kubeconfig, on_answer=heard.append) as gateway:
        with pytest.raises(KubeError):
            gateway.get(PIPELINES, "speech", "captions")  # 404 is an answer
        assert heard == [None]
    with Gateway(kubeconfig, on_answer=heard.append) as gateway, pytest.raises(Silent):
        gateway.get(PIPELINES, "speech", "captions")
    assert isinstance(heard[-1], Silent)
