"""KEDA itself on the lab's control plane: its operator and its metrics adapter, registered with the API server."""

import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from kubernetes import client, config

from simulations.lab.cluster.control_plane import ControlPlane
from simulations.lab.host.binaries import Binaries, Keda, ensure, ensure_keda
from simulations.lab.rivals.aggregation import Aggregation
from simulations.lab.rivals.keda import KedaServer


class KedaLab:
    """A control plane with KEDA while its context is entered; `kubeconfig` and `api` have all rights."""

    def __init__(self, folder: Path, binaries: Binaries, keda: Keda) -> None:
        aggregation = Aggregation.create(folder / "certificates")
        self._control_plane = ControlPlane(
            folder / "kubernetes",
            binaries,
            flags={
                **aggregation.flags,
                "kube-controller-manager": {"horizontal-pod-autoscaler-sync-period": "1s"},
            },
        )
        self.kubeconfig = self._control_plane.kubeconfig
        self._keda = KedaServer(folder / "keda", keda, aggregation, self.kubeconfig)
        self.api: client.ApiClient

    def __enter__(self) -> Self:
        self._control_plane.start()
        try:
            self._keda.start()
        except BaseException:
            self._control_plane.stop()
            raise
        self.api = config.new_client_from_config(str(self.kubeconfig))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.api.close()
        self._keda.stop()
        self._control_plane.stop()


def build() -> tuple[Binaries, Keda]:
    """Return the programs of the lab and of KEDA, after building those that are not in the cache."""

    def show(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    return ensure(show), ensure_keda(show)


if __name__ == "__main__":
    build()
