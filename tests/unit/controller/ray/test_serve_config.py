import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from controller.ray.serve_config import UnusableConfig, configured, with_replicas

TEXT = """\
# what the team agreed on
applications:
  - name: captions            # the only one
    route_prefix: /
    import_path: serve_whisper:app
    deployments:
      - name: PyannoteVAD
        ray_actor_options: {num_gpus: 0.5}
      - {name: FasterWhisperASR, num_replicas: 2, max_ongoing_requests: 4}   # GPUs
      - name: TranscriptionServer
        num_replicas: auto
"""


def test_only_the_number_changes() -> None:
    changed = with_replicas(TEXT, "captions", "FasterWhisperASR", 11)
    assert changed == TEXT.replace("num_replicas: 2", "num_replicas: 11")


def test_a_deployment_without_a_number_gets_one_and_had_one_replica() -> None:
    assert configured(TEXT, "captions", "PyannoteVAD").replicas == 1
    changed = with_replicas(TEXT, "captions", "PyannoteVAD", 3)
    assert changed == TEXT.replace("- name: PyannoteVAD\n", "- name: PyannoteVAD\n        num_replicas: 3\n")
    in_braces = TEXT.replace("num_replicas: 2, ", "")
    assert "{name: FasterWhisperASR, num_replicas: 5, max" in with_replicas(
        in_braces, "captions", "FasterWhisperASR", 5
    )


@given(st.sampled_from(["PyannoteVAD", "FasterWhisperASR"]), st.integers(0, 10_000))
def test_what_is_written_is_what_is_read_and_all_else_is_as_before(deployment: str, replicas: int) -> None:
    changed = with_replicas(TEXT, "captions", deployment, replicas)
    assert configured(changed, "captions", deployment).replicas == replicas
    before, after = yaml.safe_load(TEXT), yaml.safe_load(changed)
    for entry in after["applications"][0]["deployments"]:
        if entry["name"] == deployment:
            entry.pop("num_replicas")
    for entry in before["applications"][0]["deployments"]:
        if entry["name"] == deployment:
            entry.pop("num_replicas", None)
    assert before == after


def test_rays_own_autoscaler_is_seen_and_its_replicas_are_not_written() -> None:
    assert configured(TEXT, "captions", "TranscriptionServer").replicas is None
    with pytest.raises(UnusableConfig, match="Ray's own autoscaler sets its replicas"):
        with_replicas(TEXT, "captions", "TranscriptionServer", 2)
    scaled = TEXT.replace("num_replicas: 2", "autoscaling_config: {min_replicas: 1}")
    assert configured(scaled, "captions", "FasterWhisperASR").replicas is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no application captions"),
        ("applications: [{name: captions}]", "lists no deployment ASR: add it there, with its num_replicas"),
        ("applications: {name: captions}", "has no application captions"),
        ("a: [", "not YAML: while parsing"),
        (
            "applications: [{name: captions, deployments: [{name: ASR, num_replicas: two}]}]",
            "num_replicas must be a number of replicas or auto",
        ),
        ("x" * 300_000, "300,000 characters, must be at most 200,000"),
    ],
)
def test_what_cannot_be_used_is_named(text: str, words: str) -> None:
    with pytest.raises(UnusableConfig) as problem:
        configured(text, "captions", "ASR")
    assert words in str(problem.value)
