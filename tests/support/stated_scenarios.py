"""The stated scenarios and what is asked of Sluice there, for the benchmarks that run them."""

from importlib import resources
from pathlib import Path

from simulations.scenario.scenario import Scenario, load_scenario

SCENARIOS = ("steady", "bursty", "daily")
COLD_START = "cold-start"
LEAST_WINDOWS = 0.995


def stated(name: str) -> Scenario:
    """Return the stated scenario for reports."""
    return load_scenario(Path(str(resources.files("simulations.scenarios"))) / name / "scenario.yaml")


def number(value: float | None, form: str) -> str:
    """Return a number for a table, a dash for none."""
    return "–" if value is None else format(value, form)
