"""What the replicas of each stage compute: voice activity, recognition and rescoring, with their sessions."""

import json
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from simulations.lab.net.wire import Response, Status
from simulations.speech.detection.gate import Gate
from simulations.speech.recognition.encoder import LABELS
from simulations.speech.recognition.features import FRAME_S
from simulations.speech.recognition.recogniser import Recogniser
from simulations.speech.recognition.rescoring import rescored
from simulations.speech.serving.messages import Audio, Transcript, Utterance

SILENCE_S = 1.2
"""An utterance ends after so long without a word, in seconds, where no voice activity says so: in noise it may not."""
LONGEST_S = 20.0
"""An utterance ends after so many seconds at the latest: its scores take memory."""

Item = tuple[str, bytes]
"""A session and the payload of its item."""


class Program(Protocol):
    """The computation of a stage. A batch has at most one item of a session."""

    @property
    def slots(self) -> int | None:
        """How many sessions a replica has room for; None where sessions hold no slot."""
        ...

    @property
    def sessions(self) -> int:
        """How many sessions have state here."""
        ...

    @property
    def session_bytes(self) -> float:
        """The mean memory of a session in bytes, 0 without sessions."""
        ...

    def knows(self, session: str) -> bool:
        """Return whether the session has begun here."""
        ...

    def open(self, session: str) -> bool:
        """Begin a session, unless it has begun; return False if there is no slot for it."""
        ...

    def close(self, session: str) -> None:
        """Forget a session, if there is one."""

    def export(self, session: str) -> bytes:
        """Return the state of a session that has begun, for `restore` at another replica; empty where there is none."""
        ...

    def restore(self, session: str, state: bytes) -> bool:
        """Give a session that has begun the state in which another replica exported it.

        Return False if only its words could be used, because that replica had another variant of the model.

        Raises:
            ValueError: the state is none, or not one of this program.
        """
        ...

    def compute(self, batch: Sequence[Item]) -> Sequence[Response]:
        """Return the answer to each item of a batch; all sessions have begun. An invalid payload is refused."""
        ...


class _NothingToCarry:
    """A program whose sessions begin without state wherever they move: it would be that of less than a second."""

    def export(self, session: str) -> bytes:  # noqa: ARG002 - as programs with state
        """Return nothing."""
        return b""

    def restore(self, session: str, state: bytes) -> bool:  # noqa: ARG002
        """Refuse the state.

        Raises:
            ValueError: always.
        """
        raise ValueError("state: must be empty, sessions of this stage begin without any")


class DetectionProgram(_NothingToCarry):
    """Lets chunks with speech pass, and says in which an utterance ends.

    Sessions are forgotten after `idle_s` without a chunk: a stage without slots is not told of their ends.
    """

    slots: int | None = None

    def __init__(self, gate: Gate, *, idle_s: float, clock: Callable[[], float]) -> None:
        """Create a program without sessions."""
        self._gate = gate
        self._idle_s = idle_s
        self._clock = clock
        self._used_s: OrderedDict[str, float] = OrderedDict()

    @property
    def sessions(self) -> int:
        """How many sessions have state here."""
        return len(self._used_s)

    @property
    def session_bytes(self) -> float:
        """0: it is of no account."""
        return 0.0

    def knows(self, session: str) -> bool:
        """Return whether the session has begun here."""
        return session in self._used_s

    def open(self, session: str) -> bool:
        """Begin a session, unless it has begun."""
        now_s = self._clock()
        while self._used_s and next(iter(self._used_s.values())) < now_s - self._idle_s:
            self.close(next(iter(self._used_s)))
        if session not in self._used_s:
            self._gate.open(session)
        self._used_s[session] = now_s
        self._used_s.move_to_end(session)
        return True

    def close(self, session: str) -> None:
        """Forget a session, if there is one."""
        if self._used_s.pop(session, None) is not None:
            self._gate.close(session)

    def compute(self, batch: Sequence[Item]) -> Sequence[Response]:
        """Return OK with the chunk for those that pass, FILTERED for the others."""
        return _by_length(batch, self._compute)

    def _compute(self, sessions: Sequence[str], chunks: Sequence[Audio]) -> Iterable[Response]:
        samples = np.stack([chunk.samples for chunk in chunks])
        verdicts = self._gate.passes(sessions, samples)
        for chunk, verdict in zip(chunks, verdicts, strict=True):
            if verdict.passes:
                yield Response(Status.OK, replace(chunk, ends=verdict.ends).encode())
            else:
                yield Response(Status.FILTERED, b"")


@dataclass(slots=True)
class _Speech:
    """What a session has said: frames so far, the words and scores of its utterance, and when the last word was."""

    frames: int = 0
    since: int = 0  # the frame in which the utterance began
    quiet_since: int = 0
    words: list[str] = field(default_factory=list)
    confidence: float = 1.0
    scores: list[npt.NDArray[np.float16]] = field(default_factory=list)
    past: list[npt.NDArray[np.float16]] = field(default_factory=list)


_CARRIED = struct.Struct("!II")  # bytes of the state of the slot, and of the words


def carried(slot: bytes, speech: _Speech) -> bytes:
    """Return the state of a session as bytes: that of its slot, and what it has said in its present utterance."""
    places = {"frames": speech.frames, "since": speech.since, "quiet_since": speech.quiet_since}
    text = json.dumps({**places, "words": speech.words, "confidence": speech.confidence}).encode()
    scores = np.concatenate(speech.scores) if speech.scores else np.empty((0, LABELS), dtype=np.float16)
    return _CARRIED.pack(len(slot), len(text)) + slot + text + scores.astype("<f2").tobytes()


def resumed(state: bytes) -> tuple[bytes, _Speech]:
    """Return the state of the slot and what was said, from what `carried` returned.

    Raises:
        ValueError: it is none.
    """
    try:
        slot, text = _CARRIED.unpack_from(state)
        words = state[_CARRIED.size + slot : _CARRIED.size + slot + text]
        scores = np.frombuffer(state, dtype="<f2", offset=_CARRIED.size + slot + text).reshape(-1, LABELS)
        speech = _Speech(**json.loads(words), scores=[scores.astype(np.float16)] if len(scores) else [])
    except (struct.error, TypeError, ValueError) as error:
        raise ValueError(f"state: of no session: {error}") from None
    return state[_CARRIED.size : _CARRIED.size + slot], speech


class RecognitionProgram:
    """Recognises chunks; a finished utterance goes on, the words so far are answered without going on.

    With `keeps_past` the scores of all earlier utterances of a session stay in memory, as for a second pass over whole
    sessions: its memory then grows for as long as it lasts.
    """

    def __init__(self, recogniser: Recogniser, variant: str, *, slots: int, keeps_past: bool = False) -> None:
        """Create a program without sessions; `variant` is the name of the recogniser's model."""
        self.slots: int | None = slots
        self._recogniser = recogniser
        self._variant = variant
        self._keeps_past = keeps_past
        self._speech: dict[str, _Speech] = {}

    @property
    def sessions(self) -> int:
        """How many sessions have state here."""
        return len(self._recogniser.cache)

    @property
    def session_bytes(self) -> float:
        """The mean memory of a session: its slot, and the scores that are kept."""
        if not self._speech:
            return 0.0
        kept = sum(part.nbytes for speech in self._speech.values() for part in (*speech.scores, *speech.past))
        return self._recogniser.cache.bytes_per_session + kept / len(self._speech)

    def knows(self, session: str) -> bool:
        """Return whether the session has a slot."""
        return session in self._recogniser.cache

    def open(self, session: str) -> bool:
        """Give the session a slot with empty state, unless it has one; return False if none is free."""
        cache = self._recogniser.cache
        if session in cache:
            cache.slots((session,))  # it is in use: what waits for it must find its slot
            return True
        if not cache.open(session):
            return False
        for gone in [known for known in self._speech if known not in cache]:  # one may have been evicted
            del self._speech[gone]
        self._speech[session] = _Speech()
        return True

    def close(self, session: str) -> None:
        """Forget a session, if there is one."""
        self._recogniser.cache.close(session)
        self._speech.pop(session, None)

    def export(self, session: str) -> bytes:
        """Return the state of a session: of its slot, and the words and scores of its present utterance.

        What it keeps of earlier utterances (`keeps_past`) stays behind.
        """
        slot = self._recogniser.cache.export(session)
        return carried(slot, self._speech.pop(session))

    def restore(self, session: str, state: bytes) -> bool:
        """Give a session the state in which another replica exported it.

        Of another variant of the model only the words of the present utterance are kept, and return False: what its
        layers remember means nothing to these.

        Raises:
            ValueError: the state is not one of this program.
        """
        slot, speech = resumed(state)
        cache = self._recogniser.cache
        self._speech[session] = speech
        if not cache.fits(slot):
            return False
        cache.close(session)
        cache.restore(session, slot)
        return True

    def compute(self, batch: Sequence[Item]) -> Sequence[Response]:
        """Return OK with the utterance for chunks in which one ends, FILTERED with the words so far for the others."""
        return _by_length(batch, self._compute)

    def _compute(self, sessions: Sequence[str], chunks: Sequence[Audio]) -> Iterable[Response]:
        recognised = self._recogniser.recognise(sessions, np.stack([chunk.samples for chunk in chunks]))
        for session, chunk, each in zip(sessions, chunks, recognised, strict=True):
            speech = self._speech[session]
            for word in each.words:
                speech.words.append(word.word)
                speech.confidence = min(speech.confidence, word.confidence)
                speech.quiet_since = speech.frames + word.frame
            speech.frames += len(each.scores)
            speech.scores.append(each.scores.astype(np.float16))
            yield self._answer(speech, ends=chunk.ends)

    def _answer(self, speech: _Speech, *, ends: bool) -> Response:
        quiet_s = (speech.frames - speech.quiet_since) * FRAME_S
        long_s = (speech.frames - speech.since) * FRAME_S
        final = bool(speech.words) and (ends or quiet_s >= SILENCE_S or long_s >= LONGEST_S)
        transcript = Transcript(
            variant=self._variant, words=tuple(speech.words), confidence=round(speech.confidence, 4), final=final
        )
        response = Response(Status.FILTERED, transcript.encode())
        if final:
            utterance = Utterance(transcript, np.concatenate(speech.scores).astype(np.float32))
            response = Response(Status.OK, utterance.encode())
        if final or (not speech.words and (ends or quiet_s >= SILENCE_S)):
            if self._keeps_past:
                speech.past += speech.scores
            speech.words, speech.scores, speech.confidence = [], [], 1.0
            speech.since = speech.quiet_since = speech.frames
        return response


class RescoringProgram(_NothingToCarry):
    """Looks at finished utterances once more, one at a time."""

    slots: int | None = None
    sessions = 0
    session_bytes = 0.0

    def knows(self, session: str) -> bool:  # noqa: ARG002 - no replica has state that an utterance needs
        """Return True."""
        return True

    def open(self, session: str) -> bool:  # noqa: ARG002
        """Do nothing."""
        return True

    def close(self, session: str) -> None:
        """Do nothing."""

    def compute(self, batch: Sequence[Item]) -> Sequence[Response]:
        """Return OK with the transcript for each utterance."""
        return [self._answer(payload) for _, payload in batch]

    @staticmethod
    def _answer(payload: bytes) -> Response:
        try:
            utterance = Utterance.decode(payload)
        except ValueError as error:
            return _refused(error)
        words = tuple(rescored(utterance.scores))
        return Response(Status.OK, replace(utterance.transcript, words=words).encode())


def _by_length(
    batch: Sequence[Item], compute: Callable[[Sequence[str], Sequence[Audio]], Iterable[Response]]
) -> Sequence[Response]:
    """Return the answers of `compute`, which takes chunks of one length; chunks that are none are refused."""
    answers: dict[int, Response] = {}
    groups: dict[int, list[tuple[int, str, Audio]]] = {}
    for place, (session, payload) in enumerate(batch):
        try:
            chunk = Audio.decode(payload)
        except ValueError as error:
            answers[place] = _refused(error)
        else:
            groups.setdefault(len(chunk.samples), []).append((place, session, chunk))
    for group in groups.values():
        places, sessions, chunks = zip(*group, strict=True)
        answers.update(zip(places, compute(sessions, chunks), strict=True))
    return [answers[place] for place in range(len(batch))]


def _refused(error: ValueError) -> Response:
    return Response(Status.INVALID, str(error).encode())
