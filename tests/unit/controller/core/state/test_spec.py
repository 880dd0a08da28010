"""What specs resolve from each other: the basis of a budget."""

import pytest
from builders import a_pool, a_spec

from controller.core.state.spec import PipelineSpec, with_basis
from optimizer.model import Basis, PoolName


def resolved(spec: PipelineSpec, **node_pools: str | None) -> PipelineSpec:
    return with_basis(spec, {PoolName(name): a_pool(name, node_pool=own).spec for name, own in node_pools.items()})


def test_without_a_basis_whole_nodes_count_where_one_of_the_pools_is_elastic() -> None:
    spec = a_spec()  # on cpu, inferentia and gpu
    assert resolved(spec, cpu=None, inferentia=None, gpu="karpenter-gpu").basis is Basis.INSTANCES
    assert resolved(spec, cpu=None, inferentia=None, gpu=None).basis is Basis.REPLICAS
    assert resolved(spec, another="elastic").basis is Basis.REPLICAS


@pytest.mark.parametrize("basis", Basis)
def test_a_basis_that_is_declared_stays(basis: Basis) -> None:
    assert resolved(a_spec(basis=basis), gpu="karpenter-gpu").basis is basis
