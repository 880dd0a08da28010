"""KServe's inference protocol over a real gRPC server."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from profiler.load_test.clients.kserve_grpc import KserveGrpcTarget
from profiler.load_test.clients.port import RequestFailed, TargetInvalid
from profiler.protobuf import field, fields, text, varint

grpc = pytest.importorskip("grpc")
METADATA = text(1, "asr") + field(4, text(1, "mel") + text(2, "FP32") + field(3, b"\xff" * 9 + b"\x01" + varint(80)))


def play(metadata: bytes, use: Callable[[KserveGrpcTarget], Awaitable[None]]) -> list[bytes]:
    """Use a server that describes its model so; return the inferences that it got."""
    seen: list[bytes] = []

    class Service(grpc.GenericRpcHandler):  # type: ignore[misc,name-defined]
        def service(self, call: object) -> object:
            async def described(_: bytes, __: object) -> bytes:
                return metadata

            async def infer(request: bytes, context: object) -> bytes:
                seen.append(request)
                return b""

            answers = {"ModelMetadata": described, "ModelInfer": infer}
            method = call.method.rpartition("/")[2]  # type: ignore[attr-defined]
            return grpc.unary_unary_rpc_method_handler(answers[method])

    async def run() -> None:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((Service(),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        target = KserveGrpcTarget(f"127.0.0.1:{port}", model="asr", shapes={"mel": [2, 80]}, timeout_s=2.0)
        try:
            await use(target)
        finally:
            await target.close()
            await server.stop(None)

    asyncio.run(run())
    return seen


def test_an_inference_has_zeros_of_the_shapes_that_the_model_declares() -> None:
    async def use(target: KserveGrpcTarget) -> None:
        client = await target.client()
        assert await client.request() is None

    (request,) = play(METADATA, use)
    found = dict(fields(request))
    assert found[1] == b"asr"
    assert found[7] == bytes(2 * 80 * 4)
    assert isinstance(found[5], bytes)
    assert dict(fields(found[5]))[1] == b"mel"


def test_an_answer_that_is_no_message_is_named() -> None:
    async def use(target: KserveGrpcTarget) -> None:
        with pytest.raises(TargetInvalid, match="no message of KServe's protocol"):
            await target.client()

    assert play(b"\x0a\x7fab", use) == []


def test_a_server_that_is_not_there_is_named() -> None:
    async def run() -> None:
        target = KserveGrpcTarget("127.0.0.1:1", model="asr", shapes={}, timeout_s=1.0)
        with pytest.raises(RequestFailed, match=r"UNAVAILABLE|DEADLINE"):
            await target.client()
        await target.close()

    asyncio.run(run())
