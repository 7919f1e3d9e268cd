"""Symmetric circulant matrices: linear layers that commute, so that chains of them stay gradient fields."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lipkit.bound import Bound, Kind
from lipkit.errors import ArgumentError, ShapeError
from lipkit.linops import Shape
from lipkit.nn.core.known_constants import Contraction


@final
class SymmetricCirculant(Contraction):
    """C x + b with C symmetric and circulant: the first row is (a, b, c, ..., c, b), and each row is that above, moved.

        C x = irfft(l * rfft(x)),   eigenvalues l_k = l_(n-k) real, in [-1, 1] by clipping; n // 2 + 1 of them are free

    All such matrices commute, and their sums and products are of the same kind. So a chain of them is the gradient of a
    function, where a chain of symmetric matrices is not; with `monotone` eigenvalues are in [0, 1], and the function is
    convex. x - C x is the layer with 1 - l.

    Guarantee: the constant is max |l_k| <= 1, exact in `declared_lipschitz`; C is symmetric. Cost: two Fourier
    transforms, n log n. Start: uniform in [-1, 1], or in [0, 1].
    Reference: Béthune 2024, example 7.3, whose matrix is Toeplitz and not circulant (docs/errata.md).

    Args:
        features: Entries of an input, on its last axis.
        bias: Whether a vector is added.
        monotone: Whether eigenvalues are kept in [0, 1].
    """

    def __init__(
        self,
        features: int,
        bias: bool = True,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        *,
        monotone: bool = False,
    ) -> None:
        super().__init__()
        if features < 1:
            raise ArgumentError(f"SymmetricCirculant.features must be at least 1, got {features}.")
        self.features = features
        self.monotone = monotone
        self.free = nn.Parameter(torch.empty(features // 2 + 1, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(features, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the eigenvalues anew; the bias starts at zero."""
        with torch.no_grad():
            self.free.uniform_(0.0 if self.monotone else -1.0, 1.0)
            if self.bias is not None:
                self.bias.zero_()

    @property
    def eigenvalues(self) -> Float[Tensor, " half"]:
        """l_0, ..., l_(n // 2); the others repeat them in reverse."""
        return self.free.clamp(0.0 if self.monotone else -1.0, 1.0)

    def declared_lipschitz(self, in_shape: Shape) -> Bound:
        """max |l_k|, on one input of `in_shape`."""
        if tuple(in_shape)[-1:] != (self.features,):
            raise ShapeError(
                f"SymmetricCirculant({self.features}) takes (..., {self.features}), got {tuple(in_shape)}."
            )
        largest = self.eigenvalues.abs().max().to(torch.float64)
        return Bound.from_value(largest, Kind.EXACT, "eigenvalues of a symmetric circulant matrix")

    def forward(self, x: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch features"]:
        """C x + b."""
        if x.shape[-1:] != (self.features,):
            raise ShapeError(f"SymmetricCirculant({self.features}) got an input of shape {tuple(x.shape)}.")
        # Fourier transforms exist for float32 and float64 only.
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        image = torch.fft.irfft(torch.fft.rfft(wide) * self.eigenvalues.to(wide.dtype), self.features).to(x.dtype)
        return image if self.bias is None else image + self.bias.to(x.dtype)
