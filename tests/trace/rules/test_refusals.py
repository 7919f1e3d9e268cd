"""Rules that refuse, and why; and rules whose arguments decide."""

import math
from typing import Any

import pytest
import torch
from torch.nn import functional

from lipkit.linops import Reshape
from lipkit.trace.network import Builder, Ref
from lipkit.trace.rules import RULES, Refusal
from lipkit.trace.rules._registry import DISCONTINUOUS
from lipkit.trace.rules.joining import axis_back, join, last_axis

aten = torch.ops.aten


def apply(op: Any, *args: Any, **kwargs: Any) -> Any:
    """The rules of an operation in turn, as the lowering tries them; a tensor marked by `Ref` stands for an input."""
    errors = []
    for rule in RULES[op]:
        try:
            return rule.lower(*args, **kwargs)
        except Refusal as error:
            errors.append(error)
    raise errors[-1]


def start(*shape: int) -> tuple[Builder, Ref]:
    builder = Builder(shape)
    return builder, builder.source


@pytest.mark.parametrize(
    ("op", "args", "reason"),
    [
        (aten.threshold.default, (0.5, 0.0), "jumps from 0 to 0.5"),
        (aten.softplus.default, (1.0, 5.0), "jumps at its threshold of 5"),
        (aten.adaptive_avg_pool1d.default, ([0],), "without entries"),
        (aten.topk.default, (2, -1, True, False), "no fixed order"),
        (aten.linalg_vector_norm.default, (0.5,), "is no norm at order 0.5"),
        (aten.linalg_norm.default, (2,), "matrix norm of order 2"),
        (aten.std.correction, ([0],), "divides by 1 - 1"),
        (aten.rrelu.default, (0.1, 0.3, True), "at random"),
    ],
)
def test_what_has_no_constant_is_refused_with_the_reason(op, args, reason: str):
    builder, x = start(1, 3, 4)
    with pytest.raises(Refusal, match=reason):
        apply(op, builder, x, *args)


def test_a_softplus_whose_step_float32_cannot_see_is_accepted():
    builder, x = start(1, 3)
    network = builder.finish(apply(aten.softplus.default, builder, x, 1.0, 20.0), (1, 3))
    z = torch.tensor([[[19.0, 20.5, -3.0]]], dtype=torch.float64)
    # Beyond 20 torch drops log(1 + exp(-x)) <= 2.1e-9.
    assert torch.allclose(network(z), functional.softplus(z), rtol=0, atol=2.1e-9)


def test_a_mask_may_not_depend_on_the_input_nor_hide_everything():
    builder, x = start(1, 2, 3)
    with pytest.raises(Refusal, match="mask depends on the input"):
        apply(aten.scaled_dot_product_attention.default, builder, x, x, x, x)
    with pytest.raises(Refusal, match="drops weights"):
        apply(aten.scaled_dot_product_attention.default, builder, x, x, x, None, 0.1)
    hidden = torch.tensor([[True, True], [False, False]])
    with pytest.raises(Refusal, match="sees no key"):
        apply(aten.scaled_dot_product_attention.default, builder, x, x, x, hidden)


@pytest.mark.parametrize(
    ("dtype", "computed"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
@pytest.mark.parametrize("weight", [None, torch.ones(4, dtype=torch.bfloat16)])
def test_rms_norm_takes_the_eps_of_the_type_it_is_computed_in(dtype, computed, weight: Any):
    builder, x = start(1, 4)
    builder.dtype = dtype
    network = builder.finish(apply(aten.rms_norm.default, builder, x, [4], weight), (1, 4))
    constant = max(node.log_constant(2.0).exp().item() for node in network.nodes)
    assert constant == pytest.approx(1 / math.sqrt(torch.finfo(computed).eps), rel=1e-12)


@pytest.mark.parametrize("equation", ["bii,bj->bj", "...i,...j->ij", "bi,bj,bk->b"])
def test_other_contractions_are_refused(equation: str):
    builder, x = start(1, 2, 2)
    with pytest.raises(Refusal):
        apply(aten.einsum.default, builder, equation, [x] * (equation.count(",") + 1))


def test_products_with_constants_are_left_to_the_linear_rules():
    builder, x = start(1, 3)
    for op in (aten.mul.Tensor, aten.matmul.default, aten.div.Tensor):
        rules = [rule for rule in RULES[op] if rule.lower.__module__.endswith("elementwise_binary")]
        assert len(rules) == 1
        with pytest.raises(Refusal, match="is linear"):
            rules[0].lower(builder, x, torch.ones(3))


@pytest.mark.parametrize("divisor", [0, 0.0, -0.0, 5e-324, math.nan])
def test_a_divisor_without_a_finite_reciprocal_is_refused(divisor: float):
    builder, x = start(1, 3)
    for op, by in (
        (aten.div.Tensor, divisor),
        (aten.div.Scalar, divisor),
        (aten.div.Tensor, torch.tensor([1.0, divisor, 2.0], dtype=torch.float64)),
        (aten.true_divide.Tensor, torch.tensor(divisor, dtype=torch.float64)),
    ):
        (rule,) = (rule for rule in RULES[op] if rule.lower.__module__.endswith("arithmetic"))
        with pytest.raises(Refusal, match="divides by") as caught:
            rule.lower(builder, x, by)
        assert "reciprocal is finite" in caught.value.remedy


def test_jumping_operations_have_a_reason_and_no_rule():
    assert all(reason.strip() for reason in DISCONTINUOUS.values())
    assert not DISCONTINUOUS.keys() & RULES.keys()
    assert "Lipschitz" in DISCONTINUOUS[aten.floor.default]


def test_joining_repeats_a_value_and_axes_go_back():
    builder, x = start(2, 3)
    y = builder.linear(Reshape(x.shape, x.shape) * 2.0, x)
    z = builder.finish(join(builder, [x, y, x]), (18,))(torch.arange(6.0, dtype=torch.float64).reshape(1, 2, 3))[0]
    assert z.tolist() == [0, 1, 2, 3, 4, 5, 0, 2, 4, 6, 8, 10, 0, 1, 2, 3, 4, 5]
    builder, x = start(2, 3, 4)
    back = axis_back(builder, last_axis(builder, x, 0), 0)
    value = torch.randn(1, 2, 3, 4, dtype=torch.float64)
    assert back.shape == (2, 3, 4)
    assert torch.equal(builder.finish(back, back.shape)(value), value)
