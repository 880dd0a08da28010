"""The curve as a person and a program read it: corners made by hand."""

from dataclasses import replace

import pytest
from builders import a_placement, a_spec, a_stage
from problems import pools

from controller.commands.frontier_output import document, print_frontier
from controller.commands.plan_request import PlanRequest
from controller.core.assess.optimizer_input import optimizer_pipeline
from optimizer.model import PipelineKey, PoolName, Problem, StageName
from optimizer.plan import PlacementPlan
from optimizer.reports.curve import Corner, Frontier

KEY = PipelineKey("speech/captions")


def a_corner(latency_s: float, cost: float, replicas: int) -> Corner:
    gpus = PlacementPlan(name=PoolName("gpu"), replicas=replicas, batch=1)
    return Corner(latency_s=latency_s, cost_per_hour=cost, placements=((StageName("decoder"), (gpus,)),))


CURVE = Frontier(
    corners=(
        a_corner(0.5, 8.0, 8),
        a_corner(0.498, 8.5, 9),  # too near to the one before to be worth a line
        a_corner(0.402, 9.0, 10),
        a_corner(0.399, 9.5, 11),  # as near, but the first within the SLA
        a_corner(0.3, 10.0, 12),
        a_corner(0.2, 11.0, 13),
    ),
    thinned=False,
)


def a_request() -> PlanRequest:
    spec = a_spec(a_stage("decoder", a_placement("gpu")), sla_s=0.4, budget=10.0)
    problem = Problem(pipelines=(optimizer_pipeline(spec, 50.0),), pools=pools(gpu=(1.0, 20)))
    return PlanRequest(specs={KEY: spec}, demands={KEY: 50.0}, problem=problem)


def test_the_lines_show_what_a_step_buys_and_where_sla_and_budget_fall(capsys: pytest.CaptureFixture[str]) -> None:
    print_frontier(CURVE, a_request(), KEY)
    lines = capsys.readouterr().out.splitlines()
    cells = [tuple(cell.strip() for cell in line.split("  ") if cell.strip()) for line in lines[2:7]]
    assert cells == [
        ("500 ms", "$8.00/h", "decoder 8 gpu"),
        ("402 ms", "$9.00/h", "−98 ms for $1.00/h", "decoder 10 gpu"),
        ("399 ms", "$9.50/h", "−3 ms for $0.50/h", "decoder 11 gpu", "SLA met"),
        ("300 ms", "$10.00/h", "−99 ms for $0.50/h", "decoder 12 gpu", "SLA met"),
        ("200 ms", "$11.00/h", "−100 ms for $1.00/h", "decoder 13 gpu", "over budget"),
    ]
    assert lines[7].startswith("corners less than 2% faster than the line above are left out")
    assert lines[8:] == ["the SLA of 400 ms costs $9.50/h", "best latency for $10.00/h: 300 ms"]


def test_an_sla_or_a_budget_outside_the_curve_is_said_to_be_so(capsys: pytest.CaptureFixture[str]) -> None:
    outside = replace(CURVE, corners=CURVE.corners[:1], thinned=False)
    request = a_request()
    spec = replace(request.specs[KEY], budget_per_hour=5.0)
    print_frontier(outside, replace(request, specs={KEY: spec}), KEY)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == [
        "no budget reaches the SLA of 400 ms",
        "the budget of $5.00/h is too small for the load",
    ]


def test_a_program_gets_every_corner_with_the_same_remarks() -> None:
    data = document(CURVE, a_request(), KEY, solve_s=0.1)
    assert [(corner["meets_sla"], corner["within_budget"]) for corner in data["corners"]] == [
        (False, True),
        (False, True),
        (False, True),
        (True, True),
        (True, True),
        (True, False),
    ]
    assert data["corners"][0]["stages"] == [
        {"name": "decoder", "placements": [{"pool": "gpu", "replicas": 8, "batch": 1}]}
    ]
