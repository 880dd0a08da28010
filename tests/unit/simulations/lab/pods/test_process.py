import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from loopback import an_address

from simulations.lab.net.wire import ITEM_PORT
from simulations.lab.pods.process import ProcessEnded, ProcessPod

SERVER = f"""
import json, os, signal, socket, sys
DONE = json.dumps({{"served": 7, "sessions_cut": 2}})
signal.signal(signal.SIGTERM, lambda *_: (print(DONE, flush=True), sys.exit(0)))
print("mood:", os.environ.get("MOOD"), flush=True)  # before it listens: a SIGTERM within it breaks the handler's
listening = socket.create_server((os.environ["POD_IP"], {ITEM_PORT}))
while True:
    listening.accept()[0].close()
"""


def container(code: str, **env: str) -> dict[str, Any]:
    return {
        "name": "asr",
        "command": ["python", "-c"],
        "args": [code],
        "env": [{"name": name, "value": value} for name, value in env.items()],
    }


def pod(container: dict[str, Any]) -> ProcessPod:
    host = an_address()
    return ProcessPod(container, host)


def play(found: ProcessPod, use: Callable[[ProcessPod], Awaitable[None]]) -> None:
    async def run() -> None:
        try:
            async with asyncio.timeout(20):
                await use(found)
        finally:
            await found.abort()

    asyncio.run(run())


def test_a_process_is_ready_once_it_listens_and_says_at_its_end_what_it_did() -> None:
    async def use(found: ProcessPod) -> None:
        await found.start()
        _, writer = await asyncio.open_connection(found.host, ITEM_PORT)
        writer.close()
        await found.drain()
        assert (found.counts.served, found.counts.sessions_cut) == (7, 2)
        with pytest.raises(OSError, match="Connect"):
            await asyncio.open_connection(found.host, ITEM_PORT)

    play(pod(container(SERVER)), use)


@pytest.mark.parametrize("early", [True, False])
def test_a_process_with_a_share_of_a_core_is_limited_by_a_quota_as_soon_as_it_can_be(early: bool) -> None:
    code = SERVER.replace(
        "listening = ",
        """
def limited(number, _):
    print(json.dumps({"served": 1 if number == signal.SIGUSR1 else 2}), flush=True)
signal.signal(signal.SIGUSR1, limited)
signal.signal(signal.SIGUSR2, limited)
print(json.dumps({"share": 0.5}), flush=True)
listening = """,
    )

    async def until(found: ProcessPod, served: int) -> None:
        while found.counts.served != served:  # noqa: ASYNC110 - the process says it
            await asyncio.sleep(0.01)

    async def use(found: ProcessPod) -> None:
        if early:
            found.limit_by_quota(on=True)
        await found.start()
        if not early:
            found.limit_by_quota(on=True)
        await until(found, 1)
        found.limit_by_quota(on=False)
        await until(found, 2)

    play(pod(container(code)), use)


def test_a_program_that_knows_no_quota_goes_on_without_one() -> None:
    async def use(found: ProcessPod) -> None:
        await found.start()
        found.limit_by_quota(on=True)  # SIGUSR1 would end it
        await found.drain()
        assert found.counts.served == 7

    play(pod(container(SERVER)), use)


def test_a_process_has_the_environment_of_its_container() -> None:
    async def use(found: ProcessPod) -> None:
        with pytest.raises(ProcessEnded, match="exit code 3: mood good"):
            await found.start()

    code = "import os, sys; print('mood', os.environ['MOOD']); sys.exit(3)"
    play(pod(container(code, MOOD="good")), use)


def test_a_process_that_ends_by_itself_is_noticed_with_its_last_words() -> None:
    async def use(found: ProcessPod) -> None:
        await found.start()
        with pytest.raises(ProcessEnded, match=r"exit code 1: .*RuntimeError: no memory"):
            await found.wait()

    code = SERVER.replace("while True:", "for _ in range(1):") + "\nraise RuntimeError('no memory')"
    play(pod(container(code)), use)


def test_a_process_that_does_not_end_on_request_is_killed() -> None:
    async def use(found: ProcessPod) -> None:
        await found.start()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(found.drain(), 0.2)
        await found.abort()
        with pytest.raises(ProcessEnded, match="exit code -9"):
            await found.wait()

    play(
        pod(
            container(
                SERVER.replace("signal.signal(signal.SIGTERM", "signal.signal(signal.SIGTERM, signal.SIG_IGN) or (0")
            )
        ),
        use,
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": "asr"}, "command: missing"),
        ({"command": ["x"], "env": [{"name": "A", "valueFrom": {}}]}, "env: A: must have a value in the lab"),
    ],
)
def test_a_container_that_the_lab_cannot_run_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ProcessPod(wrong, "127.0.0.1")


def test_a_program_that_does_not_exist_is_named() -> None:
    async def use(found: ProcessPod) -> None:
        with pytest.raises(ProcessEnded, match="cannot run /nowhere/asr: No such file"):
            await found.start()

    assert sys.executable
    play(pod({"command": ["/nowhere/asr"]}), use)
