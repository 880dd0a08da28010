"""`sluice backtest`: replays recorded load, with Sluice's decisions and with the replicas that ran."""

import json
import os
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from controller.commands.connections import Prometheus, cluster_options
from controller.commands.findings import refused
from controller.commands.help_page import examples
from simulations.commands.simulate import REPORT, check_writable, experiment_of, progress_bar, write_report

if TYPE_CHECKING:
    from controller.core.state.spec import PipelineSpec, PoolSpec
    from optimizer.model import PipelineKey, PoolName
    from profiler.sources.prometheus_api import Period
    from simulations.backtest.comparison import Comparison, Served
    from simulations.backtest.pieces import Piece
    from simulations.backtest.record import PipelineRecord
    from simulations.results.results import RunResult

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_LONGEST_S = 366 * _UNITS["d"]
_DEADLINE_S = 300.0
_SEED = 1
RESULTS = "backtest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subjects:
    """The pipelines to replay, with learned numbers, their pools, and the resources as they were written."""

    specs: Mapping["PipelineKey", "PipelineSpec"]
    pools: Mapping["PoolName", "PoolSpec"]
    documents: Sequence[Mapping[str, Any]]
    instances: Mapping["PoolName", int]


def _seconds(_: click.Context, option: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    if not re.fullmatch(r"([0-9]+[smhdw])+", text):
        raise click.BadParameter(f"{text!r}: must be a time such as 90m, 36h or 7d.", param=option)
    return sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"([0-9]+)([smhdw])", text))


@click.command(
    short_help="Replay recorded load",
    epilog=examples("sluice backtest --cluster --prometheus-url http://localhost:9090 --since 3d"),
)
@click.argument("files", nargs=-1, metavar="[FILE]...", type=_FILE)
@click.option("--cluster", is_flag=True, help="Take the SpeechPipelines and ComputePools of the cluster.")
@click.option(
    "--pipeline",
    "names",
    multiple=True,
    metavar="NAMESPACE/NAME",
    help="Replay this pipeline only; may be repeated. Default: all, together.",
)
@click.option(
    "--since", callback=_seconds, default="7d", show_default=True, metavar="TIME", help="Length of the period, to now."
)
@click.option(
    "--step",
    "step_s",
    callback=_seconds,
    default="1m",
    show_default=True,
    metavar="TIME",
    help="Time between two values that are read of the record. A shorter step shows shorter bursts.",
)
@click.option(
    "--session",
    "session_s",
    callback=_seconds,
    metavar="TIME",
    help="Mean length of a stream, such as 8m: the record does not have it. Required where streams are sticky.",
)
@click.option(
    "--instances",
    "limits",
    multiple=True,
    metavar="POOL=N",
    help="Number of instances of a pool, instead of its spec.capacity.instances.",
)
@click.option(
    "--learned",
    "learned_files",
    type=_FILE,
    multiple=True,
    metavar="FILE",
    help="Measured numbers for placements that do not declare them: the output of `sluice explain -o json`. Repeat it "
    "for every pipeline.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help=f"Folder for {REPORT} and {RESULTS}; folders inside have the scenario and the report of each part.",
)
@cluster_options
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="Format of the output.",
)
def backtest(
    files: tuple[Path, ...],
    *,
    cluster: bool,
    since: int,
    step_s: int,
    session_s: int | None,
    out: Path | None,
    kubeconfig: Path | None,
    prometheus: Prometheus | None,
    output: str,
    **of_subjects: tuple[Any, ...],
) -> None:
    """Replay the load that Prometheus has recorded of the pipelines in manifest FILEs, or of those in the cluster.

    Shows what Sluice would have cost and how often it would have met the SLA, against the replicas that ran. Changes
    nothing. Exit status: 0 done; 1 there is no record, or it cannot be replayed; 2 wrong usage.
    """
    from profiler.sources.prometheus_api import Period
    from simulations.backtest.record import NoRecord

    if bool(files) is cluster:
        raise click.UsageError("name FILEs to replay, or use --cluster, and not both")
    if prometheus is None:
        raise click.UsageError("--prometheus-url is required: the record is read from it")
    if not 1 <= step_s <= 600 or since < 2 * step_s:
        raise click.UsageError("--step must be from 1s to 10m, and at most half of --since")
    if since > _LONGEST_S:
        raise click.UsageError(f"--since must be at most {_LONGEST_S // _UNITS['d']}d")
    if out is not None:
        check_writable(out)
    with ExitStack() as parts:
        temporary = Path(parts.enter_context(tempfile.TemporaryDirectory()))
        if cluster:
            from controller.commands.cluster_manifests import write_manifests

            files = (temporary / "cluster.yaml",)
            write_manifests(kubeconfig, files[0])
        subjects = _subjects(files, **of_subjects)
        _require_session(subjects, session_s)
        last_s = int(time.time()) // step_s * step_s
        period = Period(start_s=last_s - since // step_s * step_s, step_s=step_s, count=since // step_s)
        try:
            records = _records(prometheus, subjects, period)
            replay = _Replay(subjects=subjects, records=records, period=period, session_s=session_s)
            replay.run(out or temporary, kept=out is not None, output=output)
        except NoRecord as error:
            raise click.ClickException(str(error)) from None


def _subjects(
    files: tuple[Path, ...], *, names: tuple[str, ...], limits: tuple[str, ...], learned_files: tuple[Path, ...]
) -> _Subjects:
    """Return what the files have, as the options of these names say."""
    from controller.commands.plan_request import (
        instances_of,
        missing_numbers,
        read_learned_files,
        specs_of,
        unknown_name,
    )
    from controller.core.state.learned import with_learned
    from controller.resources.manifests import load_documents
    from controller.resources.validation import MODELS, validate_files

    checked = validate_files(files)
    if checked.findings:
        raise refused(checked.findings)
    specs, pools = specs_of(checked)
    for name in names:
        if name not in specs:
            raise unknown_name("--pipeline", name, specs)
    chosen = [not names or key in names for key in specs]
    checked = replace(
        checked,
        pipelines=tuple(one for one, keep in zip(checked.pipelines, chosen, strict=True) if keep),
        pipeline_documents=tuple(one for one, keep in zip(checked.pipeline_documents, chosen, strict=True) if keep),
    )
    specs = {key: spec for (key, spec), keep in zip(specs.items(), chosen, strict=True) if keep}
    learned = read_learned_files(learned_files, specs)
    if missing := missing_numbers(checked, specs, learned):
        raise refused(missing)
    if not specs:
        raise click.UsageError("FILE...: there is no SpeechPipeline in these files")
    pool_documents = [
        document.data
        for file in files
        for document in load_documents(file)
        if document.data.get("kind") in MODELS and document.data["kind"] == "ComputePool"
    ]
    return _Subjects(
        specs={key: with_learned(spec, learned.get(key, {})) for key, spec in specs.items()},
        pools=pools,
        documents=[*(document.data for document in checked.pipeline_documents), *pool_documents],
        instances=instances_of(specs, pools, limits),
    )


def _records(prometheus: Prometheus, subjects: _Subjects, period: "Period") -> list["PipelineRecord"]:
    from profiler.sources.prometheus_api import PrometheusApi
    from simulations.backtest.record import queries, record

    with closing(PrometheusApi(prometheus.url, prometheus.access)) as api:
        results = api.ask_ranges(queries(subjects.specs.values()), period, _DEADLINE_S)
    return [record(spec, results, period) for spec in subjects.specs.values()]


def _require_session(subjects: _Subjects, session_s: int | None) -> None:
    from simulations.backtest.pieces import without_session

    if session_s == 0:
        raise click.UsageError("--session: must be above 0")
    if session_s is None and (sticky := without_session(subjects.specs.values())):
        raise click.UsageError(
            f"--session: {', '.join(sticky)}: streams stay on a replica as long as they last, and the record does not "
            "say how long: give their mean length (--session 8m)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Replay:
    """The replay of the records of all pipelines; `session_s` is the mean length of a stream."""

    subjects: _Subjects
    records: Sequence["PipelineRecord"]
    period: "Period"
    session_s: int | None

    def run(self, folder: Path, *, kept: bool, output: str) -> None:
        """Replay all pieces of the record, print the comparison, and write the reports into `folder` if `kept`."""
        import numpy as np

        from simulations.backtest.comparison import comparison, document, served
        from simulations.backtest.notes import notes_of
        from simulations.backtest.page import index
        from simulations.backtest.pieces import SHORTEST_S, documents_of, pieces, requests_per_s, write_scenario
        from simulations.backtest.record import NoRecord

        subjects, records, period = self.subjects, self.records, self.period
        known = np.all([record.known for record in records], axis=0)
        found = pieces(known, requests_per_s(records), period.step_s)
        notes = notes_of(records, subjects.pools, subjects.instances, found, period, session_s=self.session_s)
        if not found:
            reasons = "; ".join(notes.gaps) or "the period is too short"
            raise NoRecord(f"no part of the record is complete for {SHORTEST_S // 60} min: {reasons}")
        documents = documents_of(subjects.documents, subjects.specs, subjects.instances)
        results: list[RunResult] = []
        with progress_bar(len(found)) as step:
            for number, piece in enumerate(found, start=1):
                place = folder / str(number)
                path = write_scenario(place, piece, records, documents, period, session_s=self.session_s)
                results += _run(path, records, piece, period, report=place if kept else None)
                step()
        compared = [comparison(record, subjects.pools, found, results, period) for record in records]
        steps = sum(piece.end - piece.scored for piece in found)
        users = served(results, len(found))
        answer = document(compared, notes.all(), period, steps)
        if output == "json":
            click.echo(json.dumps(answer, indent=2, allow_nan=False))
        else:
            _print(compared, users, notes.all(), period, steps)
        if kept:
            (folder / RESULTS).write_text(json.dumps(answer, indent=1, allow_nan=False) + "\n")
            (folder / REPORT).write_text(index(compared, users, notes.all(), found, period))
            click.echo(f"report: {(folder / REPORT).resolve()}", err=output == "json")


def _run(
    path: Path, records: Sequence["PipelineRecord"], piece: "Piece", period: "Period", *, report: Path | None
) -> "tuple[RunResult, ...]":
    from simulations.backtest.pieces import recorded_settings
    from simulations.cluster.refusals import check_simulated
    from simulations.experiment.experiment import SLUICE, RunRequest, run_all
    from simulations.policies.recorded import RECORDED
    from simulations.scenario.scenario import InvalidScenario, load_scenario

    try:
        scenario = load_scenario(path)
        check_simulated(scenario, what_ifs=(), seeds=(_SEED,))
    except InvalidScenario as error:
        lines = [": ".join(filter(None, [each.field, each.value, each.rule])) for each in error.findings]
        raise click.ClickException("cannot be replayed:\n" + "\n".join(lines)) from None
    requests = [RunRequest(policy=SLUICE, seed=_SEED)]
    settings = recorded_settings(records, piece, period.step_s)
    if settings is not None:
        requests.append(RunRequest(policy=RECORDED, seed=_SEED, settings=settings))
    results = run_all(scenario, requests, jobs=min(len(requests), len(os.sched_getaffinity(0))))
    if report is not None:
        command = click.get_current_context().command_path.split()
        experiment = experiment_of(scenario, results, (), command=(*command, "…"), seeds=(_SEED,))
        write_report(experiment, scenario, report)
    return results


def _print(
    compared: Sequence["Comparison"], users: Sequence["Served"], notes: Sequence[str], period: "Period", steps: int
) -> None:
    from controller.commands.terminal import Page
    from simulations.backtest.comparison import COLUMNS, head, rows, sentences

    page = Page()
    for each in users:
        page.say(each.sentence(), style="bold")
    page.say()
    for one in compared:
        page.say(head(one, period, steps), style="bold")
        page.table(COLUMNS, rows(one))
        for sentence in sentences(one):
            page.say(sentence)
        page.say()
    for note in notes:
        page.say(f"note: {note}")
