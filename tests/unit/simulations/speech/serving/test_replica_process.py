"""A replica as the process that a pod runs: it starts, recognises real audio, shows its metrics and ends when asked."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from urllib.request import ProxyHandler, build_opener

import pytest

from simulations.lab.net.wire import Client, Status
from simulations.lab.pods.process import IMAGE, ProcessEnded, ProcessPod
from simulations.lab.pods.worker import ITEM_PORT, METRICS_PORT
from simulations.speech.audio.synthesis import Request, conversations
from simulations.speech.serving.messages import Audio, Transcript, Utterance
from simulations.speech.serving.replica import ENVIRONMENT

CHUNK = 2560


def replica(*arguments: str) -> ProcessPod:
    return ProcessPod(
        {
            "image": IMAGE,
            "command": ["python", "-m", "simulations.speech.serving.replica", *arguments],
            "env": [{"name": name, "value": value} for name, value in ENVIRONMENT.items()],
        },
        f"127.{random.randrange(2, 250)}.{random.randrange(256)}.{random.randrange(1, 255)}",
    )


def play(pod: ProcessPod, use: Callable[[ProcessPod], Awaitable[None]]) -> None:
    async def run() -> None:
        try:
            async with asyncio.timeout(60):
                await use(pod)
        finally:
            await pod.abort()

    asyncio.run(run())


def scraped(host: str) -> str:
    with build_opener(ProxyHandler({})).open(f"http://{host}:{METRICS_PORT}/metrics", timeout=5) as answer:
        text: str = answer.read().decode()
    return text


def test_a_replica_recognises_a_conversation_and_says_at_its_end_what_it_served() -> None:
    (spoken,) = conversations([Request(seed=1, duration_s=10.0, activity=0.6)])
    chunks = [spoken.samples[at : at + CHUNK] for at in range(0, len(spoken.samples) - CHUNK + 1, CHUNK)]

    async def use(pod: ProcessPod) -> None:
        await pod.start()
        client = await Client.connect(pod.host, ITEM_PORT)
        assert (await client.open_session(1)).status is Status.OK
        assert (await client.open_session(2)).status is Status.REFUSED_SLOT
        words: list[str] = []
        rest: list[str] = []
        for number, samples in enumerate(chunks):
            answer = await client.send(number, 1, Audio(samples).encode())
            if answer.status is Status.OK:
                words += Utterance.decode(answer.payload).transcript.words
                rest = []
            else:
                rest = list(Transcript.decode(answer.payload).words)
        assert words + rest == spoken.text.split()
        shown = scraped(pod.host)
        assert f"speech_stage_items_total {float(len(chunks))}" in shown
        assert "speech_stage_sessions 1.0" in shown
        assert "speech_stage_sessions_refused_total 1.0" in shown
        (size,) = [line.split()[1] for line in shown.splitlines() if line.startswith("speech_stage_session_bytes ")]
        assert float(size) >= 157_640
        client.end_session(1)
        client.close()
        await pod.drain()
        assert (pod.counts.served, pod.counts.sessions_cut) == (len(chunks), 0)

    play(replica("asr", "--variant", "large", "--slots", "1", "--batch-wait", "0"), use)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["asr", "--variant", "huge"], "replica of asr: variant: 'huge', must be one of tiny, small, large"),
        (["asr", "--slots", "0"], "replica of asr: slots: 0, must be at least 1"),
        (["rescore", "--share", "2"], "replica of rescore: share: 2.0, must be above 0 and at most 1"),
        (["tts"], "invalid choice: 'tts'"),
    ],
)
def test_a_wrong_option_ends_a_replica_with_the_reason(arguments: list[str], message: str) -> None:
    async def use(pod: ProcessPod) -> None:
        with pytest.raises(ProcessEnded) as ended:
            await pod.start()
        assert message in str(ended.value)

    play(replica(*arguments), use)
