"""Runs the operator with changes: `operator_wrapper.py [CHANGE]… -- FLAG…`.

`--clock FILE` adds the seconds in FILE, read at every call, to the wall clock.
`--break PROMISE` removes the guard behind a promise of the fault matrix.
"""

import sys
import time
from pathlib import Path


def _shift_clock(file: Path) -> None:
    real = time.time

    def shifted() -> float:
        return real() + float(file.read_text() or 0)

    time.time = shifted


def main() -> None:
    split = sys.argv.index("--")
    changes, flags = sys.argv[1:split], sys.argv[split + 1 :]
    for name, value in zip(changes[::2], changes[1::2], strict=True):
        if name == "--clock":
            _shift_clock(Path(value))
        else:
            from broken_guards import remove_guard

            remove_guard(value)
    from controller.__main__ import main as sluice

    sys.argv = ["sluice", "operator", *flags]
    sluice()


if __name__ == "__main__":
    main()
