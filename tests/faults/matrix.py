"""Runs the fault matrix against real servers and prints it.

`python tests/faults/matrix.py [--full] [--jobs N] [--json FILE] [--break GUARD] [ROW…]`; a part of its name
selects a row. Exit status 1 if a promise is violated.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).parent / "harness"))

from broken_guards import GUARDS, PROOFS
from rows import ROWS
from story import Cell, Column, document, run_row, table, together, violated
from world import FULL, World, paced

from simulations.lab.host.binaries import ensure


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", help="parts of the names of rows; default: all rows")
    parser.add_argument("--full", action="store_true", help="a cycle of 15 s and the durations of production")
    parser.add_argument("--interval", type=float, default=1.0, help="cycle in s; longer for a busy machine")
    parser.add_argument("--json", type=Path, help="file for the matrix in JSON")
    parser.add_argument("--keep", type=Path, help="folder for logs, which is kept")
    parser.add_argument("--jobs", type=int, default=2, help="parallel labs, each with a share of the rows")
    parser.add_argument(
        "--break", dest="broken", choices=sorted(GUARDS), help="remove a guard: its promise must then be violated"
    )
    arguments = parser.parse_args()
    parts = arguments.rows or (PROOFS[arguments.broken] if arguments.broken else [""])
    groups = together(row for row in ROWS if any(part in row.name for part in parts))
    chosen = [row.name for group in groups for row in group]
    ensure(_say)
    began_s = time.monotonic()
    jobs = max(1, min(arguments.jobs, len(groups)))
    with tempfile.TemporaryDirectory(prefix="sluice-matrix-") as temporary:
        folder = arguments.keep or Path(temporary)
        shares = [
            ([row.name for group in groups[job::jobs] for row in group], folder / str(job), arguments)
            for job in range(jobs)
        ]
        with ProcessPoolExecutor(jobs) as processes:
            found = {name: row for share in processes.map(_run, shares) for name, row in share.items()}
    cells = {name: found[name] for name in chosen}
    print(table(cells))
    print(f"\n{len(cells)} rows in {time.monotonic() - began_s:.0f} s")
    if arguments.json:
        arguments.json.write_text(json.dumps(document(cells), indent=1))
    return int(any(violated(row) for row in cells.values()))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _run(share: tuple[Sequence[str], Path, argparse.Namespace]) -> dict[str, dict[Column, Cell]]:
    """Run some rows on one lab."""
    names, folder, arguments = share
    pace = FULL if arguments.full else paced(arguments.interval)
    cells: dict[str, dict[Column, Cell]] = {}
    folder.mkdir(parents=True, exist_ok=True)
    with World(folder, ensure(_say), pace, broken=arguments.broken) as world:
        for row in (row for row in ROWS if row.name in names):
            began_s = time.monotonic()
            cells[row.name] = run_row(world, row)
            bad = [f"{promise}: {why}" for promise, why in violated(cells[row.name]).items()]
            took_s = time.monotonic() - began_s
            _say(f"{took_s:6.1f} s  {row.name}: {'; '.join(bad) or 'held'}")
    return cells


if __name__ == "__main__":
    sys.exit(main())
