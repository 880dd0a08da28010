"""Checks that only the leader writes: three operators, and hundreds of faults of the leader.

    python tests/faults/lease_rounds.py --rounds 200

The writes come from the API server's audit log. `--without clock` and `--without policy` remove a guard.
"""

import argparse
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).parent / "harness"))

from one_writer import Fault, World

from simulations.lab.host.binaries import ensure


def main() -> int:
    """Run the rounds and print the table; return 0 if all were run and no write of a former leader was accepted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--lease", default="2s", help="duration of the lease (default 2s)")
    parser.add_argument("--without", action="append", choices=["clock", "policy"], default=[])
    parser.add_argument("--fault", action="append", choices=[fault.name for fault in Fault], default=[])
    parser.add_argument("--json", type=Path, help="file for the figures in JSON")
    options = parser.parse_args()
    faults = [Fault[name] for name in options.fault] or list(Fault)
    began_s = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as folder,
        World(
            Path(folder),
            ensure(lambda line: print(line, file=sys.stderr)),
            lease=options.lease,
            clock="clock" not in options.without,
            policy="policy" not in options.without,
        ) as world,
    ):
        problem = _play(world, itertools.islice(itertools.cycle(faults), options.rounds))
        figures = world.figures()
    figures |= {
        "problem": problem,
        "lease": options.lease,
        "without": options.without,
        "wall_s": round(time.monotonic() - began_s),
    }
    print(table(figures))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2))
    if problem is not None:
        print(f"stopped early: {problem}", file=sys.stderr)
    return 0 if problem is None and figures["former"] == {"scale": 0, "status": 0} else 1


def _play(world: World, faults: Iterable[Fault]) -> str | None:
    """Run the rounds; return the reason if they ended early."""
    try:
        for number, fault in enumerate(faults, start=1):
            world.play(fault)
            print(f"\r{number} rounds", end="", file=sys.stderr, flush=True)
    except (AssertionError, KeyboardInterrupt) as error:
        return str(error) or "interrupted"
    finally:
        print(file=sys.stderr)
    return None


def table(figures: dict[str, Any]) -> str:
    """Return the figures as a table."""
    head = ("the leader", "rounds", "lease taken", "first write", "held back", "conflict", "policy", "accepted")
    rows = [head, *map(_cells, figures["rows"])]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = [
        "  ".join(text.ljust(width) if column == 0 else text.rjust(width) for column, (text, width) in enumerate(cells))
        for cells in ([*zip(row, widths, strict=True)] for row in rows)
    ]
    accepted, former = figures["accepted"], figures["former"]
    without = f", without {' and '.join(figures['without'])}" if figures["without"] else ""
    return "\n".join(
        [
            f"three operators, leases of {figures['lease']}{without}; times are median / longest, since the fault",
            *lines,
            f"not counted, because the leader had just lost the lease for another reason: {figures['void']}",
            f"by the audit log, in {figures['wall_s']} s: the lease was taken {figures['tenures']} times;",
            f"accepted {accepted['scale']} scale writes and {accepted['status']} of status,",
            f"of those from former leaders {former['scale']} and {former['status']};",
            f"writes of the leader that the policy refused: {figures['leaders_refused']}",
        ]
    )


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["fault"],
        f"{row['rounds']}",
        *(f"{median(row[times]):.1f} / {max(row[times]):.1f} s" for times in ("takeover_s", "first_write_s")),
        *(f"{row[count]}" for count in ("held_back", "by_conflict", "by_policy", "accepted")),
    )


if __name__ == "__main__":
    sys.exit(main())
