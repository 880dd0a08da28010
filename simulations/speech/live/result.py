"""What a live run of the reference service came to: word errors, voice activity, predictions, cost of a stream."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from optimizer.model import PipelineKey
from simulations.lab.session.report import LabResult
from simulations.lab.session.run import GENERATOR_REPORT, INGRESS_SUMMARY
from simulations.lab.session.view import Moment
from simulations.report import formats
from simulations.report.facts import Facts, Measured
from simulations.results.scoring import Clock
from simulations.scenario.reference_service import ReferenceService
from simulations.speech.live.load import Heard, read_heard
from simulations.speech.serving.client import snr_words

CLOSED_DOMAIN = (
    "Word error rates are of a closed domain of about a hundred words, in synthesised voices: they show changes of "
    "this service, and say nothing of other speech."
)
_SETTLE_S = 15.0
"""How long after a change of the noise pass ratios are not compared: they are learned from a window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the plan in force predicted at a moment of the run: the p95 in seconds, and the pass ratio of a stage."""

    t_s: float
    p95_s: float | None
    pass_ratio: float | None


@dataclass(slots=True)
class Predictions:
    """Keeps the predictions of a run for one pipeline and its stage of voice activity; `follow` takes each moment."""

    pipeline: PipelineKey
    stage: str
    found: list[Prediction] = field(default_factory=list)

    def follow(self, moment: Moment) -> None:
        """Keep what is predicted now."""
        key = str(self.pipeline)
        p95_s = moment.totals.get((key, "sluice_pipeline_planned_latency_seconds"))
        ratio = moment.stages.get((key, self.stage, "sluice_stage_pass_ratio"))
        self.found.append(Prediction(t_s=moment.seen.t_s, p95_s=p95_s, pass_ratio=ratio))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """The word error rate of a variant in one noise, over `words` spoken words."""

    variant: str
    snr: str
    wer: float | None
    words: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A quantity as it was predicted and measured: the p95 of a window in seconds, or a pass ratio."""

    what: str
    predicted: float
    measured: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechResult:
    """What streams heard, and what they cost.

    `wer` is over all words. `cost_per_stream_hour` is in USD. Streams that moved took their state along
    (`moved_carried`), began elsewhere without (`moved_empty`), or were cut; `streams_lost` lost their connection.
    """

    wer: float | None
    tiers: Sequence[Tier]
    p95: Sequence[Compared]
    pass_ratio: Sequence[Compared]
    cost_per_stream_hour: float | None
    streams: int
    streams_lost: int
    moved_carried: int
    moved_empty: int
    sessions_cut: int

    def wer_by_variant(self) -> Mapping[str, float]:
        """Return the word error rate of each variant, over all noise."""
        words: Counter[str] = Counter()
        errors: Counter[str] = Counter()
        for own in self.tiers:
            words[own.variant] += own.words
            errors[own.variant] += round((own.wer or 0.0) * own.words)
        return {variant: errors[variant] / count for variant, count in words.items()}

    def document(self) -> Mapping[str, Any]:
        """Return the fields of the report's `speech`."""
        return {"note": CLOSED_DOMAIN, **asdict(self)}

    def facts(self) -> Facts:
        """Return the section of the HTML page."""
        return Facts(
            title="What was heard",
            sentences=(f"{self._words().capitalize()} {CLOSED_DOMAIN}", self._moves()),
            tables=(
                Measured(
                    label="Word error rate by variant and noise",
                    columns=("#variant", "signal to noise", ">word error rate", ">words"),
                    rows=[(own.variant, own.snr, _share(own.wer), f"{own.words}") for own in self.tiers],
                ),
                Measured(
                    label="Predicted by the plan, and measured",
                    columns=("#quantity", ">predicted", ">measured"),
                    rows=[*self._compared()],
                ),
            ),
            servers="The service times are those of real computation on this machine.",
        )

    def lines(self) -> Iterator[str]:
        """Yield the result as lines of text."""
        yield self._words()
        for own in self.tiers:
            yield f"  {own.variant:6} {own.snr:>6}: {_share(own.wer)} of {own.words} words"
        yield CLOSED_DOMAIN
        for what, predicted, measured in self._compared():
            yield f"{what}: predicted {predicted}, measured {measured}"
        yield self._moves()
        if self.cost_per_stream_hour is not None:
            yield f"cost of a stream: ${self.cost_per_stream_hour:.4f} per hour"

    def _words(self) -> str:
        return f"word error rate {_share(self.wer)} over {formats.plural(self.streams, 'stream')}."

    def _moves(self) -> str:
        return (
            f"{formats.plural(self.moved_carried, 'move')} of streams between replicas with their state,"
            f" {self.moved_empty} without, {self.sessions_cut} cut; {self.streams_lost} streams lost."
        )

    def _compared(self) -> Iterator[tuple[str, str, str]]:
        if self.p95:
            predicted, measured = (
                sum(getattr(own, name) for own in self.p95) / len(self.p95) for name in ("predicted", "measured")
            )
            yield "p95, mean of windows", f"{predicted * 1000:.0f} ms", f"{measured * 1000:.0f} ms"
        for own in self.pass_ratio:
            yield f"pass ratio in {own.what}", f"{own.predicted:.2f}", f"{own.measured:.2f}"


def speech_result(
    folder: Path, result: LabResult, clock: Clock, service: ReferenceService, predictions: Sequence[Prediction]
) -> SpeechResult:
    """Return what a finished run with the times of `clock` came to; `folder` has the reports of load and ingress."""
    heard = read_heard(folder / GENERATOR_REPORT)
    totals = json.loads((folder / INGRESS_SUMMARY).read_text())
    return SpeechResult(
        wer=heard.total.rate,
        tiers=[
            Tier(variant=own.variant, snr=own.snr, wer=own.errors.rate, words=own.errors.words)
            for own in sorted(heard.errors, key=lambda own: (own.variant, own.snr))
            if own.errors.words
        ],
        p95=list(_p95(result, predictions)),
        pass_ratio=list(_pass_ratios(heard, clock, service, predictions)),
        cost_per_stream_hour=_cost_per_stream_hour(result, clock),
        streams=heard.streams,
        streams_lost=heard.streams_lost,
        moved_carried=sum(own["moved_carried"] for own in totals),
        moved_empty=sum(own["moved_empty"] for own in totals),
        sessions_cut=result.summary.sessions_cut,
    )


def _p95(result: LabResult, predictions: Sequence[Prediction]) -> Iterator[Compared]:
    """Yield for each window its measured p95, and the mean of what was predicted in it."""
    ends_s = [own.t_s for own in result.windows[1:]]
    for window, end_s in zip(result.windows, [*ends_s, float("inf")], strict=True):
        said = [own.p95_s for own in predictions if window.t_s <= own.t_s < end_s and own.p95_s is not None]
        if said and window.p95_s is not None:
            yield Compared(what=f"{window.t_s:g} s", predicted=sum(said) / len(said), measured=window.p95_s)


def _pass_ratios(
    heard: Heard, clock: Clock, service: ReferenceService, predictions: Sequence[Prediction]
) -> Iterator[Compared]:
    """Yield for each time of one noise the share that voice activity let pass, and what plans in it had learned."""
    for span, snr_db in service.noise_until(clock.duration_s):
        begins_s, until_s = max(span.from_s, clock.warmup_s) + _SETTLE_S, span.until_s
        said = [own.pass_ratio for own in predictions if begins_s <= own.t_s < until_s and own.pass_ratio is not None]
        counted = [own for own in heard.passed if begins_s <= own.second < until_s]
        answered = sum(own.answered for own in counted)
        if said and answered:
            yield Compared(
                what=f"{snr_words(snr_db)}, {begins_s:g} s to {until_s:g} s",
                predicted=sum(said) / len(said),
                measured=sum(own.passed for own in counted) / answered,
            )


def _cost_per_stream_hour(result: LabResult, clock: Clock) -> float | None:
    """Return the cost in USD of an hour of a stream, over the scored time; None without streams."""
    streams = sum(users.offered for users in result.users)
    hours = (clock.duration_s - clock.warmup_s) / 3600
    return result.summary.cost / (streams * hours) if streams else None


def _share(rate: float | None) -> str:
    return "–" if rate is None else f"{rate:.1%}"
