import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from controller.keda.external_scaler import METRIC_NAME, SERVICE, ExternalScaler
from controller.keda.messages import metric_spec, metric_value
from controller.kube.store import ResourceStore
from simulations.lab.host.certificates import authority, signed_by

NOW_S = 1_767_225_600.0
NOW = "2026-01-01T00:00:00Z"
OLD = "2025-12-31T23:56:00Z"
TRIGGER = {"scalerAddress": "sluice:9090", "pipeline": "captions", "stage": "encoder", "pool": "gpu"}
_versions = iter(range(1, 1000))


def pipeline(
    recommended: Mapping[str, int] | None = None, *, mode: str = "Recommend", at: str = NOW, **status: Any
) -> dict[str, Any]:
    """Return a SpeechPipeline with the stage encoder on two pools and the stage vad on one."""
    counts = {"gpu": 5, "inferentia": 0} if recommended is None else recommended
    return {
        "metadata": {
            "namespace": "speech",
            "name": "captions",
            "uid": "1",
            "generation": 7,
            "resourceVersion": str(next(_versions)),
        },
        "spec": {
            "mode": mode,
            "stages": [
                {"name": "vad", "placements": [{"pool": "cpu"}]},
                {"name": "encoder", "placements": [{"pool": "gpu"}, {"pool": "inferentia"}]},
                {"name": "decoder", "sharedFrom": "speech/notes/decoder"},
            ],
        },
        "status": {
            "observedGeneration": 7,
            "conditions": [],
            "stages": [
                {"name": "vad", "placements": [{"pool": "cpu", "recommended": 2}]},
                {
                    "name": "encoder",
                    "placements": [{"pool": pool, "recommended": count} for pool, count in counts.items()],
                },
            ],
            "memory": {"version": 1, "explanation": {"time": at, "lines": []}},
            **status,
        },
    }


@pytest.fixture
def pipelines() -> ResourceStore:
    store = ResourceStore()
    store.put(pipeline())
    return store


@pytest.fixture
def scaler(pipelines: ResourceStore) -> Iterator[ExternalScaler]:
    with ExternalScaler(pipelines, address="127.0.0.1:0", stale_s=180.0, clock=lambda: NOW_S) as scaler:
        yield scaler


def text(number: int, content: bytes) -> bytes:
    """Return a field with a length; the lengths here are below 128."""
    return bytes([number << 3 | 2, len(content)]) + content


def scaled_object(metadata: Mapping[str, str], namespace: str = "speech") -> bytes:
    entries = (text(1, key.encode()) + text(2, value.encode()) for key, value in metadata.items())
    return text(1, b"encoder") + text(2, namespace.encode()) + b"".join(text(3, entry) for entry in entries)


def long_text(number: int, content: bytes) -> bytes:
    size = len(content)
    return bytes([number << 3 | 2, size & 0x7F | 0x80, size >> 7]) + content


async def call(scaler: ExternalScaler, method: str, request: bytes) -> bytes:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{scaler.port}") as channel:
        return bytes(await channel.unary_unary(f"/{SERVICE}/{method}")(request, timeout=20))


def ask(scaler: ExternalScaler, method: str, metadata: Mapping[str, str] = TRIGGER, namespace: str = "speech") -> bytes:
    return asyncio.run(call(scaler, method, scaled_object(metadata, namespace)))


def value(scaler: ExternalScaler, metadata: Mapping[str, str] = TRIGGER, metric: str = METRIC_NAME) -> bytes:
    request = long_text(1, scaled_object(metadata)) + text(2, metric.encode())
    return asyncio.run(call(scaler, "GetMetrics", request))


def refused(error: pytest.ExceptionInfo[grpc.aio.AioRpcError]) -> tuple[grpc.StatusCode, str]:
    return error.value.code(), error.value.details() or ""


def test_the_value_is_the_recommended_replicas_with_a_target_of_one(scaler: ExternalScaler) -> None:
    assert ask(scaler, "GetMetricSpec") == metric_spec(METRIC_NAME, 1.0)
    assert value(scaler) == metric_value(METRIC_NAME, 5.0)
    assert ask(scaler, "IsActive") == b"\x08\x01"


def test_a_recommendation_of_zero_is_a_number_and_not_active(scaler: ExternalScaler) -> None:
    inferentia = {**TRIGGER, "pool": "inferentia"}
    assert value(scaler, inferentia) == metric_value(METRIC_NAME, 0.0)
    assert ask(scaler, "IsActive", inferentia) == b""


def test_the_only_pool_of_a_stage_need_not_be_named(scaler: ExternalScaler) -> None:
    assert value(scaler, {"pipeline": "captions", "stage": "vad"}) == metric_value(METRIC_NAME, 2.0)


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ({"pipeline": ""}, "INVALID_ARGUMENT", "metadata.pipeline: '': must name a SpeechPipeline"),
        ({"stage": ""}, "INVALID_ARGUMENT", "metadata.stage: '': must name one of its stages"),
        ({"pool": ""}, "INVALID_ARGUMENT", "metadata.pool: None: must be one of gpu, inferentia"),
        ({"pipeline": "notes"}, "NOT_FOUND", "metadata.pipeline: 'notes': no SpeechPipeline of this name in speech"),
        ({"stage": "asr"}, "NOT_FOUND", "metadata.stage: 'asr': must be one of vad, encoder, decoder"),
        ({"pool": "tpu"}, "NOT_FOUND", "metadata.pool: 'tpu': must be one of gpu, inferentia"),
        (
            {"stage": "decoder"},
            "FAILED_PRECONDITION",
            "metadata.stage: 'decoder': is shared from another pipeline; follow that one",
        ),
    ],
)
def test_a_wrong_trigger_names_field_value_and_rule(
    scaler: ExternalScaler, change: Mapping[str, str], code: str, message: str
) -> None:
    for answer in (value, lambda scaler, metadata: ask(scaler, "IsActive", metadata)):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            answer(scaler, {**TRIGGER, **change})
        assert refused(error) == (grpc.StatusCode[code], message)


def test_pipelines_of_another_namespace_are_not_there(scaler: ExternalScaler) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        ask(scaler, "IsActive", namespace="other")
    assert error.value.code() is grpc.StatusCode.NOT_FOUND


def test_another_metric_is_refused(scaler: ExternalScaler) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        value(scaler, metric="queue")
    assert refused(error) == (grpc.StatusCode.INVALID_ARGUMENT, "metricName: 'queue': must be 'sluice-replicas'")


@pytest.mark.parametrize(
    ("stored", "code", "message"),
    [
        (pipeline(mode="Auto"), "FAILED_PRECONDITION", "spec.mode of captions: 'Auto': must be Recommend"),
        (pipeline(mode="Paused"), "FAILED_PRECONDITION", "spec.mode of captions: 'Paused': must be Recommend"),
        ({**pipeline(), "status": {}}, "UNAVAILABLE", "captions: it has no status yet"),
        (pipeline(observedGeneration=6), "UNAVAILABLE", "captions: generation 7 of the spec is not decided yet"),
        (pipeline(at=OLD), "UNAVAILABLE", "captions: its status is outdated by 60 s"),
        (pipeline({}), "UNAVAILABLE", "captions: no replicas are recommended for encoder on gpu"),
        (pipeline(stages=[]), "UNAVAILABLE", "captions: no replicas are recommended for encoder on gpu"),
        (
            pipeline(conditions=[{"type": "Ready", "status": "False", "reason": "InvalidSpec", "message": "sla: no"}]),
            "UNAVAILABLE",
            "captions: InvalidSpec: sla: no",
        ),
    ],
)
def test_without_a_number_that_holds_the_answer_is_an_error_and_the_metric_stays(
    scaler: ExternalScaler, pipelines: ResourceStore, stored: dict[str, Any], code: str, message: str
) -> None:
    stored["metadata"]["resourceVersion"] = str(next(_versions))
    pipelines.put(stored)
    for answer in (value, lambda scaler: ask(scaler, "IsActive")):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            answer(scaler)
        assert error.value.code() is grpc.StatusCode[code]
        assert str(error.value.details()).startswith(message)
    assert ask(scaler, "GetMetricSpec") == metric_spec(METRIC_NAME, 1.0)


def test_before_the_first_list_nothing_is_said_to_be_missing() -> None:
    with (
        ExternalScaler(ResourceStore(), address="127.0.0.1:0", stale_s=180.0, listed=lambda: False) as scaler,
        pytest.raises(grpc.aio.AioRpcError) as error,
    ):
        value(scaler)
    assert refused(error) == (grpc.StatusCode.UNAVAILABLE, "the SpeechPipelines have not been listed yet")


def test_changes_between_none_and_some_are_pushed_and_no_answer_is_no_change(
    scaler: ExternalScaler, pipelines: ResourceStore
) -> None:
    async def pushed() -> list[bytes]:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{scaler.port}") as channel:
            stream = channel.unary_stream(f"/{SERVICE}/StreamIsActive")(scaled_object(TRIGGER), timeout=20)
            seen = [await stream.read()]
            pipelines.put(pipeline({}))
            pipelines.put(pipeline({"gpu": 0}))
            seen.append(await stream.read())
            pipelines.put(pipeline({"gpu": 1}))
            seen.append(await stream.read())
            return seen

    assert asyncio.run(pushed()) == [b"\x08\x01", b"", b"\x08\x01"]


def test_a_stream_of_a_wrong_trigger_ends_with_the_reason(scaler: ExternalScaler) -> None:
    async def read() -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{scaler.port}") as channel:
            await channel.unary_stream(f"/{SERVICE}/StreamIsActive")(scaled_object({}), timeout=20).read()

    with pytest.raises(grpc.aio.AioRpcError) as error:
        asyncio.run(read())
    assert refused(error) == (grpc.StatusCode.INVALID_ARGUMENT, "metadata.pipeline: None: must name a SpeechPipeline")


def test_an_address_in_use_is_an_error_at_the_start(scaler: ExternalScaler) -> None:
    died: list[str] = []
    second = ExternalScaler(
        ResourceStore(), address=f"127.0.0.1:{scaler.port}", stale_s=1.0, died=lambda: died.append("second")
    )
    with pytest.raises(OSError, match=str(scaler.port)), second:
        pass
    assert not died


def test_a_renewed_certificate_is_used_without_a_restart(pipelines: ResourceStore, tmp_path: Path) -> None:
    ours, theirs = authority(tmp_path, "ours"), authority(tmp_path, "theirs")
    first, second = signed_by(ours, tmp_path, "first"), signed_by(theirs, tmp_path, "second")
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"

    def install(signed: Any) -> None:
        certificate.write_bytes(signed.certificate.read_bytes())
        key.write_bytes(signed.key.read_bytes())

    async def answer(scaler: ExternalScaler, trusted: Any) -> bytes:
        credentials = grpc.ssl_channel_credentials(trusted.certificate.read_bytes())
        async with grpc.aio.secure_channel(f"127.0.0.1:{scaler.port}", credentials) as channel:
            return bytes(await channel.unary_unary(f"/{SERVICE}/IsActive")(scaled_object(TRIGGER), timeout=20))

    install(first)
    with ExternalScaler(
        pipelines,
        address="127.0.0.1:0",
        certificate=(certificate, key),
        stale_s=180.0,
        clock=lambda: NOW_S,
    ) as scaler:
        assert asyncio.run(answer(scaler, ours)) == b"\x08\x01"
        install(second)
        assert asyncio.run(answer(scaler, theirs)) == b"\x08\x01"
