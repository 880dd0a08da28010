"""Reads what is stored of namespaces that join this operator's shard, and drops that of namespaces that leave it."""

import logging

from controller.kube.cluster import Cluster
from controller.kube.gateway import PIPELINES, Gateway, KubeError
from controller.kube.shards import Members
from controller.kube.store import ResourceStore

_LOG = logging.getLogger(__name__)


def follow_moves(members: Members, gateway: Gateway, cluster: Cluster, pipelines: ResourceStore) -> None:
    """Bring `cluster` and `pipelines` up to date with the namespaces of `members`.

    A namespace that cannot be read is tried again in the next cycle; until then it is of no shard, and the operator
    that has its pipelines keeps them.
    """
    for namespace, joins in members.moves().items():
        members.take(namespace, joins=joins)
        if not joins:
            cluster.drop(namespace)
            pipelines.sift(namespace)
            continue
        try:
            cluster.add(namespace)
            for page in gateway.pages(PIPELINES, namespace):
                for pipeline in page.items:
                    pipelines.put(pipeline)
        except KubeError as error:
            _LOG.warning("namespace %s has joined this shard and cannot be read: %s", namespace, error)
            members.take(namespace, joins=False)
            cluster.drop(namespace)
            pipelines.sift(namespace)
