"""What comparisons choose: one activation where it is continuous, a refusal by name where it jumps."""

import math
from collections.abc import Callable
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

import lipkit
from lipkit.bounds import DAG
from lipkit.errors import CaptureError
from lipkit.trace.capture import capture
from lipkit.trace.nodes import Activation, Pointwise
from lipkit.trace.nodes.pointwise import ABS, RELU


class Formula(nn.Module):
    """A model that is one formula."""

    def __init__(self, formula: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.formula = formula

    def forward(self, x: Tensor) -> Tensor:
        return self.formula(x)


def tent(x: Tensor) -> Tensor:
    return ((x > 0) & (x <= 1)) * x + ((x > 1) & (x < 2)) * (2 - x)


# The formula, its largest slope, and where it switches.
CONTINUOUS: dict[str, tuple[Callable[[Tensor], Tensor], float, tuple[float, ...]]] = {
    "leaky relu": (lambda x: torch.where(x > 0, x, 0.1 * x), 1.0, (0.0,)),
    "steep": (lambda x: torch.where(x >= 1, 3 * x - 2, x), 3.0, (1.0,)),
    "clamp": (lambda x: torch.where(x > 0.1, x, 0.1), 1.0, (0.1,)),
    "flipped": (lambda x: torch.where(torch.full_like(x, 0.5) < x, x, 0.5), 1.0, (0.5,)),
    "soft threshold": (lambda x: x.sign() * functional.relu(x.abs() - 0.5), 1.0, (-0.5, 0.5)),
    "nested": (lambda x: torch.where(x > 1, x - 1, torch.where(x < -1, x + 1, 0.0)), 1.0, (-1.0, 1.0)),
    "tent": (tent, 1.0, (0.0, 1.0, 2.0)),
    "or": (lambda x: torch.where((x > 1) | (x < -1), x.sign(), x), 1.0, (-1.0, 1.0)),
    "not": (lambda x: x * (~(x <= 0)).type_as(x), 1.0, (0.0,)),
    "scaled": (lambda x: torch.where(2 * x - 1 > 0, 4 * x - 2, 0.0), 4.0, (0.5,)),
    "two masks": (lambda x: 2 * x * (x > 0).to(x) + 0.25 * x * (1 - (x > 0).to(x)), 2.0, (0.0,)),
    "elu": (lambda x: torch.where(x > 0, x, torch.exp(x) - 1), 1.0, (0.0,)),
    "huber": (lambda x: torch.where(x.abs() <= 1, 0.5 * x * x, x.abs() - 0.5), 1.0, (-1.0, 0.0, 1.0)),
    "logarithm": (lambda x: torch.where(x > 1, torch.log(x.clamp(min=1)), x - 1), 1.0, (1.0,)),
    "domain": (lambda x: torch.where(x > 1, torch.sqrt(4 * x) - 1, x), 1.0, (1.0,)),
    "hypotenuse": (lambda x: torch.where(x > 0, torch.sqrt(1 + x * x), 1.0), 1.0, (0.0,)),
    "tanh behind": (lambda x: torch.tanh(torch.where(x > 0, x, 0.5 * x)), 1.0, (0.0,)),
}
ONE_ACTIVATION = sorted(CONTINUOUS.keys() - {"tanh behind", "logarithm"})


@cache
def activation_of(name: str) -> Activation:
    network = capture(Formula(CONTINUOUS[name][0]), torch.randn(1, 3, dtype=torch.float64))
    (node,) = [node for node in network.nodes if not node.is_identity]
    assert isinstance(node, Pointwise)
    return node.activation


@pytest.mark.parametrize("name", sorted(CONTINUOUS.keys() - {"logarithm"}))
def test_the_constant_is_the_largest_slope(name: str) -> None:
    formula, slope, _ = CONTINUOUS[name]
    found = float(lipkit.lipschitz(Formula(formula), torch.randn(1, 3), DAG()).value)
    # Formulas with curved pieces are enclosed in pieces of 1/128.
    assert slope <= found <= slope * 1.001


@pytest.mark.parametrize("name", ONE_ACTIVATION)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_slopes_and_values_hold_on_intervals(name: str, scale: float) -> None:
    torch.manual_seed(0)
    formula, _, knots = CONTINUOUS[name]
    f = activation_of(name)
    ends = (scale * torch.randn(2, 24, dtype=torch.float64)).sort(0).values
    # Intervals that begin, end or lie at a knot, and short ones beside it.
    for i, knot in enumerate(knots):
        ends[:, 3 * i] = torch.tensor([knot, knot + scale], dtype=torch.float64)
        ends[:, 3 * i + 1] = torch.tensor([knot - scale, knot], dtype=torch.float64)
        ends[:, 3 * i + 2] = torch.tensor([knot - 1e-6 * scale, knot + 1e-6 * scale], dtype=torch.float64)
    low, high = ends
    s, t = low + (high - low) * torch.rand(2, 500, 24, dtype=torch.float64)
    for i, knot in enumerate(knots):
        s[:9] = torch.where((low <= knot) & (knot <= high), knot, s[:9])
        s[9 + i] = torch.where((low <= knot) & (knot <= high), math.nextafter(knot, math.inf), s[9 + i]).clamp(
            low, high
        )
    t = torch.where(torch.rand_like(s) < 0.3, s + 1e-4 * (t - s), t)
    alpha, beta = f.slopes(low, high)
    under, over = f.values(low, high)
    step, moved = s - t, formula(s) - formula(t)
    # Two values, each within a few units of its size and of its argument's, which a formula may subtract.
    slack = 1e-13 * (2 + formula(s).abs() + formula(t).abs() + s.abs() + t.abs())
    assert (moved <= torch.maximum(alpha * step, beta * step) + slack).all()
    assert (moved >= torch.minimum(alpha * step, beta * step) - slack).all()
    assert (formula(s) <= over + slack).all()
    assert (formula(s) >= under - slack).all()
    assert torch.allclose(f(s), formula(s), rtol=1e-12, atol=1e-12 * scale)


def test_known_functions_get_their_names() -> None:
    spelled: list[tuple[Callable[[Tensor], Tensor], Activation]] = [
        (lambda x: x.masked_fill(x < 0, 0.0), RELU),
        (lambda x: (x > 0) * x, RELU),
        (lambda x: x * (x >= 0).float(), RELU),
        (lambda x: torch.where(x < 0, -x, x), ABS),
        (lambda x: x.sign() * x, ABS),
    ]
    for formula, activation in spelled:
        network = capture(Formula(formula), torch.randn(1, 3))
        assert [node.activation for node in network.nodes if isinstance(node, Pointwise) and not node.is_identity] == [
            activation
        ]


def test_curvature_is_infinite_at_a_kink_only() -> None:
    f = activation_of("huber")
    at = torch.tensor([[-0.9, 0.9], [-2.0, 2.0], [1.5, 3.0]], dtype=torch.float64).T
    low, high = f.bends(*at)
    assert abs(float(high[0]) - 1) < 1e-9
    assert abs(float(low[0]) - 1) < 1e-9
    assert float(low[2]) <= 0 <= float(high[2]) < 1e-9
    assert set(activation_of("tent").kinks) == {0.0, 1.0, 2.0}


# The formula, and what the refusal says.
JUMPS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "hard shrink": (lambda x: torch.where(x.abs() > 0.5, x, 0.0), "jumps at -0.5 from -0.5 to 0"),
    "step": (lambda x: torch.where(x > 0, x + 1, x), "jumps at 0 from 0 to 1"),
    "a point": (lambda x: (x > 0) * 1.0 + (x < 0) * 1.0, "jumps at 0 from 1, 0 at it, to 1"),
    "sign": (lambda x: x.sign(), "jumps at 0 from -1, 0 at it, to 1"),
    "last bit": (lambda x: torch.where(x > 0.3, x, 0.1 + 0.2), "jumps at 0.3 from 0.3 to 0.3"),
    "below float64": (lambda x: torch.where(x > 0.1, 3 * x, 0.30000000000000004), "by less than float64 shows"),
    "mask": (lambda x: (x > 0).float(), "not seen to be one continuous function"),
    "two values": (lambda x: torch.where(x > x.flip(-1), x, x.flip(-1)), "not seen to be one continuous function"),
    "thresholds": (lambda x: torch.where(x > torch.arange(3), x, 0.0), "not seen to be one continuous function"),
    "other value": (lambda x: torch.where(x > 0, x.flip(-1), 0.0), "not seen to be one continuous function"),
    "unknown value": (lambda x: torch.where(x > 1, x.exp(), x + math.e - 1), "not known exactly"),
    "curved comparison": (lambda x: torch.where(torch.sin(x) > 0, x, x + 1), "not seen to be one continuous"),
    "equal": (lambda x: torch.where(x == 0, x, x + 1), "compares values"),
    "sum of masks": (lambda x: ((x > 0) + (x > 1)) * x, "whole numbers or truth values"),
    "whole numbers": (lambda x: (x > 0).int() * x, "rounds to torch.int32"),
    "nan": (lambda x: (x > 1) * torch.log(x), "multiplies 0 by something"),
    "rounded": (lambda x: torch.where(x > 1, x * 0.1 * 0.3, 0.03), "had to be rounded"),
}


@pytest.mark.parametrize("name", JUMPS)
def test_jumps_are_refused_in_one_sentence_with_a_remedy(name: str) -> None:
    formula, reason = JUMPS[name]
    with pytest.raises(CaptureError, match="cannot be turned into a network") as caught:
        capture(Formula(formula), torch.randn(1, 3, dtype=torch.float64))
    assert reason in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_number_is_compared_in_the_precision_of_the_model(dtype: torch.dtype) -> None:
    level = torch.tensor(0.1, dtype=dtype)
    model = Formula(lambda x: torch.where(x > 0.1, x, level))
    assert float(lipkit.lipschitz(model, torch.randn(1, 3, dtype=dtype)).value) == pytest.approx(1.0)


EIGHTHS = st.integers(-32, 32).map(lambda n: n / 8)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    knots=st.lists(EIGHTHS, min_size=1, max_size=3, unique=True),
    rates=st.lists(EIGHTHS, min_size=4, max_size=4),
    start=EIGHTHS,
    off=st.sampled_from([0.0, 2.0**-40, -1.0]),
    inclusive=st.booleans(),
)
def test_straight_pieces_are_exact_or_refused(
    knots: list[float], rates: list[float], start: float, off: float, inclusive: bool
) -> None:
    knots = sorted(knots)
    rates = rates[: len(knots) + 1]
    shifts = [start]
    for knot, before, after in zip(knots, rates[:-1], rates[1:], strict=True):
        # All eighths: the products and sums are exact.
        shifts.append(shifts[-1] + (before - after) * knot)
    shifts[-1] += off

    def formula(x: Tensor) -> Tensor:
        y = rates[0] * x + shifts[0]
        for knot, rate, shift in zip(knots, rates[1:], shifts[1:], strict=True):
            y = torch.where(x >= knot if inclusive else x > knot, rate * x + shift, y)
        return y

    x = torch.randn(1, 3, dtype=torch.float64)
    if off:
        with pytest.raises(CaptureError, match="jumps at"):
            capture(Formula(formula), x)
    else:
        truth = max(map(abs, rates))
        assert truth <= float(lipkit.lipschitz(Formula(formula), x, DAG()).value) <= truth * (1 + 1e-9) + 1e-9
