"""Chooses the model of each pod whose metrics count, for servers that may serve several models. Pure."""

from collections.abc import Iterable, Mapping, Set

from profiler.samples import Absence, AbsenceReason
from profiler.sources.combine import Pod

_SHOWN = 8
"""Most names of models in a message."""


def chosen_models(reported: Mapping[Pod, Set[str]], selected: str | None) -> Mapping[Pod, str] | Absence:
    """Return the model that counts for each pod of `reported`, which has the models of every pod that reports any.

    It is the `selected` one, else the only one of the pod. The result is an `Absence` that names the models if no pod
    reports the selected one, or if a pod reports several and none is selected: their requests cannot be added up,
    because one item may pass several models.
    """
    if selected is not None:
        known = set().union(*reported.values())
        if known and selected not in known:
            detail = f"metrics.model: {selected}: no pod reports this model, but {_names(known)}"
            return Absence(reason=AbsenceReason.MISSING, detail=detail)
        return dict.fromkeys(reported, selected)
    several = {model for models in reported.values() if len(models) > 1 for model in models}
    if several:
        detail = f"a pod reports {len(several)} models ({_names(several)}): set metrics.model to one of them"
        return Absence(reason=AbsenceReason.AMBIGUOUS, detail=detail)
    return {pod: model for pod, models in reported.items() for model in models}


def _names(models: Iterable[str]) -> str:
    names = sorted(models)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
