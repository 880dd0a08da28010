"""Placements in manifests, whose variants are workloads too."""

from collections.abc import Callable, Mapping
from typing import Any

Fields = Mapping[str, Any]


def with_each(placement: Fields, changed: Callable[[Fields], Fields]) -> dict[str, Any]:
    """Return the fields of `placement` as `changed` by a function, and those of each of its variants too."""
    variants = placement.get("variants")
    own = dict(changed(placement))
    return own if not variants else {**own, "variants": [dict(changed(variant)) for variant in variants]}
