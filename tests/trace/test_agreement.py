"""Networks that differ from their models are refused, whichever way the input enters; correct ones are not."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lipkit.errors import CaptureError
from lipkit.linops import Reshape
from lipkit.trace import rules
from lipkit.trace.capture import capture
from lipkit.trace.network import Builder, Ref
from lipkit.trace.nodes import Pointwise
from lipkit.trace.nodes.activations.gelu_tanh import GELU_TANH
from lipkit.trace.nodes.normalization import Normalization
from lipkit.trace.nodes.pointwise import leaky_relu
from support.networks.short_models import linear, model, vector

aten = torch.ops.aten
WRONG = "does not compute what the model computes"


@contextmanager
def planted(op: Any, lower: Callable[..., Ref]) -> Iterator[None]:
    """The rule of an operation replaced by another one."""
    kept = rules.RULES[op]
    rules.RULES[op] = [rules.Rule(op, lower, list)]
    try:
        yield
    finally:
        rules.RULES[op] = kept


def wrong_relu(b: Builder, x: Ref) -> Ref:
    """x / 100 for x < 0."""
    return b.node(Pointwise(leaky_relu(0.01), x.shape), x)


# Every way in which the input of a network enters its model.


def two_heads(self: Any, x: Tensor) -> dict[str, Tensor]:
    return {"plain": self.a(x), "bent": self.a(x).relu()}


def joint(self: Any, x: Tensor, *, y: Tensor, scale: Tensor) -> Tensor:
    return (self.a(x) * scale + y.sum(1)).relu()


def twice(self: Any, x: Tensor) -> Tensor:
    return self.b(self.a(self.a(x)).relu())


def pair(self: Any, x: Tensor) -> Tensor:
    found, count = self.a(x)
    return found.relu() * count


def in_place(self: Any, x: Tensor) -> Tensor:
    del self
    return x.mul_(-2).relu_() + 1


def with_count(self: Any, x: Tensor) -> tuple[Tensor, int]:
    del self
    return x.tanh(), 3


def shared() -> nn.Module:
    part = linear()
    return model(lambda self, x: self.b(self.a(self.b(x))).relu(), a=part, b=part)


WAYS: list[tuple[Callable[[], nn.Module], tuple[Tensor, ...], dict[str, Any]]] = [
    (lambda: nn.Sequential(linear(), nn.ReLU()).double(), (vector(),), {}),
    (lambda: model(two_heads, a=linear()), (vector(),), {"output": "bent"}),
    (lambda: model(two_heads, a=linear()), (vector(),), {"output": 1}),
    (lambda: model(joint, a=linear()), (vector(),), {"scale": vector(), "y": vector(12).reshape(2, 2, 6)}),
    (lambda: model(joint, a=linear()), (vector(),), {"scale": vector(), "y": vector()[:, None], "wrt": ("y", "x_0")}),
    (lambda: model(twice, a=linear(), b=linear()), (vector(),), {"wrt": "a@0"}),
    (lambda: model(twice, a=linear(), b=linear()), (vector(),), {"wrt": "a@1"}),
    (shared, (vector(),), {"wrt": "a"}),
    (shared, (vector(),), {"wrt": "b@0"}),
    (lambda: model(pair, a=model(with_count)), (vector(),), {"wrt": "a"}),
    (lambda: model(in_place), (vector(),), {}),
]


@pytest.mark.parametrize(("make", "args", "named"), WAYS)
def test_a_wrong_rule_is_noticed_whichever_way_the_input_enters(make, args, named):
    assert capture(make(), *args, **named).target
    with planted(aten.relu.default, wrong_relu), pytest.raises(CaptureError, match=WRONG):
        _ = capture(make(), *args, **named)


def test_a_wrong_rule_is_noticed_in_an_exported_program():
    program = torch.export.export(nn.Sequential(linear(), nn.ReLU()).double(), (vector(batch=1),))
    assert capture(program).target == (6,)
    with planted(aten.relu.default, wrong_relu), pytest.raises(CaptureError, match=WRONG):
        _ = capture(program)


def test_the_refusal_names_the_point_the_values_and_what_to_do():
    def shifted(b: Builder, x: Ref) -> Ref:
        return b.linear(Reshape(x.shape, x.shape), x, torch.tensor(0.5))

    with planted(aten.relu.default, shifted), pytest.raises(CaptureError) as caught:
        _ = capture(nn.ReLU(), torch.ones(1, 3))
    text = str(caught.value)
    assert "at the example entry 0 of the output is 1.5 by the network and 1 by the model" in text
    assert "report it with this model" in text


def test_the_refusal_names_the_first_module_that_differs():
    module = nn.Sequential(linear(), nn.Sequential(nn.ReLU(), linear()), nn.ReLU(), linear()).double()
    with (
        planted(aten.relu.default, wrong_relu),
        pytest.raises(CaptureError, match=r"first module that differs is '1.0'"),
    ):
        _ = capture(module, vector())


# Differences that show at one kind of point only.


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_wrong_eps_is_noticed_near_zero(dtype: torch.dtype):
    def forgetful(b: Builder, x: Ref, shape: Any, weight: Any = None, eps: Any = None) -> Ref:
        del shape, weight, eps
        return b.node(Normalization(x.shape, 16 * torch.finfo(torch.promote_types(dtype, torch.float32)).eps, False), x)

    x = torch.ones(1, 6, dtype=dtype)
    assert capture(nn.RMSNorm(6).to(dtype), x).target == (6,)
    with planted(aten.rms_norm.default, forgetful), pytest.raises(CaptureError, match=r"at 2\^-\d+ times the example"):
        _ = capture(nn.RMSNorm(6).to(dtype), x)


def test_a_wrong_limit_is_noticed_far_out():
    # Both are the identity up to 6.
    identity = planted(aten.hardtanh.default, lambda b, x, *_: b.linear(Reshape(x.shape, x.shape), x))
    with identity, pytest.raises(CaptureError, match=r"at 2\^10 times the example"):
        _ = capture(nn.Hardtanh(-6.0, 6.0), torch.full((1, 6), 0.5))


def test_small_differences_of_activations_are_noticed():
    x = 2 * torch.randn(1, 50, generator=torch.Generator().manual_seed(0))
    assert capture(nn.GELU(), x).target == (50,)
    # The two forms of GELU differ by 5e-4 at most.
    other = planted(aten.gelu.default, lambda b, x: b.node(Pointwise(GELU_TANH, x.shape), x))
    with other, pytest.raises(CaptureError, match=WRONG):
        _ = capture(nn.GELU(), x)


# Correct networks whose models round a lot.


def cancelling(self: Any, x: Tensor) -> Tensor:
    # Near zero all digits of x are lost.
    return (self.a(x) + 1e5) - 1e5


def halved(self: Any, x: Tensor) -> Tensor:
    return self.a(x.half().float()).bfloat16().float()


def masked(self: Any, x: Tensor) -> Tensor:
    scores = (x @ x.mT).masked_fill(torch.ones(3, 3).tril() == 0, -math.inf)
    return scores.softmax(-1) @ self.a(x)


def overflowing(self: Any, x: Tensor) -> Tensor:
    # x^2 is infinite in float16 from 256 on, and its inverse then 0.
    del self
    return 1 / (1 + x.square()).sqrt()


def expanding(self: Any, x: Tensor) -> Tensor:
    # Twenty times a map with slope 3: a rounding error grows by 3^20.
    del self
    for _ in range(20):
        x = 3 * x.sin()
    return x


@pytest.mark.parametrize(
    ("run", "dtype"),
    [
        (cancelling, torch.float32),
        (cancelling, torch.float64),
        (halved, torch.float32),
        (masked, torch.float32),
        (overflowing, torch.float16),
        (overflowing, torch.bfloat16),
        (expanding, torch.float32),
    ],
)
def test_a_correct_network_is_not_refused(run: Callable[..., Tensor], dtype: torch.dtype):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(1, 3, 6, generator=generator).to(dtype) * (20 if run is overflowing else 1)
    assert capture(model(run, a=linear()).to(dtype), x).target == (3, 6)


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 1e-17), (torch.float64, 1e-110)])
def test_powers_that_vanish_inside_of_a_norm_are_rounding(dtype: torch.dtype, size: float):
    # The cubes of the entries are 0 in this type.
    norm = model(lambda _self, x: torch.linalg.vector_norm(x, 3, -1)).to(dtype)
    x = torch.full((1, 6), size, dtype=dtype)
    assert float(norm(x)) == 0
    assert float(capture(norm, x)(x.double())) == pytest.approx(size * 6 ** (1 / 3), rel=1e-6)


def test_points_outside_of_the_domain_say_nothing():
    def checked(self: Any, x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling() and not bool((x > 0.1).all()):
            raise ValueError("x must be positive")
        return self.a(x).tanh()

    assert capture(model(checked, a=linear()), torch.ones(1, 6, dtype=torch.float64)).target == (6,)


def test_a_model_that_is_exported_as_another_function_is_refused():
    def split(self: Any, x: Tensor) -> Tensor:
        del self
        return x.tanh() if torch.compiler.is_exporting() else 2 * x.tanh()

    with pytest.raises(CaptureError, match="make both ways compute the same"):
        _ = capture(model(split), vector())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("scaled", [True, False])
def test_the_eps_of_a_root_mean_square_is_that_of_the_type_torch_computes_in(dtype: torch.dtype, scaled: bool):
    module = nn.RMSNorm(6, elementwise_affine=scaled).to(dtype)
    # x / sqrt(x^2 + eps) with x^2 far below every eps: a difference quotient at zero.
    x = torch.full((1, 6), 2.0**-40 if dtype is torch.float64 else 2.0**-20, dtype=dtype)
    network = capture(module, torch.ones(1, 6, dtype=dtype))
    # One rounding of the result to its type, and of the square root in it; subnormal numbers of float16 have 4 digits.
    digits = 2.0**-4 if dtype is torch.float16 else 4 * torch.finfo(dtype).eps
    assert torch.allclose(network(x.double()), module(x).double(), rtol=digits, atol=0)
