"""The report's section about what was asked: pipelines and SLAs, hardware and prices, load and faults."""

from collections.abc import Sequence

from controller.core.messages.phrases import law_words
from controller.core.state.spec import PipelineSpec
from controller.html import Markup, element
from controller.resources.fields import duration_s
from controller.resources.translate import pipeline_spec, pool_spec
from simulations.report import formats, scenario_words
from simulations.report.chart import Band
from simulations.report.table import table
from simulations.scenario.scenario import Scenario


def scenario_summary(scenario: Scenario, seeds: Sequence[int], notes: Sequence[str] = ()) -> Markup:
    """Return the section about a scenario, for runs with `seeds`; `notes` say what was simulated otherwise."""
    clock = scenario.file.clock
    end = formats.span(clock.duration_s)
    warmup = f"; the first {formats.span(clock.warmup_s)} are not scored" if clock.warmup_s else ""
    bands = scenario_words.bands(scenario)
    interval = scenario.file.interval
    cycles = "" if interval is None else f"Sluice decides every {formats.span(duration_s(interval))}. "
    return Markup.of(
        element(
            "p",
            "An autoscaler chooses how many replicas each stage has, and on which hardware. It is to meet the SLA, "
            "stay within the budget, and cost as little as possible.",
        ),
        [_pipeline(spec) for spec in map(pipeline_spec, scenario.pipelines)],
        element("details", element("summary", "Hardware and prices"), _pools(scenario)),
        element("h3", "Load"),
        element("ul", [element("li", scenario_words.load_words(load)) for load in scenario.file.load]),
        element(
            "p",
            f"It runs for {end}{warmup}. The SLA is checked in windows of {formats.span(clock.window_s)}. {cycles}"
            f"Seeds: {', '.join(map(str, seeds))}.",
        ),
        element("h3", "Faults"),
        fault_list(bands) or element("p", "None."),
        notes and element("h3", "Simulated otherwise than written"),
        notes and element("ul", [element("li", note) for note in notes]),
    )


def _pipeline(spec: PipelineSpec) -> Markup:
    return Markup.of(
        element("h3", "Pipeline ", element("code", str(spec.key))),
        element("p", scenario_words.path_of_an_item(spec), class_="path"),
        element("p", f"{scenario_words.sla_and_budget(spec)}; {scenario_words.item(spec)}."),
        element(
            "details",
            element("summary", "Stages and their possible placements"),
            table(
                (
                    "stage",
                    "pool",
                    ">replicas",
                    ">replicas per instance",
                    ">service time of a batch of b",
                    ">largest batch",
                    ">start-up",
                ),
                (
                    (
                        stage.name,
                        placement.pool,
                        f"{placement.prior.min_replicas} to {placement.prior.max_replicas}",
                        str(placement.prior.per_instance),
                        law_words(placement.prior.service),
                        str(max(placement.prior.batch_sizes)),
                        formats.span(placement.startup_s),
                    )
                    for stage in spec.stages
                    for placement in stage.placements
                ),
                label=f"Stages of {spec.key}",
            ),
        ),
    )


def _pools(scenario: Scenario) -> Markup:
    return table(
        ("pool", ">USD per instance and hour", ">instances"),
        (
            (
                pool.name,
                formats.money(pool.price_per_hour),
                "all nodes of the pool" if pool.instances is None else str(pool.instances),
            )
            for pool in map(pool_spec, scenario.pools)
        ),
        label="Pools",
    )


def fault_list(bands: Sequence[Band]) -> Markup | None:
    """Return the list of faults, each with the letter that marks the fault in charts; None without faults."""
    if not bands:
        return None
    return element(
        "ul",
        [element("li", element("b", band.letter, class_="letter"), f" {_when(band)}: {band.words}") for band in bands],
        class_="faults",
    )


def _when(band: Band) -> str:
    began, ended = formats.clock(band.from_s), formats.clock(band.until_s)
    return f"from {began} to {ended}" if band.until_s > band.from_s else f"at {began}"
