"""What specs resolve from each other: the basis of a budget."""

import pytest
from builders import a_pool, a_spec

from controller.core.state.snapshot import NodePoolState
from controller.core.state.spec import PipelineSpec, with_basis
from optimizer.model import Basis, PoolName


def resolved(spec: PipelineSpec, **elastic: bool) -> PipelineSpec:
    pools = {name: a_pool(name, node_pool=NodePoolState() if own else None).spec for name, own in elastic.items()}
    return with_basis(spec, {PoolName(name): pool for name, pool in pools.items()})


def test_without_a_basis_whole_nodes_count_where_one_of_the_pools_is_elastic() -> None:
    spec = a_spec()  # on cpu, inferentia and gpu
    assert resolved(spec, cpu=False, inferentia=False, gpu=True).basis is Basis.INSTANCES
    assert resolved(spec, cpu=False, inferentia=False, gpu=False).basis is Basis.REPLICAS
    assert resolved(spec, another=True).basis is Basis.REPLICAS


@pytest.mark.parametrize("basis", Basis)
def test_a_basis_that_is_declared_stays(basis: Basis) -> None:
    assert resolved(a_spec(basis=basis), gpu=True).basis is basis
