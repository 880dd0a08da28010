"""Executes a program that the kernel kills when its parent ends: `launch.py PARENT_PID PROGRAM [ARGUMENT]…`.

This is a separate program, and uses the standard library only, because Python code between fork and exec (`preexec_fn`)
can deadlock in a parent with threads.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> None:
    """Make the kernel kill this process when the *thread* that started it ends; exit now if the parent has ended.

    Args:
        parent_pid: the process number of the expected parent.

    Raises:
        OSError: the kernel refused the setting.

    Source: prctl(2), PR_SET_PDEATHSIG. The setting survives exec, but not fork.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent_pid:
        os._exit(1)


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    try:
        os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606 - running a given program is its purpose
    except OSError as error:
        sys.exit(f"cannot run {sys.argv[2]}: {error.strerror}")
