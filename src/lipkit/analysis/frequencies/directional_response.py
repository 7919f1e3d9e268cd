"""The frequencies of a function along one direction of its inputs, as its values at data show them."""

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Complex128, Float, Float64
from torch import Tensor

from lipkit.errors import ArgumentError, NonFiniteError, ShapeError

# Phases that are computed at once.
_TOGETHER = 2**22


@final
@dataclass(frozen=True, eq=False)
class DirectionalResponse:
    """c(t) = mean over data of f(x) exp(-2 pi i t <d, x>) at frequencies t, in cycles per unit along the direction d.

    `standard_errors` are those of c as a mean over draws of the data, sqrt((mean f^2 - |c|^2) / (n - 1)): a value of
    this size is noise.
    """

    direction: Float64[Tensor, " dimensions"]
    frequencies: Float64[Tensor, " count"]
    coefficients: Complex128[Tensor, " count"]
    standard_errors: Float64[Tensor, " count"]

    @property
    def contributions(self) -> Float64[Tensor, " count"]:
        """2 pi |t| |c(t)|: what a wave with this coefficient adds to a constant."""
        return 2 * math.pi * self.frequencies.abs() * self.coefficients.abs()


def directional_response(
    inputs: Float[Tensor, "samples *rest"],
    values: Float[Tensor, " values"],
    frequencies: Float[Tensor, " count"],
    direction: Float[Tensor, "*rest"] | None = None,
) -> DirectionalResponse:
    """The empirical Fourier transform of a function along one line of frequencies.

    The mean estimates the transform of f times the density of the data, not of f: data of one place blur all
    frequencies, and nothing bounds a constant.

    Guarantee: a diagnostic; each coefficient is an unbiased ESTIMATE of E f(x) exp(-2 pi i t <d, x>).
    Cost: samples times frequencies. Reference: Luo 2025, section 5.3.1.1, which plots 2 pi t over [0, 2 pi].

    Args:
        inputs: x, two at least.
        values: f(x), such as the probability of the true label.
        frequencies: t.
        direction: d, brought to length 1; if None the first principal component of the inputs, whose largest entry is
            positive.
    """
    flat = inputs.detach().double().flatten(1)
    if values.shape != flat.shape[:1] or len(flat) < 2:
        raise ShapeError(f"One value for each of two inputs at least is needed, got {len(values)} for {len(flat)}.")
    if direction is not None and direction.numel() != flat.shape[1]:
        raise ShapeError(f"A direction has the shape of an input, got {tuple(direction.shape)}.")
    weights, at = values.detach().double(), frequencies.detach().double()
    if not all(bool(torch.isfinite(one).all()) for one in (flat, weights, at)):
        raise NonFiniteError("Some inputs, values or frequencies are NaN or infinite.")
    unit = _principal(flat) if direction is None else direction.detach().double().flatten()
    length = float(torch.linalg.vector_norm(unit))
    if not 0 < length < math.inf:
        raise ArgumentError(f"A direction has a positive, finite length, got {length}; inputs may be all alike.")
    unit = unit / length
    along = flat @ unit
    rows = [
        torch.polar(weights.new_ones(()), -2 * math.pi * some[:, None] * along) @ weights.to(torch.complex128)
        for some in at.split(max(1, _TOGETHER // len(along)))
    ]
    found = torch.cat(rows) / len(flat)
    errors = ((weights.square().mean() - found.abs().square()).clamp(min=0) / (len(flat) - 1)).sqrt()
    return DirectionalResponse(unit, at, found, errors)


def _principal(flat: Float64[Tensor, "samples dimensions"]) -> Float64[Tensor, " dimensions"]:
    centred = flat - flat.mean(0)
    first = torch.linalg.svd(centred, full_matrices=False).Vh[0] if bool(centred.any()) else torch.zeros_like(flat[0])
    return first * (first[first.abs().argmax()].sign())
