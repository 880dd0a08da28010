"""The load generator: its items, their times, and its independence of the answers."""

import asyncio
import json
import struct
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from simulations.engine.draws import reconnect_delay_s
from simulations.lab.net.timers import Timers
from simulations.lab.net.wire import Client, RequestKind, Respondent, ServerConnection, Status
from simulations.lab.traffic.generator import Event, Generator, GeneratorConfig, LoadAction, PipelineLoad, timeline
from simulations.scenario.schedule import Schedule


def load(chunk_s: float | None = None, *, reconnects: bool = True) -> PipelineLoad:
    return PipelineLoad(port=1, schedule=Path("unused"), chunk_s=chunk_s, seed=1, reconnects=reconnects)


def schedule(*sessions: tuple[float, float]) -> Schedule:
    start_s, end_s = np.array(sessions).T
    return Schedule(start_s=start_s, end_s=end_s)


def test_a_stream_opens_offers_its_chunks_and_ends_before_the_run_does() -> None:
    events = timeline([schedule((0.5, 1.4), (1.0, 9.0))], (load(0.25),), duration_s=2.0)

    for number, (start_s, end_s, chunks) in enumerate([(0.5, 1.4, {3, 4}), (1.0, 2.0, {4})], 1):
        own = [event for event in events if event.session == number]
        assert [own[0].action, own[-1].action] == [LoadAction.OPEN, LoadAction.END]
        assert (own[0].at_s, own[-1].at_s) == (start_s, end_s)
        assert len(own) - 2 in chunks
    assert [event.at_s for event in events] == sorted(event.at_s for event in events)
    items = [event.number for event in events if event.action is LoadAction.ITEM]
    assert items == list(range(1, len(items) + 1))


def test_requests_belong_to_no_session() -> None:
    events = timeline([schedule((0.5, 0.5), (1.0, 1.0))], (load(),), duration_s=2.0)

    assert events == [Event(0.5, LoadAction.ITEM, 0, 1, 0), Event(1.0, LoadAction.ITEM, 0, 2, 0)]


def test_the_loads_of_several_pipelines_are_played_side_by_side() -> None:
    events = timeline([schedule((0.5, 0.5)), schedule((0.1, 1.0))], (load(), load(0.3)), duration_s=2.0)

    assert {event.load for event in events} == {0, 1}
    assert [event.at_s for event in events] == sorted(event.at_s for event in events)


class Sink:
    """Receives all items and answers all or none; refuses the first `refusals` attempts of each stream."""

    def __init__(self, *, answers: bool, refusals: int = 0) -> None:
        self.answers = answers
        self.refusals = refusals
        self.received: list[tuple[float, int, float, float]] = []
        self.opened: list[int] = []
        self.opened_s: list[float] = []
        self.ended: list[int] = []

    def on_item(self, connection: Respondent, item_id: int, session_id: int, payload: bytes) -> None:
        arrival_s, arrived_s = struct.unpack("!dd", payload)
        self.received.append((time.monotonic(), session_id, arrival_s, arrived_s))
        if self.answers:
            connection.respond(RequestKind.ITEM, item_id, Status.OK)

    def on_take_session(self, connection: ServerConnection, session_id: int) -> None: ...

    def on_open_session(self, connection: ServerConnection, session_id: int, _: bytes) -> None:
        self.opened.append(session_id)
        self.opened_s.append(time.monotonic())
        refused = self.opened.count(session_id) <= self.refusals
        connection.respond(RequestKind.OPEN_SESSION, session_id, Status.REFUSED_SLOT if refused else Status.OK)

    def on_end_session(self, session_id: int) -> None:
        self.ended.append(session_id)

    def on_connected(self, connection: ServerConnection) -> None: ...

    def on_disconnected(self, connection: ServerConnection) -> None: ...


def played(sink: Sink, events: list[Event], *, until_s: float = 0.0, reconnects: bool = True) -> Generator:
    async def run() -> Generator:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: ServerConnection(sink), "127.0.0.1", 0)
        client = await Client.connect("127.0.0.1", server.sockets[0].getsockname()[1])
        timers = Timers()
        generator = Generator([client], [load(reconnects=reconnects)], timers)
        start_s = time.monotonic() + 0.01
        await generator.play(events, start_s)
        await generator.drain(start_s + until_s)
        while len(sink.received) < generator.sent:  # noqa: ASYNC110 - the far end of a socket
            await asyncio.sleep(0.001)
        client.close()
        server.close()
        timers.close()
        return generator

    return asyncio.run(run())


def test_items_carry_the_instant_at_which_they_were_meant_to_arrive() -> None:
    sink = Sink(answers=True)
    events = timeline([schedule((0.0, 0.3), (0.1, 0.3))], (load(0.05),), duration_s=0.3)
    generator = played(sink, events, until_s=5)

    assert sink.opened == [1, 2]
    assert sorted(sink.ended) == [1, 2]
    assert (generator.sent, generator.answered) == (len(sink.received), len(sink.received))
    assert [arrival_s for _, _, arrival_s, _ in sink.received] == [
        e.at_s for e in events if e.action is LoadAction.ITEM
    ]
    starts = [arrived_s - arrival_s for _, _, arrival_s, arrived_s in sink.received]
    assert max(starts) - min(starts) < 1e-6
    assert all(received_s >= arrived_s for received_s, _, _, arrived_s in sink.received)


def test_a_refused_stream_tries_again_after_the_delays_of_the_simulator_and_sends_its_chunks_meanwhile() -> None:
    first_s, second_s = (reconnect_delay_s(1, 1, attempt) for attempt in (1, 2))
    sink = Sink(answers=True, refusals=2)
    end_s = first_s + second_s + 0.3
    generator = played(sink, timeline([schedule((0.0, end_s))], (load(0.1),), duration_s=9.0), until_s=end_s)

    assert sink.opened == [1, 1, 1], "until it is admitted"
    assert np.diff(sink.opened_s) == pytest.approx([first_s, second_s], abs=0.1)
    assert generator.sent == pytest.approx(end_s / 0.1, abs=1)


@pytest.mark.parametrize(("end_s", "reconnects"), [(0.2, True), (1.2, False)])
def test_a_stream_that_has_ended_or_does_not_reconnect_tries_once(end_s: float, *, reconnects: bool) -> None:
    assert reconnect_delay_s(1, 1, 1) < 1.2
    sink = Sink(answers=True, refusals=9)
    events = timeline([schedule((0.0, end_s)), schedule((1.3, 1.3))], (load(0.1), load()), duration_s=9.0)
    played(sink, [event._replace(load=0) for event in events], until_s=1.5, reconnects=reconnects)

    assert sink.opened == [1]


def test_a_system_that_never_answers_gets_the_whole_load_all_the_same() -> None:
    sink = Sink(answers=False)
    events = [Event(number * 0.001, LoadAction.ITEM, 0, number, 0) for number in range(1, 201)]
    generator = played(sink, events)

    assert len(sink.received) == 200
    assert generator.answered == 0


def test_a_generator_that_is_late_says_by_how_much_and_sends_at_once_what_is_due() -> None:
    sink = Sink(answers=True)
    events = [Event(-1.0, LoadAction.ITEM, 0, number, 0) for number in range(1, 301)]
    generator = played(sink, events, until_s=5)

    assert generator.report()["lag_p50_s"] >= 0.98
    assert all(received_s - arrived_s >= 0.98 for received_s, _, _, arrived_s in sink.received)


def test_a_configuration_survives_its_file_and_a_bad_one_names_the_field() -> None:
    config = GeneratorConfig(duration_s=3.0, drain_s=1.0, report=Path("r"), loads=(load(0.3), load()))

    assert GeneratorConfig.from_json(config.to_json()) == config
    with pytest.raises(ValueError, match=r"generator configuration: .*\n.*duration_s"):
        GeneratorConfig.from_json("{}")


def test_it_ends_cleanly_when_it_is_told_to_and_says_what_it_has_sent(tmp_path: Path) -> None:
    sink = Sink(answers=True)
    schedule((0.0, 99.0)).save(tmp_path / "load.npz")

    async def run() -> tuple[int, str]:
        server = await asyncio.get_running_loop().create_server(lambda: ServerConnection(sink), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        part = PipelineLoad(port=port, schedule=tmp_path / "load.npz", chunk_s=0.01, seed=1)
        config = GeneratorConfig(duration_s=99.0, drain_s=9.0, report=tmp_path / "report", loads=(part,))
        (tmp_path / "config").write_text(config.to_json())
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "simulations.lab.traffic.generator", "--config", tmp_path / "config"),
            stdout=asyncio.subprocess.PIPE,
        )
        while not sink.received:  # noqa: ASYNC110 - the far end of a socket
            await asyncio.sleep(0.01)
        process.terminate()
        output, _ = await asyncio.wait_for(process.communicate(), 10)
        server.close()
        return process.returncode or 0, output.decode()

    code, output = asyncio.run(run())

    assert code == 0
    report = json.loads((tmp_path / "report").read_text())
    assert report["interrupted"]
    assert report["sent"] >= 1
    events = [json.loads(line)["event"] for line in output.splitlines()]
    assert (events[0], events[-1]) == ("started", "finished")
