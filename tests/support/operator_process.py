"""A running `sluice operator` with a cycle every second."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from waiting import DEADLINE_S, until

NOWHERE = "http://127.0.0.1:1"
REAL = ("-m", "controller", "operator", "--prometheus-url", NOWHERE)
SYNTHETIC = (str(Path(__file__).parent / "synthetic_operator.py"),)


class OperatorProcess:
    """A running `sluice operator` with a cycle every second."""

    def __init__(
        self,
        kubeconfig: Path,
        log: Path,
        *flags: str,
        program: tuple[str, ...] = REAL,
        starts_within_s: float = DEADLINE_S,
    ) -> None:
        self._log = log
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, *program, "--kubeconfig", str(kubeconfig)),
                    *("--interval", "1s", "--port", "0", "--log-format", "json", *flags),
                ],
                stderr=stderr,
            )
        until(lambda: self._address() or self._process.poll() is not None, within_s=starts_within_s)
        self._url = self._address()

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text().splitlines() if line.startswith("{")]

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urlopen(f"{self._url}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def ready(self) -> bool:
        return self.get("/readyz")[0] == 200

    def leads(self) -> bool:
        return "sluice_leader 1.0" in self.get("/metrics")[1].splitlines()

    def cycles(self) -> int:
        found = re.search(r'sluice_cycles_total\{outcome="success"\} ([0-9.]+)', self.get("/metrics")[1])
        return 0 if found is None else int(float(found[1]))

    def stands_by_for(self, pod: str) -> bool:
        status, text = self.get("/readyz")
        return status == 200 and text.startswith(f"standby, leader is {pod}_")

    def said(self, words: str) -> bool:
        return words in self._log.read_text()

    def ended(self) -> int:
        return self._process.wait(DEADLINE_S)

    def end(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(DEADLINE_S)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _address(self) -> str | None:
        found = re.search(r"metrics and probes at (http://[0-9.:]+)", self._log.read_text())
        return found and found[1]
