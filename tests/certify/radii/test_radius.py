"""Certified radii against closed forms, and what may not certify."""

import inspect
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import lipkit
from lipkit import Ball, Bound, Box, Kind, Metric, Scope
from lipkit import nn as lnn
from lipkit.certify import binary_radius, head_pairwise, radius
from lipkit.certify.radii.radius import require_certifying
from lipkit.errors import ArgumentError, KindError, MetricError, NonFiniteError, RegionError, ShapeError

NORMS = (1.0, 2.0, math.inf)


def upper(value: float | Tensor, metric: Metric = lipkit.L2, of: Scope = Scope.WHOLE) -> Bound:
    return Bound.from_value(value, Kind.UPPER, "given", metric, of)


def distance_to_boundary(weight: Tensor, bias: Tensor, x: Tensor, label: int, p: float) -> float:
    """The least l_p distance to a half-space of another class, by the formula for hyperplanes, in loops."""
    q = {1.0: math.inf, 2.0: 2.0, math.inf: 1.0}[p]
    found = []
    for j in range(len(weight)):
        if j != label:
            normal = (weight[label] - weight[j]).tolist()
            gap = math.fsum(a * b for a, b in zip(normal, x.tolist(), strict=True)) + float(bias[label] - bias[j])
            size = max(map(abs, normal)) if q == math.inf else math.fsum(abs(a) ** q for a in normal) ** (1 / q)
            found.append(gap / size)
    return max(0.0, min(found))


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(2, 6), st.integers(1, 5), st.sampled_from(NORMS))
def test_affine_classifiers_are_exact(seed: int, classes: int, inputs: int, p: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(classes, inputs, generator=generator, dtype=torch.float64)
    bias = torch.randn(classes, generator=generator, dtype=torch.float64)
    x = torch.randn(8, inputs, generator=generator, dtype=torch.float64)
    labels = torch.randint(classes, (8,), generator=generator)
    q = {1.0: math.inf, 2.0: 2.0, math.inf: 1.0}[p]
    pairs = torch.linalg.vector_norm(weight[:, None] - weight[None], ord=q, dim=-1)
    found = radius(x @ weight.T + bias, labels, upper(pairs * (1 + 1e-15), Metric(p, p), Scope.PAIR))
    assert found.kind is Kind.LOWER
    assert found.p == p
    for value, point, label in zip(found.value.tolist(), x, labels.tolist(), strict=True):
        truth = distance_to_boundary(weight, bias, point, label, p)
        # The logits of the test are sums of five products near 1: 1e-14 absolute; normals are not shorter than 1e-2.
        assert value <= truth + 1e-11
        assert value == pytest.approx(truth, rel=1e-9, abs=1e-11)


def test_normalised_inputs_halve_the_radius() -> None:
    """A radius of pixels mapped to [-1, 1] is twice the radius of the pixels; a sweep along the normal shows which."""
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(12, generator=generator, dtype=torch.float64)
    image = torch.rand(1, 3, 2, 2, generator=generator, dtype=torch.float64)
    head = nn.Linear(12, 2, bias=False).double()
    head.weight.data = torch.stack([normal, -normal])
    inner = nn.Sequential(nn.Flatten(), head)
    scaled = lnn.Normalize((0.5,) * 3, (0.5,) * 3).double()
    model = nn.Sequential(scaled, inner)
    label = model(image).argmax(1)
    with torch.no_grad():
        outside = radius(model(image), label, lipkit.pairwise(model, image)).value
        inside = radius(inner(scaled(image)), label, lipkit.pairwise(inner, scaled(image))).value
    torch.testing.assert_close(inside, 2 * outside)
    away = -(normal / torch.linalg.vector_norm(normal)).reshape(image.shape) * (1 - 2 * label.item())
    assert int(model(image + 0.999 * outside * away).argmax()) == label
    assert int(model(image + 1.001 * outside * away).argmax()) != label


@pytest.mark.parametrize(("q", "constant"), [(1.0, 2.0), (2.0, math.sqrt(2)), (math.inf, 1.0)])
def test_the_factor_of_each_output_norm(q: float, constant: float) -> None:
    # f(t) = (t, -t) changes its class at 0, and is 2, sqrt 2, 1-Lipschitz into l1, l2, linf.
    t = torch.tensor([0.25, 1.0, 3.0], dtype=torch.float64)
    logits = torch.stack([t, -t], dim=1)
    found = radius(logits, torch.zeros(3, dtype=torch.long), upper(constant, Metric(2.0, q)))
    torch.testing.assert_close(found.value, t, rtol=1e-14, atol=0)
    assert bool((found.value <= t).all())
    # One constant for each class, |t| and |-t|: the same again, by the sum.
    found = radius(logits, torch.zeros(3, dtype=torch.long), upper(torch.ones(2), of=Scope.CLASS))
    torch.testing.assert_close(found.value, t, rtol=1e-14, atol=0)


def test_the_printed_factors_would_be_unsound() -> None:
    # In linf outputs with K = 1 the class of f(t) = (t, -t) at t = 1 flips at distance 1; margin / K would say 2.
    found = radius(torch.tensor([[1.0, -1.0]]), torch.tensor([0]), upper(1.0, Metric(math.inf, math.inf)))
    assert 1 - 1e-14 < float(found.value) <= 1.0


def test_wrong_classes_ties_and_constants_of_zero() -> None:
    logits = torch.tensor([[1.0, 2.0, 0.0], [1.0, 1.0, 0.0], [5.0, 1.0, 1.0]])
    labels = torch.tensor([0, 0, 0])
    assert radius(logits, labels, upper(1.0)).value[:2].tolist() == [0.0, 0.0]
    # A map that does not move keeps its class for ever, if it has one.
    still = radius(logits, labels, Bound.from_value(0.0, Kind.EXACT, "constant")).value
    assert still.tolist()[:2] == [0.0, 0.0]
    assert still[2] > 1e300


def test_rounding_errors_of_logits_are_subtracted() -> None:
    logits = torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    error = torch.tensor([0.1, 0.6], dtype=torch.float64)
    found = radius(logits, torch.tensor([0, 0]), upper(torch.ones(2, 2), of=Scope.PAIR), error=error)
    assert found.value.tolist() == pytest.approx([0.8, 0.0], rel=1e-12)
    assert float(found.value[0]) <= 0.8


def test_a_local_constant_certifies_inside_its_region_only() -> None:
    x = torch.tensor([[0.0, 0.0], [0.3, 0.0]])
    logits, labels = torch.tensor([[9.0, 0.0], [9.0, 0.0]]), torch.tensor([0, 0])
    local = replace(upper(1.0), region=Ball(torch.zeros(2), 0.5))
    assert radius(logits, labels, local, at=x).value.tolist() == pytest.approx([0.5, 0.2], rel=1e-6)
    # An l2 radius in an linf ball, and an linf radius in an l2 ball of two dimensions.
    wide = replace(upper(1.0), region=Ball(torch.zeros(2), 0.5, math.inf))
    assert radius(logits, labels, wide, at=x).value.tolist() == pytest.approx([0.5, 0.2], rel=1e-6)
    narrow = replace(upper(1.0, Metric(math.inf, 2.0)), region=Ball(torch.zeros(2), 0.5))
    assert radius(logits, labels, narrow, at=x).value.tolist() == pytest.approx([0.5 / 2**0.5, 0.2 / 2**0.5], rel=1e-6)
    box = replace(upper(1.0), region=Box(torch.tensor([-1.0, -0.25]), torch.tensor([1.0, 4.0])))
    assert radius(logits, labels, box, at=x).value.tolist() == pytest.approx([0.25, 0.25], rel=1e-6)
    each = replace(upper(torch.tensor([9.0, 90.0]), of=Scope.SAMPLE), region=Ball(x, 0.5))
    expected = [0.5, 9 / 90 / 2**0.5]
    assert radius(logits, labels, each, at=x).value.tolist() == pytest.approx(expected, rel=1e-6)
    with pytest.raises(RegionError, match="give the inputs"):
        radius(logits, labels, local)


def test_radii_in_another_norm() -> None:
    found = radius(torch.tensor([[3.0, 0.0]]), torch.tensor([0]), upper(torch.ones(2, 2), of=Scope.PAIR))
    assert float(found.in_norm(1.0, 9).value) == float(found.value)
    assert float(found.in_norm(math.inf, 9).value) == pytest.approx(1.0, rel=1e-9)
    assert float(found.in_norm(math.inf, 9).value) <= 1.0
    assert found.certified(2.9).tolist() == [True]
    assert found.certified(3.0).tolist() == [False]


def test_a_single_score() -> None:
    scores, labels = torch.tensor([0.5, -0.25, 0.1]), torch.tensor([1, -1, -1])
    found = binary_radius(scores, labels, upper(2.0), error=0.05)
    assert found.value.tolist() == pytest.approx([0.225, 0.1, 0.0], rel=1e-6)
    with pytest.raises(ArgumentError, match=r"-1 and \+1, got \[0, 1\]"):
        binary_radius(scores, torch.tensor([0, 1, 1]), upper(2.0))


@pytest.mark.parametrize("kind", [Kind.LOWER, Kind.ESTIMATE])
def test_what_proves_nothing_is_refused(kind: Kind) -> None:
    with pytest.raises(KindError, match="Only an exact or upper bound certifies"):
        radius(torch.zeros(1, 2), torch.tensor([0]), Bound.from_value(1.0, kind, "power iteration"))


def test_a_number_is_no_bound() -> None:
    with pytest.raises(ArgumentError, match=r"needs a Bound, got float; take one from"):
        require_certifying(1.0)


def test_bad_arguments_are_named() -> None:
    one = upper(1.0)
    with pytest.raises(ArgumentError, match=r"0\.\.1, got 0\.\.2"):
        radius(torch.zeros(2, 2), torch.tensor([0, 2]), one)
    with pytest.raises(NonFiniteError, match="NaN or infinite"):
        radius(torch.tensor([[math.nan, 0.0]]), torch.tensor([0]), one)
    with pytest.raises(ShapeError, match="binary_radius"):
        radius(torch.zeros(2, 1), torch.tensor([0, 0]), one)
    with pytest.raises(ArgumentError, match="finite number >= 0"):
        radius(torch.zeros(1, 2), torch.tensor([0]), one, error=-1.0)
    with pytest.raises(ArgumentError, match="eps=nan"):
        radius(torch.zeros(1, 2), torch.tensor([0]), one).certified(math.nan)


def test_labels_that_are_no_indices_and_errors_of_other_samples_are_refused() -> None:
    plain = inspect.unwrap(radius)
    logits, labels = torch.zeros(3, 2), torch.zeros(3, dtype=torch.long)
    with pytest.raises(ShapeError, match=r"got \(2,\); give a single sample a batch axis"):
        plain(logits[0], labels[0], upper(1.0))
    for dtype in (torch.float32, torch.bool, torch.complex64):
        with pytest.raises(ArgumentError, match=f"class indices, got {dtype}"):
            plain(logits, labels.to(dtype), upper(1.0))
    with pytest.raises(ArgumentError, match=r"one for each of 3 samples, got shape \(2,\) from 0 to 0"):
        plain(logits, labels, upper(1.0), error=torch.zeros(2))
    with pytest.raises(ArgumentError, match="got nan"):
        plain(logits, labels, upper(1.0), error=math.nan)
    with pytest.raises(ArgumentError, match="dimension=0"):
        radius(logits, labels, upper(1.0)).in_norm(math.inf, 0)


def test_labels_and_scores_of_other_shapes_are_refused() -> None:
    one = upper(1.0)
    with pytest.raises(ShapeError, match="got 1 for 3"):
        radius(torch.zeros(3, 2), torch.tensor([0]), one)
    with pytest.raises(ShapeError, match="squeeze it first"):
        binary_radius(torch.tensor([[3.0], [-2.0]]), torch.tensor([1, 1]), one)
    with pytest.raises(ArgumentError, match=r"p=0\.5"):
        radius(torch.tensor([[3.0, 0.0]]), torch.tensor([0]), one).in_norm(0.5, 4)
    with pytest.raises(MetricError, match="exponent >= 1"):
        radius(torch.zeros(1, 2), torch.tensor([0]), upper(torch.ones(1), Metric(2.0, 0.5), Scope.SAMPLE))


def test_the_range_of_floats_is_not_left() -> None:
    pair = upper(torch.tensor([[0.0, 1.9], [1.9, 0.0]]), of=Scope.PAIR)
    far = radius(torch.tensor([[1.7e308, -1.7e308]], dtype=torch.float64), torch.tensor([0]), pair)
    assert float(far.value) <= 1.7e308
    near = radius(torch.tensor([[5e-324, 0.0]], dtype=torch.float64), torch.tensor([0]), pair)
    # The truth is 2.6e-324, which no float64 is.
    assert float(near.value) == 0.0


def test_regions_of_other_shapes_are_refused() -> None:
    local = replace(upper(1.0), region=Ball(torch.zeros(3, 2), 0.5))
    with pytest.raises(ShapeError, match=r"\(3, 2\), the inputs \(1, 2\)"):
        radius(torch.tensor([[9.0, 0.0]]), torch.tensor([0]), local, at=torch.zeros(1, 2))
    with pytest.raises(NonFiniteError, match="lie in no region"):
        radius(
            torch.tensor([[9.0, 0.0]]),
            torch.tensor([0]),
            replace(upper(1.0), region=Ball(torch.zeros(2), 0.5)),
            at=torch.tensor([[math.nan, 0.0]]),
        )


class Block(nn.Module):
    """A residual block right before the head: the head is one layer all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.o = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.a(x))
        return self.o(y + torch.tanh(self.b(y)))


def test_the_head_after_a_residual_block() -> None:
    torch.manual_seed(0)
    model = Block().double()
    found = head_pairwise(model, torch.randn(1, 3, dtype=torch.float64), lipkit.bounds.DAG())
    a, b, o = (layer.weight.detach() for layer in (model.a, model.b, model.o))
    trunk = torch.linalg.matrix_norm(a, 2) * (1 + torch.linalg.matrix_norm(b, 2))
    expected = float(torch.linalg.vector_norm(o[0] - o[1]) * trunk)
    assert float(found.value[0, 1].detach()) == pytest.approx(expected, rel=1e-6)


def test_the_head_is_sharper_than_the_whole_map() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 4)).double()
    example = torch.randn(1, 5, dtype=torch.float64)
    head = head_pairwise(model, example)
    first, last = (parameter.detach() for name, parameter in model.named_parameters() if name.endswith("weight"))
    trunk = float(torch.linalg.matrix_norm(first, 2))
    for a in range(4):
        for b in range(4):
            expected = float(torch.linalg.vector_norm(last[a] - last[b])) * trunk
            # Auto may be sharper than the norm of the first layer only by the slack of ReLU: there is none.
            assert float(head.value[a, b].detach()) == pytest.approx(expected, rel=1e-6, abs=1e-300)
    whole = lipkit.lipschitz(model, example, method=lipkit.bounds.Product())
    assert bool((head.value <= math.sqrt(2) * whole.value * (1 + 1e-9)).all())
    x = torch.randn(64, 5, dtype=torch.float64)
    logits = model(x)
    labels = logits.argmax(1)
    assert bool((radius(logits, labels, head).value >= radius(logits, labels, whole).value).all())


def test_a_skip_around_the_head_counts_the_whole_map() -> None:
    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(3, 3), nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(torch.relu(self.a(x))) + self.c(x)

    torch.manual_seed(0)
    model, x = Skip().double(), torch.randn(1, 3, dtype=torch.float64)
    found = head_pairwise(model, x, lipkit.bounds.DAG())
    whole = lipkit.lipschitz(model, x, method=lipkit.bounds.DAG())
    assert float(found.value[0, 1].detach()) == pytest.approx(math.sqrt(2) * float(whole.value.detach()), rel=1e-9)
