"""`sluice operator` that stops around its last check of the lease, with or without that check.

    stoppable_operator.py FOLDER clock|no-clock FLAG…

A file `before-check` or `after-check` in FOLDER stops the process (SIGSTOP) at its next scale write, right before or
right after the last check of its lease; the file is removed, and `stopped` has the name of the workload. `no-clock`
removes the check of the lease.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from kubernetes import client

from controller.__main__ import main
from controller.core.state.spec import Target
from controller.kube.gateway import Gateway, Scale
from controller.kube.leadership import Leadership

BEFORE, AFTER, STOPPED = "before-check", "after-check", "stopped"


def _stop_if(flag: Path, name: str) -> None:
    try:
        flag.unlink()
    except FileNotFoundError:
        return
    flag.with_name(STOPPED).write_text(name)
    os.kill(os.getpid(), signal.SIGSTOP)


def _make_stoppable(folder: Path) -> None:
    patch_scale, call_api = Gateway.patch_scale, client.ApiClient.call_api

    def before(self: Gateway, namespace: str, target: Target, replicas: int, resource_version: str) -> Scale:
        _stop_if(folder / BEFORE, target.name)
        return patch_scale(self, namespace, target, replicas, resource_version)

    def after(self: Any, path: str, method: str, *arguments: Any, **options: Any) -> Any:
        if method == "PATCH" and path.endswith("/scale"):
            _stop_if(folder / AFTER, path.split("/")[-2])
        return call_api(self, path, method, *arguments, **options)

    Gateway.patch_scale = before  # type: ignore[method-assign]
    client.ApiClient.call_api = after


if __name__ == "__main__":
    _make_stoppable(Path(sys.argv[1]))
    if sys.argv[2] == "no-clock":
        Leadership.check = lambda self: None  # type: ignore[method-assign]
    main(["operator", *sys.argv[3:]], prog_name="sluice")
