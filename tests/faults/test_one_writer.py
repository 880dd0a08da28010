"""A former leader never writes: one round of each fault, with real processes and the real API server."""

from collections.abc import Iterator

import pytest
from one_writer import Fault, World

from simulations.lab.host.binaries import Binaries, ensure

pytestmark = pytest.mark.lab

ALWAYS = {Fault.KILL, Fault.PAUSE_AFTER_CHECK, Fault.CUT}


@pytest.fixture(scope="module")
def binaries() -> Binaries:
    return ensure(print)


@pytest.fixture(scope="module")
def world(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("one-writer"), binaries) as world:
        yield world


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=fault.name.lower(), marks=() if fault in ALWAYS else pytest.mark.extended)
        for fault in Fault
    ],
)
def test_another_replica_takes_over_and_the_former_leader_writes_nothing_and_ends(world: World, fault: Fault) -> None:
    world.play(fault)

    former = world.audit.read().former_leaders()
    assert former == []
    assert world.tallies[fault].takeover_s[-1] < 15.0


def test_the_gap_that_a_clock_leaves_is_closed_by_the_server(world: World) -> None:
    """A process that stops between its last check of the lease and a request sends the request when it resumes."""
    while not world.tallies[Fault.PAUSE_AFTER_CHECK_UNTOUCHED].by_policy:
        assert world.tallies[Fault.PAUSE_AFTER_CHECK_UNTOUCHED].rounds < 4, "a late write never met the policy alone"
        world.play(Fault.PAUSE_AFTER_CHECK_UNTOUCHED)

    assert world.audit.read().former_leaders() == []


def test_a_leader_is_not_refused_in_its_first_moments(world: World) -> None:
    assert world.audit.read().refused_leaders() == []
