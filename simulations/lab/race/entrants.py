"""Who takes part in a race, and what scales the lab for each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from controller.resources.translate import pipeline_spec
from simulations.experiment.experiment import briefing_of, settings_of
from simulations.experiment.hardware import cheapest_first
from simulations.lab.host.binaries import ensure_keda, ensure_prometheus_adapter
from simulations.lab.rivals.aggregation import Aggregation
from simulations.lab.rivals.objects import scaled
from simulations.lab.rivals.scalers import Hpa, Keda, StaticPeak
from simulations.lab.session.scaler import Operator, Scaler
from simulations.policies.autoscaler import Hardware, OneWorkloadSettings
from simulations.policies.hpa import HpaSettings
from simulations.policies.keda import KedaSettings
from simulations.policies.static_peak import peak_replicas
from simulations.results.results import Tuning
from simulations.scenario.load import pipeline_schedules
from simulations.scenario.scenario import Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    """A policy that races, with its documented settings or with those that were found on training loads."""

    policy: str
    tuning: Tuning = Tuning.DEFAULT

    @property
    def name(self) -> str:
        """Return its name on the command line."""
        return self.policy if self.tuning is Tuning.DEFAULT else f"{self.policy}:{self.tuning}"


ENTRANTS: Mapping[str, Entrant] = {
    entrant.name: entrant
    for entrant in (
        Entrant(policy="sluice"),
        Entrant(policy="static-peak"),
        *(Entrant(policy=policy, tuning=tuning) for policy in ("hpa", "keda") for tuning in Tuning),
    )
}
"""By name. Sluice races as it is installed, without settings that were searched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lap:
    """One run of a race: the scenario as the entrant gets it, its load's seed, and the operator's cycle in seconds."""

    entrant: Entrant
    scenario: Scenario
    seed: int
    interval_s: float


def lap(entrant: Entrant, scenario: Scenario, *, seed: int, interval_s: float) -> Lap:
    """Return the run of an entrant. One that scales a single placement of each stage has its choice of it as the first.

    Raises:
        UnsupportedManifest: a rival cannot read the metrics of a stage.
    """
    settings = settings_of(scenario, entrant.policy, entrant.tuning)
    if isinstance(settings, OneWorkloadSettings):
        for resource in scenario.pipelines:
            scaled(pipeline_spec(resource))
        if settings.hardware is Hardware.CHEAPEST:
            scenario = cheapest_first(scenario)
    return Lap(entrant=entrant, scenario=scenario, seed=seed, interval_s=interval_s)


def scaler(run: Lap, folder: Path, progress: Callable[[str], None]) -> Scaler:
    """Return what scales the lab in a run, after building the programs that it needs; `folder` is for certificates.

    Raises:
        BuildError: a program could not be built.
    """
    settings = settings_of(run.scenario, run.entrant.policy, run.entrant.tuning)
    if isinstance(settings, HpaSettings):
        return Hpa(
            settings=settings,
            adapter=ensure_prometheus_adapter(progress),
            aggregation=Aggregation.create(folder / "certificates"),
        )
    if isinstance(settings, KedaSettings):
        return Keda(
            settings=settings,
            programs=ensure_keda(progress),
            aggregation=Aggregation.create(folder / "certificates"),
        )
    if run.entrant.policy == "static-peak":
        loads = pipeline_schedules(run.scenario, seed=run.seed)
        return StaticPeak(replicas=peak_replicas(settings, briefing_of(run.scenario, loads)))
    return Operator(interval_s=run.interval_s)
