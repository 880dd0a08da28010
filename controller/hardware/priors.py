"""Published service times of speech models on devices: the table, and a stage with what it says."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from controller.aws.price_table import PRICES_PER_HOUR
from optimizer.model import InvalidProblem, Pipeline, Placement, PlacementName, Pool, PoolName, ServiceLaw, StageName

_FILE = "priors.toml"
_NEEDED = ("model", "device", "kind", "item", "points", "cv", "source", "method", "confidence", "error")
CONFIDENCES = ("Low", "Medium", "High")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """The service law of `model` (its `variant`, None: it has none) on one `device`, as published.

    `item` says what an item of the law is, `source` has the link, `method` how it was measured. Another server with the
    same model may be off by `error` (a share). `instance_type` is an instance of AWS with one such device, None where
    AWS rents none.
    """

    model: str
    variant: str | None
    device: str
    kind: str
    item: str
    law: ServiceLaw
    source: str
    method: str
    confidence: str
    error: float
    instance_type: str | None = None

    @property
    def price_per_hour(self) -> float | None:
        """Return the listed price of an instance in USD per hour, None where none is known."""
        return None if self.instance_type is None else PRICES_PER_HOUR.get(self.instance_type)

    @property
    def pool(self) -> PoolName:
        """Return the name of the pool that stands for the device, which no ComputePool can have."""
        return PoolName(f"{self.device} (prior)")

    def placement(self) -> Placement:
        """Return the placement of a stage on this device, with one replica per instance."""
        sizes = tuple(size for size, _ in self.law.points)
        return Placement(
            pool=self.pool,
            variant=self.variant,
            service=self.law,
            max_replicas=1,
            batch_sizes=(sizes[-1],),
        )


def parse(text: str) -> tuple[Prior, ...]:
    """Return the priors in a TOML file.

    Raises:
        InvalidProblem: an entry lacks a field, its source or a known confidence, or its times are no service law.
    """
    return tuple(_prior(number, entry) for number, entry in enumerate(tomllib.loads(text).get("prior", ())))


@cache
def known_priors() -> tuple[Prior, ...]:
    """Return the bundled priors."""
    return parse((files(__package__) / _FILE).read_text(encoding="utf-8"))


def models(priors: Iterable[Prior]) -> list[str]:
    """Return the names of the models in `priors`, each once."""
    return sorted({prior.model for prior in priors})


def _prior(number: int, entry: Mapping[str, Any]) -> Prior:
    at = f"prior[{number}]"
    for name in _NEEDED:
        if not entry.get(name):
            raise InvalidProblem(f"{at}.{name}: {entry.get(name)!r}: required; a number without it is not in the table")
    if entry["confidence"] not in CONFIDENCES:
        raise InvalidProblem(f"{at}.confidence: {entry['confidence']!r}: must be one of {', '.join(CONFIDENCES)}")
    points = tuple(sorted((int(size), float(time_s)) for size, time_s in entry["points"].items()))
    try:
        law = ServiceLaw(points=points, cv=float(entry["cv"]))
    except InvalidProblem as error:
        raise InvalidProblem(f"{at}.points: {error}") from None
    return Prior(
        model=entry["model"],
        variant=entry.get("variant"),
        device=entry["device"],
        kind=entry["kind"],
        item=entry["item"],
        law=law,
        source=entry["source"],
        method=entry["method"],
        confidence=entry["confidence"],
        error=float(entry["error"]),
        instance_type=entry.get("instance_type"),
    )


def with_priors(
    pipeline: Pipeline, stage: StageName, priors: Iterable[Prior], prices: Mapping[str, float]
) -> tuple[Pipeline, Mapping[PoolName, Pool], Mapping[PlacementName, Prior]]:
    """Return `pipeline` with the devices of `priors` as further placements of `stage`, their pools, and what they are.

    Devices without a listed price or one in `prices` (USD per hour, by device) are left out: their cost is not known.
    """
    added: dict[PlacementName, Prior] = {}
    pools: dict[PoolName, Pool] = {}
    placements: list[Placement] = []
    for prior in priors:
        price = prices.get(prior.device, prior.price_per_hour)
        if price is not None:
            placements.append(prior.placement())
            added[placements[-1].name] = prior
            pools[prior.pool] = Pool(name=prior.pool, price_per_hour=price, instances=1)
    stages = tuple(
        replace(own, placements=(*own.placements, *placements)) if own.name == stage else own for own in pipeline.stages
    )
    return replace(pipeline, stages=stages), pools, added
