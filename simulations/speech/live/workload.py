"""The reference service as what a lab's pods run."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from controller.core.state.spec import PipelineSpec, PlacementSpec, StageSpec
from controller.resources.fields import duration_s
from optimizer.model import PipelineKey, Routing
from simulations.lab.cluster.deployments import Pod, UnsupportedManifest
from simulations.lab.pods.process import IMAGE
from simulations.lab.traffic.generator import GeneratorConfig
from simulations.lab.traffic.topology import PipelineTopology
from simulations.scenario.reference_service import ReferenceService, StageProgram
from simulations.scenario.scenario import of_stage
from simulations.speech.audio.corpus import write_corpus
from simulations.speech.audio.synthesis import Request, conversations
from simulations.speech.live.load import SpeechConfig
from simulations.speech.recognition.encoder import VARIANTS
from simulations.speech.serving.replica import ENVIRONMENT

_CLEAN_DB = 80.0
"""The SNR of what streams say before the noise of a run is added."""
_SEEDS_APART = 1000  # no two runs share a conversation
_LOG = "generator.log"
_TAIL_BYTES = 4096
_PER_STREAM = frozenset({"vad", "asr"})
"""The programs that keep state for each stream."""


def synthesise(service: ReferenceService, seed: int, corpus: Path) -> None:
    """Write the conversations of a run to the folder `corpus`, others for each seed.

    Raises:
        ModuleNotFoundError: the package with eSpeak NG is not installed.
    """
    length_s = duration_s(service.conversation)
    first = seed * _SEEDS_APART
    seeds = range(first, first + service.conversations)
    spoken = conversations(Request(seed=own, duration_s=length_s, snr_db=_CLEAN_DB) for own in seeds)
    write_corpus(corpus, tuple(spoken))


class SpeechWorkload:
    """Replicas of the reference service, and streams that speak to it; `corpus` is the folder of what they say."""

    ingress = "simulations.speech.serving.ingress"
    generator = "simulations.speech.live.load"

    def __init__(self, service: ReferenceService, corpus: Path) -> None:
        """Take what a scenario says of the service."""
        self._service = service
        self._corpus = corpus

    def program(self, pipeline: PipelineKey, stage: str) -> StageProgram:
        """Return the program of a stage, which the scenario has for each."""
        found = of_stage(self._service.programs, pipeline, stage, None)
        assert found is not None, "a scenario is checked for it"
        return found

    def pod(self, pipeline: PipelineSpec, stage: StageSpec, placement: PlacementSpec) -> Pod:
        """Return a replica of the program of the stage, with the model that the variant names.

        Raises:
            UnsupportedManifest: the stage does not fit its program.
        """
        program, prior = self.program(pipeline.key, stage.name), placement.prior
        at = f"pipeline {pipeline.key}, stage {stage.name}"
        if stage.preset != "generic":
            raise UnsupportedManifest(
                f"{at}: metrics.preset: {stage.preset!r}: must be generic, the service has its metrics"
            )
        if program.program in _PER_STREAM and stage.routing is not Routing.STICKY:
            rule = f"must be Sticky: {program.program} keeps state for each stream"
            raise UnsupportedManifest(f"{at}: routing: {stage.routing.value}: {rule}")
        command = [
            "python",
            "-m",
            "simulations.speech.serving.replica",
            program.program,
            "--share",
            f"{program.share:g}",
        ]
        command += ["--batch-max", str(prior.batch_sizes[-1]), "--batch-wait", f"{prior.batch_wait_s:g}"]
        command += ["--drain", f"{pipeline.scaling.drain_s:g}"]
        if stage.queue_limit is not None:
            command += ["--queue-limit", str(stage.queue_limit)]
        if program.program == "vad":
            command += ["--detector", program.detector or "webrtc"]
        if program.program == "asr":
            command += ["--keep-past"] if program.keeps_past else []
            command += ["--variant", self._variant(at, program, prior.variant)]
        environment = [{"name": name, "value": value} for name, value in ENVIRONMENT.items()]
        container: dict[str, Any] = {"name": "replica", "image": IMAGE, "command": command, "env": environment}
        if program.memory is not None:
            container["resources"] = {"limits": {"memory": program.memory}}
        return Pod(container=container)

    @staticmethod
    def _variant(at: str, program: StageProgram, variant: str | None) -> str:
        name = program.variant or variant
        if name is None or name not in VARIANTS:
            known = ", ".join(VARIANTS)
            raise UnsupportedManifest(f"{at}: variant: {name!r}: must be one of {known}, or the scenario names one")
        return name

    def topology(self, topology: PipelineTopology) -> PipelineTopology:
        """Return the pipeline as the service answers: it filters chunks itself, and recognition holds a slot."""
        key = PipelineKey(f"{topology.namespace}/{topology.name}")
        stages = tuple(
            replace(
                stage,
                pass_ratio=1.0,
                memory=self.program(key, stage.name).program == "asr",
                placements=tuple(replace(placement, weight=1.0) for placement in stage.placements),
            )
            for stage in topology.stages
        )
        return replace(topology, stages=stages, carries_state=self._service.carries_state)

    def generator_config(self, config: GeneratorConfig) -> str:
        """Return the configuration of the load of speech."""
        return SpeechConfig(streams=config, corpus=self._corpus, snr_db=tuple(self._service.snr_db)).to_json()

    def news(self, folder: Path) -> Sequence[str]:
        """Return the words of one stream that were heard last."""
        try:
            with (folder / _LOG).open("rb") as log:
                log.seek(max(0, log.seek(0, 2) - _TAIL_BYTES))
                lines = log.read().decode(errors="replace").splitlines()[1:]
        except FileNotFoundError:
            return ()
        return [_words(line) for line in lines if line.startswith('{"event": "words"')][-1:]


def _words(line: str) -> str:
    said = json.loads(line)
    text = " ".join(said["words"])
    return f"one stream, by {said['variant']}: {text}{'.' if said['final'] else ' …'}"
