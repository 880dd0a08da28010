"""How far to trust the numbers: seeds, live runs, theory; and all that it takes to repeat them."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from controller.core.messages.phrases import duration
from simulations.report import fidelity
from simulations.report.fidelity import Fidelity
from simulations.report.html import Markup, element
from simulations.report.table import table
from simulations.results.results import Experiment


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """What a report says of a live run beside its numbers."""

    kubernetes: str
    static_peak_cost: float | None
    generator_lag_p99_s: float
    max_lag_s: float


def trust(experiment: Experiment, error_bar: Fidelity | None, live: Live | None) -> Markup:
    """Return how far the numbers hold: over seeds, against live runs, against theory."""
    if live is not None:
        late = live.generator_lag_p99_s > live.max_lag_s
        lag = f"The load generator was late by {duration(live.generator_lag_p99_s)} (p99)"
        verdict = (
            f", more than the {duration(live.max_lag_s)} that may be: the run is invalid."
            if late
            else ", as it should be."
        )
        return Markup.of(
            element("p", lag + verdict, class_="alarm" if late else None),
            element(
                "p",
                "Nothing here was simulated, so there are no self-checks of the simulator to show: latencies were "
                "measured between real sockets, and money follows from the replicas that were seen. Workers stand in "
                "for the models and take as long as their profiles say. It is one run; another one differs.",
            ),
        )
    blocks: list[Markup] = []
    if len(experiment.seeds) > 1:
        blocks.append(
            element(
                "p",
                f"Numbers are means over {len(experiment.seeds)} seeds, the lowest and the highest beside them. "
                "All policies get the same loads.",
            )
        )
    blocks += [
        element("h3", "Against a live cluster"),
        element("p", fidelity.words(error_bar), error_bar and Markup.of(" ", element("code", error_bar.command))),
        element("h3", "Against theory"),
        element("p", "Before every experiment the simulator is tried on queues whose answer is known."),
        _self_checks(experiment) if experiment.self_checks else element("p", "No self-check was made.", class_="alarm"),
    ]
    return Markup.of(blocks)


def _self_checks(experiment: Experiment) -> Markup:
    return table(
        ("", "check", ">theory says", ">simulated", ">confidence interval"),
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
    """Return all that it takes to repeat the experiment."""
    made = experiment.provenance
    return Markup.of(
        element("p", "The same command with the same files and versions gives the same numbers."),
        element("pre", element("code", shlex.join(made.command)), tabindex=0),
        element("p", f"Seeds: {', '.join(map(str, experiment.seeds))}."),
        _named_table(("what", "version"), made.versions, label="Versions"),
        _named_table(("file", "SHA-256"), made.sha256, label="Files"),
    )


def _named_table(columns: tuple[str, str], rows: Mapping[str, str], *, label: str) -> Markup:
    return table(columns, ((name, element("code", value)) for name, value in rows.items()), label=label)
