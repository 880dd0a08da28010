"""Run the fault matrix against real servers and print it.

`python tests/faults/matrix.py [--full] [--json FILE] [--break GUARD] [ROW…]`; a row is chosen by a part of its name.
Exit status 1 when a promise is violated.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from broken_guards import GUARDS, PROOFS
from fault_rows import ROWS
from fault_story import Cell, Column, document, run_row, table
from fault_world import FULL, World, paced

from simulations.lab.binaries import ensure


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", help="parts of the names of rows; all without any")
    parser.add_argument(
        "--full", action="store_true", help="a cycle of 15 s and the durations as they are in production"
    )
    parser.add_argument("--interval", type=float, default=1.0, help="of the cycle in s, for a machine that is busy")
    parser.add_argument("--json", type=Path, help="also write the matrix here")
    parser.add_argument("--keep", type=Path, help="folder for logs, which stays")
    parser.add_argument(
        "--break", dest="broken", choices=sorted(GUARDS), help="take away a guard: its promise must then be violated"
    )
    arguments = parser.parse_args()
    parts = arguments.rows or ([PROOFS[arguments.broken]] if arguments.broken else [""])
    chosen = [row for row in ROWS if any(part in row.name for part in parts)]
    cells: dict[str, dict[Column, Cell]] = {}
    began_s = time.monotonic()
    pace = FULL if arguments.full else paced(arguments.interval)
    with tempfile.TemporaryDirectory(prefix="sluice-matrix-") as temporary:
        binaries = ensure(lambda line: print(line, file=sys.stderr))
        with World(arguments.keep or Path(temporary), binaries, pace, broken=arguments.broken) as world:
            for row in chosen:
                row_began_s = time.monotonic()
                cells[row.name] = run_row(world, row)
                bad = [f"{c.value}: {cell.why}" for c, cell in cells[row.name].items() if cell.verdict == "violated"]
                took_s = time.monotonic() - row_began_s
                print(f"{took_s:6.1f} s  {row.name}: {'; '.join(bad) or 'held'}", file=sys.stderr, flush=True)
    print(table(cells))
    print(f"\n{len(cells)} rows in {time.monotonic() - began_s:.0f} s")
    if arguments.json:
        arguments.json.write_text(json.dumps(document(cells), indent=1))
    return int(any(cell.verdict == "violated" for row in cells.values() for cell in row.values()))


if __name__ == "__main__":
    sys.exit(main())
