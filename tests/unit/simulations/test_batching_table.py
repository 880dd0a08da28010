import numpy as np
import pytest

from optimizer import batching_table
from simulations.batching_table import fill, fingerprint, simulate_cell


def test_the_stored_table_is_of_these_parameters() -> None:
    with np.load(batching_table.FILE) as stored:
        assert str(stored["fingerprint"]) == fingerprint()
    assert batching_table.values().shape == batching_table.SHAPE
    assert np.isfinite(batching_table.values()).all()
    assert batching_table.FILE.stat().st_size < 3e6


@pytest.mark.parametrize("cell", [(0, 3, 2, 1, 2, 3, 6), (1, 2, 3, 0, 2, 4, 8), (0, 4, 1, 2, 1, 0, 5)])
def test_a_cell_is_what_its_simulation_says(cell: tuple[int, ...]) -> None:
    stored = batching_table.values()[cell]
    assert simulate_cell(cell) == pytest.approx(stored, abs=2e-3)  # half precision
    other_luck = simulate_cell(cell, seed=77)
    assert np.expm1(other_luck[1:-2] - stored[1:-2]) == pytest.approx(0, abs=0.08)


def test_cells_where_hardly_anything_waits_take_the_times_of_the_next_load() -> None:
    values = np.full((3, batching_table.WIDTH), np.nan)
    values[:, 0] = (-9, -5, 0)
    values[2, 1:] = 0.7
    assert fill(values)[0, 1:] == pytest.approx(0.7)
    assert fill(values)[:, 0] == pytest.approx((-9, -5, 0))
