"""Known demand in a simulated run: its times, counted from the begin of the load instead of the epoch."""

from dataclasses import replace

from controller.core.state.schedule import CronWindows, DemandFloor, EventFloor, TimeZone, WeeklyFloor
from controller.core.state.spec import PipelineSpec


def in_run_time(pipeline: PipelineSpec, begins_s: float) -> PipelineSpec:
    """Return `pipeline` with its known demand in the time of a run whose load begins at `begins_s` since the epoch."""
    backlog = pipeline.backlog
    if backlog is not None and backlog.deadline_s is not None:
        backlog = replace(backlog, deadline_s=backlog.deadline_s - begins_s)
    floors = tuple(_in_run_time(floor, begins_s) for floor in pipeline.at_least)
    return replace(pipeline, at_least=floors, backlog=backlog)


def _in_run_time(floor: DemandFloor, begins_s: float) -> DemandFloor:
    if isinstance(floor, EventFloor):
        return replace(floor, start_s=floor.start_s - begins_s, end_s=floor.end_s - begins_s)
    if isinstance(floor, WeeklyFloor):
        return replace(floor, zone=_shifted(floor.zone, begins_s))
    return replace(floor, windows=windows_in_run_time(floor.windows, begins_s))


def windows_in_run_time(windows: CronWindows, begins_s: float) -> CronWindows:
    """Return `windows` in the time of a run whose load begins at `begins_s` since the epoch."""
    return replace(windows, zone=_shifted(windows.zone, begins_s))


def _shifted(zone: TimeZone, begins_s: float) -> TimeZone:
    """Return the zone whose clocks show at 0 what those of `zone` show at `begins_s`."""
    return replace(
        zone,
        first_offset_s=zone.first_offset_s + begins_s,
        changes=tuple((at_s - begins_s, offset_s + begins_s) for at_s, offset_s in zone.changes),
    )
