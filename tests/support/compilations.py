"""A program that prints which functions of the optimizer were compiled while it planned: `[]` after the warm-up."""

PROBE = """
from numba.core import event

compiled = []


class Listener(event.Listener):
    def on_start(self, said):
        function = said.data["dispatcher"].py_func
        if function.__module__.startswith("optimizer"):
            compiled.append(function.__qualname__)

    def on_end(self, said):
        pass


event.register("numba:compile", Listener())
from dataclasses import replace

from optimizer.model import Composition, Demand
from optimizer.reports.certificate import certified_plan
from optimizer.warm_up import _problem

for pipelines, instances, joins in ((1, 30, True), (2, 3, False), (7, 9, True), (20, 25, False)):
    problem = _problem(pipelines, instances=instances, joins=joins)
    busier = (replace(p, demand=Demand(entry_rate_rps=77.0, arrival_cv2=1.7)) for p in problem.pipelines)
    busy = replace(problem, pipelines=tuple(busier), search_effort=100_000)
    certified_plan(busy, advice=True, shadow_prices=True)
print(sorted(set(compiled)))
"""
