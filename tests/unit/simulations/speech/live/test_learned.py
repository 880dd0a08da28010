"""Manifests that declare what was learned."""

from typing import Any

import pytest
import yaml

from controller.resources.parsing import parse
from controller.resources.pipeline import SpeechPipeline
from simulations.speech.live.learned import declared_as_learned

DOCUMENT = yaml.safe_load("""
apiVersion: sluice.dev/v1alpha1
kind: SpeechPipeline
metadata: {name: captions, namespace: speech}
spec:
  demand: {unit: Streams, chunk: 320ms, query: sum(streams)}
  sla: {latency: 500ms, percentile: 95}
  budget: {perHour: "1"}
  stages:
    - name: vad
      placements:
        - {pool: cpu, target: {apiVersion: apps/v1, kind: Deployment, name: vad}, replicas: {min: 1, max: 2}}
    - name: asr
      placements:
        - pool: cpu
          replicas: {min: 0, max: 4}
          variants:
            - {name: large, target: {apiVersion: apps/v1, kind: Deployment, name: asr-large}}
            - {name: tiny, target: {apiVersion: apps/v1, kind: Deployment, name: asr-tiny}}
""")
VAD = {"fixedSeconds": 0.0012345678, "perItemSeconds": 0.002, "cv": 0.31}
LARGE = {
    "fixedSeconds": 0.02,
    "perItemSeconds": 0.01,
    "points": [{"batch": 1, "seconds": 0.03}, {"batch": 8, "seconds": 0.1}],
}


def status(**asr: Any) -> dict[str, Any]:
    return {
        "stages": [
            {
                "name": "vad",
                "passRatio": 0.61,
                "placements": [{"pool": "cpu", "serviceTime": VAD, "startupSeconds": 0.4}],
            },
            {
                "name": "asr",
                "placements": [{"pool": "cpu", "variant": "large", **asr}, {"pool": "cpu", "variant": "tiny"}],
            },
        ]
    }


def test_a_manifest_declares_what_was_learned_and_no_variant_of_which_nothing_is_known() -> None:
    found = declared_as_learned(DOCUMENT, status(serviceTime=LARGE))
    vad, asr = parse(SpeechPipeline, found).spec.stages
    assert vad.pass_ratio == "0.6100"
    assert vad.placements is not None
    (placement,) = vad.placements
    assert placement.service_time is not None
    assert (placement.service_time.fixed, placement.service_time.per_item) == ("1235us", "2000us")
    assert (placement.service_time.cv, placement.startup) == ("0.310", "400000us")
    ((_, own),) = asr.workloads()
    assert own.variant == "large"
    assert own.placement.service_time is not None
    assert own.placement.service_time.points == {"1": "30000us", "8": "100000us"}


def test_a_stage_of_which_nothing_was_learned_is_an_error() -> None:
    with pytest.raises(ValueError, match="stage asr: no service time was learned"):
        declared_as_learned(DOCUMENT, status())
