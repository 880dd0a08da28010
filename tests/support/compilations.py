"""Programs that print which functions a warm-up leaves to be compiled later: `[]` if there are none."""

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
"""What is compiled for some plans."""

UNCALLED = """
import importlib
import re
import sys
from pathlib import Path

from numba.core.dispatcher import Dispatcher

warm_up = sys.argv[1]
package = warm_up.rpartition(".")[0]
root = Path(importlib.import_module(package).__file__).parent
marked = re.compile("^@(compiled|borrowing)", re.MULTILINE)
sources = [path.relative_to(root) for path in root.rglob("*.py") if marked.search(path.read_text())]
modules = [importlib.import_module(".".join((package, *path.with_suffix("").parts))) for path in sources]
found = {each for module in modules for each in vars(module).values() if isinstance(each, Dispatcher)}
own = [each for each in found if each.py_func.__module__.startswith(package)]
assert own
importlib.import_module(warm_up).warm_up()
lone = (each for each in own if not each.signatures and each.targetoptions.get("inline") != "always")
print(sorted(f"{each.py_func.__module__}.{each.py_func.__qualname__}" for each in lone))
"""
"""Which compiled functions of its package a warm-up does not call; the argument is the module of the warm-up.

The cache of compiled code must be empty: code that is found in it was compiled together with what it calls.
"""
