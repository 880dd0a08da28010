"""What `sluice hardware` prints on the contract's manifests, and its errors."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner, Result
from corpus import CONTRACT, ROOT

from controller.commands.hardware import hardware

DEMAND = "--demand=speech/live-captions=400"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(hardware, [str(each) for each in (*CONTRACT, *arguments)])


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    result = run(DEMAND, "-o", "json", "--interruptions", "gpu=0.2")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.output)
    return found


def test_every_stage_is_compared_on_every_pool_that_it_declares_the_cheapest_first(document: dict[str, Any]) -> None:
    pools = {stage["name"]: [device["pool"] for device in stage["devices"]] for stage in document["stages"]}
    assert {name: sorted(own) for name, own in pools.items()} == {
        "vad": ["cpu"],
        "encoder": ["gpu", "inferentia"],
        "decoder": ["gpu", "inferentia"],
        "lm": ["gpu"],
    }
    for stage in document["stages"]:
        costs = [device["pipeline_cost_per_hour"] for device in stage["devices"]]
        assert costs == sorted(costs)
        for device in stage["devices"]:
            assert device["cost_per_stream_hour"] == pytest.approx(device["cost_per_hour"] / 400)
            assert device["p95_s"] > 0
            assert device["replicas"] > 0


def test_the_cheapest_mix_grows_with_the_load(document: dict[str, Any]) -> None:
    costs = [point["cost_per_hour"] for point in document["mix"]]
    assert costs == sorted(costs)
    assert document["mix"][-1]["demand"] == 800
    for point in document["mix"]:
        assert sum(pool["cost_per_hour"] for pool in point["pools"]) == pytest.approx(point["cost_per_hour"])


def test_spot_instances_come_with_their_interruptions(document: dict[str, Any]) -> None:
    spot = {device["pool"]: device["spot"] for stage in document["stages"] for device in stage["devices"]}
    assert spot["cpu"] is None
    assert spot["gpu"]["interruptions_per_month"] > 0
    assert 0 < spot["gpu"]["away_share"] < 1e-3


def test_the_table_says_the_same_and_the_plot_has_every_pool(tmp_path: Path) -> None:
    plot = tmp_path / "mix.svg"
    result = run(DEMAND, "--stage", "encoder", "--plot", plot)
    assert result.exit_code == 0
    assert "stage encoder" in result.output
    assert "stage decoder" not in result.output
    assert "costs less than inferentia" in result.output
    assert result.output.rstrip().endswith(f"plot: {plot}")
    drawing = ET.fromstring(plot.read_text())
    titles = {each.text for each in drawing.iter("{http://www.w3.org/2000/svg}title")}
    assert titles == {"cpu", "gpu", "inferentia"}


def test_published_numbers_add_a_device_with_source_and_error() -> None:
    result = run(DEMAND, "--stage", "encoder", "--priors", "encoder=whisper-large-v3-encoder")
    assert result.exit_code == 0
    assert "h100 (prior)" in result.output
    assert "prior, confidence Medium" in result.output
    assert "an item is a window of 30 s of audio; may be off by 6%" in result.output


def test_a_device_without_a_price_is_named_and_takes_part_once_it_has_one() -> None:
    without = run(DEMAND, "--stage", "encoder", "--priors", "encoder=whisper-large-v2")
    assert "v100s: left out, because no price is known; give it with --price v100s=USD" in without.output
    priced = run(DEMAND, "--stage", "encoder", "--priors", "encoder=whisper-large-v2", "--price", "v100s=3.06")
    assert "v100s (prior):int8" in priced.output
    assert "cannot keep the SLA" in priced.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--demand=400:800"], "--demand: speech/live-captions must have one load"),
        (["--demand=0"], "--demand: speech/live-captions=0: must be above 0"),
        ([DEMAND, "--stage=encder"], "--stage: 'encder': is not in these files; did you mean 'encoder'?"),
        (
            [DEMAND, "--priors=encoder=whispr"],
            "--priors: 'encoder=whispr': there are no published numbers of this model",
        ),
        ([DEMAND, "--priors=lm=whisper-small"], "--priors: 'lm': batches continuously"),
        (
            [DEMAND, "--interruptions=gpu=1"],
            "--interruptions: 'gpu=1': must be POOL=SHARE with a share from 0 to below 1",
        ),
        ([DEMAND, "--price=v100s=free"], "--price: 'v100s=free': must be DEVICE=USD with a number above 0"),
        ([], "--demand: speech/live-captions: missing"),
    ],
)
def test_wrong_usage_names_the_option_and_the_rule(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_a_load_that_no_device_serves_in_time_is_a_no(tmp_path: Path) -> None:
    slow = tmp_path / "slow.yaml"
    slow.write_text(CONTRACT[1].read_text().replace("latency: 250ms", "latency: 5ms"))
    result = CliRunner().invoke(hardware, [str(CONTRACT[0]), str(slow), DEMAND])
    assert result.exit_code == 1
    assert "cannot keep the SLA" in result.output
    assert "cannot be served within the SLA" in result.output


def test_the_plot_in_the_documents_is_that_of_now(tmp_path: Path) -> None:
    plot = tmp_path / "hardware.svg"
    assert run("--demand=400", "--plot", plot).exit_code == 0
    assert plot.read_text() == (ROOT / "docs" / "images" / "hardware.svg").read_text()
