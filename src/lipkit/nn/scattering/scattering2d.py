"""The scattering transform of images: frozen features with a proven constant."""

from typing import final

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from lipkit.bound import Bound
from lipkit.errors import ArgumentError, ShapeError
from lipkit.linops import Shape
from lipkit.nn.core.known_constants import Stated, require_real
from lipkit.nn.core.precision import uncast
from lipkit.nn.layers.pooling import Sizes, per_axis
from lipkit.nn.scattering.energy_bound import scattering_constant
from lipkit.nn.scattering.morlet_filters import gaussian_kernel, morlet_bank
from lipkit.rounding.slacks import FLOAT32_ROUNDINGS_16


@final
class Scattering2d(Stated):
    """Means of an image, of moduli of its wavelet coefficients, and of moduli of theirs: nothing in it is learnt.

        y = (A x, A |psi_a x|, A ||psi_a x| psi_b|),   a, b = (scale, angle), the scale of b above that of a,

    with Morlet wavelets psi of `scales` scales and `angles` angles, and A a Gaussian mean at the middle of each square
    of 2^scales pixels. (batch, C, H, W) becomes (batch, C (1 + J L + L^2 J (J - 1) / 2), H / 2^J, W / 2^J), the paths
    of a channel together: order 0, order 1 by scale and angle, order 2 by (scale, angle) of a, then of b. The image is
    a torus: its right border meets its left one. Coefficients keep all pixels, only means are taken on the coarse grid.

    Guarantee: constant at most 1 in l2 (`declared_lipschitz`, about 1 - 1e-6), for the filters as stored, roundings
    included: wavelets are scaled so that |phi|^2 + sum |psi|^2 <= 1 at every frequency of the grid, and A so that the
    constant of the whole tree, found with the aliases of its coarse grid, is 1 (see `energy_bound`). Constant images
    attain 0.94 to 0.95 of it. After `.to(torch.bfloat16)` rounded filters may have up to 1.02. Moduli have
    derivative 0 at 0. Moving an image by 2^scales pixels on the torus moves y by one.
    Cost: J L + L^2 J (J - 1) / 2 Fourier transforms of the image, in float32 at least.
    Reference: Mallat 2012; Bruna, Mallat 2013; the constant on the grid is ours.

    Args:
        in_size: Height and width of the images, or one number for both; multiples of 2^scales.
        scales: J, the number of octaves.
        angles: L, the number of directions of a half turn.
    """

    wavelets: Tensor
    rows: Tensor
    columns: Tensor

    def __init__(
        self,
        in_size: Sizes,
        scales: int = 2,
        angles: int = 8,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require_real(self, dtype)
        self.in_size = per_axis(in_size, 2, "in_size")
        self.scales, self.angles = scales, angles
        if scales < 1 or angles < 1:
            raise ArgumentError(f"Scattering2d needs scales >= 1 and angles >= 1, got {scales} and {angles}.")
        if any(n < 1 or n % 2**scales for n in self.in_size):
            raise ArgumentError(
                f"Scattering2d halves images {scales} times, so height and width are multiples of {2**scales}, got "
                f"{self.in_size}; pad the images, or take fewer scales."
            )
        wavelets = morlet_bank(self.in_size, scales, angles)
        rows, columns = (gaussian_kernel(n, scales) for n in self.in_size)
        # Each wavelet by one factor: with the mean they have no more energy than the image at any frequency.
        left = 1 - (torch.fft.fft(rows).abs()[:, None] * torch.fft.fft(columns).abs()).square()
        energy = wavelets.square().sum((0, 1))
        energy = (energy + energy.flip((0, 1)).roll((1, 1), (0, 1))) / 2
        excess = torch.where(energy > 0, energy / left.clamp(min=torch.finfo(torch.float64).tiny), 0.0)
        wavelets = wavelets * float(excess.max()) ** -0.5 * (1 - FLOAT32_ROUNDINGS_16)
        constant = scattering_constant(wavelets, rows, columns, 2**scales)
        factor = (1 / constant) ** 0.5 * (1 - FLOAT32_ROUNDINGS_16)
        dtype = dtype or torch.get_default_dtype()
        self.register_buffer("wavelets", wavelets.to(device=device, dtype=dtype))
        self.register_buffer("rows", (rows * factor).to(device=device, dtype=dtype))
        self.register_buffer("columns", (columns * factor).to(device=device, dtype=dtype))

    @property
    def gain(self) -> float:
        """The constant, from the filters as they are stored, rounded up."""
        wavelets, rows, columns = (
            t.detach().to("cpu", torch.float64) for t in (self.wavelets, self.rows, self.columns)
        )
        return scattering_constant(wavelets, rows, columns, 2**self.scales)

    @property
    def paths(self) -> int:
        """How many channels one channel becomes: 1 + J L + L^2 J (J - 1) / 2."""
        return 1 + self.scales * self.angles + self.angles**2 * (self.scales * (self.scales - 1) // 2)

    def declared_lipschitz(self, in_shape: Shape) -> Bound:
        """The constant on one image (C, H, W), from the filters as they are stored."""
        self._check(tuple(in_shape))
        return Bound.from_value(self.gain, self.kind, "energy of wavelets and means at every frequency of the grid")

    def forward(self, x: Shaped[Tensor, "*batch channels height width"]) -> Float[Tensor, "*batch paths rows columns"]:
        """The means of all paths."""
        self._check(tuple(x.shape))
        if not x.is_floating_point():
            raise ArgumentError(f"Scattering2d takes real floating-point images, got {x.dtype}; convert them.")
        wide = torch.promote_types(x.dtype, torch.float32)
        down, right = (_every_mean(kernel.to(wide), 2**self.scales) for kernel in (self.rows, self.columns))
        wavelets = self.wavelets.to(wide)
        with uncast(x.device.type):
            image = x.to(wide)
            waves = _moduli(image, wavelets)
            found = [image.unsqueeze(-3), waves.flatten(-4, -3)]
            for scale in range(self.scales - 1):
                again = _moduli(waves.select(-4, scale), wavelets[scale + 1 :])
                found.append(again.flatten(-5, -3))
            means = [down @ path @ right.mT for path in found]
        return torch.cat(means, -3).flatten(-4, -3).to(x.dtype)

    def _check(self, shape: Shape) -> None:
        if len(shape) < 3 or shape[-2:] != self.in_size:
            height, width = self.in_size
            raise ShapeError(
                f"This Scattering2d takes images (..., channels, {height}, {width}), got shape {shape}; build one with "
                "in_size of your images."
            )


def _moduli(
    images: Float[Tensor, "*batch height width"], wavelets: Float[Tensor, "scales angles height width"]
) -> Float[Tensor, "*batch scales angles height width"]:
    """|psi x| for each wavelet; torch's modulus of a complex number has derivative 0 at 0, and no overflow inside."""
    return torch.fft.ifft2(torch.fft.fft2(images)[..., None, None, :, :] * wavelets).abs()


def _every_mean(kernel: Float[Tensor, " size"], step: int) -> Float[Tensor, "kept size"]:
    """The matrix with the kernel in its first row, and moved by `step` more on a circle in each further one."""
    places = torch.arange(len(kernel), device=kernel.device)
    return kernel[(places - step * places[: len(kernel) // step, None]) % len(kernel)]
