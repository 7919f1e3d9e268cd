"""The norm of a kernel as one operation of a model that is read: the same numbers, and a graph that stays small."""

import pytest
import torch
from torch import nn

import lipkit
from lipkit import nn as lnn
from lipkit.bounds import Product
from lipkit.nn.methods._arithmetic.symbol_norm import norm_above
from lipkit.trace.torch_export import export_model

LAYERS = (
    lnn.Conv2d(3, 3, 3, padding=1, method=lnn.Spectral()),
    lnn.Conv2d(3, 3, 3, padding=1, method=lnn.LinearResidual()),
    lnn.CPLConv(3, 3),
)
by_layer = pytest.mark.parametrize("layer", LAYERS, ids=["Spectral", "LinearResidual", "CPLConv"])


def test_the_operation_is_the_function() -> None:
    torch.manual_seed(0)
    kernel = torch.rand(2, 3, 2, 3, 3, dtype=torch.float64).requires_grad_()
    several = torch.stack([kernel, 2 * kernel], 1)

    def operation(given: torch.Tensor) -> torch.Tensor:
        return torch.ops.lipkit.norm_above(given, 4, 0.1)

    found, expected = operation(kernel), norm_above(kernel, 4, 0.1)
    assert torch.equal(found, expected)
    assert torch.equal(*(torch.autograd.grad(each.sum(), kernel)[0] for each in (found, expected)))
    batched = torch.func.vmap(operation, 1)(several)
    assert torch.equal(batched, torch.stack([norm_above(one, 4, 0.1) for one in several.unbind(1)]))


@by_layer
def test_it_is_one_step_of_what_is_read_and_none_of_what_users_export(layer: nn.Module) -> None:
    x = torch.randn(1, 3, 4, 4)

    def calls(program: torch.export.ExportedProgram) -> list[str]:
        return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]

    read = calls(export_model(layer.eval(), (x,), {}))
    assert read.count("lipkit.norm_above.default") == 1
    # An exported program is to run where lipkit is not installed.
    exported = calls(torch.export.export(layer, (x,)))
    assert not any("lipkit" in call for call in exported)
    # Before it was one step, a model of twelve such layers took longer to be written down than to be bounded.
    assert len(read) < 60 < len(exported)


@pytest.mark.parametrize("method", [lnn.Spectral(), lnn.LinearResidual()], ids=str)
def test_the_bound_is_differentiable_through_it(method: lnn.WeightMethod) -> None:
    """The norm of the layer's operator at one size, by SVD of its matrix, has the same gradient."""
    torch.manual_seed(0)
    layer = lnn.Conv2d(3, 3, 3, padding=1, method=method).to(torch.float64)
    x = torch.randn(1, 3, 3, 3, dtype=torch.float64)
    raw = layer.get_parameter("parametrizations.weight.original")
    with torch.no_grad():
        raw.add_(0.3 * torch.randn_like(raw))
    bound = lipkit.lipschitz(nn.Sequential(layer), x, method=Product())
    matrix = torch.func.jacrev(layer)(x).reshape(27, 27)
    truth = torch.linalg.matrix_norm(matrix, 2)
    found, expected = (torch.autograd.grad(value, raw)[0] for value in (bound.value, truth))
    torch.testing.assert_close(bound.value, truth, rtol=1e-5, atol=0)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)
