"""Random pipelines whose stages may run on machines of very different size, by seed and load. Nothing is stored."""

import random
from dataclasses import replace

from instances import MACHINES
from problems import a_pipeline, a_problem, a_stage, on, pools

from optimizer.latency.stage import capacity_rps
from optimizer.model import Composition, Mixing, Problem, Routing, Stage

LOADS = {"small": (1.0, 4.0), "large": (10.0, 40.0)}
"""How many instances of its most economical machine the largest stage of a pipeline needs, from and to."""

_MACHINES = {
    **{name: MACHINES[name] for name in ("cpu", "t4", "inferentia", "a10")},
    "l40": (1.861, 0.22, 0.035),
    "h100": (6.88, 0.12, 0.012),
}


def a_mixed_problem(load: str, seed: int, mixing: Mixing) -> Problem:
    """Return the problem of one pipeline with `mixing` in each stage; pools do not limit it."""
    rng = random.Random(f"{load} {seed}")
    names = rng.sample(sorted(_MACHINES), rng.randint(3, 5))
    stages: list[Stage] = []
    instances: list[float] = []
    for number in range(rng.randint(2, 5)):
        fixed, per_item = rng.uniform(0.004, 0.03), rng.uniform(0.003, 0.03)
        placements = []
        for name in rng.sample(names, rng.randint(2, 3)):
            _, one, each = _MACHINES[name]
            noise = rng.uniform(0.8, 1.25)
            placements.append(
                on(
                    name,
                    service=(fixed * one * noise, per_item * each * noise),
                    cv=rng.choice((0.1, 0.3, 0.6)),
                    bounds=(0, 400),
                    batches=(1,) if rng.random() < 0.4 else (1, 2, 4, 8, 16),
                )
            )
        stage = a_stage(
            f"s{number}",
            *placements,
            after=[stages[-1].name] if stages else [],
            routing=rng.choice((Routing.LEAST_LOADED, Routing.LEAST_LOADED, Routing.PULL, Routing.ROUND_ROBIN)),
        )
        stages.append(replace(stage, mixing=mixing))
        most = [capacity_rps(p, p.batch_sizes[-1]) for p in placements]
        economical = min(range(len(most)), key=lambda k: _MACHINES[placements[k].pool][0] / most[k])
        instances.append(1 / most[economical])
    low, high = LOADS[load]
    rate_rps = rng.uniform(low, high) / max(instances)
    slowest = sum(max(p.service.mean_s(p.batch_sizes[-1]) for p in stage.placements) for stage in stages)
    fastest = sum(min(p.service.mean_s(1) for p in stage.placements) for stage in stages)
    sla_s = 2 * fastest * (max(slowest / fastest, 1.0)) ** rng.uniform(0.1, 0.9)
    where = pools(**{name: (price, 1000) for name, (price, _, _) in _MACHINES.items()})
    problem = a_problem(a_pipeline(*stages, rate_rps=rate_rps, sla_s=sla_s), where=where)
    return replace(problem, composition=Composition.RSS)
