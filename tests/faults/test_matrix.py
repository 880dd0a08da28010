"""Each row of the fault matrix on a lab: every applicable promise is held. Rows that share a run are one test."""

from collections.abc import Iterator

import pytest
from rows import ROWS
from story import Row, run_row, together, violated
from world import World

from simulations.lab.host.binaries import ensure

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("matrix"), ensure(print)) as world:
        yield world


# From the last, which are the longest: then all workers end at about the same time.
@pytest.mark.parametrize("rows", together(ROWS)[::-1], ids=lambda rows: "; ".join(row.name for row in rows))
def test_every_promise_is_held_under(world: World, rows: tuple[Row, ...]) -> None:
    for row in rows:
        cells = run_row(world, row)
        if violated(cells):  # a busy machine may be late once
            cells = run_row(world, row)
        assert violated(cells) == {}, row.name
        verdicts = {column.value: cell.why for column, cell in cells.items()}
        assert any(cell.verdict == "held" for cell in cells.values()), (row.name, verdicts)
