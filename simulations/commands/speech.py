"""`sluice speech`: the reference service, which recognises real audio, under the operator on the lab."""

from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING

import click

from controller.commands.help_page import examples
from controller.resources.pipeline import SpeechPipeline
from simulations.commands.demo import verdict
from simulations.commands.lab import (
    NEEDS_ESPEAK,
    NEEDS_SPEECH,
    executed,
    options_of,
    read_scenario,
    report_path,
    run_options,
    write_report,
)
from simulations.lab.session.report import LabSummary
from simulations.lab.session.run import max_lag_s

if TYPE_CHECKING:  # the packages are those of an extra
    from simulations.speech.live.result import SpeechResult


@click.group(
    short_help="Run a real speech service under the operator",
    epilog=examples("sluice speech demo", "sluice speech corpus --out corpus"),
)
def speech() -> None:
    """Run a small but real streaming speech service: audio in, words out, on this machine."""


@speech.command(
    short_help="Watch the operator scale it, from 40 streams to 120 and in noise",
    epilog=examples("sluice speech demo", "sluice speech demo --seed 2"),
)
@run_options
def demo(*, seed: int | None, interval: float | None, operator: bool, report: Path | None) -> None:
    """Watch the operator scale real voice activity detection, recognition and rescoring on a real Kubernetes.

    Nothing is declared of service times, start-up and memory. The operator measures the first model and a cheaper one;
    40 streams become 120, noise comes that the detector takes for speech, the budget is cut, and all recovers. Four
    minutes and a half. Exit status 1 if a stream was lost, word errors left the limits that the manifest states, or
    spend was above the budget.
    """
    with as_file(files("simulations.scenarios") / "speech") as folder:
        scenario = read_scenario(folder / "scenario.yaml")
        options = options_of(scenario, seed=seed, operator=operator, interval=interval)
        place = report_path(report, f"speech-{options.seed}")
        with executed(scenario, options) as (finished, _):
            heard = finished.speech
            assert heard is not None, "the scenario has the service"
            for line in (*verdict(finished.result, "Sluice", most_late_s=max_lag_s(scenario)), *heard.lines()):
                click.echo(line)
            failures = broken(finished.result.summary, heard, stated_wer(scenario.pipelines))
            write_report(finished, place)
    for failure in failures:
        click.echo(f"failed: {failure}", err=True)
    if failures:
        raise click.exceptions.Exit(1)


def stated_wer(pipelines: Sequence[SpeechPipeline]) -> dict[str, float]:
    """Return the word error rates that manifests state, by variant."""
    return {
        own.variant: float(own.placement.wer)
        for pipeline in pipelines
        for stage in pipeline.spec.stages
        for _, own in stage.workloads()
        if own.variant is not None and own.placement.wer is not None
    }


def broken(summary: LabSummary, heard: "SpeechResult", ceilings: dict[str, float]) -> list[str]:
    """Return the promises that a run broke, one sentence each; `ceilings` are the word error rates by variant."""
    found = [
        words
        for is_broken, words in (
            (summary.replica_changes == 0, "the operator changed no replicas"),
            (heard.streams_lost > 0, f"{heard.streams_lost} streams were lost"),
            (heard.sessions_cut > 0, f"{heard.sessions_cut} sessions were cut"),
            (summary.cap_violations > 0, f"spend was above the budget {summary.cap_violations} times"),
            (heard.wer is None, "no word was heard"),
        )
        if is_broken
    ]
    for variant, rate in sorted(heard.wer_by_variant().items()):
        ceiling = ceilings.get(variant)
        if ceiling is not None and rate > ceiling:
            above = f"above the {ceiling:.1%} that its manifest states"
            found.append(f"{variant} had a word error rate of {rate:.1%}, {above}")
    return found


@speech.command(
    short_help="Write the conversations of the reference service as files",
    epilog=examples("sluice speech corpus --out corpus", "sluice speech corpus --out corpus --conversations 3 --snr 8"),
)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="Folder for the files.")
@click.option(
    "--conversations",
    type=click.IntRange(1, 1000),
    metavar="N",
    default=12,
    show_default=True,
    help="How many conversations.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(1, 3600),
    metavar="SECONDS",
    default=30.0,
    show_default=True,
    help="Length of each.",
)
@click.option(
    "--snr",
    type=click.FloatRange(-100, 100),
    metavar="N",
    default=30.0,
    show_default=True,
    help="Signal to noise in dB.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    metavar="N",
    default=1,
    show_default=True,
    help="The first seed; each has its own.",
)
def corpus(*, out: Path, conversations: int, seconds: float, snr: float, seed: int) -> None:
    """Synthesise conversations with known words, as WAV with corpus.json: the same bytes each time.

    corpus.json has the words with their times and the intervals with speech. Needs eSpeak NG, as the package
    espeakng-loader.
    """
    try:
        from simulations.speech.audio.corpus import write_corpus
        from simulations.speech.audio.synthesis import Request
        from simulations.speech.audio.synthesis import conversations as synthesised
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{error}; {NEEDS_SPEECH}") from None
    requests = [Request(seed=seed + number, duration_s=seconds, snr_db=snr) for number in range(conversations)]
    try:
        found = tuple(synthesised(requests))
        write_corpus(out, found)
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{error}; {NEEDS_ESPEAK}") from None
    except OSError as error:
        raise click.ClickException(f"{out}: {error.strerror or error}") from None
    words = sum(len(own.words) for own in found)
    activity = sum(own.activity for own in found) / len(found)
    click.echo(f"{conversations} conversations of {seconds:g} s: {words} words, speech in {activity:.0%} of the time")
    click.echo(f"corpus: {out.resolve()}")
