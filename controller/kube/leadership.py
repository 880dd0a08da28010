"""Acquires and renews the Lease in a background thread, and permits writes only while this replica safely holds it."""

import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Self

from controller.kube.gateway import LEASES, Conflict, Gateway, Json, KubeError, NotFound, NotLeading
from controller.kube.lease import Candidate, LeaseRecord, Request, Terms
from controller.kube.server_clock import boot_clock

_LOG = logging.getLogger(__name__)
_DEAD_S = 30.0  # beyond the duration, without progress of the thread: a request hangs


class Leadership:
    """Competes for the Lease while its context is entered, and releases it when the context is left.

    When the lease is lost, `ended` is called once and the process must end: this object does not compete again.
    """

    def __init__(
        self,
        gateway: Gateway,
        *,
        namespace: str,
        name: str,
        identity: str,
        terms: Terms,
        beat: Callable[[float], None],
        ended: Callable[[str], None],
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        """Prepare to compete; nothing is requested before the context is entered.

        Args:
            gateway: used for the Lease alone; without a `permit`, and with the time limits of `terms.timeout_s`.
            namespace: of the Lease.
            name: of the Lease.
            identity: unique to this process: `<pod>_<unique suffix>`. The admission policy compares the pod.
            terms: the duration of the lease and the times derived from it.
            beat: called in every turn of the thread with the number of seconds within which the next turn must come.
            ended: called with the reason when the lease is lost or the thread fails.
            clock: returns monotonic seconds, suspended time included: a lease expires meanwhile.
        """
        self._gateway = gateway
        self._namespace, self._name = namespace, name
        self._beat, self._ended = beat, ended
        self._clock = clock
        self._state = Candidate(identity=identity, terms=terms)
        self._trouble: str | None = None
        self._released = False
        self._stop = threading.Event()
        self._leading = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease")

    def check(self) -> None:
        """Raise `NotLeading` unless this replica may write now."""
        if not self.leads():
            raise NotLeading(self.problem())

    def leads(self) -> bool:
        """Return whether this replica may write now."""
        return not self._released and self._state.may_write(self._clock())

    def wait(self, timeout_s: float) -> bool:
        """Wait until this replica may write for the first time; return whether that has happened.

        The wait takes at most `timeout_s` seconds, and up to twice `settle_s` more if the replica holds the lease by
        then.
        """
        if self._leading.wait(timeout_s):
            return True
        return self._state.began_s is not None and self._leading.wait(2 * self._state.terms.settle_s)

    def standing(self) -> str:
        """Return the text of `/readyz` for a standby, which names the leader.

        Raises:
            KubeError: the last request for the Lease failed.
        """
        state = self._state
        if self._trouble is not None:
            raise KubeError(self._trouble)
        holder = state.record and state.record.holder
        return f"standby, leader is {holder}" if holder else "standby, there is no leader yet"

    def problem(self) -> str:
        """Return the reason, as text, why this replica may not write."""
        state, lease = self._state, f"the lease {self._namespace}/{self._name}"
        if state.began_s is None:
            return f"this replica does not hold {lease}"
        if state.lost or self._released:
            return f"this replica has given up {lease}"
        age_s = self._clock() - state.sent_s
        why = "" if self._trouble is None else f": {self._trouble}"
        return f"{lease} was last renewed {age_s:.1f} s ago, nothing is written until it is renewed{why}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._released = True  # from now on, no thread may write
        self._stop.set()
        self._thread.join()
        self._release()

    def _run(self) -> None:
        try:
            while not self._stop.is_set() and not self._state.lost:
                self._turn()
            why = self._loss()
        except Exception as error:  # noqa: BLE001 -- the outermost of a thread: it must end the process
            _LOG.exception("leader election failed: internal error")
            why = f"leader election failed: {type(error).__name__}: {error}"
        if not self._stop.is_set():
            _LOG.error(why)
            self._ended(why)

    def _turn(self) -> None:
        self._beat(self._state.terms.duration_s + _DEAD_S)
        if self.leads():
            self._leading.set()
        request, due_s = self._state.next()
        now_s = self._clock()
        if due_s > now_s:
            settled_s = self._state.writes_from_s
            until_s = due_s if settled_s <= now_s else min(due_s, settled_s)
            self._stop.wait(max(until_s - now_s, 0.001))
            return
        before, self._state = self._state, self._after(request)
        if before.began_s is None and self._state.began_s is not None:
            _LOG.info("this replica is the leader: it acquired the lease %s/%s", self._namespace, self._name)

    def _after(self, request: Request) -> Candidate:
        """Send `request` and return the state after its response or failure."""
        state = self._state
        sent_s = self._clock()  # before the request leaves
        try:
            if request is Request.READ:
                current = self._read()
                self._trouble = None
                return state.read(current, self._clock())
            record = self._write(request, state)
        except (Conflict, NotFound) as error:
            if request is not Request.CREATE or isinstance(error, Conflict):
                return state.refused()
            return self._failed(state, error)  # the namespace does not exist
        except KubeError as error:
            return self._failed(state, error)
        self._trouble = None
        return state.granted(record, sent_s, self._clock())

    def _failed(self, state: Candidate, error: KubeError) -> Candidate:
        if self._trouble is None:
            _LOG.warning("request for the lease failed, retrying: %s", error)
        self._trouble = str(error)
        return state.failed(self._clock())

    def _read(self) -> LeaseRecord | None:
        try:
            return _record(self._gateway.get(LEASES, self._namespace, self._name))
        except NotFound:
            return None

    def _write(self, request: Request, state: Candidate) -> LeaseRecord:
        spec: Json = {
            "holderIdentity": state.identity,
            "leaseDurationSeconds": round(state.terms.duration_s),
            "renewTime": datetime.now(UTC).strftime(
                "%Y-%m-%dT%H:%M:%S.%fZ"
            ),  # for people only: replicas do not compare clocks
        }
        if request is not Request.RENEW:
            spec["acquireTime"] = spec["renewTime"]
            spec["leaseTransitions"] = 0 if state.record is None else state.record.transitions + 1
        if state.record is None:
            body = {"apiVersion": LEASES.api_version, "kind": "Lease", "metadata": {"name": self._name}, "spec": spec}
            return _record(self._gateway.create(LEASES, self._namespace, body))
        return self._patch(state.record, spec)

    def _patch(self, record: LeaseRecord, spec: Json) -> LeaseRecord:
        patch = {"metadata": {"resourceVersion": record.version}, "spec": spec}
        return _record(self._gateway.patch(LEASES, self._namespace, self._name, patch))

    def _release(self) -> None:
        """Release the lease, so that the next replica need not wait until it expires."""
        state = self._state
        if state.began_s is None or state.lost or state.record is None:
            return
        try:
            self._patch(state.record, {"holderIdentity": None})
        except KubeError as error:
            _LOG.warning("the lease could not be released and will expire: %s", error)

    def _loss(self) -> str:
        record = self._state.record
        lease = f"the lease {self._namespace}/{self._name}"
        if record is None:
            return f"{lease} was deleted; this replica ends"
        if record.holder is None:
            return f"{lease} was released by another process; this replica ends"
        return f"{lease} is now held by {record.holder}; this replica ends"


def _record(body: Json) -> LeaseRecord:
    spec = body.get("spec") or {}
    return LeaseRecord(
        holder=spec.get("holderIdentity") or None,
        duration_s=spec.get("leaseDurationSeconds") or 0.0,
        transitions=spec.get("leaseTransitions") or 0,
        version=body["metadata"]["resourceVersion"],
    )
