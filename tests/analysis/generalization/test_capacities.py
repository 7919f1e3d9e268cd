"""Path norms, spectral complexities, packings and pieces: sums over paths, closed forms, and counts on grids."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lipkit import analysis
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError


def test_path_norms_bound_the_constant_and_do_not_see_scales():
    source = torch.Generator().manual_seed(0)
    first, last = torch.randn(6, 4, generator=source), torch.randn(1, 6, generator=source)
    paths = sum(abs(float(last[0, j]) * float(first[j, i])) for i in range(4) for j in range(6))
    assert math.isclose(analysis.path_norm([first, last]), paths, rel_tol=1e-6)
    assert analysis.path_norm([first.requires_grad_(), last]) == analysis.path_norm([first.detach(), last])
    first = first.detach()
    c = torch.rand(6, generator=source) + 0.5
    assert math.isclose(analysis.path_norm([c[:, None] * first, last / c]), paths, rel_tol=1e-5)
    x, y = torch.randn(2, 500, 4, generator=source)
    change = ((x @ first.mT).relu() - (y @ first.mT).relu()) @ last.mT
    assert bool((change[:, 0].abs() <= paths * (x - y).abs().amax(1)).all())


def test_the_printed_packing_is_too_large():
    # A 100 x 100 square and margin 1; Oler allows 2/sqrt(3) A/4 + P/4 + 1 points at mutual distance 2.
    printed = 100**2 / math.pi
    oler = 2 / math.sqrt(3) * 100**2 / 4 + 400 / 4 + 1
    assert (round(printed), int(oler)) == (3183, 2987)
    found = analysis.margin_vc_bounds(100.0**2, 2, 1.0)
    assert round(found.low) == 796
    # A hexagonal packing shows how many there are at least.
    rows = int(100 // math.sqrt(3)) + 1
    points = sum(51 if row % 2 == 0 else 50 for row in range(rows))
    assert found.low <= points <= oler < found.high
    assert printed > oler


def test_the_spectral_complexity_has_its_closed_forms():
    # Orthogonal layers: norm 1, n rows of length 1, so R = (L n^(2/3))^(3/2) = L^(3/2) n.
    layers = list(torch.linalg.qr(torch.randn(3, 5, 5, generator=torch.Generator().manual_seed(0))).Q)
    assert analysis.spectral_complexity(layers) == pytest.approx(3**1.5 * 5, rel=1e-5)  # float32 layers
    # Lengths are of rows, not of columns: one row (3, 4) has length 5, two rows have 3 + 4.
    assert analysis.spectral_complexity([torch.tensor([[3.0, 4.0]])]) == pytest.approx(5)
    assert analysis.spectral_complexity([torch.tensor([[3.0], [4.0]])]) == pytest.approx(7)
    # By hand: norms 2 and 3, lengths 3 and 3.
    two = [torch.diag(torch.tensor([2.0, 1.0])), torch.tensor([[0.0, 3.0]])]
    assert analysis.spectral_complexity(two) == pytest.approx(6 * (1.5 ** (2 / 3) + 1) ** 1.5)


def test_the_spectral_complexity_sees_distances_and_no_exchanged_scales():
    first, last = torch.randn(6, 4), torch.randn(2, 6)
    plain = analysis.spectral_complexity([first.requires_grad_(), last])
    assert analysis.spectral_complexity([4 * first, last / 4]) == pytest.approx(plain, rel=1e-6)
    assert analysis.spectral_complexity([first, last], [first, last]) == 0
    half = analysis.spectral_complexity([first, last], [first / 2, last / 2])
    assert half == pytest.approx(plain / 2, rel=1e-6)


def pieces_of(weights: list[Tensor], biases: list[Tensor], x: Tensor, group: int) -> int:
    """How many orders of all groups occur at the points: at least the pieces that they meet."""
    seen = []
    for weight, bias in zip(weights, biases, strict=True):
        x = x @ weight.mT + bias
        whole = x.shape[1] // group * group
        grouped = x[:, :whole].unflatten(1, (-1, group))
        order = grouped.argsort(-1)
        seen.append(order.flatten(1))
        x = torch.cat([grouped.sort(-1).values.flatten(1), x[:, whole:]], 1)
    orders = torch.cat(seen, 1)
    return len(orders.unique(dim=0)) if orders.shape[1] else 1


@given(st.integers(1, 2), st.lists(st.integers(1, 7), min_size=1, max_size=3), st.integers(2, 3), st.integers(0, 10**6))
def test_no_network_has_more_pieces(inputs: int, widths: list[int], group: int, seed: int):
    source = torch.Generator().manual_seed(seed)
    sizes = [inputs, *widths]
    weights = [torch.randn(b, a, generator=source) for a, b in pairwise(sizes)]
    biases = [torch.randn(b, generator=source) for b in widths]
    axis = torch.linspace(-6, 6, 2001 if inputs == 1 else 61)
    points = torch.cartesian_prod(*[axis] * inputs).reshape(-1, inputs)
    most = analysis.num_affine_pieces_upper_bound(inputs, widths, group)
    assert pieces_of(weights, biases, points, group) <= most
    printed = math.prod(math.factorial(group) ** (width // group) for width in widths)
    assert most <= printed


def test_one_layer_has_as_many_pieces_as_its_hyperplanes_cut():
    # On a line g gates at different points make g + 1 pieces, in the plane lines in general position 1 + g + C(g, 2).
    source = torch.Generator().manual_seed(3)
    weight, bias = torch.randn(10, 1, generator=source), torch.randn(10, generator=source)
    line = torch.linspace(-20, 20, 20_001)[:, None]
    found = pieces_of([weight], [bias], line, 2)
    assert found == analysis.num_affine_pieces_upper_bound(1, [10]) == 6
    weight, bias = torch.randn(6, 2, generator=source), torch.randn(6, generator=source)
    axis = torch.linspace(-20, 20, 301)
    found = pieces_of([weight], [bias], torch.cartesian_prod(axis, axis), 2)
    assert found == analysis.num_affine_pieces_upper_bound(2, [6]) == 7
    # Many inputs: nothing is left of the geometry, 2^(W/2) as published.
    assert analysis.num_affine_pieces_upper_bound(100, [64, 64]) == 2**64
    assert analysis.num_affine_pieces_upper_bound(2, []) == 1


def test_bad_input_is_refused():
    for call in (analysis.path_norm, analysis.spectral_complexity):
        with pytest.raises(ShapeError, match="fit"):
            call([torch.ones(2, 3), torch.ones(1, 3)])
        with pytest.raises(NonFiniteError, match="NaN"):
            call([torch.full((2, 3), math.nan)])
        with pytest.raises(NonFiniteError, match="overflow"):
            call([1e300 * torch.eye(2, dtype=torch.float64)] * 2)
    with pytest.raises(ShapeError, match="References"):
        analysis.spectral_complexity([torch.ones(2, 3)], [torch.ones(3, 2)])
    with pytest.raises(ArgumentError, match="Layer 1 is zero"):
        analysis.spectral_complexity([torch.ones(2, 3), torch.zeros(1, 2)])
    with pytest.raises(ArgumentError, match="margin"):
        analysis.margin_vc_bounds(1.0, 2, 0.0)
    for inputs, widths, group in ((0, [4], 2), (1, [0], 2), (1, [4], 1)):
        with pytest.raises(ArgumentError, match="groups two"):
            analysis.num_affine_pieces_upper_bound(inputs, widths, group)


def test_packings_of_any_size_are_numbers():
    many = analysis.margin_vc_bounds(1.0, 200, 1e-3)
    assert many.high == math.inf
    assert many.low > 1e300
    # A cube of this volume holds no ball of radius m/2, so the upper side is not known; one point is always shattered.
    assert analysis.margin_vc_bounds(1e-300, 200, 1e3).high == math.inf
    # A ball of radius m/2 has (3/2)^n.
    ball = math.pi * 0.5**2
    assert analysis.margin_vc_bounds(ball, 2, 1.0).high == pytest.approx(2.25)
