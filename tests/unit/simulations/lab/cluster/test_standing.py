"""Finding a standing lab, and ignoring the files of an earlier one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulations.lab.cluster.standing import Occupied, StandingLab, is_occupied, occupy


def a_state(pid: int) -> StandingLab:
    return StandingLab(pid=pid, kubeconfig="/k", kubectl="/kubectl", prometheus_url="http://p", operator_url="http://o")


def test_where_nothing_ever_was_no_lab_is_up(tmp_path: Path) -> None:
    assert StandingLab.read(tmp_path) is None
    assert StandingLab.read(tmp_path / "never") is None
    assert not is_occupied(tmp_path / "never")


def test_a_lab_is_up_when_it_has_said_where_it_is(tmp_path: Path) -> None:
    lock = occupy(tmp_path)
    assert StandingLab.read(tmp_path) is None, "it is starting"
    assert is_occupied(tmp_path)

    a_state(7).write(tmp_path)
    assert StandingLab.read(tmp_path) == a_state(7)
    os.close(lock)


def test_a_lab_that_was_killed_is_not_up_even_when_its_process_number_is_somebody_else_s(tmp_path: Path) -> None:
    lock = occupy(tmp_path)
    a_state(os.getpid()).write(tmp_path)
    os.close(lock)

    assert (tmp_path / "state.json").exists()
    assert StandingLab.read(tmp_path) is None
    assert not is_occupied(tmp_path)


def test_a_second_lab_is_refused_while_the_first_is_up_or_starting(tmp_path: Path) -> None:
    lock = occupy(tmp_path)
    with pytest.raises(Occupied, match=f"a lab is already up in {tmp_path}; stop it with: sluice lab down"):
        occupy(tmp_path)
    os.close(lock)
    os.close(occupy(tmp_path))


def test_a_new_lab_does_not_inherit_what_the_last_one_said(tmp_path: Path) -> None:
    os.close(occupy(tmp_path))
    a_state(7).write(tmp_path)
    lock = occupy(tmp_path)
    assert StandingLab.read(tmp_path) is None
    os.close(lock)


def test_the_lock_lives_as_long_as_the_process_it_was_handed_to(tmp_path: Path) -> None:
    lock = occupy(tmp_path)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[lock]) as process:
        os.close(lock)
        assert is_occupied(tmp_path)
        process.kill()
    assert not is_occupied(tmp_path)


def test_the_state_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    a_state(1).write(tmp_path)
    a_state(2).write(tmp_path)
    assert json.loads((tmp_path / "state.json").read_text())["pid"] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]
