"""Limits the priorities that authors choose: a high one takes pools and fleet budget from other tenants."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from controller.core.state.spec import PipelineSpec

_LOG = logging.getLogger(__name__)
HIGHEST_PRIORITY = 1_000_000_000
"""The limit of the resource itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityLimits:
    """The highest priority that counts: `namespaces` has those of single namespaces, `default` is for all others."""

    default: int = HIGHEST_PRIORITY
    namespaces: Mapping[str, int] = field(default_factory=dict)

    def limited(self, spec: PipelineSpec) -> PipelineSpec:
        """Return `spec` with a priority within the limit of its namespace, and log where that is another priority.

        A pipeline above the limit is not refused: it would stop scaling when the platform's team lowers the limit. The
        admission policy tells authors.
        """
        limit = self.namespaces.get(spec.namespace, self.default)
        if spec.priority <= limit:
            return spec
        _LOG.warning(
            "%s: spec.priority: %d counts as %d, the limit of its namespace (--max-priority)",
            spec.key,
            spec.priority,
            limit,
        )
        return replace(spec, priority=limit)
