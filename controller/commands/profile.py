"""`sluice profile`: puts load on one server, and prints the numbers of its placement."""

import asyncio
import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from controller.commands.connections import duration_option, kubeconfig_option
from controller.commands.help_page import examples

if TYPE_CHECKING:
    from controller.commands.profile_target import Found
    from profiler.load_test.clients.port import Target
    from profiler.load_test.drive import Driver
    from profiler.load_test.method import Limits, Profile

PROTOCOLS = ("http", "kserve", "kserve-grpc", "completions", "chat", "websocket")
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_LOOK_S = 1.0


@click.command(
    short_help="Measure a server's service time under load",
    epilog=examples(
        "sluice profile http://127.0.0.1:8000/infer --body chunk.bin",
        "sluice profile deployment/asr -n speech --body chunk.bin --slo 250ms",
        "sluice profile http://127.0.0.1:8000 --protocol completions --max-tokens 64",
    ),
)
@click.argument("target", required=False)
@click.option("--protocol", type=click.Choice(PROTOCOLS), help="Default: websocket for ws://, else http.")
@click.option("-n", "--namespace", metavar="NAMESPACE", default="default", help="Of TARGET (default: default).")
@click.option("--target-port", type=click.IntRange(1, 65535), help="Port of the pod. Default: the first it declares.")
@click.option("--path", default="/", show_default=True, help="Path of the requests to a Deployment or Service.")
@click.option("--body", type=_FILE, help="Body of a request, or chunk of audio.")
@click.option("--content-type", default="application/octet-stream", show_default=True, help="Type of the body.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header of each request.")
@click.option("--model", metavar="NAME", help="For kserve, completions and chat.")
@click.option("--shape", "shapes", multiple=True, metavar="INPUT=N,N,...", help="Shape of an input, for kserve.")
@click.option("--prompt", default="Say what you hear.", show_default=True, help="For completions and chat.")
@click.option("--max-tokens", type=click.IntRange(min=1), default=64, show_default=True, help="Of an answer.")
@click.option(
    "--chunk-bytes", type=click.IntRange(1, 1 << 20), default=5120, show_default=True, help="Silence, without --body."
)
@click.option("--metrics", "metrics_url", metavar="URL", help="The server's metrics. Default: /metrics of its host.")
@duration_option("--max-time", "time_s", "Of the whole test (default: 60s).", longest="1h")
@duration_option("--timeout", "timeout_s", "Of one request (default: 30s).", longest="10m")
@click.option(
    "--max-concurrency", type=click.IntRange(1, 4096), metavar="N", default=64, help="Most clients (default: 64)."
)
@click.option("--max-batch", type=click.IntRange(1, 9999), help="The server's largest batch, where you know it.")
@duration_option("--slo", "slo_s", "Find the highest load with p95 in TIME.")
@click.option(
    "--import",
    "imported",
    multiple=True,
    type=_FILE,
    help="Results of another tool instead; guidellm, genai-perf, vLLM.",
)
@click.option("--seed", metavar="N", default=1, show_default=True, help="Of the random order and the random arrivals.")
@click.option("-y", "--yes", is_flag=True, help="Load live traffic without asking.")
@click.option(
    "-o", "--output", type=click.Choice(["text", "json", "yaml"]), default="text", help="Format (default: text)."
)
@kubeconfig_option
def profile(
    target: str | None,
    *,
    imported: tuple[Path, ...],
    output: str,
    namespace: str,
    kubeconfig: Path | None,
    yes: bool,
    seed: int,
    **options: object,
) -> None:
    """Put load on TARGET for a minute and print its service time, batching and capacity, as YAML for a manifest.

    TARGET is a URL, deployment/NAME or service/NAME (one ready pod of it). The load is bounded, and asks before it
    disturbs live traffic. Nothing is created or changed.

    Exit status: 0 measured; 1 it cannot be measured; 2 wrong usage.
    """
    from controller.commands.profile_output import document_of, manifest_of, show_profile
    from controller.commands.profile_target import KINDS, found_target
    from controller.commands.terminal import Page
    from profiler.load_test.imports import NotImported, analysed_imports
    from profiler.load_test.method import Limits

    limit, slo_s = _number(options["max_batch"]), _seconds(options["slo_s"])
    measured: Profile | None = None
    found: Found | None = None
    today = datetime.now(UTC).date().isoformat()
    if imported:
        if target is not None:
            raise click.UsageError("--import: needs no TARGET")
        try:
            analysis = analysed_imports([_json(path) for path in imported], limit=limit)
        except NotImported as error:
            raise click.ClickException(f"{imported[0]}: {error}") from None
        source = f"{imported[0].name}, imported {today}"
    else:
        if target is None:
            raise click.UsageError("TARGET: is missing; name a server, or use --import FILE")
        if target.partition("/")[0] in KINDS and "://" not in target:
            found = found_target(target, namespace, _number(options["target_port"]), kubeconfig)
        elif "://" not in target:
            raise click.UsageError(f"TARGET: {target!r}: must be a URL, deployment/NAME or service/NAME")
        limits = Limits(
            time_s=_seconds(options["time_s"]) or 60.0,
            concurrency=_number(options["max_concurrency"]) or 1,
            batch=limit,
            slo_s=slo_s,
        )
        request = _Request(url=target, found=found, options=options, timeout_s=_seconds(options["timeout_s"]) or 30.0)
        say = _progress if output == "text" else _silent
        measured = asyncio.run(_measured(request, limits, say, seed, yes=yes))
        analysis = measured.analysis
        source = f"sluice profile {found.name if found else target}, {today}"
    startup_s = None if found is None else found.startup_s
    if output == "json":
        click.echo(json.dumps(document_of(analysis, measured, source=source, startup_s=startup_s), indent=2))
    elif output == "yaml":
        click.echo(manifest_of(analysis, source, startup_s), nl=False)
    else:
        slo = None if slo_s is None else f"p95 {slo_s * 1e3:g} ms"
        show_profile(Page(), analysis, measured, source=source, startup_s=startup_s, slo=slo)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """What to send where: the TARGET, the server that was found for it in a cluster, and the options."""

    url: str
    found: "Found | None"
    options: Mapping[str, object]
    timeout_s: float

    def base(self, scheme: str) -> str:
        """Return the URL of the server, with `--path` for one in a cluster."""
        if self.found is None:
            return self.url
        path = str(self.options["path"])
        return f"{scheme}://{self.found.host}:{self.found.port}{path if path.startswith('/') else f'/{path}'}"


async def _measured(
    request: _Request, limits: "Limits", say: Callable[[str], None], seed: int, *, yes: bool
) -> "Profile":
    """Return what the load shows.

    Raises:
        click.ClickException: the server cannot be measured, or has live traffic and the user does not consent.
    """
    from profiler.load_test.clients.port import RequestFailed, TargetInvalid
    from profiler.load_test.drive import Driver
    from profiler.load_test.method import LoadTest, LoadTestFailed

    try:
        target = await _target(request)
    except TargetInvalid as error:
        raise click.ClickException(str(error)) from None
    driver = Driver(target, limits.concurrency, random.Random(seed))
    try:
        await _agreed(driver, request.found, yes=yes)
        return await LoadTest(driver, limits, say).run()
    except (LoadTestFailed, TargetInvalid, RequestFailed) as error:
        raise click.ClickException(f"{request.found.name if request.found else request.url}: {error}") from None
    finally:
        await driver.close()


async def _agreed(driver: "Driver", found: "Found | None", *, yes: bool) -> None:
    """Ask before a server is put under load that serves others.

    Raises:
        click.ClickException: the user does not consent.
    """
    if yes:
        return
    reason = None if found is None else found.busy
    before = await driver.read()
    if reason is None and before is not None and before.server is not None:
        await asyncio.sleep(_LOOK_S)
        after = await driver.read()
        items = 0.0 if after is None else after.items - before.items
        reason = f"the server answers {items / _LOOK_S:.3g} items/s of others" if items > 0 else None
    if reason is None:
        return
    question = f"{reason}: put load on it all the same?"
    try:
        agreed = await asyncio.to_thread(click.confirm, question, err=True)
    except click.Abort:
        agreed = False
    if not agreed:
        raise click.ClickException(f"{reason}: nothing was sent (--yes does not ask)")


async def _target(request: _Request) -> "Target":
    """Return the client's side of the protocol.

    Raises:
        TargetInvalid: the server does not speak it.
    """
    from profiler.load_test.clients.http import Call, HttpTarget, kserve_target, openai_target

    options, timeout_s = request.options, request.timeout_s
    protocol = options["protocol"] or ("websocket" if request.url.startswith(("ws://", "wss://")) else "http")
    headers, metrics_url = _headers(options["headers"]), _text(options["metrics_url"])
    model, shapes = _text(options["model"]), _shapes(options["shapes"])
    body_file = options["body"]
    body = body_file.read_bytes() if isinstance(body_file, Path) else b""
    if protocol in {"completions", "chat"}:
        return await openai_target(
            request.base("http"),
            chat=protocol == "chat",
            model=model,
            prompt=str(options["prompt"]),
            max_tokens=_number(options["max_tokens"]) or 1,
            timeout_s=timeout_s,
            headers=headers,
            metrics_url=metrics_url,
        )
    if protocol == "kserve":
        return await kserve_target(
            request.base("http"),
            model=model,
            shapes=shapes,
            timeout_s=timeout_s,
            headers=headers,
            metrics_url=metrics_url,
        )
    if protocol == "kserve-grpc":
        from profiler.load_test.clients.kserve_grpc import KserveGrpcTarget

        if model is None:
            raise click.UsageError("--model: is missing; KServe's protocol has no list of models")
        address = request.base("grpc").partition("://")[2].split("/")[0]
        return KserveGrpcTarget(address, model=model, shapes=shapes, timeout_s=timeout_s, metrics_url=metrics_url)
    if protocol == "websocket":
        from profiler.load_test.clients.websocket import WebSocketTarget

        chunk = body or bytes(_number(options["chunk_bytes"]) or 1)
        return WebSocketTarget(
            request.base("ws"), chunk=chunk, timeout_s=timeout_s, headers=headers, metrics_url=metrics_url
        )
    call = Call(
        url=request.base("http"),
        method="POST" if body else "GET",
        body=body,
        headers={**({"Content-Type": str(options["content_type"])} if body else {}), **headers},
    )
    return HttpTarget(call, name=request.url, timeout_s=timeout_s, metrics_url=metrics_url)


def _headers(pairs: object) -> dict[str, str]:
    found = {}
    for text in pairs if isinstance(pairs, tuple) else ():
        name, equals, value = str(text).partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z0-9-]+", name):
            raise click.UsageError(f"--header: {text!r}: must be NAME=VALUE")
        found[name] = value
    return found


def _shapes(pairs: object) -> dict[str, Sequence[int]]:
    found: dict[str, Sequence[int]] = {}
    for text in pairs if isinstance(pairs, tuple) else ():
        name, _, sizes = str(text).partition("=")
        if not name or not re.fullmatch(r"[1-9][0-9]*(,[1-9][0-9]*)*", sizes):
            raise click.UsageError(f"--shape: {text!r}: must be INPUT=N,N,... with sizes from 1 on")
        found[name] = [int(size) for size in sizes.split(",")]
    return found


def _json(path: Path) -> object:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise click.ClickException(f"{path}: is no JSON: {error}") from None


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _seconds(value: object) -> float | None:
    return value if isinstance(value, float) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _progress(line: str) -> None:
    click.echo(line, err=True)


def _silent(line: str) -> None:
    """Say nothing."""
