"""A real browser for tests of pages, driven over the DevTools protocol: headless Chromium, no further packages."""

import argparse
import asyncio
import base64
import itertools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

VARIABLE = "SLUICE_BROWSER"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")

_START_S = 60.0
_POLL_S = 0.05
_END_S = 10.0
_CALL_S = 60.0


class NoBrowser(RuntimeError):
    """No browser was found, or it did not start; the message says what to do."""


def find_browser() -> Path:
    """Return the browser of the environment variable, or the first on the PATH."""
    named = os.environ.get(VARIABLE)
    if named:
        if not Path(named).is_file():
            raise NoBrowser(f"{VARIABLE}={named}: no such file")
        return Path(named)
    for name in NAMES:
        found = shutil.which(name)
        if found:
            return Path(found)
    raise NoBrowser(
        f"no browser found: install Chromium (Debian: apt-get install chromium) or set {VARIABLE}=/path/to/chrome"
    )


@dataclass(slots=True)
class Page:
    """A page in the browser: what it is asked, and what it did."""

    socket: aiohttp.ClientWebSocketResponse
    requests: list[str] = field(default_factory=list)
    """Every URL that was asked for, the page's own included."""
    complaints: list[str] = field(default_factory=list)
    """Errors and warnings of the console, and exceptions that nobody caught."""
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        number = next(self._numbers)
        await self.socket.send_json({"id": number, "method": method, "params": params})
        while True:
            message = await self._next()
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                result: dict[str, Any] = message["result"]
                return result

    async def open(
        self, url: str, *, width: int = 1280, height: int = 900, dark: bool = False, scripts: bool = True
    ) -> None:
        """Load a page and wait until it has been drawn; without `scripts`, it runs none."""
        for domain in ("Page", "Network", "Runtime", "Log"):
            await self.call(f"{domain}.enable")
        await self.resize(width, height)
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        await self.call("Emulation.setEmulatedMedia", features=features)
        await self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        await self.call("Page.navigate", url=url)
        while (await self._next()).get("method") != "Page.loadEventFired":
            pass
        if scripts:
            await self.evaluate("new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(drawn)))")

    async def resize(self, width: int, height: int) -> None:
        """Give the page another size."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    async def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression; a promise is waited for."""
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    async def press(self, key: str) -> None:
        """Press a key of the keyboard."""
        for kind in ("keyDown", "keyUp"):
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    async def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Write what is seen, or the whole page, as PNG."""
        shot = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        await asyncio.to_thread(path.write_bytes, base64.b64decode(shot["data"]))

    async def _next(self) -> dict[str, Any]:
        message: dict[str, Any] = await self.socket.receive_json(timeout=_CALL_S)
        params = message.get("params", {})
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Runtime.exceptionThrown":
                self.complaints.append(str(params["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if params["type"] in {"error", "warning", "assert"}:
                self.complaints.append(str(params["args"]))
            case "Log.entryAdded" if params["entry"]["level"] in {"error", "warning"}:
                self.complaints.append(str(params["entry"]))
        return message


@contextmanager
def a_browser() -> Iterator[str]:
    """Start a browser; give the URL of its DevTools."""
    with tempfile.TemporaryDirectory(prefix="sluice-browser-", ignore_cleanup_errors=True) as folder:
        port_file = Path(folder) / "DevToolsActivePort"
        options = ["--headless=new", "--remote-debugging-port=0", f"--user-data-dir={folder}", "--no-first-run"]
        options += ["--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--hide-scrollbars"]
        if os.geteuid() == 0:
            options.append("--no-sandbox")  # Chromium refuses to run as root with it
        process = subprocess.Popen(
            [find_browser(), *options, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            deadline = time.monotonic() + _START_S
            while not (port_file.is_file() and "\n" in port_file.read_text()):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise NoBrowser(f"{find_browser()} did not start (exit status {process.poll()})")
                time.sleep(_POLL_S)
            yield f"http://127.0.0.1:{port_file.read_text().splitlines()[0]}"
        finally:
            process.terminate()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@asynccontextmanager
async def a_page(browser: str) -> AsyncIterator[Page]:
    """Open an empty page in the browser at a DevTools URL."""
    async with aiohttp.ClientSession() as session:
        async with session.put(f"{browser}/json/new?about:blank") as answer:
            target = await answer.json()
        async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
            yield Page(socket)
        async with session.get(f"{browser}/json/close/{target['id']}"):
            pass


async def _shoot(url: str, path: Path, *, width: int, height: int, dark: bool, element: str) -> None:
    with a_browser() as browser:
        async with a_page(browser) as page:
            await page.open(url, width=width, height=height, dark=dark)
            await page.evaluate(f"document.querySelector({element!r}).scrollIntoView()")
            await page.screenshot(path)


def main() -> None:
    """Write a screenshot of a page."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("image", type=Path)
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=1400)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--element", default="body", help="CSS selector of what is to be at the top")
    options = parser.parse_args()
    asyncio.run(
        _shoot(
            options.page.resolve().as_uri(),
            options.image,
            width=options.width,
            height=options.height,
            dark=options.dark,
            element=options.element,
        )
    )


if __name__ == "__main__":
    main()
