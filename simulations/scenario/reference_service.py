"""The reference service in scenario files: what its replicas compute, and what they hear."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import Field

from controller.resources.base import Breach, Constraint, ListMap, Part, constraint
from controller.resources.fields import Duration, MemoryQuantity, PositiveDuration, duration_s
from simulations.results.scoring import Interval
from simulations.scenario.values import Decibels, PositiveShare


class StageProgram(Part):
    """What each replica of a stage computes, as a process."""

    stage: str
    """The stage, NAME or PIPELINE/NAME."""
    program: Literal["vad", "asr", "rescore"]
    """Voice activity, recognition, or rescoring of finished utterances."""
    detector: Literal["webrtc", "silero"] | None = None
    """The detector of `vad`: webrtc is cheap and lets noise pass, silero is dear and does not. Default: webrtc."""
    variant: Literal["tiny", "small", "large"] | None = None
    """The variant of the model of `asr`. Default: the name of the variant in the manifest."""
    share: PositiveShare = 1.0
    """The share of a core that a replica has."""
    memory: MemoryQuantity | None = None
    """The memory that a replica may have, such as 120Mi; one with more is killed. Default: no limit."""
    keeps_past: bool = False
    """Whether sessions of `asr` grow for as long as they last, as for a second pass over all that was said. Otherwise
    their memory is bounded."""

    constraints = (
        constraint(
            holds=lambda self: self.program == "vad" or self.detector is None,
            cel=None,
            rule="must be absent: only vad has a detector",
            field="detector",
        ),
        constraint(
            holds=lambda self: self.program == "asr" or self.variant is None,
            cel=None,
            rule="must be absent: only asr has variants",
            field="variant",
        ),
        constraint(
            holds=lambda self: self.program == "asr" or not self.keeps_past,
            cel=None,
            rule="must be absent: only sessions of asr can grow",
            field="keepsPast",
        ),
    )


class Noise(Part):
    """The noise from a time on."""

    at: Duration
    """When it begins, from the start of the run."""
    snr: Decibels
    """Power of speech over that of noise, in dB."""


def _noise_in_order(service: Any) -> Iterator[Breach]:
    at_s = [duration_s(noise.at) for noise in service.noise]
    if at_s and at_s[0] > 0:
        yield Breach(path=("noise", 0, "at"), rule="must be 0s: there is always some noise")
    for index, (before_s, own_s) in enumerate(pairwise(at_s), start=1):
        if own_s <= before_s:
            yield Breach(path=("noise", index, "at"), rule="must be later than that of the entry before")


class ReferenceService(Part):
    """The reference service: synthesised conversations, recognised by real computation.

    Its word error rates are those of a closed domain of about a hundred words: they show changes of the service, and
    say nothing of other speech.
    """

    stages: Annotated[list[StageProgram], ListMap(key="stage")] = Field(min_length=1)
    """The program of each stage."""
    noise: list[Noise] = Field(min_length=1)
    """The noise over time."""
    conversations: Annotated[int, Field(ge=1, le=1000)] = 12
    """How many conversations there are; each stream says one, over again from its beginning."""
    conversation: PositiveDuration = "30s"
    """The length of each."""
    carries_state: bool = True
    """Whether a stream that moves to another replica takes its state along, if the ingress `handsOver`. Otherwise it
    begins there without any."""

    constraints = (Constraint(find=_noise_in_order, cel=None, rule=""),)

    @property
    def programs(self) -> Mapping[str, StageProgram]:
        """Return the programs by stage, NAME or PIPELINE/NAME."""
        return {own.stage: own for own in self.stages}

    def noise_until(self, end_s: float) -> Sequence[tuple[Interval, float]]:
        """Return the times of one noise each, up to `end_s` seconds, with the SNR in dB."""
        steps = self.snr_db
        ends_s = [*(at_s for at_s, _ in steps[1:]), end_s]
        return [
            (Interval(from_s=from_s, until_s=until_s), snr_db)
            for (from_s, snr_db), until_s in zip(steps, ends_s, strict=True)
        ]

    @property
    def snr_db(self) -> Sequence[tuple[float, float]]:
        """Return the times in seconds, from 0, and the SNR in dB from each on."""
        return [(duration_s(noise.at), noise.snr) for noise in self.noise]
