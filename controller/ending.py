"""How a command ends early: on SIGTERM, Ctrl-C or SIGPIPE, or because standard output cannot be written.

A signal raises `Interrupted` in the main thread, so that `with` blocks clean up. Compiled code or a blocked write may
delay that: a thread ends the process, and all processes that it has started, at most `LIMIT_S` after the signal.
"""

import contextlib
import errno
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import click

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGPIPE)
LIMIT_S = 1.3
"""How long a command may take to clean up after a signal."""
_NOT_WRITTEN = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EBADF}

_interrupted = False
_reported = False


class Interrupted(SystemExit):
    """A signal ends the process; the exit status is 128 + the number of the signal, as in shells."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


class Misconfigured(click.ClickException):
    """Wrong usage that the message explains in full: printed as one line, without the usage; the exit status is 2."""

    exit_code = click.UsageError.exit_code


def is_interrupted() -> bool:
    """Return whether a signal is ending this process, which has little time left to stop others."""
    return _interrupted


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """End the process on a signal in `SIGNALS` during the `with` block; a block outside the main thread is not changed.

    A command may install handlers of its own in the block, which then decide alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    woken_before = signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    threading.Thread(target=_enforce, args=(readable,), name="ending", daemon=True).start()
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        for number in SIGNALS:
            signal.signal(number, _interrupt)
        yield
    except Interrupted as ended:
        if ended.number == signal.SIGPIPE:
            _discard_output()
        _report(ended.number)
        raise
    finally:
        if not _interrupted:  # otherwise a further signal must not cut off the exit
            for number, handler in before.items():
                signal.signal(number, handler)
        signal.set_wakeup_fd(woken_before)
        os.close(writable)


@contextlib.contextmanager
def output_errors() -> Iterator[None]:
    """Turn a failure to write standard output, or a file on a full disk, into an error of one line.

    A reader of standard output that has gone ends the process as SIGPIPE does.

    Raises:
        click.ClickException: the output cannot be written.
        Interrupted: nothing reads standard output any more.
    """
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        raise Interrupted(signal.SIGPIPE) from None
    except OSError as error:
        if error.errno not in _NOT_WRITTEN:
            raise
        _discard_output()
        where = f"{error.filename}: " if error.filename else ""
        raise click.ClickException(f"{where}the output cannot be written: {error.strerror}") from None


def _interrupt(number: int, _: object) -> None:
    global _interrupted  # noqa: PLW0603 - signals are of the whole process
    if _interrupted or not _ends(number):
        return
    _interrupted = True
    raise Interrupted(number)


def _report(number: int) -> None:
    global _reported  # noqa: PLW0603 - said once, by the thread that ends the process
    if not _reported and number != signal.SIGPIPE:
        _reported = True
        with contextlib.suppress(OSError):
            os.write(2, b"interrupted\n")


def _ends(number: int) -> bool:
    # A write to a connection that the other side has closed raises SIGPIPE as well. Its caller reports that.
    return number != signal.SIGPIPE or not _has_connections()


def _has_connections() -> bool:
    for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names, not paths
        with contextlib.suppress(OSError):
            if int(descriptor) > 2 and stat.S_ISSOCK(os.fstat(int(descriptor)).st_mode):
                return True
    return False


def _enforce(readable: int) -> None:
    """Read the numbers of arriving signals; `LIMIT_S` after one that ends the process, end it from this thread."""
    with open(readable, "rb", buffering=0) as numbers:
        while number := numbers.read(1):
            if signal.getsignal(number[0]) is _interrupt and _ends(number[0]):
                time.sleep(LIMIT_S)
                for process in [*_descendants(os.getpid())]:
                    with contextlib.suppress(OSError):
                        os.kill(process, signal.SIGKILL)
                _report(number[0])
                os._exit(128 + number[0])


def _descendants(process: int) -> Iterator[int]:
    for children in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, children.read_text().split()):
                yield child
                yield from _descendants(child)


def _discard_output() -> None:
    """Let what is left to write go nowhere; otherwise the interpreter reports a second failure when it exits."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
