"""Second derivatives in forward mode, which torch loses silently at functions with a derivative of their own."""

import pytest
import torch
from torch import Tensor

from lipkit import nn as lnn
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.methods._arithmetic import rescaling_step as _one_step
from lipkit.nn.methods._base import WeightMethod

METHODS = (
    *(lnn.AOL(), lnn.Rescale(2), lnn.Bjorck(3), lnn.Cayley(), lnn.Exponential(), lnn.Householder(), lnn.QR()),
    *(lnn.NewtonSchulz(), lnn.Frobenius()),
)


def both_ways(method: WeightMethod, geometry: Geometry) -> tuple[Tensor, Tensor]:
    """The second derivative of a weighted sum along two directions: twice forward, and twice backward."""
    generator = torch.Generator().manual_seed(0)
    raw, weights, first, second = (
        torch.randn(geometry.shape, dtype=torch.float64, generator=generator) for _ in range(4)
    )

    def value(raw: Tensor) -> Tensor:
        return (method(raw, geometry) * weights).sum()

    def slope(raw: Tensor) -> Tensor:
        return torch.func.jvp(value, (raw,), (first,))[1]

    forward = torch.func.jvp(slope, (raw,), (second,))[1]
    along = torch.func.grad(lambda raw: (torch.func.grad(value)(raw) * first).sum())(raw)
    return forward, (along * second).sum()


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_forward_over_forward_is_backward_over_backward(method: WeightMethod) -> None:
    forward, backward = both_ways(method, Geometry(1, 4, 3))
    assert abs(float(backward)) > 1e-3
    # Last steps that leave an isometry as it is have the derivative of what was before, up to the digits of float64.
    torch.testing.assert_close(forward, backward, rtol=1e-6, atol=1e-9)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_kernels_too(monkeypatch: pytest.MonkeyPatch) -> None:
    # As on an accelerator.
    monkeypatch.setattr(_one_step, "launches_count", lambda _: True)
    forward, backward = both_ways(lnn.AOL(), Geometry(1, 3, 2, (3,), (1,), ((1, 1),), (1,)))
    assert abs(float(backward)) > 1e-3
    torch.testing.assert_close(forward, backward, rtol=1e-6, atol=1e-9)
