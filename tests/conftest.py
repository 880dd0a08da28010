"""What holds for every test."""

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling, Scheduling

# The first example of a property may compile, and a busy machine is no finding: properties are judged by what they say.
settings.register_profile("sluice", deadline=None)
settings.load_profile("sluice")

_ALONE = "tests/faults/test_matrix.py"


class _ByFile(LoadFileScheduling):  # type: ignore[misc]
    """Gives each worker whole files, whose tests share the runs of fixtures, but single rows of the matrix."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid if nodeid.startswith(_ALONE) else str(super()._split_scope(nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    """Return the scheduler of `--dist loadfile`; None leaves the choice to pytest-xdist."""
    return _ByFile(config, log) if config.getoption("dist") == "loadfile" else None
