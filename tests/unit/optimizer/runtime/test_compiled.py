import pickle
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = """
from optimizer.runtime.compiled import compiled


@compiled
def double(x):
    return 2 * x
"""
RUN = """
import sys
sys.path.insert(0, {folder!r})
import kernel
assert kernel.double(21) == 42
print(sum(kernel.double.stats.cache_hits.values()), sum(kernel.double.stats.cache_misses.values()))
"""


def run(folder: Path, limit: str = "") -> str:
    """Run the kernel in a process of its own; return its cache hits and misses."""
    code = RUN.format(folder=str(folder))
    command = f'{limit} exec "$0" -B -c "$1"'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable, code],
        capture_output=True,
        text=True,
        check=False,
        env={"HOME": str(folder / "no-home"), "XDG_CACHE_HOME": "/proc/nowhere", "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    (tmp_path / "kernel.py").write_text(SOURCE)
    return tmp_path


def test_code_is_kept_for_the_next_process(kernel: Path) -> None:
    assert run(kernel) == "0 1"
    assert run(kernel) == "1 0"


def test_without_a_place_to_keep_it_a_function_is_compiled_again(kernel: Path) -> None:
    (kernel / "__pycache__").write_text("a file where the directory would be")
    assert run(kernel) == "0 1"
    assert run(kernel) == "0 1"


def test_a_file_size_limit_costs_time_only(kernel: Path) -> None:
    assert run(kernel, "trap '' XFSZ; ulimit -f 0;") == "0 1"


def test_a_damaged_entry_is_replaced(kernel: Path) -> None:
    run(kernel)
    for path in (kernel / "__pycache__").glob("*.nbc"):
        path.write_bytes(b"\x80\x04")
    assert run(kernel) == "0 1"
    assert run(kernel) == "1 0"


def test_an_index_of_an_older_version_that_names_a_module_now_gone_is_replaced(kernel: Path) -> None:
    run(kernel)
    (index,) = (kernel / "__pycache__").glob("*.nbi")
    with index.open("rb") as file:
        version = pickle.load(file)
    index.write_bytes(pickle.dumps(version) + b"cmodule_that_is_gone\nname\n.")
    assert run(kernel) == "0 1"
    assert run(kernel) == "1 0"
