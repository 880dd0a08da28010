"""Which cause the diagnosis names for each incident, over seeds, and what it says of runs in which all is well.

`PYTHONPATH=tests/support python tests/bench/bench_diagnosis.py [--seeds 10] [--healthy 100]`; simulated. The
cause that counts for a run is the one that was named most, by its confidence summed over the cycles; of two faults at
once the two named most.
"""

import argparse
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from diagnoses import CASES, form, named, played, weights

from controller.core.state.diagnosis import Cause

NOTHING = "nothing"


def answer(name: str, seed: int) -> tuple[str, int, tuple[str, ...], bool]:
    """Return the causes that are named for a case, as many as it has; for a healthy one all.

    The last value is whether the form of the case is the one that was named most.
    """
    case = CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        made = played(case, Path(folder), seed)
    found = named(made, len(case.causes)) if case.causes else frozenset(weights(made))
    formed = case.because is not None and form(made, *case.causes) is case.because
    return name, seed, tuple(sorted(cause.value for cause in found)), formed


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--healthy", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    asked = [(name, seed) for name, case in CASES.items() if case.causes for seed in range(1, given.seeds + 1)]
    asked += [("well", seed) for seed in range(1, given.healthy + 1)]
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        answers = list(pool.map(answer, *zip(*asked, strict=True), chunksize=4))
    columns = [*(cause.value for cause in Cause), NOTHING]
    print("| incident | recognised | form | " + " | ".join(columns) + " |")
    print("|---" * (3 + len(columns)) + "|")
    for name, case in CASES.items():
        own = [found for asked_name, _, found, _ in answers if asked_name == name]
        formed = sum(right for asked_name, _, _, right in answers if asked_name == name)
        shape = "" if case.because is None else f"{case.because.value}: {formed} of {len(own)}"
        expected = tuple(sorted(cause.value for cause in case.causes))
        counts = Counter(cause for found in own for cause in (found or (NOTHING,)))
        cells = " | ".join(str(counts[column] or "") for column in columns)
        print(f"| {name} | {sum(found == expected for found in own)} of {len(own)} | {shape} | {cells} |")


if __name__ == "__main__":
    main()
