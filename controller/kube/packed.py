"""Documents and values in little memory: each is compressed with an earlier one, which is much alike, as dictionary."""

import json
import pickle
import zlib
from dataclasses import dataclass
from typing import Any

from controller.kube.gateway import Json

_LEVEL = 6
_GROWN = 1.25
"""A document that is so many times as long as the dictionary has parts that it lacks, such as a status."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A compressed document, and the dictionary that many share."""

    data: bytes
    dictionary: bytes

    def whole(self) -> bytes:
        """Return the document."""
        return zlib.decompressobj(zdict=self.dictionary).decompress(self.data)

    def document(self) -> Json:
        """Return a document in JSON."""
        document: Json = json.loads(self.whole())
        return document

    def value(self) -> Any:
        """Return a value of this process."""
        return pickle.loads(self.whole())  # noqa: S301 -- of this process


class Packer:
    """Packs documents of one kind. Thread-safe."""

    def __init__(self) -> None:
        self._dictionary = b"{}"

    def pack(self, document: Json) -> Packed:
        """Return `document` in little memory."""
        return self._packed(json.dumps(document, separators=(",", ":")).encode())

    def pack_value(self, value: object) -> Packed:
        """Return `value` in little memory, for `Packed.value` in this process."""
        return self._packed(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))

    def _packed(self, document: bytes) -> Packed:
        dictionary = self._dictionary
        deflater = zlib.compressobj(_LEVEL, zdict=dictionary)
        if len(document) > _GROWN * len(dictionary):
            self._dictionary = document
        return Packed(deflater.compress(document) + deflater.flush(), dictionary)
