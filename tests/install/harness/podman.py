"""Containers by podman, with the rights that the specification of a pod asks for and nothing that podman adds."""

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from images import PLAIN

Json = Mapping[str, Any]

SESSION = "sluice.dev/session"
"""The label of containers with the number of the process that started the agent."""


class PodmanError(RuntimeError):
    """A command of podman failed; the message is its standard error."""


async def podman(*arguments: str | Path) -> str:
    """Return the output of `podman ARGUMENTS`.

    Raises:
        PodmanError: the command failed.
    """
    process = await asyncio.create_subprocess_exec(
        "podman", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        output, error = await process.communicate()
    finally:
        if process.returncode is None:  # cancelled
            process.kill()
    if process.returncode:
        raise PodmanError(f"podman {arguments[0]}: {error.decode().strip()}")
    return output.decode().strip()


async def start(name: str, pod: Json, flags: Sequence[str], environment: Mapping[str, str]) -> None:
    """Start the only container of `pod` as `name`, with further `flags`, such as for its network and volumes."""
    container = pod["spec"]["containers"][0]
    flags = ["--name", name, *flags, *_rights(pod["spec"], container)]
    for variable, value in environment.items():
        flags += ["--env", f"{variable}={value}"]
    for key, value in _labels(pod).items():
        flags += ["--label", f"{key}={value}"]
    if command := container.get("command"):
        flags += ["--entrypoint", json.dumps(command)]
    running = podman("run", "--detach", *PLAIN, *flags, container["image"], *container.get("args", ()))
    starting = asyncio.create_task(running)
    try:
        await asyncio.shield(starting)
    except asyncio.CancelledError:
        # Cut off half-way, podman would leave a process behind that it does not know.
        await asyncio.wait({starting})
        raise


def _labels(pod: Json) -> dict[str, str]:
    metadata = pod["metadata"]
    return {
        SESSION: str(os.getppid()),
        "io.kubernetes.pod.name": metadata["name"],
        "io.kubernetes.pod.namespace": metadata["namespace"],
    }


def _rights(spec: Json, container: Json) -> list[str]:
    """Return the flags for the security contexts and the limits; a kubelet adds no more."""
    flags: list[str] = []
    context = {**spec.get("securityContext", {}), **container.get("securityContext", {})}
    if "runAsUser" in context:
        flags += ["--user", f"{context['runAsUser']}:{context.get('runAsGroup', 0)}"]
    if "fsGroup" in context:
        flags += ["--group-add", str(context["fsGroup"])]
    if context.get("readOnlyRootFilesystem"):
        flags += ["--read-only"]
    if context.get("allowPrivilegeEscalation") is False:
        flags += ["--security-opt", "no-new-privileges"]
    for capability in context.get("capabilities", {}).get("drop", ()):
        flags += ["--cap-drop", capability]
    if limit := container.get("resources", {}).get("limits", {}).get("memory"):
        flags += ["--memory", limit.removesuffix("i").lower()]
    return flags
