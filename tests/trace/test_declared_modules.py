"""Modules that state their own constant."""

import math
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor, nn

from lipkit.bound import Bound, Kind, Metric
from lipkit.bounds import Product
from lipkit.errors import CaptureError
from lipkit.linops import Shape
from lipkit.regions import Ball, Reach
from lipkit.trace.capture import capture
from lipkit.trace.network import Network
from lipkit.trace.nodes.declared import Declared


class Wavy(nn.Module):
    """slope * sin-like function that has no rule, with a constant that depends on a parameter."""

    def __init__(self, p: float = 2.0, kind: Kind = Kind.UPPER) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
        self.p, self.kind = p, kind
        self.asked: list[Shape] = []

    def forward(self, x: Tensor) -> Tensor:
        # |d/dx J0| <= 0.582.
        return self.slope * torch.special.bessel_j0(x)

    def declared_lipschitz(self, in_shape: Shape) -> Bound:
        self.asked.append(in_shape)
        value = self.slope.abs() * 0.582
        return Bound.from_value(value, self.kind, "by its derivative", Metric(self.p, self.p))


def promises(network: Network) -> list[Declared]:
    return [node for node in network.nodes if isinstance(node, Declared)]


def example() -> Tensor:
    return torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_a_declared_module_becomes_one_node():
    module: Any = nn.Sequential(nn.Linear(4, 5), nn.Sequential(Wavy()), nn.Linear(5, 2)).double()
    network = capture(module, example())
    (node,) = promises(network)
    assert node.path == "1.0"
    assert node.promise.kind is Kind.UPPER
    assert (node.shape, node.target) == ((1, 3, 5), (1, 3, 5))
    assert module[1][0].asked == [(3, 5)]
    assert torch.allclose(network(example()), module(example()), rtol=0, atol=1e-12)
    assert network(example()[:0]).shape == (0, 3, 2)


class Converted(Wavy):
    """Begins and ends with conversions that change nothing: torch hands on the tensor itself."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(x.dtype)).to(x.dtype)


class Skipped(nn.Module):
    """The input plus a module of it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


def test_a_conversion_that_changes_nothing_does_not_hide_a_declaration():
    module: Any = nn.Sequential(Skipped(Converted()), Skipped(Converted())).double()
    network = capture(module, example())
    assert [node.path for node in promises(network)] == ["0.inner", "1.inner"]
    assert torch.allclose(network(example()), module(example()), rtol=0, atol=1e-12)
    same: Any = nn.Sequential(nn.Identity(), Skipped(nn.Identity())).double()
    assert torch.equal(capture(same, example())(example()), 2 * example())


def test_the_constant_is_live_and_larger_in_other_norms():
    module: Any = nn.Sequential(Wavy()).double()
    (node,) = promises(capture(module, example()))
    constant = node.log_constant(2.0)
    assert math.isclose(constant.item(), math.log(2 * 0.582), rel_tol=1e-12)
    entries = math.prod(node.target)
    assert entries > 1
    assert math.isclose(node.log_constant(1.0).item(), math.log(2 * 0.582 * entries**0.5), rel_tol=1e-12)
    (slope,) = torch.autograd.grad(constant, module[0].slope)
    assert math.isclose(float(slope), 0.5, rel_tol=1e-12)


@pytest.mark.parametrize(
    ("p", "q"), [(1.4592279451180352, 1.4542371151022038), (1.0, 2.0), (math.inf, 2.0), (2.0 + 1e-9, 2.0)]
)
def test_ratios_of_norms_are_rounded_up(p: float, q: float):
    size = (10**7,)
    promise = Bound.from_value(1.0, Kind.EXACT, "one", Metric(q, q))
    node = Declared(lambda z: z, size, size, (), promise, "here")
    with mpmath.workdps(50):
        truth = abs(1 / mpmath.mpf(q) - 1 / mpmath.mpf(p)) * mpmath.log(10**7)
        found = mpmath.mpf(node.log_constant(p).item())
        # 2^-52 of the exponent, and the slack of a logarithm of one.
        assert truth <= found <= truth * (1 + mpmath.mpf(2) ** -45) + mpmath.mpf(10) ** -14


def test_a_claim_for_every_norm_is_true_or_false():
    class Claiming(Wavy):
        def every_norm(self) -> bool:
            return False

    with pytest.raises(CaptureError, match="must be True or False, got method"):
        capture(nn.Sequential(Claiming()).double(), example())


def test_the_function_is_live_too():
    module: Any = nn.Sequential(Wavy()).double()
    network = capture(module, example())
    (found,) = torch.autograd.grad(network(example()).sum(), module[0].slope)
    assert torch.allclose(found, torch.special.bessel_j0(example()).sum())
    assert network.to(torch.float32)(example().float()).dtype == torch.float32


def test_every_call_is_a_node_of_its_own():
    wavy = Wavy()
    network = capture(nn.Sequential(wavy, nn.Linear(4, 4), wavy).double(), example())
    assert [node.path for node in promises(network)] == ["0", "2"]


def test_the_whole_model_may_declare():
    (node,) = promises(capture(Wavy(), example()))
    assert node.path == ""


class Outer(nn.Module):
    """A declaring module around another one."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Wavy()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) / 3

    def declared_lipschitz(self, in_shape: Shape) -> Bound:
        return Bound.from_value(1.0, Kind.UPPER, "of the whole")


def test_the_outermost_declaration_counts():
    (node,) = promises(capture(nn.Sequential(Outer()), example()))
    assert node.path == "0"


class Split(nn.Module):
    """Two results: no region with one output."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.relu(x), 2 * x

    def declared_lipschitz(self, in_shape: Shape) -> Bound:
        return Bound.from_value(1e-3, Kind.UPPER, "wrong for the pair")


class Uses(nn.Module):
    """The sum of both results of `Split`."""

    def __init__(self) -> None:
        super().__init__()
        self.split = Split()

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.split(x)
        return a + b


def test_a_region_with_two_results_is_lowered_by_its_operations():
    network = capture(Uses(), example())
    assert promises(network) == []
    assert torch.allclose(network(example()), Uses()(example()))


@pytest.mark.parametrize("kind", [Kind.LOWER, Kind.ESTIMATE])
def test_a_declaration_must_prove(kind: Kind):
    with pytest.raises(CaptureError, match="must be an exact or upper bound"):
        _ = capture(nn.Sequential(Wavy(kind=kind)), example())


class Elsewhere(Wavy):
    """A promise about something else than the map from l_p to l_p everywhere."""

    def __init__(self, **change: Any) -> None:
        super().__init__()
        self.change = change

    def declared_lipschitz(self, in_shape: Shape) -> Bound:
        zero = torch.zeros((), dtype=torch.float64)
        return Bound(**{"log_value": zero, "kind": Kind.UPPER, "method": "m", **self.change})


@pytest.mark.parametrize(
    "change", [{"region": Ball(torch.zeros(4), 1.0)}, {"metric": Metric(2.0, math.inf)}, {"metric": Metric(1.0, 2.0)}]
)
def test_a_declaration_holds_everywhere_in_one_norm(change: dict[str, Any]):
    with pytest.raises(CaptureError, match="declares"):
        _ = capture(nn.Sequential(Elsewhere(**change)), example())


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_the_reach_of_a_declared_node_holds_its_values(p: float):
    (node,) = promises(capture(nn.Sequential(Wavy(p)), example()))
    center = example()[:1]
    radius = torch.rand(center.shape, dtype=torch.float64)
    reach = Reach(center - radius, center + radius, center, torch.linalg.vector_norm(radius))
    found = node.reach(reach)
    assert node.within(reach) is node
    inside = center + radius * (2 * torch.rand(200, *center.shape, dtype=torch.float64) - 1)
    values = node(inside)
    assert ((found.low <= values) & (values <= found.high)).all()
    assert (torch.linalg.vector_norm((values - found.center).flatten(1), dim=1) <= found.radius).all()


def test_a_source_inside_a_declared_module_breaks_its_promise():
    module = nn.Sequential(Outer(), nn.ReLU())
    network = capture(module, example(), wrt="0.inner")
    assert promises(network) == []
    assert network.source == (3, 4)


@pytest.mark.parametrize("declared", [2.0, lambda _self, _shape: 2.0])
def test_a_declaration_is_a_method_that_gives_a_bound(declared: Any):
    class Number(Wavy):
        declared_lipschitz = declared  # pyright: ignore[reportAssignmentType]

    with pytest.raises(CaptureError, match=r"The module 0 declares 2.0; .* gives a Bound: Bound.from_value"):
        _ = capture(nn.Sequential(Number()).double(), example())


class Adds(nn.Module):
    """a + b, which has constant 1 in each of them, and 2 on the diagonal."""

    def forward(self, a: Tensor, *others: Tensor, **more: Any) -> Tensor:
        return a + sum(others) + sum(more.get("pair", ()))

    def declared_lipschitz(self, in_shape: Shape) -> Bound:
        return Bound.from_value(1.0, Kind.UPPER, "in each of its inputs")


class Calls(nn.Module):
    """A model that calls `Adds` in some way."""

    def __init__(self, call: Any) -> None:
        super().__init__()
        self.adds, self.same, self.call = Adds(), nn.Identity(), call
        self.template = nn.Parameter(torch.ones(3, 4, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self, x)


@pytest.mark.parametrize(
    ("call", "constant"),
    [
        (lambda m, x: m.adds(x, x), 2.0),
        (lambda m, x: m.adds(x, m.same(x)), 2.0),
        (lambda m, x: m.adds(x.relu(), x.relu()), 2.0),
        (lambda m, x: m.adds(x, x.contiguous()), 2.0),
        (lambda m, x: m.adds(x, pair=[x, x.to(x.dtype)]), 3.0),
        # A tensor that is the same for every input does not count.
        (lambda m, x: m.adds(x, m.template), None),
        (lambda m, x: m.adds(x), None),
    ],
)
def test_a_declaration_of_one_input_says_nothing_about_one_tensor_in_two_arguments(call: Any, constant: float | None):
    model = Calls(call)
    # relu is the identity for positive numbers.
    x = example().abs() + 0.1
    network = capture(model, x)
    assert len(promises(network)) == (constant is None)
    # The constant is attained along any direction, with a step that keeps all signs.
    step = 1e-3 * torch.rand(x.shape, dtype=torch.float64)
    with torch.no_grad():
        moved = float(torch.linalg.vector_norm(model(x + step) - model(x)) / torch.linalg.vector_norm(step))
    bound = float(Product()(network).value)
    # Differences of numbers near one in steps of 1e-3 have 12 digits.
    assert bound >= moved * (1 - 1e-9)
    assert bound == pytest.approx(constant or 1.0, rel=1e-9)
