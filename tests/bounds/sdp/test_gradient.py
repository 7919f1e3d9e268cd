"""The derivative of LipSDP against finite differences of the whole computation, solver included."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from lipkit.bounds.sdp.dense_network import read
from lipkit.bounds.sdp.eclipse import ECLipsE, closed_form
from lipkit.bounds.sdp.interior_point import InteriorPoint
from lipkit.bounds.sdp.lipsdp import LipSDP
from lipkit.bounds.sdp.network_program import fold_point, program_of
from lipkit.bounds.sdp.program import Multipliers
from lipkit.bounds.sdp.proof import prove
from lipkit.linops import Conv, Dense, Padding, Reshape
from lipkit.trace import Network, chain
from lipkit.trace.nodes import RELU, PiecewiseLinear, Pointwise

PRECISE = InteriorPoint(rtol=1e-9)


def weights(*sizes: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(n, m, generator=generator, dtype=torch.float64) for m, n in pairwise(sizes)]


def network_of(matrices: list[Tensor], slope: Tensor) -> Network:
    """PReLU layers with a skip connection from the first hidden layer to the output."""
    activation = PiecewiseLinear("prelu", functional.prelu, (0.0,), (slope, 1.0))
    first, second, last, skip = (Dense(m) for m in matrices)
    nodes = (Pointwise(activation, first.out_shape), Pointwise(activation, second.out_shape))
    blocks = {(1, 0): first, (2, 1): second, (3, 2): last, (3, 1): skip}
    return Network(first.in_shape, nodes, blocks, target=last.out_shape)


@pytest.mark.parametrize("multipliers", list(Multipliers))
@pytest.mark.parametrize("slope", [0.1, 0.99])
def test_gradient_is_that_of_the_optimal_value(multipliers: Multipliers, slope: float):
    # Slopes of 0.99 and 1 are written as a linear part and a rest, others directly.
    first, second, last = weights(7, 4, 3, 2)
    (skip,) = weights(4, 2, seed=1)
    tensors = [first, second, last, skip, torch.full((1,), slope, dtype=torch.float64)]
    method = LipSDP(multipliers, PRECISE)
    live = [t.clone().requires_grad_() for t in tensors]
    gradients = torch.autograd.grad(method(network_of(live[:4], live[4])).log_value, live)
    generator = torch.Generator().manual_seed(2)
    directions = [torch.randn(t.shape, generator=generator, dtype=torch.float64) for t in tensors]
    # All matrices together, then the slope.
    for chosen in (range(4), range(4, 5)):
        sides = []
        for step in (1e-4, -1e-4):
            moved = [
                t + step * d if i in chosen else t for i, (t, d) in enumerate(zip(tensors, directions, strict=True))
            ]
            sides.append(float(method(network_of(moved[:4], moved[4])).log_value))
        found = sum(float((gradients[i] * directions[i]).sum()) for i in chosen)
        # Values are within 1e-9 of the optimum: 1e-5 in the quotient; curvature adds about as much.
        assert found == pytest.approx((sides[0] - sides[1]) / 2e-4, abs=1e-4)


def test_closed_form_multipliers_give_the_derivative_at_fixed_multipliers():
    matrices = weights(4, 5, 3)
    direction = [
        torch.randn(m.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64) for m in matrices
    ]
    live = [m.clone().requires_grad_() for m in matrices]
    gradients = torch.autograd.grad(ECLipsE()(chain([Dense(m) for m in live], RELU)).log_value, live)
    dense = read(chain([Dense(m) for m in matrices], RELU))
    point = closed_form(dense, program_of(dense, Multipliers.PER_NEURON), ECLipsE())
    sides = []
    for step in (1e-5, -1e-5):
        moved = [m + step * d for m, d in zip(matrices, direction, strict=True)]
        there = read(chain([Dense(m) for m in moved], RELU))
        assert there.units == dense.units
        program = program_of(there, Multipliers.PER_NEURON)
        other = fold_point(there, program, Multipliers.PER_NEURON)
        sides.append(float(prove(program, point, other).log_value))
    found = sum(float((g * d).sum()) for g, d in zip(gradients, direction, strict=True))
    # The repair of the multipliers may move the values by 1e-9, the quotient by 1e-4.
    assert found == pytest.approx((sides[0] - sides[1]) / 2e-5, abs=1e-3)


def test_gradient_reaches_float32_weights_through_convolutions_and_parts():
    generator = torch.Generator().manual_seed(3)
    kernel = torch.randn(2, 1, 3, generator=generator).requires_grad_()
    dense = [torch.randn(*shape, generator=generator).requires_grad_() for shape in ((4, 12), (2, 4))]
    conv = Conv(kernel, (6,), (1,), ((1, 1),), (1,), 1, Padding.ZEROS)
    first = Reshape((2, 6), (12,)) @ conv
    network = chain([first, Dense(dense[0]), Dense(dense[1])], RELU)
    for method in (LipSDP(), LipSDP(Multipliers.PER_LAYER), LipSDP(split=1)):
        log_value = method(network).log_value
        found = torch.autograd.grad(log_value, [kernel, *dense])
        for tensor, gradient in zip([kernel, *dense], found, strict=True):
            # The bound is homogeneous of degree one in every layer (Euler).
            assert float((tensor.detach() * gradient).sum()) == pytest.approx(1.0, abs=1e-4)


def test_no_gradient_is_asked_for_in_vain():
    matrices = weights(3, 4, 2)
    network = chain([Dense(m) for m in matrices], RELU)
    assert not LipSDP()(network).log_value.requires_grad
    live = chain([Dense(m.requires_grad_()) for m in matrices], RELU)
    assert LipSDP()(live).log_value.requires_grad
    with torch.no_grad():
        assert not LipSDP()(live).log_value.requires_grad
