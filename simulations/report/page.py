"""The report as one HTML page: verdict, what to change, how it went, money, other policies, and what was asked last.

A live run has the same page as a simulation.
"""

from collections.abc import Sequence
from importlib.resources import files

from controller.core.messages.diagnosis import SECTION as WHY_MISSED
from controller.html import Markup, element, page
from simulations.report import changes, comparison, conclusions, decision_log, formats, scenario_words, timeline
from simulations.report.chart import Band
from simulations.report.diagnosis import diagnosis
from simulations.report.facts import section as facts_section
from simulations.report.fidelity import Fidelity
from simulations.report.glossary import glossary
from simulations.report.money import money
from simulations.report.scenario_summary import fault_list, scenario_summary
from simulations.report.trust import Live, again, trust
from simulations.results.results import BoundResult, Experiment, Run, RunResult
from simulations.results.users import promise_kept
from simulations.scenario.scenario import Scenario


def render(
    experiment: Experiment,
    scenario: Scenario,
    *,
    error_bar: Fidelity | None,
    live: Live | None = None,
    peak: changes.Peak | None = None,
) -> str:
    """Return the report of `experiment`, which ran `scenario`; the same arguments give the same bytes.

    `error_bar` is the measured difference between simulated and live numbers, None where it was not measured. `live`
    has the facts about a live run, and is None for a simulation. `peak` is the plan for the highest load
    (`changes.peak_of`); None: the report has no shadow prices.
    """
    title = f"{experiment.scenario} · Sluice {'live run' if live else 'simulation'}"
    run = conclusions.subject(experiment)
    today = conclusions.today_of(experiment, run, live.static_peak_cost if live else None)
    sections = [
        ("found", "Verdict", _verdict(experiment, today)),
        ("changes", "What to change, and what it is worth", _changes(experiment, scenario, today, peak)),
        ("time", "How it went", _over_time(experiment, scenario, unfolded=live is not None)),
        ("why", WHY_MISSED, _why_missed(experiment, run)),
        *([("facts", live.facts.title, facts_section(live.facts))] if live and live.facts else []),
        ("money", "Where the money went", money(run)),
        ("policies", "Policies compared", _policies(experiment)),
        ("what-ifs", "What if", _what_ifs(experiment, scenario)),
        ("trust", "Accuracy", Markup.of(trust(experiment, error_bar, live), changes.sensitivity_list(peak))),
        ("asked", "What was asked", scenario_summary(scenario, experiment.seeds, experiment.notes)),
        ("again", "How to repeat it", again(experiment)),
        ("words", "Glossary", glossary()),
    ]
    filled = [section for section in sections if section[2]]
    body = Markup.of(
        element("a", "Skip to the verdict", href="#found", class_="skip"),
        element(
            "header",
            element("p", "Sluice · compute for speech pipelines", class_="brand"),
            element("h1", experiment.scenario),
            element("p", _subtitle(experiment, scenario, live), class_="lead"),
            None
            if experiment.trustworthy
            else element(
                "p",
                "✕ A self-check of the simulator failed: do not rely on these numbers. ",
                element("a", "See which one", href="#trust"),
                class_="alarm",
                role="alert",
            ),
            element(
                "nav",
                element("ul", [element("li", element("a", name, href=f"#{key}")) for key, name, _ in filled]),
                aria_label="Sections",
            ),
        ),
        element(
            "main",
            [
                element(
                    "section", element("h2", name, id=f"{key}-title"), content, id=key, aria_labelledby=f"{key}-title"
                )
                for key, name, content in filled
            ],
        ),
    )
    return page(title, body, style=asset("style.css"), script=asset("script.js"))


def _subtitle(experiment: Experiment, scenario: Scenario, live: Live | None) -> str:
    clock = scenario.file.clock
    length = formats.span(clock.duration_s)
    if live is not None and len(experiment.runs()) > 1:
        return (
            f"A race of {length}: the same load live on Kubernetes {live.kubernetes} under each of "
            f"{len(experiment.runs())} entrants, {formats.plural(len(experiment.seeds), 'random load')} each."
        )
    if live is not None:
        return f"A live run of {length} on Kubernetes {live.kubernetes}: real queues and batches behind real sockets."
    runs = experiment.runs()
    policies = len({run.policy for run in runs})
    others = len([what_if for what_if in experiment.what_ifs if what_if is not None])
    return (
        f"A simulation of {length}: {policies} {'policy' if policies == 1 else 'policies'}, "
        f"{formats.plural(len(experiment.seeds), 'random load')}"
        + (f", {formats.plural(others, 'what-if')}" if others else "")
        + ". Sluice decides with the code that runs in a cluster; the cluster and the load are simulated."
    )


def _verdict(experiment: Experiment, today: conclusions.Today | None) -> Markup:
    first, *rest = conclusions.sentences(experiment, today)
    kept = promise_kept(conclusions.subject(experiment).users)
    cards = [
        element(
            "div",
            element("dt", figure.name),
            element("dd", figure.words, class_={True: "good", False: "bad", None: None}[figure.good]),
            element("dd", figure.note, class_="note"),
        )
        for figure in conclusions.figures(experiment, today)
    ]
    return Markup.of(
        element("p", first.replace(" %", "\N{NO-BREAK SPACE}%"), class_=f"first {_TONES[kept]}".strip()),
        element("dl", cards, class_="cards"),
        element("ul", [element("li", sentence) for sentence in rest], class_="findings"),
    )


_TONES = {True: "good", False: "bad", None: ""}


def _changes(
    experiment: Experiment, scenario: Scenario, today: conclusions.Today | None, peak: changes.Peak | None
) -> Markup | None:
    named = {what_if.name: scenario_words.what_if_words(what_if) for what_if in scenario.file.what_if}
    found = changes.changes(
        conclusions.subject(experiment), experiment.runs(), today=today, peak=peak, words=lambda name: named[name]
    )
    return changes.changes_section(list(found))


def _over_time(experiment: Experiment, scenario: Scenario, *, unfolded: bool) -> Markup:
    """Return the charts and decisions of all runs. `unfolded` shows those of all policies above each other."""
    ours = conclusions.subject(experiment)
    bands = scenario_words.bands(scenario)
    others = [run for run in experiment.runs() if run != ours]
    intro = [f"Each value is of one window of {formats.span(scenario.file.clock.window_s)}."]
    if len(ours.results) > 1:
        intro.append(f"Shown is seed {ours.results[0].seed}; the other seeds are below.")
    intro.append("Point at a chart, or focus it and use the arrow keys, to read its values.")
    return Markup.of(
        element("p", " ".join(intro)),
        fault_list(bands),
        element("div", _run(ours.results[0], bands, experiment), id=comparison.anchor(ours)),
        element("h3", "Decisions and their reasons"),
        decision_log.log(ours.results[0].decisions, name=conclusions.label(ours)),
        [
            element(
                "details",
                element("summary", f"{conclusions.label(ours)}, seed {result.seed}"),
                _run(result, bands, experiment),
            )
            for result in ours.results[1:]
        ],
        others and element("h3", "The other runs"),
        others and element("p", f"Each with seed {ours.results[0].seed}: its charts and its decisions."),
        [
            element(
                "details",
                element("summary", _summary(run)),
                _run(run.results[0], bands, experiment),
                decision_log.log(
                    run.results[0].decisions,
                    name=" ".join(filter(None, [conclusions.label(run), run.what_if])),
                    limit=None if run.policy == ours.policy else decision_log.MAX_ENTRIES,
                ),
                id=comparison.anchor(run),
                open=unfolded,
            )
            for run in others
        ],
    )


def _why_missed(experiment: Experiment, ours: Run) -> Markup | None:
    runs = [ours, *(run for run in experiment.runs() if run != ours)]
    names = [conclusions.label(run) + (f", what if: {run.what_if}" if run.what_if is not None else "") for run in runs]
    return diagnosis(runs, names)


def _summary(run: Run) -> Markup:
    under = f" · what if: {run.what_if}" if run.what_if else ""
    numbers = f"{formats.money(run.cost_per_hour)} per hour, {formats.share(run.served_as_promised)} of the users"
    return Markup.of(element("b", conclusions.label(run)), under, " ", element("span", numbers, class_="unit"))


def _run(result: RunResult, bands: Sequence[Band], experiment: Experiment) -> Markup:
    return timeline.charts(result, tuple(bands), _bound_per_hour(result, experiment.bounds))


def _bound_per_hour(result: RunResult, bounds: Sequence[BoundResult]) -> Sequence[float] | None:
    found = [bound for bound in bounds if (bound.what_if, bound.seed) == (result.what_if, result.seed)]
    return found[0].cost_per_hour if found else None


def _policies(experiment: Experiment) -> Markup | None:
    blocks = []
    for what_if in experiment.what_ifs:
        runs = [run for run in experiment.runs() if run.what_if == what_if]
        if len({run.policy for run in runs}) > 1:
            own = next((run for run in runs if run.policy == conclusions.SUBJECT), None)
            blocks.append(
                Markup.of(what_if is not None and element("h3", f"What if: {what_if}"), comparison.policies(runs, own))
            )
    return Markup.of(blocks) if blocks else None


def _what_ifs(experiment: Experiment, scenario: Scenario) -> Markup | None:
    named = {what_if.name: scenario_words.what_if_words(what_if) for what_if in scenario.file.what_if}
    groups: dict[str, list[Run]] = {}
    for run in experiment.runs():
        groups.setdefault(conclusions.label(run), []).append(run)
    several = {name: runs for name, runs in groups.items() if any(run.what_if is not None for run in runs)}
    if not several:
        return None
    return Markup.of(
        element("p", "The same run with other resources or another load, and how its cost and SLA compare."),
        [
            Markup.of(
                len(several) > 1 and element("h3", name),
                comparison.what_ifs(runs, lambda key: "the scenario without changes" if key is None else named[key]),
            )
            for name, runs in several.items()
        ],
    )


def asset(name: str) -> str:
    """Return the text of a file beside this module: the style or the script of the page."""
    return (files("simulations.report") / name).read_text()
