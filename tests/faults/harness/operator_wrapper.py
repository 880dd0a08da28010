"""Run the operator with something changed before it begins: `operator_wrapper.py [CHANGE]… -- FLAG…`.

`--clock FILE` adds the seconds that stand in FILE to the wall clock, read anew whenever the time is asked for.
`--break PROMISE` takes away the guard that a promise of the fault matrix rests on.
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
            from broken_guards import take_away

            take_away(value)
    from controller.__main__ import main as sluice

    sys.argv = ["sluice", "operator", *flags]
    sluice()


if __name__ == "__main__":
    main()
