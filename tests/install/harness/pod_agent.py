"""A node agent that runs the pods of one node in containers: `python -m pod_agent --kubeconfig FILE --node NODE …`.

It does for them what a kubelet does, by podman, and reaches them over loopback. SIGTERM ends it and its containers, and
so does any failure, because a test must see it.
"""

import argparse
import asyncio
import contextlib
import random
import signal
from collections.abc import Mapping
from pathlib import Path

from pod_life import PodLife
from pod_network import Address
from pod_services import Services, outside_addresses

from simulations.lab.net.kube_api import KubeApi


async def run(api: KubeApi, node: str, folder: Path, outside: Mapping[str, Address]) -> None:
    """Run the pods that are bound to `node`, each with its files in a folder below `folder`."""
    services = Services(api, outside)
    lives: dict[str, tuple[PodLife, asyncio.Task[None]]] = {}
    third, last = random.randrange(1, 255), 0  # no other agent of the lab uses 127.255.x.x
    async with asyncio.TaskGroup() as tasks:
        async for kind, pod in api.watch("/api/v1/pods", {"fieldSelector": f"spec.nodeName={node}"}):
            metadata = pod["metadata"]
            if kind == "DELETED":
                if metadata["uid"] in lives:
                    lives.pop(metadata["uid"])[1].cancel()
                continue
            if metadata["uid"] not in lives:
                last += 1
                life = PodLife(api, pod, f"127.255.{third}.{last}", folder / metadata["uid"], services)
                lives[metadata["uid"]] = life, tasks.create_task(life.run())
            if "deletionTimestamp" in metadata:
                life = lives[metadata["uid"]][0]
                life.grace_s = metadata["deletionGracePeriodSeconds"]
                life.leaving.set()


async def _main(arguments: argparse.Namespace) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with KubeApi(arguments.kubeconfig) as api:
        await run(api, arguments.node, arguments.folder, outside_addresses(arguments.outside))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m pod_agent", description="Run the pods of one node in containers.")
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--node", required=True)
    parser.add_argument("--folder", type=Path, required=True, help="for volumes and logs of the pods")
    parser.add_argument(
        "--outside", action="append", default=[], help="NAMESPACE/NAME=HOST:PORT of a Service without pods"
    )
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(_main(parser.parse_args()))
