"""The report's sections about accuracy (seeds, live runs, theory), and about how to repeat the experiment."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from controller.core.messages.phrases import duration
from controller.html import Markup, element
from simulations.report import fidelity
from simulations.report.facts import Facts
from simulations.report.fidelity import Fidelity
from simulations.report.table import table
from simulations.results.results import Experiment

_WORKERS = "The workers run no models: each batch takes as long as its profile says."


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """Facts about a live run that its report shows: Kubernetes version, cost (USD) of a static peak, lag in seconds.

    `generator_lag_p99_s` is how late the load generator was; above `max_lag_s` the run is invalid. `facts` are those
    about servers that are not the lab's own workers. `simulated` has a row, under `SIMULATED`, for each entrant of a
    race: how far its simulated runs are off.
    """

    kubernetes: str
    static_peak_cost: float | None
    generator_lag_p99_s: float
    max_lag_s: float
    facts: Facts | None = None
    simulated: tuple[tuple[str, ...], ...] = ()


SIMULATED = ("entrant", ">cost", ">users as promised", ">windows in SLA", ">replicas off", ">live later by")
"""The columns of the comparison of simulated with live runs."""


def trust(experiment: Experiment, error_bar: Fidelity | None, live: Live | None) -> Markup:
    """Return the section about accuracy: over seeds, against live runs and against theory.

    For a live run it describes the measurement instead.
    """
    if live is not None:
        late = live.generator_lag_p99_s > live.max_lag_s
        servers = _WORKERS if live.facts is None else live.facts.servers
        lag = f"The load generator was late by {duration(live.generator_lag_p99_s)} (p99)"
        verdict = (
            f". At most {duration(live.max_lag_s)} is allowed: the run is invalid."
            if late
            else f". At most {duration(live.max_lag_s)} is allowed."
        )
        return Markup.of(
            element("p", lag + verdict, class_="alarm" if late else None),
            element(
                "p",
                "These numbers are not simulated, so there are no self-checks of the simulator. Latencies were "
                f"measured between real sockets, and cost follows from the observed replicas. {servers} "
                + ("Another race differs." if len(experiment.runs()) > 1 else "This is one run; another run differs."),
            ),
            live.simulated and element("h3", "The simulator on the same loads"),
            live.simulated and table(SIMULATED, live.simulated, label="Simulated minus live"),
        )
    blocks: list[Markup] = []
    if len(experiment.seeds) > 1:
        blocks.append(
            element(
                "p",
                f"Numbers are means over {len(experiment.seeds)} seeds, shown with the lowest and the highest. "
                "All policies get the same loads.",
            )
        )
    blocks += [
        element("h3", "Against a live cluster"),
        element("p", fidelity.words(error_bar), error_bar and Markup.of(" ", element("code", error_bar.command))),
        element("h3", "Against theory"),
        element("p", "Before every experiment the simulator is checked on queues with a known solution."),
        _self_checks(experiment) if experiment.self_checks else element("p", "No self-check was run.", class_="alarm"),
    ]
    return Markup.of(blocks)


def _self_checks(experiment: Experiment) -> Markup:
    return table(
        ("", "check", ">theory", ">simulated", ">confidence interval"),
        (
            (
                element("span", "✓ agrees", class_="good") if check.ok else element("strong", "✕ FAILED", class_="bad"),
                check.name,
                f"{check.expected:.4g}",
                f"{check.simulated:.4g}",
                f"± {check.half_width:.2g}",
            )
            for check in experiment.self_checks
        ),
        label="Self-checks",
    )


def again(experiment: Experiment) -> Markup:
    """Return the section with the command, seeds, versions and files that are needed to repeat the experiment."""
    made = experiment.provenance
    return Markup.of(
        element("p", "The same command with the same files and versions gives the same numbers."),
        element("pre", element("code", shlex.join(made.command)), tabindex=0),
        element("p", f"Seeds: {', '.join(map(str, experiment.seeds))}."),
        _named_table(("package", "version"), made.versions, label="Versions"),
        _named_table(("file", "SHA-256"), made.sha256, label="Files"),
    )


def _named_table(columns: tuple[str, str], rows: Mapping[str, str], *, label: str) -> Markup:
    return table(columns, ((name, element("code", value)) for name, value in rows.items()), label=label)
