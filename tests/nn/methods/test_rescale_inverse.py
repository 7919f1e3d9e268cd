"""Free numbers of weights whose channels do not correlate: none of them is lost."""

import pytest
import torch
from torch import nn

from lipkit import nn as lnn


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", [lnn.AOL(), lnn.Rescale(2), lnn.Rescale(3)], ids=str)
def test_channels_that_do_not_correlate_all_get_norm_one(method: lnn.WeightMethod, dtype: torch.dtype) -> None:
    layer = nn.Linear(6, 6, bias=False, dtype=dtype)
    with torch.no_grad():
        layer.weight.copy_(torch.diag(torch.tensor([1.0, 0.5, 0.1, 0.01, 0.9, 0.3])))
    lnn.parametrize(layer, "weight", method)
    # The room for rounding is a few units of the last digit, and a little for underflow.
    assert torch.allclose(layer.weight, torch.eye(6, dtype=dtype), rtol=0, atol=4e-6)


# The second is so small that its eighth power vanishes in float64, where inverses are computed.
@pytest.mark.parametrize(("dtype", "small"), [(torch.float32, 1e-9), (torch.float64, 1e-80)])
@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("method", [lnn.AOL(), lnn.Rescale(2), lnn.Rescale(3)], ids=str)
def test_channels_of_almost_nothing_stay_finite(
    method: lnn.WeightMethod, alone: bool, dtype: torch.dtype, small: float
) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(6, 6, bias=False, dtype=dtype)
    with torch.no_grad():
        if alone:
            layer.weight.copy_(torch.eye(6))
        layer.weight[:, 0] *= small
        layer.weight[:, 1] = 0
    lnn.parametrize(layer, "weight", method)
    values = torch.linalg.svdvals(layer.weight.detach().double())
    assert bool(torch.isfinite(values).all())
    assert 0.9 < float(values[0]) <= 1.0
