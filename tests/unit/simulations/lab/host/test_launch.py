import os
import subprocess
import sys

from simulations.lab.host import launch


def test_a_program_whose_parent_has_gone_already_does_not_start() -> None:
    # Any other process stands in for a parent that has ended and been replaced.
    command = [sys.executable, launch.__file__, str(os.getpid() + 1), "/bin/echo", "started"]
    answer = subprocess.run(command, capture_output=True, check=False)
    assert answer.returncode == 1
    assert answer.stdout == b""
