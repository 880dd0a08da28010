"""`sluice readiness` as a person calls it, with real plans."""

import json
from pathlib import Path

import pytest
from api_server import api_server
from click.testing import CliRunner, Result
from small_scenarios import PIPELINE, POOLS

from controller.commands.readiness import readiness

NUMBERS = '          serviceTime: {fixed: 10ms, cv: "0.3"}\n'
LEARNED = {
    "namespace": "speech",
    "name": "captions",
    "stages": [
        {
            "name": "vad",
            "placements": [
                {
                    "pool": "cpu",
                    "learned": {
                        "fixed_s": 0.01,
                        "per_item_s": 0.0,
                        "cv": 0.3,
                        "startup_s": None,
                        "session_slots": None,
                        "relative_error": 0.04,
                    },
                }
            ],
        }
    ],
}


@pytest.fixture
def manifests(tmp_path: Path) -> Path:
    path = tmp_path / "speech.yaml"
    path.write_text(f"{PIPELINE}---\n{POOLS}")
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(readiness, [*map(str, arguments)])


def test_nothing_blocks_a_pipeline_that_fits(manifests: Path) -> None:
    result = run(manifests, "--demand", "speech/captions=40")
    assert result.exit_code == 0, result.output
    assert "**nothing blocks a launch" in result.output
    assert "40 requests/s (--demand): p95" in result.output
    assert "without cpu nothing is served: vad has no other pool" in result.output
    assert "without gpu the peak is served within the SLA" in result.output


def test_a_lost_pool_takes_its_replicas_with_it(manifests: Path) -> None:
    result = run(manifests, "--demand", "speech/captions=300")
    assert result.exit_code == 0, result.output
    assert "**risk**: without gpu" in result.output
    assert "of the peak is served, limited by" in result.output


def test_too_much_load_blocks_with_a_status_of_its_own(manifests: Path) -> None:
    result = run(manifests, "--demand", "speech/captions=100000")
    assert result.exit_code == 3
    assert "can be served, limited by" in result.output


def test_the_highest_expected_load_is_the_peak_without_demand(manifests: Path) -> None:
    assert "--demand speech/captions=N" in run(manifests).output
    assert run(manifests).exit_code == 3
    text = manifests.read_text()
    floors = "    atLeast:\n"
    for name, value in (("day", 30), ("evening", 40)):
        floors += f'      - {{name: {name}, demand: "{value}", from: "08:00", until: "20:00"}}\n'
    manifests.write_text(text.replace("    unit: Requests\n", f"    unit: Requests\n{floors}"))
    result = run(manifests)
    assert "40 requests/s (demand.atLeast evening)" in result.output, result.output


def test_a_missing_number_blocks_until_it_is_learned(manifests: Path, tmp_path: Path) -> None:
    manifests.write_text(manifests.read_text().replace(NUMBERS, ""))
    result = run(manifests, "--demand", "speech/captions=40")
    assert result.exit_code == 3
    assert "spec.stages[0].placements[0].serviceTime is neither declared nor measured" in result.output
    (tmp_path / "learned.json").write_text(json.dumps(LEARNED))
    learned = run(manifests, "--demand", "speech/captions=40", "--learned", tmp_path / "learned.json")
    assert learned.exit_code == 0, learned.output
    assert "| vad | cpu | measured | 10 ms | ± 4.0% |" in learned.output


def test_the_page_can_be_an_html_file(manifests: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = run(manifests, "--demand", "speech/captions=40", "--format", "html", "--out", page)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith("speech/captions: nothing blocks a launch")
    assert page.read_text().startswith("<!doctype html>")


def test_invalid_manifests_and_wrong_options_are_not_a_verdict(manifests: Path) -> None:
    assert run(manifests, "--demand", "speech/captions=1:2").exit_code == 2
    assert run(manifests, "--demand", "speech/other=1").exit_code == 2
    manifests.write_text(manifests.read_text().replace("500ms", "soon"))
    assert run(manifests).exit_code == 1


def test_a_page_that_cannot_be_written_is_wrong_usage(manifests: Path, tmp_path: Path) -> None:
    page = tmp_path / "nowhere" / "page.md"
    result = run(manifests, "--demand", "speech/captions=40", "--out", page)
    assert result.exit_code == 2
    assert f"--out': {page}: cannot be written: No such file or directory." in result.stderr


@pytest.mark.parametrize("account", ["sluice", "a/b/c", "a/", "/b"])
def test_an_account_without_its_namespace_is_wrong_usage(manifests: Path, account: str) -> None:
    result = run(manifests, "--live", "--service-account", account)
    assert result.exit_code == 2
    assert f"{account!r}: must be NAMESPACE/NAME." in result.stderr


def test_the_cluster_is_read_when_asked(manifests: Path, tmp_path: Path) -> None:
    status = {
        "observedGeneration": 1,
        "conditions": [],
        "summary": {"health": "TargetMissing"},
        "memory": {"version": 1, "explanation": {"time": "2026-01-01T00:00:00Z", "lines": ["What: nothing"]}},
    }
    pipeline = {
        "metadata": {"namespace": "speech", "name": "captions", "generation": 1},
        "spec": {},
        "status": status,
    }
    answers = {"/apis/sluice.dev/v1alpha1/namespaces/speech/speechpipelines/captions": pipeline}
    with api_server(tmp_path, answers, lambda *_: {"status": {"allowed": True}}) as kubeconfig:
        result = run(manifests, "--demand", "speech/captions=40", "--live", "--kubeconfig", kubeconfig)
    assert result.exit_code == 3, result.output
    assert "**blocks**: On the cluster: health TargetMissing" in result.output
    assert "What: nothing" in result.output
    assert "checks of sluice doctor passed" in result.output


def test_a_profile_is_read_and_a_wrong_one_is_refused(manifests: Path, tmp_path: Path) -> None:
    profile = tmp_path / "asr.json"
    profile.write_text(json.dumps({"fixed_s": 0.5, "per_item_s": 0.0, "cv": 0.3, "startup_s": 9.0}))
    result = run(manifests, "--demand", "speech/captions=40", "--profile", f"speech/captions/asr/gpu={profile}")
    assert result.exit_code == 0, result.output
    assert "asr on gpu: its pod took 9 s to start (sluice profile)" in result.output
    wrong = run(manifests, "--profile", f"speech/captions/asr/gpx={profile}")
    assert wrong.exit_code == 2
    assert "did you mean 'speech/captions/asr/gpu'?" in wrong.output
    missing = run(manifests, "--profile", f"speech/captions/asr/gpu={tmp_path / 'none.json'}")
    assert "cannot be read: No such file" in missing.output
    profile.write_text("{")
    assert "must be JSON" in run(manifests, "--profile", f"speech/captions/asr/gpu={profile}").output
    profile.write_text("{}")
    assert "must be what `sluice profile" in run(manifests, "--profile", f"speech/captions/asr/gpu={profile}").output
