"""The volumes of a pod as folders on the host: files from projected sources, ConfigMaps and Secrets, empty folders."""

import base64
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulations.lab.net.kube_api import KubeApi

Json = Mapping[str, Any]

FIELDS = {
    "metadata.name": lambda pod: pod["metadata"]["name"],
    "metadata.namespace": lambda pod: pod["metadata"]["namespace"],
    "metadata.uid": lambda pod: pod["metadata"]["uid"],
    "spec.nodeName": lambda pod: pod["spec"]["nodeName"],
}
"""What `fieldRef` may name."""


async def make_volumes(api: KubeApi, pod: Json, folder: Path) -> dict[str, Path]:
    """Return the folder of each volume of `pod`, below `folder`. Tokens are bound to the pod and are not renewed."""
    made: dict[str, Path] = {}
    group = pod["spec"].get("securityContext", {}).get("fsGroup", -1)
    for volume in pod["spec"].get("volumes", ()):
        made[volume["name"]] = path = folder / volume["name"]
        path.mkdir(parents=True, exist_ok=True)
        for name, content in (await _files(api, pod, volume)).items():
            (path / name).write_bytes(content)
            (path / name).chmod(0o440)
            _give(path / name, group)
        path.chmod(0o2770 if "emptyDir" in volume else 0o2750)
        _give(path, group)
    return made


async def _files(api: KubeApi, pod: Json, volume: Json) -> dict[str, bytes]:
    if "emptyDir" in volume:
        return {}
    found: dict[str, bytes] = {}
    sources = volume["projected"]["sources"] if "projected" in volume else [volume]
    for source in sources:
        if token := source.get("serviceAccountToken"):
            found[token["path"]] = await _token(api, pod, token)
        elif fields := source.get("downwardAPI"):
            found |= {item["path"]: FIELDS[item["fieldRef"]["fieldPath"]](pod).encode() for item in fields["items"]}
        elif config_map := source.get("configMap"):
            data = (await api.get(_path(pod, "configmaps", config_map["name"]))).get("data", {})
            found |= _chosen({key: text.encode() for key, text in data.items()}, config_map)
        elif secret := source.get("secret"):
            data = (await api.get(_path(pod, "secrets", secret.get("secretName") or secret["name"]))).get("data", {})
            found |= _chosen({key: base64.b64decode(text) for key, text in data.items()}, secret)
        else:
            raise ValueError(f"no such source of a volume: {sorted(source)}")
    return found


def _chosen(data: dict[str, bytes], source: Json) -> dict[str, bytes]:
    return {item["path"]: data[item["key"]] for item in source["items"]} if "items" in source else data


async def _token(api: KubeApi, pod: Json, wanted: Json) -> bytes:
    metadata = pod["metadata"]
    bound = {"kind": "Pod", "apiVersion": "v1", "name": metadata["name"], "uid": metadata["uid"]}
    spec = {"expirationSeconds": wanted["expirationSeconds"], "boundObjectRef": bound}
    if "audience" in wanted:
        spec["audiences"] = [wanted["audience"]]
    account = _path(pod, "serviceaccounts", pod["spec"]["serviceAccountName"])
    answer = await api.create(f"{account}/token", {"spec": spec})
    return str(answer["status"]["token"]).encode()


def _path(pod: Json, kind: str, name: str) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/{kind}/{name}"


def _give(path: Path, group: int) -> None:
    os.chown(path, -1, group)
