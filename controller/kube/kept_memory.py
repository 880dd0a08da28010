"""Keeps the memory of pipelines whose status cannot be written, as annotations of the operator's Lease.

A webhook that refuses the status of one namespace must not stop the scaling there, and a failover must not lose what
the scaling rests on. The Lease is in the operator's own namespace, is read by the next leader anyway, and needs no
further right. A write names the version of the Lease that this replica was seen to hold, so that a former leader cannot
replace the memory of its successor. It delays the renewal under way by one request.
"""

import logging
from collections.abc import Collection, Mapping

from controller.core.codec import InvalidRecord
from controller.kube.durable import pack, unpacked
from controller.kube.gateway import LEASES, Conflict, Gateway, Json, KubeError, NotFound, NotLeading

_LOG = logging.getLogger(__name__)
_PREFIX = "memory.sluice.dev/"
_ATTEMPTS = 3
"""Renewals change the version of the Lease; they come every few seconds."""
_MOST_BYTES = 200_000
"""All annotations of an object together may have 256 KiB. The memory of a pipeline has about one."""


class KeptMemory:
    """The documents kept in the Lease, by the UID of the pipeline."""

    def __init__(self, gateway: Gateway, *, namespace: str, name: str, identity: str) -> None:
        """Use the Lease `name` in `namespace`, while its holder is `identity`."""
        self._gateway = gateway
        self._namespace, self._name = namespace, name
        self._identity = identity
        self._texts: dict[str, str] = {}
        self._documents: dict[str, Json] = {}
        self._loaded = False

    def load(self) -> None:
        """Read the documents that an earlier leader left, unless that was done before.

        Raises:
            KubeError: the Lease cannot be read.
        """
        if self._loaded:
            return
        try:
            lease = self._gateway.get(LEASES, self._namespace, self._name)
        except NotFound:
            lease = {"metadata": {}}
        for name, text in (lease["metadata"].get("annotations") or {}).items():
            if name.startswith(_PREFIX):
                uid = name.removeprefix(_PREFIX)
                self._texts[uid] = text
                try:
                    self._documents[uid] = unpacked(text, f"lease {self._namespace}/{self._name}: annotation {name}")
                except InvalidRecord as error:
                    _LOG.warning("%s", error)
        self._loaded = True

    def document(self, uid: str) -> Json | None:
        """Return the document of the pipeline `uid`, None if none is kept."""
        return self._documents.get(uid)

    def keep(self, documents: Mapping[str, Json]) -> frozenset[str]:
        """Keep as many of `documents` as there is room for, until they are forgotten; return the UIDs of these.

        Nothing is written if they are kept already.

        Raises:
            KubeError: none is safe: the Lease cannot be written, or has another holder.
        """
        texts, safe = dict(self._texts), set()
        room = _MOST_BYTES - sum(map(_size, texts.items()))
        for uid, document in documents.items():
            text = pack(document)
            needed = _size((uid, text)) - (_size((uid, texts[uid])) if uid in texts else 0)
            if needed <= room:
                texts[uid] = text
                room -= needed
                safe.add(uid)
        if changed := {uid: texts[uid] for uid in safe if texts[uid] != self._texts.get(uid)}:
            self._annotate(changed)
        self._texts = texts
        self._documents.update({uid: documents[uid] for uid in safe})
        return frozenset(safe)

    def forget(self, uids: Collection[str]) -> None:
        """Remove the documents of `uids`, because their status is written, or the pipelines do not exist any more.

        A failure is logged only: a status that is newer than a document replaces it.
        """
        gone = dict.fromkeys(uid for uid in self._texts if uid in uids)
        if not gone:
            return
        try:
            self._annotate(gone)
        except KubeError as error:
            _LOG.warning("removing the memory of %d pipelines from the Lease failed: %s", len(gone), error)
        else:
            self._texts = {uid: text for uid, text in self._texts.items() if uid not in gone}
            self._documents = {uid: document for uid, document in self._documents.items() if uid not in gone}

    @property
    def uids(self) -> frozenset[str]:
        """Return the pipelines of the documents that are kept."""
        return frozenset(self._texts)

    def _annotate(self, values: Mapping[str, str | None]) -> None:
        annotations = {f"{_PREFIX}{uid}": value for uid, value in values.items()}
        for attempt in range(_ATTEMPTS):
            lease = self._gateway.get(LEASES, self._namespace, self._name)
            holder = (lease.get("spec") or {}).get("holderIdentity")
            if holder != self._identity:
                raise NotLeading(f"the lease {self._namespace}/{self._name} is held by {holder or 'no replica'}")
            version = lease["metadata"]["resourceVersion"]
            patch = {"metadata": {"resourceVersion": version, "annotations": annotations}}
            try:
                self._gateway.patch(LEASES, self._namespace, self._name, patch)
            except Conflict:
                if attempt == _ATTEMPTS - 1:
                    raise
            else:
                return


def _size(entry: tuple[str, str]) -> int:
    """Return the bytes of an annotation, of which UID and text are given."""
    uid, text = entry
    return len(_PREFIX) + len(uid) + len(text)
