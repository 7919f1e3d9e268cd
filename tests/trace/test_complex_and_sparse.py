"""Sparse constants are bounded as the dense matrices they are; complex inputs are refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import lipkit
from lipkit.bounds import DAG
from lipkit.errors import CaptureError, CertificateError
from lipkit.trace.capture import capture
from support.networks.short_models import Model, agrees, linear, vector


def weights() -> Tensor:
    generator = torch.Generator().manual_seed(4)
    dense = torch.randn(3, 6, dtype=torch.float64, generator=generator)
    return dense * (torch.rand(3, 6, generator=generator) > 0.5)


def with_weight(run: Callable[..., Any], weight: Tensor) -> Model:
    model = Model(run)
    model.register_buffer("weight", weight)
    return model.eval()


def from_left(self: Any, x: Tensor) -> Tensor:
    return (self.weight @ x.mT).mT


def by_name(self: Any, x: Tensor) -> Tensor:
    return torch.sparse.mm(self.weight, x.mT).mT


def added(self: Any, x: Tensor) -> Tensor:
    return torch.sparse.addmm(torch.ones(3, 1, dtype=torch.float64), self.weight, x.mT, alpha=2).mT


def dense(self: Any, x: Tensor) -> Tensor:
    return functional.linear(x, self.weight.to_dense())


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state:UserWarning")
@pytest.mark.parametrize("layout", ["sparse", "sparse_csr"])
@pytest.mark.parametrize("run", [from_left, by_name, added, dense])
def test_products_with_sparse_constants_have_the_norm_of_the_dense_matrix(run: Callable[..., Any], layout: str):
    model = with_weight(run, getattr(weights(), f"to_{layout}")())
    network = capture(model, vector(batch=1))
    agrees(network, model, vector(batch=1))
    truth = float(torch.linalg.matrix_norm(weights(), 2)) * (2 if run is added else 1)
    bound = float(lipkit.lipschitz(model, vector(batch=1), DAG()).value)
    # The norm of one matrix: the automatic choice is within 1e-6 of it.
    assert truth <= bound <= truth * (1 + 1e-6)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state:UserWarning")
def test_a_sparse_weight_of_a_linear_layer_is_bounded():
    layer = linear(6, 3).double()
    layer.weight = nn.Parameter(weights().to_sparse_csr())
    truth = float(torch.linalg.matrix_norm(weights(), 2))
    bound = lipkit.lipschitz(nn.Sequential(layer, nn.ReLU()), vector(batch=1), DAG())
    assert truth <= float(bound.value.detach()) <= truth * (1 + 1e-6)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state:UserWarning")
@pytest.mark.parametrize("layout", ["sparse", "sparse_csr"])
def test_sparse_weights_are_certified_and_told_apart(layout: str):
    model = with_weight(from_left, getattr(weights(), f"to_{layout}")())
    issued = lipkit.certificate(model, vector(batch=1), DAG())
    assert lipkit.verify(issued, model).holds
    other = with_weight(from_left, getattr(weights() * 1.001, f"to_{layout}")())
    with pytest.raises(CertificateError, match="weight"):
        lipkit.verify(issued, other)


def test_sparse_weights_keep_their_gradient():
    model = Model(from_left)
    model.weight = nn.Parameter(weights().to_sparse())
    lipkit.lipschitz(model, vector(batch=1), DAG()).value.backward()
    left, _, right = torch.linalg.svd(weights())
    found = model.weight.grad
    assert found is not None
    # The gradient of the largest singular value, on the entries that are stored.
    expected = torch.outer(left[:, 0], right[0]) * (weights() != 0)
    assert torch.allclose(found.to_dense() * (weights() != 0), expected, atol=1e-6)


@pytest.mark.parametrize(
    "run",
    [
        lambda _self, x: torch.sparse.mm(x.to_sparse(), torch.ones(6, 3, dtype=x.dtype)),
        lambda self, x: (self.weight[0].to_dense().to_sparse() * x[0]).to_dense()[None],
    ],
)
def test_sparse_values_that_depend_on_the_input_are_refused(run: Callable[..., Any]):
    with pytest.raises(CaptureError, match="gives a sparse tensor that depends on the input"):
        capture(with_weight(run, weights().to_sparse()), vector(batch=1))


# Complex numbers; values that depend on the input are in test_complex_values.py.


def test_complex_inputs_are_refused():
    with pytest.raises(CaptureError, match=r"complex128.*real and imaginary parts"):
        capture(nn.Linear(6, 2, dtype=torch.complex128), vector(batch=1).to(torch.complex128))


def test_complex_constants_that_end_in_real_weights_are_bounded():
    roots = torch.randn(3, 6, dtype=torch.complex128, generator=torch.Generator().manual_seed(5))
    model = Model(lambda _self, x: functional.linear(x, (roots * roots.conj()).real))
    truth = float(torch.linalg.matrix_norm(roots.abs().square(), 2))
    assert truth <= float(lipkit.lipschitz(model, vector(batch=1), DAG()).value) <= truth * (1 + 1e-6)
