"""What the choice of batch limits and waits saves: plans and simulated runs of the stated scenarios, by variant.

Encoder and decoder have the batch settings of the scenario's manifest, the same without a wait, and a choice that the
operator writes for the servers. `python tests/bench/bench_batching.py` prints a table.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import yaml

from simulations.experiment.experiment import SLUICE as SLUICE_POLICY
from simulations.experiment.experiment import RunRequest, run_and_bound
from simulations.results.results import Run
from simulations.scenario.scenario import load_scenario

SCENARIOS = Path(__file__).parents[2] / "simulations" / "scenarios"
NAMES = ("steady", "bursty", "daily")
STREAMS = {"steady": 500, "bursty": 300, "daily": 300}
"""The demand of the plans that are compared: about the mean of each scenario."""
VARIANTS = ("as declared", "without a wait", "chosen")
WAITS = ["0ms", "5ms", "10ms"]
SLUICE = [sys.executable, "-c", "from controller.__main__ import main; main()"]


def varied(pipeline: Mapping[str, Any], variant: str) -> Mapping[str, Any]:
    """Return the pipeline with the batch settings of `variant` at its encoder and its decoder."""
    for stage in pipeline["spec"]["stages"]:
        for placement in stage["placements"] if stage["name"] in {"encoder", "decoder"} else ():
            batching = placement["batching"]
            if variant == "without a wait":
                batching["wait"] = "0ms"
            elif variant == "chosen":
                sizes = [size for size in (1, 2, 4, 8, 16) if size <= batching["max"]]
                at = {"configMap": "batching", "key": f"{stage['name']}-{placement['pool']}"}
                placement["batching"] = {"sizes": sizes, "waits": WAITS, "apply": at}
    return pipeline


def planned_per_hour(folder: Path, name: str) -> float:
    """Return what the plan of a scenario's manifests costs, in USD per hour."""
    files = [str(folder / "pools.yaml"), str(folder / name / "captions.yaml")]
    arguments = ["plan", *files, "--demand", f"speech/captions={STREAMS[name]}", "-o", "json"]
    done = subprocess.run([*SLUICE, *arguments], check=False, capture_output=True, text=True)
    return float(json.loads(done.stdout)["cost_per_hour"])


@click.command()
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True)
def main(seed: int) -> None:
    """Print cost and share of windows of every variant of every scenario."""
    print(f"{'scenario':9} {'variant':15} {'plan $/h':>9} {'run $':>8} {'windows met':>12} {'changes':>8}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "scenarios"
        shutil.copytree(SCENARIOS, root)
        shutil.copytree(SCENARIOS.parent / "data", Path(folder) / "data")
        for name in NAMES:
            manifest = root / name / "captions.yaml"
            text = manifest.read_text()
            for variant in VARIANTS:
                manifest.write_text(yaml.safe_dump(varied(yaml.safe_load(text), variant)))
                scenario = load_scenario(root / name / "scenario.yaml")
                results, _ = run_and_bound(scenario, [RunRequest(policy=SLUICE_POLICY, seed=seed)], [], jobs=1)
                run = Run(results=results, bound=None, cost_over_bound_range=None)
                print(
                    f"{name:9} {variant:15} {planned_per_hour(root, name):9.2f} {run.mean('cost'):8.3f} "
                    f"{run.mean('sla_windows_met'):12.4f} {run.mean('replica_changes'):8.0f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
