"""Lengthens the windows of metrics that are too short for the scrapes that are observed."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from controller.core.state.spec import PipelineSpec, StageKey
from optimizer.model import PlacementId
from profiler.samples import Scrapes

INTERVALS = 4
"""Scrape intervals that a window gets: one scrape may fail, and a rate needs two."""
_ENOUGH = 3.5
"""Windows of so many intervals stay as they are: an interval is observed with an error."""


class ObservedWindows:
    """Keeps the scrape intervals of the last cycle, by stage.

    The first cycle after a restart uses the declared windows. Rates over windows that are too short are absent then,
    and without them nothing is scaled down.
    """

    def __init__(self) -> None:
        self._intervals_s: dict[StageKey, float] = {}

    def observe(self, specs: Iterable[PipelineSpec], scrapes: Mapping[PlacementId, Scrapes]) -> None:
        """Keep the longest interval of each stage; one that is not observed now is kept from before."""
        before, self._intervals_s = self._intervals_s, {}
        for spec in specs:
            for stage in spec.stages:
                ids = [(*spec.borrowed.get(stage.name, (spec.key, stage.name)), each.name) for each in stage.placements]
                seen = [found.interval_s for each in ids if (found := scrapes.get(each)) and found.interval_s]
                interval_s = max(seen, default=before.get((spec.key, stage.name)))
                if interval_s is not None:
                    self._intervals_s[spec.key, stage.name] = interval_s

    def applied(self, spec: PipelineSpec) -> PipelineSpec:
        """Return `spec` with windows of at least four observed scrape intervals."""
        windows_s = {
            stage.name: INTERVALS * interval_s
            for stage in spec.stages
            if (interval_s := self._intervals_s.get((spec.key, stage.name))) is not None
            and stage.metrics_window_s < _ENOUGH * interval_s
        }
        if not windows_s:
            return spec
        stages = (
            replace(stage, metrics_window_s=windows_s.get(stage.name, stage.metrics_window_s)) for stage in spec.stages
        )
        return replace(spec, stages=tuple(stages))
