"""KServe's inference protocol v2 over gRPC. Needs the package grpcio (the extra `keda`).

Source: KServe, Open Inference Protocol v2, `inference.GRPCInferenceService`: field numbers are in the code.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import aiohttp

from profiler.load_test.clients.http import kserve_request, metrics_of
from profiler.load_test.clients.port import Client, RequestFailed, TargetInvalid
from profiler.protobuf import field, fields, numbers, text, varint

_SERVICE = "/inference.GRPCInferenceService/"


class KserveGrpcTarget:
    """A model behind gRPC whose inputs are zeros of the shapes that it declares."""

    continuous: bool | None = None
    sessions = False

    def __init__(
        self,
        address: str,
        *,
        model: str,
        shapes: Mapping[str, Sequence[int]],
        timeout_s: float,
        metrics_url: str | None = None,
    ) -> None:
        """Connect to `address` (host:port).

        Raises:
            TargetInvalid: the package grpcio is missing.
        """
        try:
            from grpc import aio
        except ImportError:
            raise TargetInvalid('gRPC needs the package grpcio: install "sluice[keda]"') from None
        self.name, self._shapes, self._timeout_s, self._metrics_url = model, shapes, timeout_s, metrics_url
        self._channel = aio.insecure_channel(address)
        self._request: bytes | None = None

    async def client(self) -> Client:
        """Return a client; the first one asks for the inputs of the model."""
        if self._request is None:
            described = await self.call("ModelMetadata", text(1, self.name))
            try:
                self._request = infer_request(self.name, list(inputs_of(described)), self._shapes)
            except ValueError as error:
                raise TargetInvalid(
                    f"the answer to ModelMetadata is no message of KServe's protocol: {error}"
                ) from None
        return KserveGrpcClient(self, self._request)

    async def call(self, method: str, message: bytes) -> bytes:
        """Return the answer to one call.

        Raises:
            RequestFailed: there is none.
        """
        from grpc import aio

        unary = self._channel.unary_unary(_SERVICE + method)
        try:
            answer: bytes = await unary(message, timeout=self._timeout_s)
        except aio.AioRpcError as error:
            raise RequestFailed(f"{error.code().name}: {error.details()}") from None
        return answer

    async def metrics(self) -> str | None:
        """Return the text of the server's metrics, None where its address is not known."""
        if self._metrics_url is None:
            return None
        async with aiohttp.ClientSession() as http:
            return await metrics_of(http, self._metrics_url)

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close()


class KserveGrpcClient:
    """Sends one inference again and again."""

    def __init__(self, target: KserveGrpcTarget, request: bytes) -> None:
        self._target, self._request = target, request

    async def request(self) -> float | None:
        """Send the inference and wait for its answer."""
        await self._target.call("ModelInfer", self._request)
        return None

    async def close(self) -> None:
        """Do nothing: the channel belongs to the target."""


def inputs_of(message: bytes) -> Iterator[dict[str, Any]]:
    """Yield the inputs in a ModelMetadataResponse (field 4): name (1), datatype (2), shape (3)."""
    for number, value in fields(message):
        if number != 4 or not isinstance(value, bytes):
            continue
        own: dict[str, Any] = {"shape": []}
        for part, content in fields(value):
            if part == 1 and isinstance(content, bytes):
                own["name"] = content.decode()
            elif part == 2 and isinstance(content, bytes):
                own["datatype"] = content.decode()
            elif part == 3:
                own["shape"] += numbers(content)
        yield own


def infer_request(model: str, inputs: Sequence[Mapping[str, Any]], shapes: Mapping[str, Sequence[int]]) -> bytes:
    """Return a ModelInferRequest: model_name (1), inputs (5), raw_input_contents (7)."""
    header, data = kserve_request(inputs, shapes)
    message, at = text(1, model), 0
    for own in header["inputs"]:
        shape = b"".join(varint(size) for size in own["shape"])
        message += field(5, text(1, own["name"]) + text(2, own["datatype"]) + field(3, shape))
    for own in header["inputs"]:
        size = own["parameters"]["binary_data_size"]
        message, at = message + field(7, data[at : at + size]), at + size
    return message
