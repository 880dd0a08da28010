"""Where the warm-up has run, a decision and a simulation compile nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from compilations import PROBE, UNCALLED


def printed(*arguments: str, cache: Path) -> str:
    """Return what Python prints when it runs with `arguments` and has its compiled code in the folder `cache`."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache)}
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True, env=environment)
    return done.stdout.strip()


def test_the_warm_up_calls_every_compiled_function_and_leaves_nothing_to_compile(tmp_path: Path) -> None:
    assert printed("-c", UNCALLED, "optimizer.warm_up", cache=tmp_path) == "[]"
    assert printed("-c", PROBE, cache=tmp_path) == "[]"


@pytest.mark.extended
def test_the_warm_up_of_simulations_calls_every_compiled_function(tmp_path: Path) -> None:
    assert printed("-c", UNCALLED, "simulations.warm_up", cache=tmp_path) == "[]"
