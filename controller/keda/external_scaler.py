"""KEDA's external scaler: tells KEDA the replicas that Sluice recommends for a workload, in mode Recommend.

The answers come from the pipelines' statuses, so every replica of the operator answers alike: the connection of KEDA
stays at one pod, which may be a standby. Where a status has no number that holds now, the answer is an error, never 0:
KEDA then keeps the replicas as they are.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import grpc
import grpc.aio

from controller.core.messages.reasons import ConditionReason, ConditionType
from controller.core.state.spec import Mode
from controller.keda.messages import (
    MetricsRequest,
    ScaledObjectRef,
    is_active,
    metric_spec,
    metric_value,
    read_metrics_request,
    read_scaled_object,
)
from controller.kube.durable import written_at_s
from controller.kube.gateway import Json
from controller.kube.store import KeptResource, ResourceStore
from optimizer.model import named_placement, placement_name

SERVICE = "externalscaler.ExternalScaler"
METRIC_NAME = "sluice-replicas"
"""The metric of every answer. Its target is 1 per replica, so KEDA sets its value as the number of replicas."""
_PUSH_S = 0.5  # between two looks at the store for changes to push
_BIND_S = 30.0
_UNUSABLE = (ConditionReason.INVALID_SPEC, ConditionReason.INTERNAL_ERROR, ConditionReason.SHARED_STAGE_MISSING)
"""With these reasons of `Ready`, the status keeps what was decided before."""


class NoAnswer(Exception):
    """There are no recommended replicas; `code` is the status of gRPC, and the message says why."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class _Names:
    pipeline: str
    stage: str
    pool: str | None


class ExternalScaler:
    """Serves `externalscaler.ExternalScaler` in a thread of its own while its context is entered."""

    def __init__(
        self,
        pipelines: ResourceStore,
        *,
        address: str,
        certificate: tuple[Path, Path] | None = None,
        stale_s: float,
        listed: Callable[[], bool] = lambda: True,
        beat: Callable[[], None] = lambda: None,
        died: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Prepare to serve the statuses of `pipelines`; nothing listens before the context is entered.

        Args:
            pipelines: the SpeechPipelines as last seen.
            address: host and port to listen on; port 0 picks a free one.
            certificate: PEM files with the certificate and its key, read again for every connection; None: no TLS.
            stale_s: a status that was written longer ago does not hold any more.
            listed: whether `pipelines` is complete.
            beat: called about every half second.
            died: called when the server ends before the context is left.
            clock: returns seconds since the epoch.
        """
        self._pipelines = pipelines
        self._address = address
        self._certificate = certificate
        self._stale_s = stale_s
        self._listed = listed
        self._beat, self._died = beat, died
        self._clock = clock
        self._stop = threading.Event()
        self._port: Future[int] = Future()
        self._thread = threading.Thread(target=self._run, name="keda")

    @property
    def port(self) -> int:
        """Return the port that the server listens on."""
        return self._port.result(_BIND_S)

    def __enter__(self) -> Self:
        """Start to serve.

        Raises:
            OSError: the address cannot be listened on, or the certificate cannot be read.
        """
        self._thread.start()
        try:
            self._port.result(_BIND_S)
        except Exception as error:
            self._stop.set()
            self._thread.join()
            raise OSError(str(error)) from error
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def replicas(self, asked: ScaledObjectRef) -> int:
        """Return the replicas that Sluice recommends for the stage, and the pool, that the trigger names.

        Raises:
            NoAnswer: there is no such stage, or no recommendation that holds now.
        """
        names = _names(asked)
        if not self._listed():
            raise NoAnswer(grpc.StatusCode.UNAVAILABLE, "the SpeechPipelines have not been listed yet")
        kept = self._pipelines.get((asked.namespace, names.pipeline))
        if kept is None:
            message = f"metadata.pipeline: {names.pipeline!r}: no SpeechPipeline of this name in {asked.namespace}"
            raise NoAnswer(grpc.StatusCode.NOT_FOUND, message)
        return _recommended(names, kept.whole(), self._clock() - self._stale_s)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception as error:
            if self._port.done():
                raise
            self._port.set_exception(error)
            self._stop.set()
        finally:
            if not self._stop.is_set():
                self._died()

    async def _serve(self) -> None:
        # Without the option, a second process could listen on the same port and take half of the connections.
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, self._handlers()),))
        if self._certificate is None:
            port = server.add_insecure_port(self._address)
        else:
            port = server.add_secure_port(self._address, _credentials(*self._certificate))
        await server.start()
        self._port.set_result(port)
        while not self._stop.is_set():
            self._beat()
            await asyncio.sleep(_PUSH_S)
        await server.stop(grace=None)

    def _handlers(self) -> dict[str, Any]:
        def unary(answer: Callable[[Any], bytes], read: Callable[[bytes], Any]) -> Any:
            async def handle(request: Any, context: Any) -> bytes:
                try:
                    return answer(request)
                except NoAnswer as error:
                    return bytes(await context.abort(error.code, str(error)))  # raises

            return grpc.unary_unary_rpc_method_handler(handle, request_deserializer=read)

        return {
            "IsActive": unary(lambda asked: is_active(self.replicas(asked) > 0), read_scaled_object),
            "GetMetricSpec": unary(_spec, read_scaled_object),
            "GetMetrics": unary(self._value, read_metrics_request),
            "StreamIsActive": grpc.unary_stream_rpc_method_handler(
                self._changes, request_deserializer=read_scaled_object
            ),
        }

    def _value(self, request: MetricsRequest) -> bytes:
        if request.metric != METRIC_NAME:
            message = f"metricName: {request.metric!r}: must be {METRIC_NAME!r}"
            raise NoAnswer(grpc.StatusCode.INVALID_ARGUMENT, message)
        return metric_value(METRIC_NAME, self.replicas(request.scaled_object))

    async def _changes(self, asked: ScaledObjectRef, context: Any) -> AsyncIterator[bytes]:
        """Yield whether the workload is to have replicas: at first, and when that changes.

        While there is no answer nothing is sent, so that the last one holds.
        """
        try:
            names = _names(asked)
        except NoAnswer as error:
            await context.abort(error.code, str(error))
            return
        seen: KeptResource | None = None
        sent: bool | None = None
        while True:
            kept = self._pipelines.get((asked.namespace, names.pipeline))
            if kept is not seen and self._listed():
                seen = kept
                with suppress(NoAnswer):
                    active = self.replicas(asked) > 0
                    if active is not sent:
                        yield is_active(active)
                    sent = active
            await asyncio.sleep(_PUSH_S)


def _spec(asked: ScaledObjectRef) -> bytes:
    """Return the metric and its target; also while there is no recommendation, or KEDA would drop the metric."""
    _names(asked)
    return metric_spec(METRIC_NAME, 1.0)


def _names(asked: ScaledObjectRef) -> _Names:
    for field, kind in (("pipeline", "a SpeechPipeline"), ("stage", "one of its stages")):
        if not asked.metadata.get(field):
            message = f"metadata.{field}: {asked.metadata.get(field)!r}: must name {kind}"
            raise NoAnswer(grpc.StatusCode.INVALID_ARGUMENT, message)
    return _Names(
        pipeline=asked.metadata["pipeline"], stage=asked.metadata["stage"], pool=asked.metadata.get("pool") or None
    )


def _recommended(names: _Names, pipeline: Json, oldest_s: float) -> int:
    """Return the number in the status of `pipeline`, which must have been written at `oldest_s` or later."""
    spec, status = pipeline["spec"], pipeline.get("status") or {}
    stage = _named(spec["stages"], "name", names.stage)
    if stage is None:
        raise NoAnswer(grpc.StatusCode.NOT_FOUND, _unknown("stage", names.stage, spec["stages"], "name"))
    if "sharedFrom" in stage:
        message = f"metadata.stage: {names.stage!r}: is shared from another pipeline; follow that one"
        raise NoAnswer(grpc.StatusCode.FAILED_PRECONDITION, message)
    known = [
        placement_name(each["pool"], variant)
        for each in stage["placements"]
        for variant in ([own["name"] for own in each["variants"]] if each.get("variants") else [None])
    ]
    if names.pool is None and len(known) > 1:
        message = f"metadata.pool: None: must be one of {', '.join(known)}"
        raise NoAnswer(grpc.StatusCode.INVALID_ARGUMENT, message)
    placement = named_placement(names.pool) if names.pool else known[0]
    if placement not in known:
        message = f"metadata.pool: {placement!r}: must be one of {', '.join(known)}"
        raise NoAnswer(grpc.StatusCode.NOT_FOUND, message)
    mode = spec.get("mode", Mode.AUTO.value)
    if mode != Mode.RECOMMEND.value:
        message = f"spec.mode of {names.pipeline}: {mode!r}: must be Recommend, so that Sluice does not scale it too"
        raise NoAnswer(grpc.StatusCode.FAILED_PRECONDITION, message)
    if problem := _problem(status, pipeline["metadata"]["generation"], oldest_s):
        raise NoAnswer(grpc.StatusCode.UNAVAILABLE, f"{names.pipeline}: {problem}")
    decided = _named(status.get("stages", ()), "name", names.stage) or {}
    counts: dict[str, int | None] = {
        placement_name(each["pool"], each.get("variant") or None): each.get("recommended")
        for each in decided.get("placements", ())
    }
    count = counts.get(placement)
    if count is None:
        message = f"{names.pipeline}: no replicas are recommended for {names.stage} on {placement}; see its conditions"
        raise NoAnswer(grpc.StatusCode.UNAVAILABLE, message)
    return count


def _problem(status: Json, generation: int, oldest_s: float) -> str | None:
    """Return why the numbers in the status do not hold now; None where they do."""
    if "observedGeneration" not in status:
        return "it has no status yet"
    if status.get("observedGeneration") != generation:
        return f"generation {generation} of the spec is not decided yet"
    ready = _named(status.get("conditions", ()), "type", ConditionType.READY.value)
    if ready is not None and ready["reason"] in {reason.value for reason in _UNUSABLE}:
        return f"{ready['reason']}: {ready['message']}"
    late_s = oldest_s - written_at_s(status.get("memory"))
    return f"its status is outdated by {late_s:.0f} s; is the operator deciding?" if late_s > 0 else None


def _named(items: Iterable[Json], key: str, name: str) -> Json | None:
    return next((item for item in items if item[key] == name), None)


def _unknown(field: str, value: str, items: Iterable[Json], key: str) -> str:
    return f"metadata.{field}: {value!r}: must be one of {', '.join(item[key] for item in items)}"


def _credentials(certificate: Path, key: Path) -> Any:
    """Return the credentials of a server that reads the files again for every connection, since they are renewed."""
    first = _pair(certificate, key)
    return grpc.dynamic_ssl_server_credentials(first, partial(_renewed, certificate, key))


def _renewed(certificate: Path, key: Path) -> Any:
    try:
        return _pair(certificate, key)
    except OSError:  # being replaced: None keeps the last pair
        return None


def _pair(certificate: Path, key: Path) -> Any:
    return grpc.ssl_server_certificate_configuration([(key.read_bytes(), certificate.read_bytes())])
