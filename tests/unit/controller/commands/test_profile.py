"""`sluice profile` on a command line: wrong usage, imports, and what it prints."""

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from controller.commands.profile import profile
from controller.resources.placement import Batching, ServiceTime


def run(*arguments: object) -> Result:
    return CliRunner().invoke(profile, [str(argument) for argument in arguments])


def time_s(running: int) -> float:
    """The truth: a request takes 0.2 s and 10 ms for each that runs."""
    return 0.2 + 0.01 * running


@pytest.fixture
def results(tmp_path: Path) -> list[Path]:
    """Three files of `vllm bench serve`."""
    files = []
    for running in (1, 4, 16):
        content = {
            "max_concurrency": running,
            "request_throughput": running / time_s(running),
            "completed": 400,
            "median_ttft_ms": 0.0,
        }
        files.append(tmp_path / f"{running}.json")
        files[-1].write_text(json.dumps(content))
    return files


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "TARGET: is missing"),
        (("asr",), "TARGET: 'asr': must be a URL, deployment/NAME or service/NAME"),
        (("http://127.0.0.1:1/", "--max-time", "0s"), "must be longer than 0s"),
        (("http://127.0.0.1:1/", "--header", "Authorization"), "--header: 'Authorization': must be NAME=VALUE"),
        (("http://127.0.0.1:1/", "--shape", "mel=0"), "--shape: 'mel=0': must be INPUT=N,N"),
        (("grpc://127.0.0.1:1", "--protocol", "kserve-grpc"), "--model: is missing"),
    ],
)
def test_wrong_usage_is_named_before_anything_is_sent(arguments: tuple[str, ...], said: str) -> None:
    found = run(*arguments)
    assert found.exit_code == 2
    assert said in found.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("http://127.0.0.1:1/",), "http://127.0.0.1:1/: the server answers no single request: no connection"),
        (("http://127.0.0.1:1", "--protocol", "chat"), "http://127.0.0.1:1/v1/models: no connection"),
        (("http://127.0.0.1:1", "--protocol", "kserve"), "choose one with --model"),
        (("ws://127.0.0.1:1/audio",), "ws://127.0.0.1:1/audio: no connection"),
    ],
)
def test_a_server_that_is_not_there_is_named(arguments: tuple[str, ...], said: str) -> None:
    found = run(*arguments)
    assert found.exit_code == 1
    assert said in found.output


def test_results_of_another_tool_give_numbers_that_a_manifest_takes(results: list[Path]) -> None:
    imports = [part for path in results for part in ("--import", path)]
    found = run(*imports, "-o", "yaml", "--max-batch", 16)
    assert found.exit_code == 0, found.output
    content = yaml.safe_load(found.output)
    law = ServiceTime.model_validate(content["serviceTime"])
    assert (law.fixed, law.per_item) == ("200ms", "10ms")
    assert Batching.model_validate(content["batching"]).kind == "Continuous"


def test_people_read_the_law_and_what_is_not_known(results: list[Path]) -> None:
    imports = [part for path in results for part in ("--import", path)]
    found = run(*imports)
    assert "continuous batching, more than 16 run: 200 ms + 10 ms per item" in found.output
    assert "note: 16 clients did not fill the server" in found.output
    assert "max: 16}   # not reached" in found.output


def test_a_file_that_is_no_result_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("{")
    assert "is no JSON" in run("--import", path).output
    path.write_text("{}")
    found = run("--import", path)
    assert found.exit_code == 1
    assert "neither of guidellm, genai-perf nor" in found.output
