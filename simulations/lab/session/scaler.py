"""What scales the replicas of a live run: the operator of Sluice, nothing, or a rival (`simulations.lab.rivals`)."""

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Protocol

from controller.core.state.spec import PipelineSpec
from simulations.lab.cluster.cluster import OPERATOR, LabCluster

NO_FLAGS: Mapping[str, Mapping[str, object]] = MappingProxyType({})
"""The programs of the control plane as the lab starts them."""


class Scaler(Protocol):
    """Sets the replicas of a cluster's Deployments, of which the manifests say the bounds."""

    @property
    def policy(self) -> str:
        """Return its name in reports."""

    @property
    def flags(self) -> Mapping[str, Mapping[str, object]]:
        """Return the flags of the control plane's programs that it needs: see `ControlPlane`."""

    def scaling(self, cluster: LabCluster, pipelines: tuple[PipelineSpec, ...]) -> AbstractContextManager[None]:
        """Return a context in which it scales the pipelines.

        Raises:
            ProcessError: a program of it ended unexpectedly, or was not ready in time.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """The operator of Sluice; `program` is as in `LabCluster.start_operator`, `interval_s` the time between cycles."""

    interval_s: float
    program: tuple[str, ...] = OPERATOR
    policy: ClassVar[str] = "sluice"
    flags: ClassVar[Mapping[str, Mapping[str, object]]] = NO_FLAGS

    @contextlib.contextmanager
    def scaling(self, cluster: LabCluster, pipelines: tuple[PipelineSpec, ...]) -> Iterator[None]:  # noqa: ARG002 - it finds them
        """Start the operator, which ends with the cluster."""
        cluster.start_operator(interval_s=self.interval_s, program=self.program)
        yield


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing:
    """Nothing scales: each Deployment keeps the replicas with which it was created."""

    policy: ClassVar[str] = "none"
    flags: ClassVar[Mapping[str, Mapping[str, object]]] = NO_FLAGS

    @contextlib.contextmanager
    def scaling(self, cluster: LabCluster, pipelines: tuple[PipelineSpec, ...]) -> Iterator[None]:  # noqa: ARG002 - as said
        """Do nothing."""
        yield
