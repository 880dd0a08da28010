"""Each row of the fault matrix on a lab: every applicable promise is held. Rows that share a run are one test."""

from collections.abc import Iterator

import pytest
from rows import ROWS
from story import Row, run_row, together, violated
from world import World

from simulations.lab.host.binaries import ensure

pytestmark = pytest.mark.lab

# One row for each way in which something breaks; the others break it alike, and are extended. So are hostile resources:
# a thousand of them within two cycles are a matter of the machine.
ALWAYS = {
    *("API: 409 storm", "API: silent stall", "API: 410, deleted in the gap", "API: 403 on scales"),
    *("Prometheus: down", "Prometheus: NaN", "operator: kill -9 at every write", "operator: two replicas"),
    *("operator: clock jumps 1 h", "others: an HPA", "target: deleted, recreated"),
    *("target: rolled out with a bad image", "pool: Karpenter finds no capacity", "declared: nothing"),
}

# From the last, which are the longest: then all workers end at about the same time.
RUNS = [
    pytest.param(
        rows,
        id="; ".join(row.name for row in rows),
        marks=() if any(row.name in ALWAYS for row in rows) else pytest.mark.extended,
    )
    for rows in together(ROWS)[::-1]
]


def test_the_rows_that_always_run_are_there() -> None:
    assert {row.name for row in ROWS} >= ALWAYS


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("matrix"), ensure(print)) as world:
        yield world


@pytest.mark.parametrize("rows", RUNS)
def test_every_promise_is_held_under(world: World, rows: tuple[Row, ...]) -> None:
    for row in rows:
        cells = run_row(world, row)
        if violated(cells):  # a busy machine may be late once
            cells = run_row(world, row)
        assert violated(cells) == {}, row.name
        verdicts = {column.value: cell.why for column, cell in cells.items()}
        assert any(cell.verdict == "held" for cell in cells.values()), (row.name, verdicts)
