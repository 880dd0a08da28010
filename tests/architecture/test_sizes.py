"""Functions and classes stay small enough to read: few parameters, few attributes."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("controller", "optimizer", "profiler", "simulations")
MOST_PARAMETERS = 10
MOST_ATTRIBUTES = 15

COMPILED = {"compiled", "inlined"}
"""Decorators of kernels: numba passes arrays one by one where a record of them would be slower."""

DOCUMENTS = {
    "controller.core.state.decision.PipelineDecision": "the entry of a pipeline in a decision record",
    "controller.core.state.snapshot.PipelineState": "the entry of a pipeline in the Snapshot of a decision record",
    "controller.core.state.snapshot.PoolState": "the entry of a pool in the Snapshot of a decision record",
    "controller.core.state.spec.PipelineSpec": "the spec of a SpeechPipeline",
    "controller.core.state.spec.PoolSpec": "the spec of a ComputePool",
    "controller.core.state.carry_over.PipelineMemory": "the document in status.memory",
    "controller.resources.pipeline_status.PipelineStatus": "the status document of the API",
    "controller.resources.pipeline_status.StageStatus": "the entry of a stage in the status document of the API",
    "controller.resources.pool.PoolStatus": "the status document of the API",
    "controller.settings.OperatorSettings": "one attribute per flag of `sluice operator`",
    "simulations.results.results.RunResult": "the JSON of a run in results.json",
    "simulations.lab.session.report.LabSummary": "the JSON summary of a run on the lab",
    "simulations.results.scoring.ItemScore": "the counts and shares of a run in results.json",
    "simulations.scenario.scenario.ScenarioFile": "one attribute per field of a scenario file",
    "simulations.scenario.scenario.Fault": "one attribute per kind of fault in a scenario file",
    "simulations.engine.state.State": "a record of arrays for compiled kernels",
}
"""Classes that mirror a document whose fields are fixed elsewhere."""


def trees() -> Iterator[tuple[str, ast.Module]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            yield name, ast.parse(path.read_text())


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return len([argument for argument in arguments if argument.arg not in {"self", "cls"}])


def attributes(kind: ast.ClassDef) -> set[str]:
    declared = {
        node.target.id for node in kind.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    targets = [
        target
        for node in ast.walk(kind)
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    flat = [part for target in targets for part in (target.elts if isinstance(target, ast.Tuple) else [target])]
    assigned = {
        part.attr
        for part in flat
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == "self"
    }
    return declared | assigned


def test_no_function_outside_compiled_kernels_has_more_than_ten_parameters() -> None:
    long = [
        f"{module}.{node.name}: {parameters(node)}"
        for module, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and parameters(node) > MOST_PARAMETERS
        and not {ast.unparse(decorator) for decorator in node.decorator_list} & COMPILED
    ]
    assert not long


def test_no_class_has_more_than_fifteen_attributes() -> None:
    large = {
        f"{module}.{node.name}": len(attributes(node))
        for module, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and len(attributes(node)) > MOST_ATTRIBUTES
    }
    assert large.keys() == DOCUMENTS.keys(), large


@pytest.mark.parametrize(
    ("source", "count"),
    [("def f(self, a, b, *, c): ...", 3), ("async def f(a, /, b, *rest, c=1, **more): ...", 3)],
)
def test_parameters_are_counted_without_self(source: str, count: int) -> None:
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    assert parameters(function) == count
