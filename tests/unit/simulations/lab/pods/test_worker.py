"""A stage worker as its clients see it: batches, refusals, slots, drain."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
import numpy as np
import pytest
from laws import with_law
from loopback import an_address

from optimizer.model import Batching, ServiceLaw
from simulations.lab.net.timers import Timers
from simulations.lab.net.wire import ITEM_PORT, METRICS_PORT, NO_SESSION, Client, Response, ServerConnection, Status
from simulations.lab.pods.exposition import ModelServer
from simulations.lab.pods.worker import StageWorker, WorkerSpec, worker_of

SERVED = Response(Status.OK, b"")


def spec(**values: Any) -> WorkerSpec:
    return WorkerSpec(pipeline="captions", stage="encoder", **with_law(**{"fixed_s": 0.001, **values}))


@asynccontextmanager
async def running(
    specification: WorkerSpec, kind: Callable[[WorkerSpec, str, Timers], StageWorker] = StageWorker
) -> AsyncIterator[tuple[StageWorker, Client]]:
    timers = Timers()
    host = an_address()
    worker = kind(specification, host, timers)
    await worker.start()
    client = await Client.connect(host, ITEM_PORT)
    try:
        async with asyncio.timeout(10):
            yield worker, client
    finally:
        client.close()
        await worker.abort()
        timers.close()


def play(specification: WorkerSpec, use: Callable[[StageWorker, Client], Awaitable[None]]) -> None:
    async def run() -> None:
        async with running(specification) as (worker, client):
            await use(worker, client)

    asyncio.run(run())


async def until(done: Callable[[], bool]) -> None:
    while not done():  # noqa: ASYNC110 - what is awaited is the worker's inner state
        await asyncio.sleep(0.001)


def test_every_item_is_served_and_its_batches_are_as_large_as_the_backlog_allows() -> None:
    async def use(worker: StageWorker, client: Client) -> None:
        answers = await asyncio.gather(*(client.send(item, NO_SESSION, b"x" * 100) for item in range(41)))
        assert set(answers) == {SERVED}
        assert worker.counts.served == 41
        metrics = await scrape(worker)
        # The first item is served alone at once; the other forty fill five batches.
        assert 'speech_stage_batches_total{pipeline="captions",stage="encoder"} 6.0\n' in metrics

    play(spec(fixed_s=0.03, batch_max=8), use)


def test_a_free_server_waits_for_a_full_batch_as_long_as_the_oldest_item_may_wait() -> None:
    async def use(worker: StageWorker, client: Client) -> None:
        first = [client.send(item, NO_SESSION) for item in range(3)]
        await until(lambda: worker.gauges().queued == 3)
        assert worker.gauges().in_service == 0
        second = client.send(3, NO_SESSION)
        assert set(await asyncio.gather(*first, second)) == {SERVED}
        metrics = await scrape(worker)
        assert 'speech_stage_batch_size_bucket{pipeline="captions",stage="encoder",le="2"} 0\n' in metrics
        assert 'speech_stage_batch_size_bucket{pipeline="captions",stage="encoder",le="4"} 1\n' in metrics

    play(spec(batch_max=4, batch_wait_s=3600), use)


def test_a_batch_that_stays_incomplete_is_served_when_its_wait_is_over() -> None:
    async def use(worker: StageWorker, client: Client) -> None:
        assert (await client.send(0, NO_SESSION)).status is Status.OK

    play(spec(batch_max=4, batch_wait_s=0.05), use)


def test_settings_that_change_count_for_the_items_that_wait() -> None:
    async def use(worker: StageWorker, client: Client) -> None:
        answers = [client.send(item, NO_SESSION) for item in range(3)]
        await until(lambda: worker.gauges().queued == 3)
        worker.set_batching(2, 3600.0)
        assert (await answers[0]).status is Status.OK
        assert worker.gauges().queued == 1, "the last one waits for another"
        worker.set_batching(2, 0.0)
        assert set(await asyncio.gather(*answers)) == {SERVED}
        metrics = await scrape(worker)
        assert 'speech_stage_batches_total{pipeline="captions",stage="encoder"} 2.0\n' in metrics

    play(spec(batch_max=4, batch_wait_s=3600), use)


def test_as_many_batches_are_in_service_as_the_worker_has_concurrency() -> None:
    async def use(worker: StageWorker, client: Client) -> None:
        answers = [client.send(item, NO_SESSION) for item in range(5)]
        await until(lambda: worker.gauges().queued == 2)
        assert worker.gauges().in_service == 3
        await asyncio.gather(*answers)

    play(spec(fixed_s=0.3, concurrency=3), use)


@pytest.mark.quiet
def test_a_process_that_was_held_up_still_starts_every_batch_when_it_was_due() -> None:
    async def use(worker: StageWorker, client: Client) -> None:
        answers = [client.send(item, NO_SESSION) for item in range(20)]
        await until(lambda: worker.gauges().queued + worker.gauges().in_service == 20)
        time.sleep(0.05)  # noqa: ASYNC251 - holds up the event loop, the worker's timers included
        await asyncio.gather(*answers)
        (total,) = (line for line in (await scrape(worker)).splitlines() if "queue_wait_seconds_sum" in line)
        assert float(total.split()[-1]) <= 0.010 * sum(range(20)) + 1e-6

    play(spec(fixed_s=0.010), use)


def test_what_arrives_after_the_instant_at_which_a_batch_was_due_belongs_to_the_next_one() -> None:
    async def use(worker: StageWorker, client: Client) -> None:
        connection = ServerConnection(worker)
        worker.on_item(connection, 0, NO_SESSION, b"")
        worker.on_item(connection, 1, NO_SESSION, b"")
        time.sleep(0.05)  # noqa: ASYNC251 - the second batch is due meanwhile
        worker.on_item(connection, 2, NO_SESSION, b"")
        await until(lambda: worker.counts.served == 3)
        assert 'speech_stage_batches_total{pipeline="captions",stage="encoder"} 3.0\n' in await scrape(worker)

    play(spec(fixed_s=0.010, batch_max=4), use)


def test_items_beyond_the_queue_limit_are_refused_by_name() -> None:
    async def use(worker: StageWorker, client: Client) -> None:
        answers = await asyncio.gather(*(client.send(item, NO_SESSION) for item in range(6)))
        assert [answer.status for answer in answers] == [Status.OK] * 3 + [Status.REFUSED_QUEUE] * 3

    play(spec(fixed_s=0.1, queue_limit=2), use)


def test_a_slowed_worker_takes_longer_and_recovers() -> None:
    async def use(worker: StageWorker, client: Client) -> None:
        worker.slowness.factor = 1e6
        slow = client.send(0, NO_SESSION)
        await until(lambda: worker.gauges().in_service == 1)
        worker.slowness.factor = 1.0
        assert (await client.send(1, NO_SESSION)).status is Status.OK
        assert not slow.done()
        slow.cancel()

    play(spec(concurrency=2), use)


def test_a_session_takes_a_slot_with_its_first_item_and_gives_it_back_at_its_end() -> None:
    async def use(worker: StageWorker, client: Client) -> None:
        assert (await client.send(1, 1)).status is Status.OK
        assert (await client.open_session(2)).status is Status.OK
        assert (await client.open_session(2)).status is Status.OK
        assert (await client.send(2, 2)).status is Status.OK
        assert (await client.send(3, 3)).status is Status.REFUSED_SLOT
        assert (await client.open_session(3)).status is Status.REFUSED_SLOT
        assert worker.gauges().sessions == 2
        assert 'speech_stage_sessions_refused_total{pipeline="captions",stage="encoder"} 2' in await scrape(worker)
        client.end_session(1)
        assert (await client.send(4, 3)).status is Status.OK

    play(spec(session_slots=2), use)


def test_an_item_without_a_session_holds_a_slot_while_it_is_in_the_stage() -> None:
    async def use(worker: StageWorker, client: Client) -> None:
        answers = await asyncio.gather(*(client.send(item, NO_SESSION) for item in range(3)))
        assert [answer.status for answer in answers] == [Status.OK, Status.OK, Status.REFUSED_SLOT]
        assert worker.gauges().sessions == 0
        assert (await client.send(3, NO_SESSION)).status is Status.OK

    play(spec(session_slots=2, fixed_s=0.05), use)


def test_a_session_that_has_been_idle_for_long_yields_its_slot_to_another() -> None:
    async def use(worker: StageWorker, client: Client) -> None:
        assert (await client.open_session(1)).status is Status.OK
        assert (await client.open_session(2)).status is Status.OK
        client.end_session(1)
        assert (await client.send(1, 2)).status is Status.OK

    play(spec(session_slots=1, session_idle_s=0.0), use)


def test_a_draining_worker_serves_what_it_holds_and_what_was_on_its_way_then_closes() -> None:
    async def use(worker: StageWorker, client: Client) -> None:
        queued = [client.send(item, NO_SESSION) for item in range(20)]
        await until(lambda: worker.gauges().queued + worker.gauges().in_service == 20)
        drained = asyncio.create_task(worker.drain(30))
        await asyncio.sleep(0)
        late = client.send(20, NO_SESSION)
        assert set(await asyncio.gather(*queued, late)) == {SERVED}
        await drained
        assert (worker.counts.served, worker.counts.lost, worker.counts.sessions_cut) == (21, 0, 0)
        await until(lambda: client.closed)
        with pytest.raises(OSError, match="7000"):
            await Client.connect(worker.host, ITEM_PORT)

    play(spec(fixed_s=0.04), use)


def test_a_draining_worker_keeps_its_sessions_and_takes_no_new_ones() -> None:
    async def use(worker: StageWorker, client: Client) -> None:
        assert (await client.open_session(1)).status is Status.OK
        drained = asyncio.create_task(worker.drain(30))
        await asyncio.sleep(0)
        assert (await client.open_session(2)).status is Status.DRAINING
        assert (await client.send(2, 2)).status is Status.DRAINING
        assert (await client.send(1, 1)).status is Status.OK
        client.end_session(1)
        await drained
        assert worker.counts.sessions_cut == 0

    play(spec(session_slots=4), use)


def test_sessions_still_there_when_the_drain_ends_are_cut_and_counted_and_lose_no_accepted_item() -> None:
    async def use(worker: StageWorker, client: Client) -> None:
        assert (await client.open_session(1)).status is Status.OK
        assert (await client.open_session(2)).status is Status.OK
        drained = asyncio.create_task(worker.drain(0.05))
        await asyncio.sleep(0)
        accepted = client.send(1, 1)
        await until(lambda: worker.counts.sessions_cut == 2)
        assert (await client.send(2, 1)).status is Status.DRAINING
        assert (await accepted).status is Status.OK
        await drained
        assert worker.counts.lost == 0

    play(spec(session_slots=4, fixed_s=0.4), use)


@pytest.mark.parametrize("batching", list(Batching))
def test_a_worker_that_gives_back_answers_what_waits_and_what_is_in_service_and_serves_nothing_more(
    batching: Batching,
) -> None:
    specification = spec(fixed_s=60, batching=batching)

    async def run() -> None:
        async with running(specification, kind=worker_of) as (worker, client):
            answers = [client.send(item, NO_SESSION) for item in range(3)]
            await until(lambda: worker.gauges().queued == 2)
            await worker.give_back()
            assert {answer.status for answer in await asyncio.gather(*answers)} == {Status.DRAINING}
            assert (worker.counts.given_back, worker.counts.served) == (3, 0)
            await worker.abort()
            assert worker.counts.lost == 0

    asyncio.run(run())


def test_an_aborted_worker_breaks_its_connections_and_counts_what_it_lost() -> None:
    async def use(worker: StageWorker, client: Client) -> None:
        answers = [client.send(item, NO_SESSION) for item in range(3)]
        await until(lambda: worker.gauges().queued == 2)
        await worker.abort()
        for answer in answers:
            with pytest.raises(ConnectionError):
                await answer
        assert worker.counts.lost == 3

    play(spec(fixed_s=60), use)


def test_replicas_of_one_specification_draw_their_own_service_times_and_the_same_ones_again() -> None:
    def draws(ordinal: int) -> list[float]:
        async def run() -> list[float]:
            timers = Timers()
            worker = StageWorker(spec(cv=0.5), "127.0.0.1", timers, ordinal=ordinal)
            timers.close()
            return [worker._draw_s(1) for _ in range(5)]

        return asyncio.run(run())

    assert draws(0) == draws(0)
    assert draws(0) != draws(1)


def test_replicas_of_unequal_speed_have_the_declared_service_time_on_average() -> None:
    one = spec(fixed_s=0.01, per_item_s=0.002, speed_spread=0.2)
    replicas = [one.of_replica(ordinal) for ordinal in range(2000)]
    factors = np.array([replica.service.fixed_s for replica in replicas]) / 0.01

    assert factors.mean() == pytest.approx(1, abs=0.015)
    assert factors.std() == pytest.approx(0.2, rel=0.06)
    assert [replica.service.per_item_s for replica in replicas] == pytest.approx(factors * 0.002)
    assert one.of_replica(7) == replicas[7]
    assert spec().of_replica(7) == spec()


def test_a_worker_serves_at_the_speed_of_its_replica() -> None:
    async def run() -> float:
        timers = Timers()
        worker = StageWorker(spec(speed_spread=0.5), "127.0.0.1", timers, ordinal=3)
        timers.close()
        return worker._draw_s(1)

    assert asyncio.run(run()) == spec(speed_spread=0.5).of_replica(3).service.fixed_s != spec().service.fixed_s


def test_a_scraper_that_kept_its_connection_finds_it_closed_after_the_drain() -> None:
    async def use(worker: StageWorker, client: Client) -> None:
        reader, writer = await asyncio.open_connection(worker.host, METRICS_PORT)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: worker\r\n\r\n")
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        await worker.drain(0)
        await reader.read()
        assert reader.at_eof()
        writer.close()

    play(spec(), use)


def test_a_specification_survives_its_json() -> None:
    server = ModelServer(preset="vllm", model="a/b", first_token_share=0.2, other_models=("tokenizer",))
    written = spec(session_slots=7, cv=0.3, server=server)
    assert WorkerSpec.from_json(written.to_json()) == written
    points = ServiceLaw(points=((1, 0.012), (16, 0.038)), prefill_s=0.005)
    other = replace(written, service=points, batching=Batching.CONTINUOUS)
    assert WorkerSpec.from_json(other.to_json()) == other


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"cv": -0.1}, "cv: -0.1: must be finite and ≥ 0"),
        ({"speed_spread": -0.1}, "speed_spread: -0.1, must be a finite number, at least 0"),
        ({"fixed_s": float("nan")}, "fixed_s: nan"),
        ({"fixed_s": 0.0}, "a batch of one must take more than 0 s"),
        ({"batch_max": 0}, "batch_max: 0, must be at least 1"),
        ({"session_slots": 0}, "session_slots: 0, must be at least 1, or absent"),
    ],
)
def test_a_specification_out_of_range_names_field_value_and_rule(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        spec(**values)


@pytest.mark.parametrize("text", ['{"pipeline":"p","stage":"s"}', '{"server":{"kind":"x"}}', '{"speed":1}', "[]", ""])
def test_json_that_is_no_specification_says_what_is_wrong(text: str) -> None:
    with pytest.raises(ValueError, match="worker specification: "):
        WorkerSpec.from_json(text)


async def scrape(worker: StageWorker) -> str:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{worker.host}:{METRICS_PORT}/metrics") as answer,
    ):
        assert answer.status == 200
        return await answer.text()
