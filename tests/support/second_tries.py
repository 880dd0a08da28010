"""Counts the tests on live servers that needed a second try: `note` after a failed first try, `total` at the end."""

import json
import sys
from pathlib import Path

_LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")
_NOTED = Path(".venv/.second-tries")


def note() -> None:
    """Write down the tests that failed, and print them: they are run once more, by themselves."""
    failed = sorted(json.loads(_LAST_FAILED.read_text()))
    with _NOTED.open("a") as noted:
        noted.writelines(f"{name}\n" for name in failed)
    print(f"==> what failed, once more by itself: {len(failed)}")
    for name in failed:
        print(f"    {name}")


def total() -> None:
    """Print how many tests needed a second try since `start`."""
    names = _NOTED.read_text().splitlines() if _NOTED.exists() else []
    print(f"==> tests that needed a second try: {len(names)}")
    for name in names:
        print(f"    {name}")


def start() -> None:
    """Forget what an earlier run has noted."""
    _NOTED.unlink(missing_ok=True)


if __name__ == "__main__":
    {"note": note, "total": total, "start": start}[sys.argv[1]]()
