"""The state of all sessions of a replica, in arrays that are allocated once.

A session has a slot from `open` to `close`. Slots are kept in the order of their last use: when a session needs one and
none is free, the session that was idle for longest loses its slot, if it was idle for long enough.
"""

import struct
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulations.speech.recognition.decoding import Last
from simulations.speech.recognition.encoder import BLANK, Shape
from simulations.speech.recognition.features import OVERLAP

_HEADER = struct.Struct("!4sIIIii")
_MAGIC = b"SLS1"


@dataclass(slots=True)
class _Slot:
    number: int
    used_s: float


@dataclass(slots=True, kw_only=True)
class CacheCounts:
    """How many sessions were opened, closed, refused, evicted, and how many came from or went to another replica."""

    opened: int = 0
    closed: int = 0
    refused: int = 0
    evicted: int = 0
    exported: int = 0
    imported: int = 0


class StateCache:
    """Up to `slots` sessions of a model of `shape`; `idle_s` is after how long without use one may be evicted.

    `overlap` has shape (slots, OVERLAP): the audio before the next chunk. `state` has shape (slots, layers, rows,
    width), and `last` (slots, 2): what decoding keeps, as in `decoding.Last`. All rows of a session have the number of
    its slot.
    """

    def __init__(self, shape: Shape, slots: int, *, idle_s: float, clock: Callable[[], float]) -> None:
        """Allocate the arrays; pages are touched when a slot is first used.

        Raises:
            ValueError: `slots` or `idle_s` is outside its range.
        """
        if slots < 1:
            raise ValueError(f"slots: {slots!r}, must be at least 1")
        if not idle_s >= 0:
            raise ValueError(f"idle_s: {idle_s!r}, must be at least 0")
        self.shape = shape
        self.overlap = np.zeros((slots, OVERLAP), dtype=np.float32)
        self.state = np.zeros((slots, shape.layers, shape.rows, shape.width), dtype=np.float32)
        self.last = np.full((slots, len(Last())), BLANK, dtype=np.int32)
        self.counts = CacheCounts()
        self._idle_s = idle_s
        self._clock = clock
        self._free = list(range(slots - 1, -1, -1))
        self._sessions: OrderedDict[str, _Slot] = OrderedDict()  # the least recently used first

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, session: object) -> bool:
        return session in self._sessions

    @property
    def bytes_per_session(self) -> int:
        """Return the memory of one session in bytes."""
        return self.shape.state_bytes + int(self.overlap[0].nbytes + self.last[0].nbytes)

    def open(self, session: str) -> bool:
        """Give the session a slot with empty state; return False if none is free and none can be evicted.

        Raises:
            ValueError: the session has a slot already.
        """
        if session in self._sessions:
            raise ValueError(f"session: {session!r} is open")
        if not self._free and not self._evict():
            self.counts.refused += 1
            return False
        number = self._free.pop()
        self.overlap[number] = 0
        self.state[number] = 0
        self.last[number] = BLANK
        self._sessions[session] = _Slot(number, self._clock())
        self.counts.opened += 1
        return True

    def close(self, session: str) -> None:
        """Free the slot of the session, if it has one: it may have been evicted."""
        if self._remove(session):
            self.counts.closed += 1

    def slots(self, sessions: Sequence[str]) -> npt.NDArray[np.intp]:
        """Return the slots of sessions, in their order, and note that they are in use now.

        Raises:
            KeyError: a session has no slot.
        """
        now_s = self._clock()
        numbers = np.empty(len(sessions), dtype=np.intp)
        for place, session in enumerate(sessions):
            slot = self._sessions[session]
            slot.used_s = now_s
            self._sessions.move_to_end(session)
            numbers[place] = slot.number
        return numbers

    def export(self, session: str) -> bytes:
        """Return the state of the session for another replica, and free its slot.

        Raises:
            KeyError: the session has no slot.
        """
        number = self._sessions[session].number
        header = _HEADER.pack(_MAGIC, *self.state.shape[1:], *self.last[number].tolist())
        carried: bytes = header + self.overlap[number].tobytes() + self.state[number].tobytes()
        self._remove(session)
        self.counts.exported += 1
        return carried

    def fits(self, carried: bytes) -> bool:
        """Return whether state that `export` returned is one of this variant of the model."""
        return len(carried) == self._carried_bytes and _HEADER.unpack_from(carried)[1:4] == self.state.shape[1:]

    @property
    def _carried_bytes(self) -> int:
        return _HEADER.size + self.bytes_per_session - int(self.last[0].nbytes)

    def restore(self, session: str, carried: bytes) -> bool:
        """Open the session with state that `export` returned; return False if there is no slot.

        Raises:
            ValueError: the state is not one of this variant, or the session is open.
        """
        if len(carried) != self._carried_bytes:
            raise ValueError(f"state: {len(carried)} bytes, must be {self._carried_bytes}")
        magic, *size, label, word = _HEADER.unpack_from(carried)
        known = 0 <= label <= BLANK and 0 <= word <= BLANK
        if magic != _MAGIC or tuple(size) != self.state.shape[1:] or not known:
            raise ValueError(f"state: of a model of shape {size}, must be of {self.state.shape[1:]}")
        if not self.open(session):
            return False
        number = self._sessions[session].number
        numbers = np.frombuffer(carried, dtype=np.float32, offset=_HEADER.size)
        self.overlap[number] = numbers[:OVERLAP]
        self.state[number] = numbers[OVERLAP:].reshape(self.state.shape[1:])
        self.last[number] = label, word
        self.counts.imported += 1
        return True

    def _evict(self) -> bool:
        if not self._sessions:
            return False
        session, slot = next(iter(self._sessions.items()))
        if slot.used_s > self._clock() - self._idle_s:
            return False
        self._remove(session)
        self.counts.evicted += 1
        return True

    def _remove(self, session: str) -> bool:
        slot = self._sessions.pop(session, None)
        if slot is None:
            return False
        self._free.append(slot.number)
        return True
