"""The load of the reference service: speaks the streams of a schedule against the ingress, in an open loop.

`python -m simulations.speech.live.load --config FILE [--start-at SECONDS]`, with a file of `SpeechConfig`. It takes the
place of `simulations.lab.traffic.generator`. Standard output has one JSON object per line: `started`, `words` with what
is heard of one stream, and `finished`.
"""

import asyncio
import gc
import json
import signal
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import TypeAdapter

from simulations.lab.host.processes import LOOPBACK
from simulations.lab.traffic.configuration import Configuration
from simulations.lab.traffic.generator import GeneratorConfig, PipelineLoad, arguments, lag_report
from simulations.lab.traffic.ingress import say
from simulations.scenario.schedule import Schedule
from simulations.speech.audio.corpus import read_corpus
from simulations.speech.audio.spoken import SAMPLE_RATE, Conversation
from simulations.speech.audio.synthesis import pink_noise
from simulations.speech.recognition.errors import WordErrors
from simulations.speech.serving.client import Hear, Snr, Speaker, Speech, StreamResult
from simulations.speech.serving.messages import Transcript

_LEAD_S = 0.2
_NOISE_S = 30.0
_BEFORE_S = 0.3
"""How long before an utterance a stream begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechConfig(Configuration):
    """Who speaks: the `streams` of all pipelines, with the conversations in the folder `corpus`.

    `snr_db` are pairs of a time in seconds, the first 0, and the SNR in dB from then on. The report has the fields of
    that of `simulations.lab.traffic.generator` and those of `Heard`.
    """

    NAME: ClassVar[str] = "speech configuration"

    streams: GeneratorConfig
    corpus: Path
    snr_db: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """The word errors of what one variant heard in one noise, such as "8 dB"; "" where no word was heard at all."""

    snr: str
    variant: str
    errors: WordErrors


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """Of the `answered` chunks that were due in a `second` of the run, voice activity let `passed` go on."""

    second: int
    answered: int
    passed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What became of all streams.

    `outcomes` counts chunks as in `client.StreamResult`. `streams_lost` are those whose connection the service ended,
    for another reason than that it refused them; `streams_refused` those that had to try again. `stream_hours` is how
    long they spoke. The percentiles are those of the time from when a chunk was due to its transcript.
    """

    streams: int
    streams_lost: int
    streams_refused: int
    stream_hours: float
    outcomes: dict[str, int]
    errors: tuple[Errors, ...]
    passed: tuple[Passed, ...]
    p50_s: float | None
    p95_s: float | None
    p99_s: float | None

    @property
    def total(self) -> WordErrors:
        """Return the errors of all words."""
        return sum((each.errors for each in self.errors), WordErrors())


_HEARD = TypeAdapter(Heard)


def read_heard(report: Path) -> Heard:
    """Return what became of the streams of a finished run, from the report that it wrote."""
    return _HEARD.validate_python(json.loads(report.read_text())["heard"])


def speeches(
    schedule: Schedule, load: PipelineLoad, conversations: Sequence[Conversation], *, first: int, duration_s: float
) -> Sequence[Speech]:
    """Return the streams of a schedule, numbered from `first`; all end at `duration_s` at the latest.

    Each begins before an utterance of a conversation, and with its first chunk at a random time, so that streams which
    begin together do not end their utterances together.
    """
    chance = np.random.default_rng([load.seed, 0x5EEC4])
    assert load.chunk_s is not None
    found = []
    for place, (start_s, end_s) in enumerate(zip(schedule.start_s.tolist(), schedule.end_s.tolist(), strict=True)):
        conversation = conversations[int(chance.integers(len(conversations)))]
        begins_s = [utterance_s for utterance_s, _ in conversation.active] or [0.0]
        found.append(
            Speech(
                number=first + place,
                conversation=conversation,
                start_s=start_s + float(chance.uniform(0, load.chunk_s)),
                end_s=min(end_s, duration_s),
                begin_s=max(0.0, begins_s[int(chance.integers(len(begins_s)))] - _BEFORE_S),
            )
        )
    return found


def heard(results: Sequence[StreamResult], said_s: float) -> Heard:
    """Return the sums over streams that spoke for `said_s` seconds in all."""
    errors: dict[tuple[str, str], WordErrors] = {}
    answered, passed, outcomes = Counter[int](), Counter[int](), Counter[str]()
    for result in results:
        for kind, own in result.errors.items():
            errors[kind] = errors.get(kind, WordErrors()) + own
        answered += result.answered
        passed += result.passed
        outcomes += result.outcomes
    latencies_s = np.array([latency_s for result in results for _, latency_s in result.latencies])
    percentiles = np.percentile(latencies_s, (50, 95, 99)).tolist() if len(latencies_s) else (None, None, None)
    return Heard(
        streams=len(results),
        streams_lost=sum(result.lost > 0 for result in results),
        streams_refused=sum(result.attempts > result.lost + 1 for result in results),
        stream_hours=said_s / 3600,
        outcomes=dict(outcomes),
        errors=tuple(Errors(snr=snr, variant=variant, errors=own) for (snr, variant), own in sorted(errors.items())),
        passed=tuple(
            Passed(second=second, answered=count, passed=passed[second]) for second, count in sorted(answered.items())
        ),
        p50_s=percentiles[0],
        p95_s=percentiles[1],
        p99_s=percentiles[2],
    )


def snr_of(steps: Sequence[tuple[float, float]]) -> Snr:
    """Return the SNR as a function of time, from times in seconds and the SNR in dB from each on."""
    times_s = [at_s for at_s, _ in steps]
    return lambda now_s: steps[max(0, bisect_right(times_s, now_s) - 1)][1]


def one_stream(number: int, start_s: float) -> Hear:
    """Return what prints the words of one stream as they come; times count from `start_s` of the monotonic clock."""
    before: tuple[Sequence[str], bool] = ((), True)

    def hear(stream: int, transcript: Transcript) -> None:
        nonlocal before
        now = tuple(transcript.words), transcript.final
        if stream == number and now != before:
            before = now
            at_s = round(time.monotonic() - start_s, 2)
            say("words", t_s=at_s, stream=number, **asdict(transcript))

    return hear


async def run(config: SpeechConfig, start_at_s: float | None) -> None:
    """Speak all streams and write the report; `start_at_s` is the start on the monotonic clock, None for at once.

    SIGTERM or SIGINT ends the streams early.
    """
    streams = config.streams
    conversations = read_corpus(config.corpus)
    noise = pink_noise(np.random.default_rng(1), round(_NOISE_S * SAMPLE_RATE))
    start_s = time.monotonic() + _LEAD_S if start_at_s is None else start_at_s
    snr_db, hear = snr_of(config.snr_db), one_stream(0, start_s)
    speakers: list[tuple[Speech, Speaker]] = []
    for load in streams.loads:
        assert load.chunk_s is not None, "only streams speak"
        schedule, first = Schedule.load(load.schedule), len(speakers)
        for speech in speeches(schedule, load, conversations, first=first, duration_s=streams.duration_s):
            speaker = Speaker(
                f"ws://{LOOPBACK}:{load.port}",
                speech,
                begin_s=start_s,
                chunk_s=load.chunk_s,
                noise=noise,
                snr_db=snr_db,
                hear=hear,
            )
            speakers.append((speech, speaker))
    gc.collect()
    gc.freeze()
    say("started", monotonic_s=start_s, streams=len(speakers))
    await _until_over([speaker for _, speaker in speakers], start_s + streams.duration_s + streams.drain_s)
    results = [speaker.result for _, speaker in speakers]
    said_s = sum(max(0.0, speech.end_s - speech.start_s) for speech, _ in speakers)
    report = report_of(results, heard(results, said_s), start_s)
    streams.report.write_text(json.dumps(report, indent=1))
    say("finished", **{name: value for name, value in report.items() if name != "heard"})


async def _until_over(speakers: Sequence[Speaker], end_s: float) -> None:
    """Speak until all streams have ended; at `end_s` (monotonic clock), or on a signal, end those that have not."""
    loop = asyncio.get_running_loop()
    speaking = [loop.create_task(speaker.speak()) for speaker in speakers]

    def end() -> None:
        for task in speaking:
            task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    loop.call_later(end_s - time.monotonic(), end)
    for failed in await asyncio.gather(*speaking, return_exceptions=True):
        if isinstance(failed, Exception):
            raise failed


def report_of(results: Sequence[StreamResult], found: Heard, start_s: float) -> dict[str, Any]:
    """Return the report of a run: how late chunks were sent, and what was heard."""
    lags_s = [lag_s for result in results for lag_s in result.lags_s]
    return {
        "started_monotonic_s": start_s,
        "sent": len(lags_s),
        **lag_report(lags_s),
        "heard": _HEARD.dump_python(found),
    }


def main() -> None:
    """Run the load as a program."""
    given = arguments("simulations.speech.live.load", "Speak to the reference service.")
    asyncio.run(run(SpeechConfig.from_json(given.config.read_text()), given.start_at))


if __name__ == "__main__":
    main()
