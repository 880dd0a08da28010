"""What runs the pods of one node of the lab. The tests of releases know no more of it than this."""

import os
import shutil
import sys
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simulations.lab.host.processes import Service

HOST = "host-1"


class PodHost(Service):
    """Runs the pods of the node `HOST` from images of this machine; it makes the node, too."""

    def __init__(self, folder: Path, kubeconfig: Path, outside: Mapping[str, str]) -> None:
        """Nothing runs before `start()`.

        Args:
            folder: for logs and files of pods; created if it is missing.
            kubeconfig: with all rights.
            outside: addresses (`host:port`) on this machine of Services without pods, by `namespace/name`.
        """
        super().__init__(folder / "logs")
        self._folder = folder
        self._kubeconfig = kubeconfig
        self._outside = outside

    @abstractmethod
    def process(self, pod: Mapping[str, Any]) -> int:
        """Return the number of the main process of a running pod with one container."""

    def _start_module(self, module: str, flags: Sequence[str | Path] = ()) -> None:
        """Start `python -m MODULE`, a module beside this one."""
        # The modules beside this one are not installed.
        environment: list[str | Path] = [shutil.which("env") or "env", f"PYTHONPATH={os.pathsep.join(sys.path)}"]
        services = [word for name, address in self._outside.items() for word in ("--outside", f"{name}={address}")]
        command = [*environment, sys.executable, "-m", module, "--kubeconfig", self._kubeconfig, *services, *flags]
        self._processes.start(module.replace("_", "-"), command)
