"""The exporter in Go of `docs/metrics.md` compiles, with the library that the lab's Prometheus is built from."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from metrics_document import snippet

pytestmark = pytest.mark.lab

MODULE = Path(__file__).parents[3] / "simulations" / "lab" / "host" / "build" / "prometheus"


def test_it_compiles(tmp_path: Path) -> None:
    go = shutil.which("go")
    if go is None:
        pytest.skip("there is no Go compiler on the path")
    for name in ("go.mod", "go.sum"):
        shutil.copy(MODULE / name, tmp_path)
    (tmp_path / "main.go").write_text(snippet("go"))
    offline = {**os.environ, "GOFLAGS": "-mod=mod", "GOPROXY": "off", "GOTOOLCHAIN": "local"}
    done = subprocess.run(
        [go, "build", "-o", str(tmp_path / "exporter"), "."],
        cwd=tmp_path,
        env=offline,
        capture_output=True,
        text=True,
        check=False,
    )
    if "GOPROXY=off" in done.stderr or "GOTOOLCHAIN" in done.stderr:
        pytest.skip(f"the library is not in Go's cache, or Go is too old: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "exporter").exists()
