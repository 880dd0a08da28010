"""Reads and writes the batch settings of servers: one key of a ConfigMap each, which the servers read.

The ConfigMap is written by a JSON patch of this key, which fails where the object has changed since it was read.
"""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from controller.core.state.carry_over import LARGEST_BATCH
from controller.core.state.decision import BatchWrite, PipelineDecision
from controller.core.state.snapshot import BatchingState
from controller.core.state.spec import ConfigKey, Mode, PipelineSpec
from controller.kube.gateway import CONFIG_MAPS, Conflict, Forbidden, Gateway, Invalid, Json, KubeError, NotFound
from optimizer.model import BatchSettings, PipelineKey, PlacementKey

_LOG = logging.getLogger(__name__)
_PARALLEL = 8
_MICROSECONDS = 1_000_000
_LONGEST_US = 3600 * _MICROSECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchWritten:
    """A write of batch settings and its outcome: `problem` is "" where it succeeded."""

    pipeline: PipelineKey
    write: BatchWrite
    problem: str = ""


class BatchingConfigs:
    """The ConfigMap keys with the batch settings of servers."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._threads = ThreadPoolExecutor(_PARALLEL, thread_name_prefix="batching")
        self._found: dict[tuple[str, str], Json | KubeError] = {}
        self._refused: dict[tuple[PipelineKey, PlacementKey], str] = {}
        self._owners: dict[tuple[str, ConfigKey], tuple[PipelineKey, PlacementKey]] = {}

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(cancel_futures=True)

    def refresh(self, specs: Sequence[PipelineSpec]) -> None:
        """Read the ConfigMaps that the placements of `specs` name, each once. A key is written for one placement."""
        wanted = {(spec.namespace, at.config_map) for spec in specs for _, at in _applied(spec)}
        self._found = dict(zip(wanted, self._threads.map(self._read, wanted), strict=True)) if wanted else {}
        self._owners = {}
        for spec in sorted(specs, key=lambda spec: (spec.mode is not Mode.AUTO, spec.key)):
            for key, at in _applied(spec):
                self._owners.setdefault((spec.namespace, at), (spec.key, key))

    def states(self, spec: PipelineSpec) -> Mapping[PlacementKey, BatchingState]:
        """Return what the keys have that the placements of `spec` name, as of the last `refresh`."""
        return {key: self._state(spec, key, at) for key, at in _applied(spec)}

    def apply(self, pipelines: Iterable[PipelineDecision]) -> tuple[BatchWritten, ...]:
        """Write the settings that were decided. A write that fails stops no other; the next cycle tries it again."""
        self._refused.clear()
        done = []
        for decision in pipelines:
            for write in decision.batch_writes:
                problem = ""
                try:
                    self._write(decision.spec.namespace, write)
                except KubeError as error:
                    problem = _advice(write.at, error, "written")
                    self._refused[decision.key, (write.stage, write.placement)] = problem
                    _LOG.warning("%s: batch settings not written: %s", decision.key, problem)
                done.append(BatchWritten(pipeline=decision.key, write=write, problem=problem))
        return tuple(done)

    def _read(self, name: tuple[str, str]) -> Json | KubeError:
        try:
            return self._gateway.get(CONFIG_MAPS, *name)
        except KubeError as error:
            return error

    def _state(self, spec: PipelineSpec, key: PlacementKey, at: ConfigKey) -> BatchingState:
        found = self._found[spec.namespace, at.config_map]
        if isinstance(found, KubeError):
            return BatchingState(problem=_advice(at, found, "read"))
        if (owner := self._owners[spec.namespace, at]) != (spec.key, key):
            words = f"pipeline {owner[0]}, stage {owner[1][0]} on {owner[1][1]}, has it too: name another key"
            return BatchingState(problem=f"{at}: not written for two placements: {words}")
        text = (found.get("data") or {}).get(at.key, "")
        return BatchingState(
            settings=settings_of(text),
            refused=self._refused.get((spec.key, key), ""),
        )

    def _write(self, namespace: str, write: BatchWrite) -> None:
        """Write one key, if the ConfigMap is still as it was read."""
        found = self._found[namespace, write.at.config_map]
        assert not isinstance(found, KubeError), "it was read, or nothing would be written"
        text, version = text_of(write.settings), found["metadata"]["resourceVersion"]
        operations: list[Json] = [{"op": "test", "path": "/metadata/resourceVersion", "value": version}]
        if "data" in found:
            operations.append({"op": "add", "path": f"/data/{write.at.key}", "value": text})
        else:
            operations.append({"op": "add", "path": "/data", "value": {write.at.key: text}})
        try:
            written = self._gateway.patch_json(CONFIG_MAPS, namespace, write.at.config_map, operations)
        except Invalid as error:  # the server says the same of a failed test and of a rule that the object breaks
            now = self._gateway.get(CONFIG_MAPS, namespace, write.at.config_map)
            if now["metadata"]["resourceVersion"] == version:
                raise
            raise Conflict("it was changed by another client") from error
        # The next key of the same ConfigMap is written in this cycle too, unless another client changes it.
        self._found[namespace, write.at.config_map] = written


def text_of(settings: BatchSettings) -> str:
    """Return batch settings as servers read them."""
    return json.dumps({"max": settings.limit, "waitMicroseconds": round(settings.wait_s * _MICROSECONDS)})


def settings_of(text: str) -> BatchSettings | None:
    """Return the batch settings in the text of a key, None where it has no usable ones."""
    try:
        document = json.loads(text)
        limit, wait_us = document["max"], document.get("waitMicroseconds", 0)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    whole = all(isinstance(value, int) and not isinstance(value, bool) for value in (limit, wait_us))
    if not whole or not 1 <= limit <= LARGEST_BATCH or not 0 <= wait_us <= _LONGEST_US:
        return None
    return BatchSettings(limit=limit, wait_s=wait_us / _MICROSECONDS)


def _applied(spec: PipelineSpec) -> Iterator[tuple[PlacementKey, ConfigKey]]:
    """Yield the placements of a pipeline whose settings are written; those of shared stages are their owner's."""
    for key, placement in spec.placements().items():
        if placement.applied is not None and key[0] not in spec.borrowed:
            yield key, placement.applied.at


def _advice(at: ConfigKey, error: KubeError, done: str) -> str:
    """Return why a key could not be `done` (read or written), with what to do."""
    match error:
        case NotFound():
            advice = "it does not exist: create it, also without data"
        case Forbidden():
            advice = f"{error}; grant get and patch on configmaps (chart: rbac.batching: true)"
        case _:
            advice = f"{error}; retried in every cycle"
    return f"{at}: cannot be {done}: {advice}"
