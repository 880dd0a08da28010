"""The stages of the reference service one after the other, on synthesised speech."""

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from set_clock import Clock

from simulations.lab.net.wire import Status
from simulations.speech.audio.spoken import Conversation
from simulations.speech.audio.synthesis import Request, conversations
from simulations.speech.detection.gate import Gate
from simulations.speech.detection.silero import SileroDetector
from simulations.speech.detection.webrtc import WebRtcDetector
from simulations.speech.recognition.encoder import Model
from simulations.speech.recognition.errors import WordErrors, word_errors
from simulations.speech.recognition.recogniser import Recogniser
from simulations.speech.recognition.state_cache import StateCache
from simulations.speech.serving.messages import Audio, Transcript, Utterance
from simulations.speech.serving.programs import DetectionProgram, RecognitionProgram, RescoringProgram

CHUNK = 2560  # 160 ms


@cache
def spoken(snr_db: float) -> Sequence[Conversation]:
    return tuple(conversations(Request(seed=seed, snr_db=snr_db) for seed in range(6)))


def detection(clock: Clock | None = None, *, silero: bool = False) -> DetectionProgram:
    detector = SileroDetector() if silero else WebRtcDetector()
    return DetectionProgram(Gate(detector), idle_s=10.0, clock=clock or Clock())


def recognition(variant: str = "small", slots: int = 8, *, keeps_past: bool = False) -> RecognitionProgram:
    model = Model.load(variant)
    cache = StateCache(model.shape, slots, idle_s=10.0, clock=lambda: 0.0)
    return RecognitionProgram(Recogniser(model, cache), variant, slots=slots, keeps_past=keeps_past)


def heard(audio: Sequence[Conversation], vad: DetectionProgram, asr: RecognitionProgram) -> list[list[Transcript]]:
    """Return the final transcripts of each conversation, as they come out of the third stage."""
    sessions = [str(number) for number in range(len(audio))]
    for session in sessions:
        assert vad.open(session)
        assert asr.open(session)
    rescoring, final = RescoringProgram(), list[list[Transcript]]([] for _ in audio)
    for begin in range(0, len(audio[0].samples) - CHUNK + 1, CHUNK):
        chunks = [Audio(each.samples[begin : begin + CHUNK]).encode() for each in audio]
        answers = vad.compute(list(zip(sessions, chunks, strict=True)))
        passed = [
            (session, each.payload) for session, each in zip(sessions, answers, strict=True) if each.status is Status.OK
        ]
        for (session, _), answer in zip(passed, asr.compute(passed), strict=True):
            if answer.status is Status.OK:
                (rescored,) = rescoring.compute([(session, answer.payload)])
                assert rescored.status is Status.OK
                final[int(session)].append(Transcript.decode(rescored.payload))
    return final


def errors(audio: Sequence[Conversation], final: Sequence[Sequence[Transcript]]) -> WordErrors:
    total = WordErrors()
    for conversation, transcripts in zip(audio, final, strict=True):
        words = [word for transcript in transcripts for word in transcript.words]
        total += word_errors(conversation.text.split(), words)
    return total


def test_audio_goes_in_and_words_come_out() -> None:
    audio = spoken(30.0)
    final = heard(audio, detection(), recognition())
    total = errors(audio, final)
    assert total.rate is not None
    assert total.rate < 0.02
    assert all(each.final and each.variant == "small" for transcripts in final for each in transcripts)
    # About one transcript per sentence: a pause ends an utterance, and a short one may not.
    sentences = sum(len(each.active) for each in audio)
    assert 0.6 * sentences <= sum(map(len, final)) <= 1.2 * sentences


def test_rescoring_finds_words_that_the_first_pass_missed() -> None:
    audio, first = spoken(8.0), WordErrors()
    final = heard(audio, detection(silero=True), recognition("tiny"))
    second = errors(audio, final)
    asr, sessions = recognition("tiny"), [str(number) for number in range(len(audio))]
    vad = detection(silero=True)
    words: list[list[str]] = [[] for _ in audio]
    for session in sessions:
        vad.open(session)
        asr.open(session)
    for begin in range(0, len(audio[0].samples) - CHUNK + 1, CHUNK):
        for number, each in enumerate(audio):
            (passed,) = vad.compute([(str(number), Audio(each.samples[begin : begin + CHUNK]).encode())])
            if passed.status is Status.OK:
                (answer,) = asr.compute([(str(number), passed.payload)])
                if answer.status is Status.OK:
                    words[number] += Utterance.decode(answer.payload).transcript.words
    for conversation, found in zip(audio, words, strict=True):
        first += word_errors(conversation.text.split(), found)
    print(f"first pass {first.rate:.2%}, second {second.rate:.2%}")
    assert first.rate is not None
    assert second.rate is not None
    assert second.rate < first.rate


def test_an_utterance_ends_by_silence_where_the_gate_stays_open() -> None:
    audio = spoken(8.0)[:2]  # WebRTC lets all pass
    final = heard(audio, detection(), recognition())
    assert min(map(len, final)) >= 2
    total = errors(audio, final)
    assert total.rate is not None
    assert total.rate < 0.05


def test_the_words_so_far_are_answered_before_the_utterance_ends() -> None:
    asr, audio = recognition(), spoken(30.0)[0]
    asr.open("a")
    begin = int(audio.active[0][0] * 16_000) // CHUNK * CHUNK
    counts = []
    for at in range(begin, begin + 10 * CHUNK, CHUNK):
        (answer,) = asr.compute([("a", Audio(audio.samples[at : at + CHUNK]).encode())])
        if answer.status is Status.FILTERED:
            transcript = Transcript.decode(answer.payload)
            assert not transcript.final
            counts.append(len(transcript.words))
    assert counts == sorted(counts)
    assert counts[-1] >= 2


def test_sessions_that_keep_their_past_grow_and_others_do_not() -> None:
    sizes = {}
    for keeps_past in (False, True):
        asr, chunk = recognition("tiny", keeps_past=keeps_past), Audio(np.zeros(16 * 640, dtype=np.int16)).encode()
        asr.open("a")
        each = []
        for _ in range(60):
            asr.compute([("a", chunk)])
            each.append(asr.session_bytes)
        sizes[keeps_past] = each
    assert max(sizes[False]) < 40_000
    assert sizes[True][-1] > 1.8 * sizes[True][29] > 1.8 * max(sizes[False])


def test_bad_payloads_are_refused_and_the_rest_of_the_batch_is_not() -> None:
    asr = recognition("tiny")
    good, short = Audio(np.zeros(CHUNK, dtype=np.int16)).encode(), Audio(np.zeros(640, dtype=np.int16)).encode()
    for session in "abc":
        asr.open(session)
    answers = asr.compute([("a", good), ("b", b"nonsense"), ("c", short)])
    assert [each.status for each in answers] == [Status.FILTERED, Status.INVALID, Status.FILTERED]
    assert answers[1].payload.startswith(b"chunk: 8 bytes, must be")
    (answer,) = RescoringProgram().compute([("a", b"nonsense")])
    assert answer.status is Status.INVALID


def test_idle_sessions_of_a_stage_without_slots_are_forgotten() -> None:
    clock = Clock()
    vad = detection(clock)
    vad.open("a")
    clock.now_s = 5.0
    vad.open("b")
    clock.now_s = 11.0
    vad.open("c")
    assert [vad.knows(session) for session in "abc"] == [False, True, True]
    assert vad.sessions == 2


def test_a_session_that_was_evicted_begins_anew() -> None:
    model, clock = Model.load("tiny"), Clock()
    asr = RecognitionProgram(Recogniser(model, StateCache(model.shape, 1, idle_s=10.0, clock=clock)), "tiny", slots=1)
    chunk = Audio(np.zeros(CHUNK, dtype=np.int16)).encode()
    assert asr.open("a")
    asr.compute([("a", chunk)])
    assert not asr.open("b")
    clock.now_s = 20.0
    assert asr.open("b")
    assert not asr.knows("a")
    assert asr.sessions == 1
    assert asr.session_bytes < 10_000, "what the evicted session had said is not kept"


def test_a_session_with_a_chunk_that_waits_keeps_its_slot() -> None:
    model, clock = Model.load("tiny"), Clock()
    asr = RecognitionProgram(Recogniser(model, StateCache(model.shape, 1, idle_s=10.0, clock=clock)), "tiny", slots=1)
    assert asr.open("a")
    clock.now_s = 20.0
    assert asr.open("a"), "its next chunk has come"
    assert not asr.open("b")
    (answer,) = asr.compute([("a", Audio(np.zeros(CHUNK, dtype=np.int16)).encode())])
    assert answer.status is Status.FILTERED


@pytest.mark.parametrize("program", [detection, RescoringProgram])
def test_stages_without_slots_take_every_session(program: type[RescoringProgram]) -> None:
    found = program()
    assert found.slots is None
    assert all(found.open(str(number)) for number in range(100))
    found.close("5")
    found.close("5")
