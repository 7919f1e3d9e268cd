"""A bank of Morlet wavelets and a Gaussian mean on a periodic grid of pixels, in the Fourier domain."""

import math

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.linops import Shape

# The usual shape (Bruna and Mallat 2013): frequency and width of the finest wavelet, and how long waves are across.
_FREQUENCY = 3 * math.pi / 4
_WIDTH = 0.8
# Copies of a Gaussian by whole turns on each side; the next one is below exp(-50).
_TURNS = 2


def gaussian_kernel(size: int, scales: int) -> Float64[Tensor, " size"]:
    """The weights, along one axis, of a mean around the middle of the first 2^scales pixels: positive, of sum 1."""
    width, middle = _WIDTH * 2.0 ** (scales - 1), (2.0**scales - 1) / 2
    pixels = torch.arange(size, dtype=torch.float64) - middle
    # On a circle: far copies count until they are below 1e-20 of the next one.
    turns = range(-math.ceil(10 * width / size) - 1, math.ceil(10 * width / size) + 2)
    weights = sum((torch.exp(-((pixels + turn * size) ** 2) / (2 * width**2)) for turn in turns), torch.zeros(()))
    return (weights / weights.sum()).to(torch.float64)


def morlet_bank(size: Shape, scales: int, angles: int) -> Float64[Tensor, "scales angles height width"]:
    """Fourier transforms of Morlet wavelets, real, zero at frequency zero, not normalised.

    With u, v the frequency w along and across the angle, s = 0.8 2^j, x = (3 pi / 4) 2^-j and c = 4 / angles:

        psi_j(w) = exp(-s^2 ((u - x)^2 + v^2 / c^2) / 2) - k exp(-s^2 (u^2 + v^2 / c^2) / 2),   psi_j(0) = 0,

    summed over all w + 2 pi n, which is the transform of the sampled wavelet.
    """
    height, width = (2 * math.pi * torch.fft.fftfreq(n, dtype=torch.float64) for n in size)
    turns = 2 * math.pi * torch.arange(-_TURNS, _TURNS + 1, dtype=torch.float64)
    down = (height + turns[:, None])[:, None, :, None]
    right = (width + turns[:, None])[None, :, None, :]
    slant = 4 / angles
    bank = []
    for scale in range(scales):
        spread, centre = _WIDTH * 2.0**scale, _FREQUENCY / 2.0**scale
        for angle in range(angles):
            cosine, sine = math.cos(math.pi * angle / angles), math.sin(math.pi * angle / angles)
            along, across = down * cosine + right * sine, right * cosine - down * sine

            def bump(start: float, along: Tensor = along, across: Tensor = across, spread: float = spread) -> Tensor:
                return torch.exp(-(spread**2) * ((along - start) ** 2 + (across / slant) ** 2) / 2).sum((0, 1))

            wave, mean = bump(centre), bump(0.0)
            wavelet = wave - wave[0, 0] / mean[0, 0] * mean
            # To the bit, so that constants pass the mean alone.
            wavelet[0, 0] = 0
            bank.append(wavelet)
    return torch.stack(bank).unflatten(0, (scales, angles))
