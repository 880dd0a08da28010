"""Requests over HTTP reach a real server as its protocol says, and what is wrong with the answer is named."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from profiler.load_test.clients.http import Call, HttpTarget, kserve_request, kserve_target, openai_target
from profiler.load_test.clients.port import RequestFailed, TargetInvalid

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(routes: Mapping[str, Answer]) -> AsyncIterator[str]:
    application = web.Application()
    for path, answer in routes.items():
        application.router.add_route("*", path, answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


def says(status: int, text: str = "") -> Answer:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, text=text)

    return answer


async def asked(target: HttpTarget) -> float | None:
    client = await target.client()
    try:
        return await client.request()
    finally:
        await client.close()
        await target.close()


def plain(url: str, **call: Any) -> HttpTarget:
    return HttpTarget(Call(url=url, **call), name="server", timeout_s=0.5)


def test_a_body_is_posted_and_a_status_of_200_is_an_answer() -> None:
    bodies: list[bytes] = []

    async def answer(request: web.Request) -> web.Response:
        bodies.append(await request.read())
        return web.Response(text="ok")

    async def run() -> None:
        async with serving({"/infer": answer}) as url:
            assert await asked(plain(f"{url}/infer", body=b"audio")) is None

    asyncio.run(run())
    assert bodies == [b"audio"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (says(500, "out of memory"), "status 500: out of memory"),
        (says(302), "status 302"),
        (says(429), "status 429"),
    ],
)
def test_any_other_status_is_a_failure_with_what_the_server_says(answer: Answer, said: str) -> None:
    async def run() -> None:
        async with serving({"/": answer}) as url:
            with pytest.raises(RequestFailed, match=said):
                await asked(plain(f"{url}/"))

    asyncio.run(run())


def test_a_server_that_does_not_answer_or_does_not_listen_is_named() -> None:
    async def never(_: web.Request) -> web.Response:
        await asyncio.sleep(30)
        return web.Response()

    async def run() -> None:
        async with serving({"/": never}) as url:
            with pytest.raises(RequestFailed, match="no answer within the time limit"):
                await asked(plain(f"{url}/"))
        with pytest.raises(RequestFailed, match="no connection"):
            await asked(plain(url))

    asyncio.run(run())


def streaming(*lines: str) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        assert (await request.json())["stream"] is True
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for line in lines:
            await response.write(f"data: {line}\n\n".encode())
        return response

    return answer


@pytest.mark.parametrize(("chat", "path"), [(True, "/v1/chat/completions"), (False, "/v1/completions")])
def test_a_streamed_answer_has_the_time_of_its_first_token(chat: bool, path: str) -> None:
    models = says(200, json.dumps({"data": [{"id": "m"}]}))

    async def run() -> None:
        async with serving({"/v1/models": models, path: streaming('{"a": 1}', '{"a": 2}', "[DONE]")}) as url:
            target = await openai_target(
                url, chat=chat, model=None, prompt="hello", max_tokens=8, timeout_s=2.0, headers={}
            )
            before_s = asyncio.get_running_loop().time()
            first_s = await asked(target)
            assert first_s is not None
            assert first_s >= before_s
            assert target.continuous
            assert target.name == "m"

    asyncio.run(run())


@pytest.mark.parametrize(
    ("lines", "said"), [(["[DONE]"], "has no event"), (['{"error": {"message": "too long"}}'], "too long")]
)
def test_a_stream_without_tokens_is_a_failure(lines: list[str], said: str) -> None:
    async def run() -> None:
        async with serving({"/v1/completions": streaming(*lines)}) as url:
            target = await openai_target(
                url, chat=False, model="m", prompt="hello", max_tokens=8, timeout_s=2.0, headers={}
            )
            with pytest.raises(RequestFailed, match=said):
                await asked(target)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        (says(200, json.dumps({"data": [{"id": "a"}, {"id": "b"}]})), "lists a, b: choose one with --model"),
        (says(200, json.dumps({"data": []})), "lists no model"),
        (says(404), "status 404"),
        (says(200, "hello"), "JSONDecodeError"),
    ],
)
def test_without_one_model_the_choice_is_asked_for(listed: Answer, said: str) -> None:
    async def run() -> None:
        async with serving({"/v1/models": listed}) as url:
            with pytest.raises(TargetInvalid, match=said):
                await openai_target(url, chat=True, model=None, prompt="", max_tokens=1, timeout_s=2.0, headers={})

    asyncio.run(run())


INPUTS = [
    {"name": "mel", "datatype": "FP32", "shape": [-1, 80]},
    {"name": "text", "datatype": "BYTES", "shape": [1]},
]


def test_an_inference_has_zeros_of_the_shapes_that_the_model_declares() -> None:
    seen: list[tuple[dict[str, Any], bytes]] = []

    async def infer(request: web.Request) -> web.Response:
        body, size = await request.read(), int(request.headers["Inference-Header-Content-Length"])
        seen.append((json.loads(body[:size]), body[size:]))
        return web.Response(text="{}")

    async def run() -> None:
        routes = {
            "/v2/models/asr": says(200, json.dumps({"name": "asr", "inputs": INPUTS})),
            "/v2/models/asr/infer": infer,
        }
        async with serving(routes) as url:
            target = await kserve_target(url, model="asr", shapes={"mel": [3, 80]}, timeout_s=2.0, headers={})
            await asked(target)

    asyncio.run(run())
    header, data = seen[0]
    assert [(own["name"], own["shape"]) for own in header["inputs"]] == [("mel", [3, 80]), ("text", [1])]
    assert data == bytes(3 * 80 * 4) + b"\0\0\0\0"


def test_a_shape_or_type_that_the_model_does_not_have_is_named() -> None:
    with pytest.raises(TargetInvalid, match="--shape audio: the model has the inputs mel, text"):
        kserve_request(INPUTS, {"audio": [1]})
    with pytest.raises(TargetInvalid, match="input x: type 'FP4' is not known"):
        kserve_request([{"name": "x", "datatype": "FP4", "shape": [1]}], {})


def test_metrics_are_those_of_the_same_host() -> None:
    async def run() -> None:
        async with serving({"/metrics": says(200, "a 1\n"), "/infer": says(200)}) as url:
            target = plain(f"{url}/infer")
            assert await target.metrics() == "a 1\n"
            await target.close()
            without = HttpTarget(Call(url=url), name="", timeout_s=1, metrics_url=f"{url}/none")
            assert await without.metrics() is None
            await without.close()

    asyncio.run(run())
