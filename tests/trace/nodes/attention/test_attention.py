"""Attention: the bound against autograd at thousands of points, at adversarial ones, and against published forms."""

import math

import pytest
import torch
from torch import Tensor

from lipkit.errors import ArgumentError
from lipkit.regions import Reach
from lipkit.trace.nodes import Attention
from lipkit.trace.nodes.attention.probabilities import jacobian_norm, probabilities


def ball(center: Tensor, radius: float) -> Reach:
    wide = torch.full_like(center, math.inf)
    return Reach(-wide, wide, center, torch.tensor(radius, dtype=torch.float64))


def norms(node: Attention, z: Tensor) -> Tensor:
    jacobian = torch.vmap(torch.func.jacrev(lambda v: node(v[None])[0].reshape(-1)))(z)
    return torch.linalg.matrix_norm(jacobian, 2)


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_thousands_of_points_from_zero_outwards_stay_below(scale: float):
    torch.manual_seed(0)
    for queries, keys, width, out in ((1, 2, 1, 1), (3, 2, 2, 1), (2, 4, 1, 2), (4, 3, 2, 2)):
        node = Attention(1, queries, keys, width, out, scale)
        for radius in (1e-3, 0.1, 1.0, 5.0):
            step = normal(100, *node.shape)
            # All of the ball around 0: small inputs are where the bound of Hu et al. is false.
            z = radius * (1 - 1e-12) * torch.rand(100, 1, dtype=torch.float64) * step / step.norm(dim=1, keepdim=True)
            bound = node.within(ball(torch.zeros_like(z[0]), radius)).log_constant(2.0).exp()
            assert (norms(node, z) <= bound * (1 + 1e-12)).all()


def test_ascent_on_the_jacobian_does_not_break_the_bound_and_comes_near():
    torch.manual_seed(1)
    ratios = []
    for queries, keys in ((1, 2), (2, 2), (3, 2)):
        node = Attention(1, queries, keys, 1, 1, 1.0)
        center, half = normal(*node.shape), 2.0
        box = Reach(
            center - half, center + half, center, torch.tensor(half * len(center) ** 0.5 * (1 + 1e-12)).double()
        )
        bound = node.within(box).log_constant(2.0).exp().item()
        t = normal(8, *node.shape).requires_grad_()
        optimizer = torch.optim.Adam([t], lr=0.1)
        best = 0.0
        for _ in range(100):
            found = norms(node, center + half * torch.tanh(t))
            best = max(best, found.max().item())
            optimizer.zero_grad()
            (-found.sum()).backward()
            optimizer.step()
        ratios.append(best / bound)
    assert max(ratios) <= 1
    # Measured .72 to .78: what sqrt(V^2 + Q^2 + K^2) adds over their joint effect.
    assert min(ratios) >= 0.4


def test_self_attention_is_bounded_where_the_printed_bound_of_hu_is_not():
    # n (n + 1) |x|^2 |W_V| (|W_Q| |W_K| + 1) vanishes at 0, where the Jacobian is |W_V| at least.
    torch.manual_seed(2)
    n, d = 3, 2
    node = Attention(1, n, n, d, d, d**-0.5)
    x = 1e-3 * normal(n, d)
    jacobian = torch.func.jacrev(lambda v: node(v.flatten().repeat(3)[None])[0])(x).reshape(n * d, n * d)
    truth = torch.linalg.matrix_norm(jacobian, 2)
    printed = n * (n + 1) * torch.linalg.matrix_norm(x, 2) ** 2 * 2
    assert printed < 1e-3 < 0.99 < truth
    # Ours is for (Q, K, V) as one input; they are three copies of x.
    bound = node.within(ball(x.flatten().repeat(3), 1e-9)).log_constant(2.0).exp() * 3**0.5
    assert truth <= bound <= 3


def test_on_a_ball_it_is_never_above_the_corrected_form_of_yudin():
    # |W_V| (sqrt(n) + scale (|x| + r)^2) for identity weights and the joint input: each part of ours is smaller.
    torch.manual_seed(3)
    for _ in range(20):
        n, d, r = 5, 3, 0.3
        node = Attention(1, n, n, d, d, d**-0.5)
        q, k, v = normal(3, n, d)
        z = torch.cat([q.flatten(), k.flatten(), v.flatten()])
        sizes = [torch.linalg.matrix_norm(m, 2).item() + r for m in (q, k, v)]
        by_parts = math.hypot(n**0.5, d**-0.5 * sizes[2] * sizes[1] / 2, d**-0.5 * sizes[2] * sizes[0] / 2)
        bound = node.within(ball(z, r)).log_constant(2.0).exp().item()
        assert bound <= by_parts * (1 + 1e-9)


def test_attention_without_a_region_is_unbounded_and_grows_with_the_square():
    # The counter-example with tokens (0, a, -a): the Jacobian grows as a^2.
    node = Attention(1, 3, 3, 1, 1, 1.0)
    assert node.log_constant(2.0) == math.inf
    found = []
    for a in (3.0, 10.0, 30.0, 100.0):
        x = torch.tensor([0.0, a, -a], dtype=torch.float64)
        jacobian = torch.func.jacrev(lambda v: node(v.repeat(3)[None])[0].flatten())(x)
        found.append(torch.linalg.matrix_norm(jacobian, 2).item())
    assert found == pytest.approx([6.35, 67.0, 600.3, 6667.0], rel=1e-3)


def test_one_key_copies_its_value():
    node = Attention(2, 3, 1, 2, 2, 1.0)
    assert node.log_constant(2.0).exp().item() == pytest.approx(3**0.5)
    assert node.log_constant(1.0).exp().item() == pytest.approx(3.0)
    assert node.log_constant(math.inf) == 0


def test_outputs_stay_in_the_hull_of_the_values():
    torch.manual_seed(4)
    node = Attention(1, 2, 3, 2, 2, 1.0)
    center = normal(*node.shape)
    found = node.reach(ball(center, 1e-6))
    v = node.parts(center[None])[2][0, 0]
    assert (found.high <= v.max(0).values + 1e-5).all()
    assert (found.low >= v.min(0).values - 1e-5).all()
    # And, the scores being known, hardly more than the value itself.
    assert (found.high - found.low).max() <= 2e-4
    wide = torch.full_like(center, math.inf)
    low, high = -wide, wide.clone()
    low[-6:], high[-6:] = -1.0, 2.0
    found = node.reach(Reach(low, high, 0 * center, torch.tensor(math.inf).double()))
    assert found.low.min() >= -1
    assert found.high.max() <= 2


def test_a_mask_of_another_shape_is_refused():
    with pytest.raises(ArgumentError, match=r"The mask must have the shape \(1, 2, 3\)"):
        Attention(1, 2, 3, 1, 1, 1.0, torch.zeros(2, 3))


def test_probabilities_are_exact_on_a_box():
    # Each probability is extremal in a corner: its own score at one end, all others at the other.
    torch.manual_seed(5)
    low = normal(6, 4)
    high = low + normal(6, 4).abs()
    corners = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * 4)
    points = low[:, None] + (high - low)[:, None] * corners
    found = points.softmax(-1)
    smallest, largest = probabilities(low, high)
    assert torch.allclose(smallest, found.amin(1), rtol=1e-12, atol=0)
    assert torch.allclose(largest, found.amax(1), rtol=1e-12, atol=0)
    assert (smallest <= found.amin(1)).all()
    assert (largest >= found.amax(1)).all()


def test_probabilities_of_masked_and_unbounded_scores():
    inf = math.inf
    low = torch.tensor([[-inf, 0.0, 1.0], [-inf, -inf, -inf], [-800.0, 0.0, 0.0]], dtype=torch.float64)
    high = torch.tensor([[-inf, 0.0, 1.0], [inf, inf, inf], [-800.0, 0.0, 0.0]], dtype=torch.float64)
    smallest, largest = probabilities(low, high)
    assert largest[0, 0] == smallest[0, 0] == 0
    assert smallest[0, 1].item() == pytest.approx(1 / (1 + math.e))
    assert (smallest[1] == 0).all()
    assert (largest[1] == 1).all()
    assert smallest[2, 0] <= math.exp(-745) / 2


def test_norm_of_the_softmax_jacobian_over_boxes_of_probabilities():
    torch.manual_seed(6)
    for spread in (0.0, 0.3, 3.0):
        low = 2 * normal(40, 5)
        high = low + spread * torch.rand(40, 5, dtype=torch.float64)
        bounds = {p: jacobian_norm(p, *probabilities(low, high)) for p in (1.0, 2.0, math.inf)}
        jacobian = torch.zeros(40, 5, 5, dtype=torch.float64)
        for _ in range(20):
            p = (low + (high - low) * torch.rand(40, 5, dtype=torch.float64)).softmax(-1)
            jacobian = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
            for order, bound in bounds.items():
                assert (torch.linalg.matrix_norm(jacobian, order) <= bound * (1 + 1e-12)).all()
        if spread == 0:
            # At a point l1 and linf are exact, and l2 is within g_1 / sigma_1, at most 1.19 here.
            assert torch.allclose(bounds[1.0], torch.linalg.matrix_norm(jacobian, 1), rtol=1e-9)
            assert (bounds[2.0] <= 1.25 * torch.linalg.matrix_norm(jacobian, 2)).all()


def test_a_uniform_softmax_has_the_norm_one_over_n():
    p = torch.full((1, 8), 1 / 8, dtype=torch.float64)
    assert jacobian_norm(2.0, p, p).item() == pytest.approx(1 / 8, rel=1e-12)
