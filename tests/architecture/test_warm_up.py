"""Where the warm-up has run, a decision compiles nothing."""

import subprocess
import sys

from compilations import PROBE


def test_after_the_warm_up_nothing_is_left_to_compile() -> None:
    subprocess.run([sys.executable, "-m", "optimizer.warm_up"], check=True)
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
