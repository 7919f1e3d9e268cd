"""The twenty convolutions of ResNet-18 on 224 x 224 images: geometry and two kinds of weights."""

import torch
from torch import Tensor

from lipkit.linops import Conv

# (out, in, kernel, stride, input size), in the order of the network.
LAYERS = [
    (64, 3, 7, 2, 224),
    *[(64, 64, 3, 1, 56)] * 4,
    (128, 64, 3, 2, 56),
    (128, 128, 3, 1, 28),
    (128, 64, 1, 2, 56),
    *[(128, 128, 3, 1, 28)] * 2,
    (256, 128, 3, 2, 28),
    (256, 256, 3, 1, 14),
    (256, 128, 1, 2, 28),
    *[(256, 256, 3, 1, 14)] * 2,
    (512, 256, 3, 2, 14),
    (512, 512, 3, 1, 7),
    (512, 256, 1, 2, 14),
    *[(512, 512, 3, 1, 7)] * 2,
]


def convolutions(trained_like: bool, device: str, dtype: torch.dtype = torch.float32) -> list[Conv]:
    """The layers with Gaussian weights, or with decaying spectra over channels and space as training leaves them."""
    generator = torch.Generator().manual_seed(18)
    found: list[Conv] = []
    for c_out, c_in, k, stride, size in LAYERS:
        weight = torch.randn(c_out, c_in, k, k, generator=generator, dtype=torch.float64) / (c_in * k * k) ** 0.5
        if trained_like:
            weight = _coloured(weight, generator)
        pad = (k // 2, k // 2)
        found.append(Conv(weight.to(device, dtype), (size, size), (stride, stride), (pad, pad), (1, 1)))
    return found


def _coloured(weight: Tensor, generator: torch.Generator) -> Tensor:
    """Power-law mixing of output and input channels, and taps that fade from the centre."""
    for axis in (0, 1):
        n = weight.shape[axis]
        basis = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64)).Q
        mixing = basis * torch.arange(1, n + 1, dtype=torch.float64) ** -0.5
        weight = torch.tensordot(mixing, weight.movedim(axis, 0), 1).movedim(0, axis)
    reach = torch.linspace(-1, 1, weight.shape[-1], dtype=torch.float64) if weight.shape[-1] > 1 else torch.zeros(1)
    fade = torch.exp(-(reach**2)).to(torch.float64)
    return weight * fade[:, None] * fade
