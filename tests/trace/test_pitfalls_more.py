"""Ways in which a traced graph can lie about a model, 8 to 13, each with a model that would fall into it."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lipkit.errors import CaptureError
from lipkit.trace.capture import capture
from support.networks.short_models import agrees, linear, model, vector

# 8. Control flow.


def test_branches_on_values_are_refused():
    def run(self: Any, x: Tensor) -> Tensor:
        return self.a(x) if x.sum() > 0 else x

    with pytest.raises(CaptureError, match="Branches on values"):
        _ = capture(model(run, a=linear()), vector())


def test_cond_is_refused():
    def run(self: Any, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda v: v + 1, lambda v: 2 * v, (self.a(x),))

    with pytest.raises(CaptureError, match=r"control flow: a choice between functions"):
        _ = capture(model(run, a=linear()), vector())


def test_item_is_refused():
    with pytest.raises(CaptureError, match=r"item .*\n.*leave out .item\(\)"):
        _ = capture(model(lambda self, x: x * (self.a(x).sum().item() + 1), a=linear()), vector())


def test_item_of_a_constant_is_a_constant():
    module = model(lambda self, x: x * self.a.bias.sum().item(), a=linear())
    agrees(capture(module, vector()), module, vector())


def test_blocks_without_gradients_are_followed():
    def run(self: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = self.a(x)
        return x + y.detach()

    module = model(run, a=linear())
    network = capture(module, vector())
    agrees(network, module, vector())
    jacobian = torch.func.jacrev(lambda v: network(v[None])[0])(vector()[0])
    # Autograd of the model gives the identity here; the function is x + W x.
    assert torch.allclose(jacobian, torch.eye(6, dtype=torch.float64) + module.a.weight, rtol=0, atol=1e-12)


# 9. Samples that are mixed.


@pytest.mark.parametrize(
    "mix",
    [
        lambda x: x - x.mean(0),
        lambda x: x @ x.T,
        lambda x: x / x.std(),
        lambda x: x.mean(),
        lambda x: x.flip(0),
        lambda x: x.sort(0).values,
        lambda x: x.reshape(-1, 2, 3).sum(0, keepdim=True).expand(len(x), 2, 3),
    ],
)
def test_mixing_of_samples_is_refused(mix: Callable[[Tensor], Tensor]):
    with pytest.raises(CaptureError):
        _ = capture(model(lambda self, x: mix(self.a(x)), a=linear()), vector())


def test_a_mean_over_the_batch_is_refused_for_being_one():
    with pytest.raises(CaptureError, match="another sample of the batch"):
        _ = capture(model(lambda self, x: self.a(x) - self.a(x).mean(0), a=linear()), vector())


def test_a_model_for_one_sample_only_cannot_mix():
    module = model(lambda self, x: self.a(x.reshape(1, 2, 3)), a=linear(3, 2))
    assert capture(module, vector(batch=1)).target == (2, 2)


# 10. Positions.


@pytest.mark.parametrize(
    "positions",
    [
        lambda x: x.sort(1).indices.to(x.dtype),
        lambda x: x.gather(1, x.argsort(1)),
        lambda x: x.max(1).indices.to(x.dtype),
        lambda x: x.argmax(1).to(x.dtype),
        lambda x: x.topk(2, dim=1).indices.to(x.dtype),
    ],
)
def test_positions_are_refused(positions: Callable[[Tensor], Tensor]):
    with pytest.raises(CaptureError):
        _ = capture(model(lambda self, x: positions(self.a(x)), a=linear()), vector())


def test_positions_that_are_not_used_do_no_harm():
    module = model(lambda self, x: self.a(x).sort(1).values.max(1)[0], a=linear())
    agrees(capture(module, vector()), module, vector())


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_rounding_to_integers_is_refused(dtype: torch.dtype):
    with pytest.raises(CaptureError, match="which jumps"):
        _ = capture(model(lambda self, x: self.a(x).to(dtype).to(x.dtype), a=linear()), vector())


# 11. `copy` has no derivative; the operators have adjoints all the same.


def test_slice_assignment_has_an_adjoint():
    def run(self: Any, x: Tensor) -> Tensor:
        y = torch.empty(len(x), 6, dtype=x.dtype)
        y[:, :2] = self.a(x)[:, 4:]
        y[:, 2:] = x[:, :4] * 2
        return y

    module = model(run, a=linear())
    network = capture(module, vector())
    agrees(network, module, vector())
    for op in network.blocks.values():
        x, y = (torch.randn(shape, dtype=torch.float64) for shape in (op.in_shape, op.out_shape))
        with torch.no_grad():
            left, right = (op.apply(x) * y).sum(), (x * op.adjoint(y)).sum()
        assert math.isclose(float(left), float(right), abs_tol=1e-12)


def test_memory_that_is_never_written_is_refused():
    def run(self: Any, x: Tensor) -> Tensor:
        y = torch.empty(len(x), 6, dtype=x.dtype)
        y[:, :5] = self.a(x)[:, :5]
        return y

    with pytest.raises(CaptureError, match=r"is NaN.*torch.empty"):
        _ = capture(model(run, a=linear()), vector())


# 12. Discrete inputs.


class Words(nn.Module):
    """Embedded tokens, averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.embed(tokens)
        if mask is not None:
            x = x * mask[..., None]
        return self.head(x.tanh().mean(1))


def test_tokens_start_behind_their_embedding():
    module, tokens = Words().double().eval(), torch.tensor([[1, 5, 2], [0, 0, 9]])
    network = capture(module, tokens, wrt="embed")
    assert (network.source, network.target) == ((3, 4), (3,))
    assert torch.allclose(network(module.embed(tokens)), module(tokens), rtol=0, atol=1e-12)


def test_tokens_without_a_place_to_start_are_refused():
    with pytest.raises(CaptureError, match=r"no floating-point input.*wrt='embed'"):
        _ = capture(Words(), torch.tensor([[1, 5, 2]]))
    with pytest.raises(CaptureError, match=r"'tokens' is not a floating-point tensor.*wrt='embed'"):
        _ = capture(Words(), torch.tensor([[1, 5, 2]]), wrt="tokens")


def test_inputs_that_are_not_selected_are_constants():
    module, tokens = Words().double().eval(), torch.tensor([[1, 5, 2], [0, 0, 9]])
    mask = torch.tensor([[1.0, 0.0, 1.0], [1.0, 1.0, 1.0]], dtype=torch.float64)
    network = capture(module, tokens, mask=mask, wrt="embed")
    x = module.embed(tokens)
    expected = module.head((x * mask[:1, :, None]).tanh().mean(1))
    assert torch.allclose(network(x), expected, rtol=0, atol=1e-12)


# 13. Hooks and custom gradients.


class Doubled(torch.autograd.Function):
    """2 x, with a wrong derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.factor = 100
        return 2 * x

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> Tensor:
        return ctx.factor * grad[0]


def test_a_custom_gradient_is_ignored():
    module = model(lambda self, x: Doubled.apply(self.a(x)), a=linear())
    network = capture(module, vector())
    agrees(network, module, vector())
    jacobian = torch.func.jacrev(lambda v: network(v[None])[0])(vector()[0])
    assert torch.allclose(jacobian, 2 * module.a.weight, rtol=0, atol=1e-12)


def test_forward_hooks_are_followed():
    module: Any = nn.Sequential(linear(), nn.ReLU()).double().eval()
    _ = module[0].register_forward_hook(lambda _module, _inputs, output: 3 * output)
    network = capture(module, vector())
    agrees(network, module, vector())
    assert not torch.allclose(network(vector()), module[0].forward(vector()).relu())
