"""What the operator learned of a service in a live run, as a manifest that declares it: for the simulator."""

from collections.abc import Mapping
from typing import Any


def declared_as_learned(document: Mapping[str, Any], status: Mapping[str, Any]) -> dict[str, Any]:
    """Return the SpeechPipeline `document` with service times, pass ratios and start-ups as `status` has learned them.

    A variant that was never measured is left out. Times are rounded to microseconds.

    Raises:
        ValueError: a stage has no placement whose service time is known.
    """
    seen = {stage["name"]: stage for stage in status.get("stages", ())}
    stages = [_stage(stage, seen.get(stage["name"], {})) for stage in document["spec"]["stages"]]
    return {**document, "spec": {**document["spec"], "stages": stages}}


def _stage(stage: Mapping[str, Any], seen: Mapping[str, Any]) -> dict[str, Any]:
    learned = {(own["pool"], own.get("variant", "")): own for own in seen.get("placements", ())}
    placements = []
    for placement in stage["placements"]:
        pool = placement["pool"]
        if "variants" not in placement:
            placements += _with(placement, learned.get((pool, "")))
            continue
        variants = [found for own in placement["variants"] for found in _with(own, learned.get((pool, own["name"])))]
        if variants:
            placements.append({**placement, "variants": variants})
    if not placements:
        raise ValueError(f"stage {stage['name']}: no service time was learned")
    ratio = {"passRatio": f"{float(seen['passRatio']):.4f}"} if seen.get("passRatio") else {}
    return {**stage, **ratio, "placements": placements}


def _with(own: Mapping[str, Any], learned: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return a placement or variant with its law; none if it was never measured."""
    time = {} if learned is None else learned.get("serviceTime", {})
    law: dict[str, Any] = {}
    if time.get("points"):  # they are the whole law
        law["points"] = {str(point["batch"]): _duration(point["seconds"]) for point in time["points"]}
    else:
        parts = (("fixed", "fixedSeconds"), ("perItem", "perItemSeconds"), ("floor", "floorSeconds"))
        law.update({field: _duration(time[source]) for field, source in parts if time.get(source)})
    if not law or learned is None:
        return []
    if "cv" in time:
        law["cv"] = f"{float(time['cv']):.3f}"
    startup = {"startup": _duration(learned["startupSeconds"])} if learned.get("startupSeconds") else {}
    return [{**own, **startup, "serviceTime": law}]


def _duration(seconds: float | str) -> str:
    return f"{max(1, round(1e6 * float(seconds)))}us"
