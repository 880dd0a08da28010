"""Why the SLA was missed: the causes that the decisions of a run named, one row for each episode of a cause."""

from collections.abc import Iterator, Sequence

from controller.core.messages.diagnosis import TITLES, certain_words, cost_words
from controller.core.state.diagnosis import Cause
from controller.html import Markup, element
from simulations.report import formats
from simulations.report.table import table
from simulations.results.diagnoses import JOINED_CYCLES, Episode
from simulations.results.results import Run

_COLUMNS = ("#from – to", "cause", "form", "stage", "highest confidence", "evidence", "what would help")


def diagnosis(runs: Sequence[Run], names: Sequence[str]) -> Markup | None:
    """Return the content of the section, the first run with its first seed unfolded; None where nothing was diagnosed.

    `names` has the name of each of `runs` as text.
    """
    found = [
        (f"{name}, seed {result.seed}", result.diagnosis)
        for run, name in zip(runs, names, strict=True)
        for result in run.results
    ]
    if not any(told for _, told in found):
        return None
    (first, told), *others = found
    return Markup.of(
        element(
            "p",
            "Each row is an episode: the time in which the decisions named a cause at a stage. Gaps of up to "
            f"{JOINED_CYCLES} cycles are joined. Form, evidence and what would help are those at the highest "
            "confidence.",
        ),
        element("p", f"Shown is {first}; the other runs are below.") if any(told for _, told in others) else None,
        list(_tables(told, first)) or element("p", f"Nothing was diagnosed with {first}."),
        [
            element(
                "details",
                element("summary", element("b", name), f" · {formats.plural(len(told), 'episode')}"),
                list(_tables(told, name)),
            )
            for name, told in others
            if told
        ],
    )


def _tables(told: Sequence[Episode], name: str) -> Iterator[Markup]:
    """Yield a table for each pipeline, with its name above it where there are several."""
    pipelines = sorted({episode.pipeline for episode in told})
    for pipeline in pipelines:
        if len(pipelines) > 1:
            yield element("h3", pipeline)
        rows = (_row(episode) for episode in told if episode.pipeline == pipeline)
        label = f"Causes of a missed SLA of {pipeline}: {name}"
        yield element("div", table(_COLUMNS, rows, label=label), class_="causes")


def _row(episode: Episode) -> tuple[object, ...]:
    named = episode.named
    return (
        f"{formats.clock(episode.from_s)} – {formats.clock(episode.until_s)}",
        Markup.of(TITLES[Cause(named.cause)], element("small", named.cause, class_="seeds")),
        named.because or formats.MISSING,
        named.stage or formats.MISSING,
        certain_words(named.confidence),
        element("ul", [element("li", sentence) for sentence in named.evidence]),
        f"{named.remedy}{cost_words(named.cost_per_hour)}",
    )
