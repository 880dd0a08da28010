"""`sluice simulate` says of the scenarios what it said when they were recorded. Takes minutes."""

import pytest
from golden_files import plain, read, told
from golden_simulations import NAME, SCENARIOS, simulated


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SCENARIOS)
def test_the_simulation_is_the_recorded_one(name: str) -> None:
    difference = told(name, read(NAME)[name], plain(simulated(name)))
    assert not difference, difference
