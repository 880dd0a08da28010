"""The benchmarks and tests of the operator run it as its image does."""

import re
from pathlib import Path

from operator_process import ENVIRONMENT

ROOT = Path(__file__).parents[2]


def test_the_operator_of_benchmarks_has_the_environment_of_its_image() -> None:
    _, stage = (ROOT / "Dockerfile").read_text().split("FROM runtime AS operator\n")
    assert dict(re.findall(r"^ENV (\w+)=(\S+)$", stage, flags=re.MULTILINE)) == ENVIRONMENT
