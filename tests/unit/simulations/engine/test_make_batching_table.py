import numpy as np
import pytest

from optimizer.latency import batching_table
from simulations.engine.make_batching_table import NOISE, check, fill, fingerprint, simulate_cell


def test_the_stored_table_is_of_these_parameters() -> None:
    with np.load(batching_table.FILE) as stored:
        assert str(stored["fingerprint"]) == fingerprint()
    assert batching_table.values().shape == batching_table.SHAPE
    assert np.isfinite(batching_table.values()).all()
    assert batching_table.FILE.stat().st_size < 3e6


@pytest.mark.parametrize("cell", [(0, 3, 2, 1, 2, 3, 4), (1, 2, 3, 0, 2, 4, 6), (2, 4, 1, 2, 1, 2, 5)])
def test_a_cell_is_what_its_simulation_says(cell: tuple[int, ...]) -> None:
    stored = batching_table.values()[cell]
    assert simulate_cell(cell)[0] == pytest.approx(stored, abs=4e-3)  # half precision
    other_luck, noise = simulate_cell(cell, seed=77)
    assert other_luck[1] == pytest.approx(stored[1], abs=6 * noise)


def test_a_table_of_other_latencies_does_not_pass_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check(30, NOISE)
    wrong = batching_table.values().copy()
    wrong[..., 1:] += 0.04
    monkeypatch.setattr(batching_table, "values", lambda: wrong)
    assert not check(30, NOISE)


def test_cells_where_hardly_anything_waits_take_the_times_of_the_next_load() -> None:
    values = np.full((3, batching_table.WIDTH), np.nan)
    values[:, 0] = (-9, -5, 0)
    values[2, 1:] = 0.7
    assert fill(values)[0, 1:] == pytest.approx(0.7)
    assert fill(values)[:, 0] == pytest.approx((-9, -5, 0))
