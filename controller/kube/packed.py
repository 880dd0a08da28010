"""Documents in little memory: each is compressed with an earlier one, which is much alike, as the dictionary."""

import json
import zlib
from dataclasses import dataclass

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


class Packer:
    """Packs documents of one kind. Thread-safe."""

    def __init__(self) -> None:
        self._dictionary = b"{}"

    def pack(self, document: Json) -> Packed:
        """Return `document` in little memory."""
        return self.pack_bytes(json.dumps(document, separators=(",", ":")).encode())

    def pack_bytes(self, document: bytes) -> Packed:
        """Return `document` in little memory."""
        dictionary = self._dictionary
        deflater = zlib.compressobj(_LEVEL, zdict=dictionary)
        if len(document) > _GROWN * len(dictionary):
            self._dictionary = document
        return Packed(deflater.compress(document) + deflater.flush(), dictionary)
