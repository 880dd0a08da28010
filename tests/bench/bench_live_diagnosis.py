"""Which cause the diagnosis names for each incident on the lab, over seeds.

`PYTHONPATH=tests/support python tests/bench/bench_live_diagnosis.py [--seeds 3]`: about four minutes for each seed.
"""

import argparse
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

from live_diagnoses import CASES, named, run, scenario, weights


def main() -> None:
    """Run the incidents, and print how often each was recognised and what was named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    seeds: int = parser.parse_args().seeds
    right: Counter[str] = Counter()
    said: dict[str, Counter[str]] = defaultdict(Counter)
    for seed in range(1, seeds + 1):
        with tempfile.TemporaryDirectory() as folder:
            found = weights(run(scenario(Path(folder)), seed, Path(folder)))
        for name, case in CASES.items():
            causes = named(found, name)
            right[name] += causes == case.causes
            said[name].update(cause.value for cause in causes)
    for name in CASES:
        named_most = ", ".join(f"{cause} {n}" for cause, n in said[name].most_common())
        print(f"{name:10} {right[name]}/{seeds}  {named_most}".rstrip())


if __name__ == "__main__":
    main()
