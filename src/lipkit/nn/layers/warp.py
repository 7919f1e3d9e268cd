"""Images turned, moved and stretched, with derivatives in the image and in the motion."""

import math
from abc import abstractmethod
from typing import Self, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lipkit.bound import Bound, Kind
from lipkit.errors import ArgumentError, ShapeError
from lipkit.linops import Shape
from lipkit.nn.core.known_constants import require_real
from lipkit.nn.core.round_down import round_down
from lipkit.rounding.slacks import MILLIONS_OF_ROUNDINGS

# More pixels than this under one of the source make the constant useless, and its sum long.
_MOST = 200


class _Warp(nn.Module):
    """s(u) = f(M^(-1) u) for an affine motion M u = u L + B of coordinates, by bilinear interpolation.

    u = (x, y) are the row and the column of a pixel from the middle of the image, in halves of its longer side: the
    first and the last row of a square image are at -1 and 1. Outside the image there are zeros.
    """

    shift: nn.Parameter

    @abstractmethod
    def linear_part(self) -> Float[Tensor, "2 2"]:
        """L, by which rows of coordinates are multiplied from the right."""

    @abstractmethod
    def inverse_part(self) -> Float[Tensor, "2 2"]:
        """The inverse of L."""

    def move(self, points: Float[Tensor, "*batch 2"]) -> Float[Tensor, "*batch 2"]:
        """M of coordinates: where the points of the image go."""
        return points @ self.linear_part().to(points.dtype) + self.shift.to(points.dtype)

    def move_back(self, points: Float[Tensor, "*batch 2"]) -> Float[Tensor, "*batch 2"]:
        """M^(-1) of coordinates: where the points of the result come from."""
        return (points - self.shift.to(points.dtype)) @ self.inverse_part().to(points.dtype)

    def declared_lipschitz(self, in_shape: Shape) -> Bound:
        """(sum over whole k of h(k L^(-1)))^(1/2), h(x, y) = max(0, 1 - |x|) max(0, 1 - |y|), as parameters are now.

        Weights are >= 0 and those of a pixel of the result add up to at most 1. Those of a pixel of the source add up
        to a sum of h over a moved lattice; the Fourier transform of h is nowhere negative, so by Poisson's formula the
        sum is largest when the lattice contains the pixel. The root of the product bounds the norm (Schur's test).
        Guarantee: UPPER in l2, on images of every size. In l_inf the constant is 1.
        """
        if len(in_shape) < 2:
            raise ShapeError(
                f"{type(self).__name__} takes images (..., height, width), got in_shape {tuple(in_shape)}."
            )
        spread = self.linear_part().detach().to(torch.float64).abs().sum(0).max()
        if not float(spread) < _MOST:
            raise ArgumentError(
                f"{type(self).__name__} enlarges the image by {float(spread):g}, so that its constant is about as "
                f"large; keep the sums of columns of the matrix below {_MOST}."
            )
        far = math.ceil(float(spread))
        whole = torch.arange(-far, far + 1, dtype=torch.float64)
        lattice = torch.cartesian_prod(whole, whole) @ self.inverse_part().detach().to(torch.float64).cpu()
        columns = (1 - lattice.abs()).clamp(min=0).prod(-1).sum()
        # A translation is exact: all other points of the lattice are at 1 or beyond.
        slack = 0.0 if bool((lattice == lattice.round()).all()) else MILLIONS_OF_ROUNDINGS
        value = (columns * (1 + slack)).sqrt() * (1 + slack)
        return Bound.from_value(value, Kind.UPPER, "weights of bilinear interpolation, by Schur's test")

    def forward(self, image: Float[Tensor, "*batch height width"]) -> Float[Tensor, "*batch height width"]:
        """The moved image, of the same size."""
        if image.ndim < 2 or not image.is_floating_point():
            raise ShapeError(
                f"{type(self).__name__} takes floating-point images (..., height, width), got {image.dtype} of shape "
                f"{tuple(image.shape)}."
            )
        height, width = image.shape[-2:]
        # Coordinates need more digits than pixels have: what rounding moves them by counts in no constant.
        dtype = torch.float64
        half = max(height, width, 2) / 2 - 0.5
        rows, cols = ((torch.arange(n, dtype=dtype, device=image.device) - (n - 1) / 2) / half for n in (height, width))
        grid = torch.stack([rows[:, None].expand(height, width), cols.expand(height, width)], -1)
        source = self.move_back(grid) * half
        row, col = source[..., 0] + (height - 1) / 2, source[..., 1] + (width - 1) / 2
        top, left = row.detach().floor(), col.detach().floor()
        below, right = row - top, col - left
        flat, moved = image.flatten(-2), 0.0
        for i, share in ((top, 1 - below), (top + 1, below)):
            for j, part in ((left, 1 - right), (left + 1, right)):
                inside = (i >= 0) & (i < height) & (j >= 0) & (j < width)
                place = (i.clamp(0, height - 1) * width + j.clamp(0, width - 1)).to(torch.int64)
                # Rounded up, the weights of a pixel would add up to more than 1.
                moved = moved + flat[..., place] * round_down(share * part * inside, image.dtype)
        assert isinstance(moved, Tensor)
        return moved


@final
class RigidWarp(_Warp):
    """The image turned by `angle` and then moved by `shift`, both learnt: M u = u R + shift, R = [[c, s], [-s, c]].

    Guarantee: constant at most (7 - 4 sqrt 2)^(1/2) = 1.159 in l2 for every motion, at 45 degrees; exactly 1 for
    translations and quarter turns; 1 in l_inf. For the motion of the moment `declared_lipschitz` gives
    (1 + 4 (1 - |c|) (1 - |s|))^(1/2). `inverse` undoes the motion of coordinates exactly, and the image up to
    interpolation and what left it. Cost: four gathers. Derivatives: in the image and in both parameters, also second
    ones, of the interpolated image; they jump where a point crosses a line of pixels.
    Reference: Béthune 2024, appendix A, corrected (docs/errata.md); the constant is ours.

    Args:
        angle: Radians, from the axis of rows to that of columns.
        shift: Rows and columns, in halves of the longer side of the image.
    """

    def __init__(
        self,
        angle: float = 0.0,
        shift: tuple[float, float] = (0.0, 0.0),
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require_real(self, dtype)
        self.angle = nn.Parameter(torch.tensor(float(angle), device=device, dtype=dtype))
        self.shift = nn.Parameter(torch.tensor(shift, device=device, dtype=dtype or torch.get_default_dtype()))
        if self.shift.shape != (2,):
            raise ShapeError(f"RigidWarp.shift has a number for rows and one for columns, got {shift}.")

    @property
    def gain(self) -> float:
        """(7 - 4 sqrt 2)^(1/2), rounded up, whatever the parameters are."""
        return math.sqrt(7 - 4 * math.sqrt(2)) * (1 + 4 * MILLIONS_OF_ROUNDINGS)

    def linear_part(self) -> Float[Tensor, "2 2"]:
        # In fewer digits this would be no rotation.
        angle = self.angle.to(torch.float64)
        cosine, sine = angle.cos(), angle.sin()
        return torch.stack([torch.stack([cosine, sine]), torch.stack([-sine, cosine])])

    def inverse_part(self) -> Float[Tensor, "2 2"]:
        return self.linear_part().mT

    def inverse(self) -> Self:
        """The warp of the inverse motion, with parameters of its own: angle -a, shift -B R'."""
        with torch.no_grad():
            undone = type(self)(device=self.angle.device, dtype=self.angle.dtype)
            undone.angle.copy_(-self.angle)
            undone.shift.copy_(-self.shift.to(torch.float64) @ self.inverse_part())
            return undone

    def extra_repr(self) -> str:
        """Angle and shift at this moment."""
        return f"angle={float(self.angle.detach()):.4g}, shift={tuple(self.shift.tolist())}"


@final
class AffineWarp(_Warp):
    """The image under M u = u L + shift with a learnt invertible matrix L, which starts at the identity.

    Guarantee: 1 in l_inf. In l2 there is no constant for all L, since an enlarged image has a larger norm;
    `declared_lipschitz` gives an upper bound for L as it is. `inverse`, cost and derivatives as of `RigidWarp`.
    Reference: Béthune 2024, appendix A; the constant is ours.

    Args:
        matrix: L, by which rows (x, y) of coordinates are multiplied from the right; the identity if None.
        shift: Rows and columns, in halves of the longer side of the image.
    """

    def __init__(
        self,
        matrix: Float[Tensor, "2 2"] | None = None,
        shift: tuple[float, float] = (0.0, 0.0),
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        start = torch.eye(2) if matrix is None else matrix.detach().clone()
        if start.shape != (2, 2) or not float(torch.linalg.det(start.double()).abs()) > 0:
            raise ArgumentError(f"AffineWarp.matrix must be an invertible 2 x 2 matrix, got {start.tolist()}.")
        dtype = dtype or start.dtype
        require_real(self, dtype)
        self.matrix = nn.Parameter(start.to(device=device, dtype=dtype))
        self.shift = nn.Parameter(torch.tensor(shift, device=device, dtype=dtype))
        if self.shift.shape != (2,):
            raise ShapeError(f"AffineWarp.shift has a number for rows and one for columns, got {shift}.")

    def linear_part(self) -> Float[Tensor, "2 2"]:
        return self.matrix

    def inverse_part(self) -> Float[Tensor, "2 2"]:
        (a, b), (c, d) = self.matrix
        # Written out, for types that torch.linalg does not take.
        return torch.stack([torch.stack([d, -b]), torch.stack([-c, a])]) / (a * d - b * c)

    def inverse(self) -> Self:
        """The warp of the inverse motion, with parameters of its own: L^(-1), shift -B L^(-1)."""
        with torch.no_grad():
            undone = type(self)(self.inverse_part())
            undone.shift.copy_(-self.shift @ undone.matrix)
            return undone
