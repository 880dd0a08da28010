"""Resources of a cluster as a manifest file."""

from pathlib import Path

import click
import pytest
import yaml
from api_server import Answer, api_server
from small_scenarios import PIPELINE, POOLS

from controller.commands.cluster_manifests import write_manifests
from controller.resources.validation import validate_files


def test_the_file_is_valid_and_has_no_status(tmp_path: Path) -> None:
    pipeline, *pools = yaml.safe_load_all(f"{PIPELINE}---\n{POOLS}")
    applied = [{**one, "metadata": {**one["metadata"], "uid": "1"}, "status": {"demand": "1"}} for one in pools]
    answers = {
        "/apis/sluice.dev/v1alpha1/computepools": applied,
        "/apis/sluice.dev/v1alpha1/speechpipelines": [{**pipeline, "status": {"demand": "3"}}],
    }
    with api_server(tmp_path, answers) as kubeconfig:
        write_manifests(kubeconfig, tmp_path / "found.yaml")
    found = validate_files([tmp_path / "found.yaml"])
    assert (found.findings, len(found.pipelines), len(found.pools)) == ((), 1, 2)
    assert "status" not in (tmp_path / "found.yaml").read_text()


def test_an_empty_cluster_is_an_error(tmp_path: Path) -> None:
    answers: dict[str, Answer] = {
        "/apis/sluice.dev/v1alpha1/computepools": [],
        "/apis/sluice.dev/v1alpha1/speechpipelines": [],
    }
    with (
        api_server(tmp_path, answers) as kubeconfig,
        pytest.raises(click.ClickException, match="there is no SpeechPipeline"),
    ):
        write_manifests(kubeconfig, tmp_path / "found.yaml")
