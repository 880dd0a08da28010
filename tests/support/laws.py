"""Service laws written as fields of what has one."""

from dataclasses import fields
from typing import Any

from optimizer.model import ServiceLaw

_NAMES = {field.name for field in fields(ServiceLaw)}


def with_law(**values: Any) -> dict[str, Any]:
    """Return `values` with the fields of a service law as the law in `service`; its time is 1 s by default."""
    law = {name: value for name, value in values.items() if name in _NAMES}
    if not {"per_item_s", "floor_s", "points"} & law.keys():
        law = {"fixed_s": 1.0, **law}
    return {"service": ServiceLaw(**law), **{name: value for name, value in values.items() if name not in _NAMES}}
