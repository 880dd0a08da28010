"""`python -m simulations.speech.training [VARIANT …]`: train the recogniser and write its weights.

The training data are conversations of this project's own texts, spoken by eSpeak NG with seeds that nothing else uses,
in pink noise at random levels.
"""

import argparse
import json
import time
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import numpy as np

from simulations.speech.audio.synthesis import Request, conversations
from simulations.speech.audio.texts import WORDS
from simulations.speech.recognition.encoder import VARIANTS, WEIGHTS

FIRST_SEED = 1_000_000
"""The seeds of training data begin here; those below are for tests and demonstrations."""


def main() -> None:
    """Train the variants that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("variants", nargs="*", metavar="VARIANT", help=f"{', '.join(VARIANTS)}; all if none is named")
    parser.add_argument("--conversations", type=int, default=600, help="of 30 s each")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    requests = [
        Request(seed=FIRST_SEED + number, activity=0.65, snr_db=80.0) for number in range(arguments.conversations)
    ]
    started_s = time.monotonic()
    spoken = tuple(conversations(requests))
    hours = sum(each.duration_s for each in spoken) / 3600
    print(f"{hours:.1f} hours of speech made in {time.monotonic() - started_s:.0f} s", flush=True)
    # Each conversation is made in a process that imports this module: JAX would take most of its time.
    from simulations.speech.training.train import PLANS, Segments, trained

    for variant in arguments.variants or VARIANTS:
        shape, plan = VARIANTS[variant], PLANS[variant]
        started_s = time.monotonic()
        for count, value, weights in trained(shape, plan, Segments(spoken, arguments.seed), arguments.seed):
            print(f"{variant}: step {count}, loss {value:.4f}, {time.monotonic() - started_s:.0f} s", flush=True)
            if count == plan.steps:
                about = {
                    "words": list(WORDS),
                    "shape": asdict(shape),
                    "training": {**asdict(plan), "seed": arguments.seed, "hours": hours, "loss": value},
                    "data": "texts of simulations.speech.audio.texts, spoken by eSpeak NG "
                    f"(espeakng-loader {version('espeakng-loader')})",
                    "library": f"jax {version('jax')}",
                }
                arrays: dict[str, Any] = {name: np.asarray(w).astype(np.float16) for name, w in weights.items()}
                np.savez_compressed(WEIGHTS / f"{variant}.npz", about=np.array(json.dumps(about)), **arrays)


if __name__ == "__main__":
    main()
