"""Incidents on the lab, side by side, each with a fault of its own: the diagnosis names the causes of each.

All seeds: `tests/bench/bench_live_diagnosis.py`.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from live_diagnoses import CASES, named, run, scenario, weights

from controller.core.state.diagnosis import Cause

pytestmark = [pytest.mark.lab, pytest.mark.extended]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Counter[Cause]]:
    """How much each cause was named, by incident."""
    folder: Path = tmp_path_factory.mktemp("diagnosis")
    return weights(run(scenario(folder), 1, folder))


@pytest.mark.parametrize("name", list(CASES))
def test_the_diagnosis_names_the_cause(found: Mapping[str, Counter[Cause]], name: str) -> None:
    assert named(found, name) == CASES[name].causes, found.get(name)
