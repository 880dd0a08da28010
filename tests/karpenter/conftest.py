"""Karpenter itself on the lab: `make test-karpenter` builds it, and runs these tests in a network namespace."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from corpus import ROOT
from document_blocks import blocks
from karpenter_lab import build

from simulations.lab.host.binaries import Binaries, Karpenter

PAGE = ROOT / "docs" / "how-to" / "karpenter.md"


@pytest.fixture(scope="session")
def programs() -> tuple[Binaries, Karpenter]:
    return build()


@pytest.fixture(scope="session")
def scenarios() -> Path:
    return Path(__file__).parent / "scenarios"


@pytest.fixture(scope="session")
def node_pool() -> dict[str, Any]:
    """The NodePool of the page."""
    (block,) = (
        block for block in blocks(PAGE, PAGE.read_text()) if block.title.endswith("make test-karpenter applies it")
    )
    found: dict[str, Any] = yaml.safe_load(block.text)
    return found
