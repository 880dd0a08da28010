"""What the history of the demand adds to the forecast: a rise before it comes, and what is kept for a rise."""

from collections.abc import Sequence
from dataclasses import dataclass

from controller.core.state.decision import SeasonUse
from profiler.forecast import Forecast, growth, weighed_forecast
from profiler.samples import Absence
from profiler.season import DemandHistory, Season, season

Samples = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Seasonal:
    """What the history says of the demand `ahead_s` from now, and the `forecast` with it.

    Both are None without a usable history; `problem` says why, None where the pipeline is to have none.
    """

    ahead_s: float
    season: Season | None = None
    forecast: Forecast | None = None
    problem: Absence | None = None

    def headroom(self, usual: float, samples: Samples, chance: float) -> float:
        """Return by how much the load may rise within the time ahead: `usual` is the growth of the past `samples`.

        The part of it that the season explains comes back when the season says so. It is left out as far as the season
        is trusted.
        """
        if self.season is None or self.forecast is None or not usual:
            return usual
        rest = self.season.without_season(samples)
        change = self.season.change(self.ahead_s)
        if rest is None or change is None:
            return usual
        unexplained = growth(rest, self.ahead_s, chance) + max(0.0, change.expected)
        return usual - self.forecast.trust * max(0.0, usual - unexplained)

    def kept(self, demand: float, before: float | None, within_s: float) -> float:
        """Return `demand`, but as much of the demand `before` as is sure to come back `within_s`."""
        if self.season is None or before is None or before <= demand:
            return demand
        return max(demand, min(before, self.season.highest_sure(within_s)))

    def opens(self) -> bool:
        """Return whether a load that is surely more than next to nothing comes within the horizon."""
        return self.season is not None and self.season.highest_sure(self.ahead_s) > self.season.record.nothing

    def use(self, kept: float | None) -> SeasonUse | Absence | None:
        """Return what is reported of the season; `kept` is the demand that is kept for a rise, None: none is."""
        if self.season is None or self.forecast is None:
            return self.problem
        found, history = self.season, self.season.record.history
        change = found.change(self.ahead_s)
        return SeasonUse(
            seasons=history.seasons,
            season_s=history.season_s,
            last=found.last(self.ahead_s),
            expected=None if change is None else max(0.0, found.level + change.expected),
            error=None if change is None else change.error,
            trust=self.forecast.trust,
            kept=kept,
            problem=history.problem,
        )


def seasonal(history: DemandHistory | Absence | None, samples: Samples, now_s: float, ahead_s: float) -> Seasonal:
    """Return what `history` says at `now_s` about the demand `ahead_s` later; None is a pipeline without history.

    `samples` are those of the forecast, at least one.
    """
    if history is None or isinstance(history, Absence):
        return Seasonal(ahead_s=ahead_s, problem=history)
    found = season(history, samples, now_s, ahead_s)
    if isinstance(found, Absence):
        return Seasonal(ahead_s=ahead_s, problem=found)
    return Seasonal(ahead_s=ahead_s, season=found, forecast=weighed_forecast(samples, now_s, ahead_s, found))
