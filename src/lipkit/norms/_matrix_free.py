"""The proven lower side of a norm from a vector, for operators that can only be applied."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lipkit.linops import LinearOperator, depth, magnitude
from lipkit.norms._rounding import gamma, log_down, normalised, product_error


def sizes(ops: Sequence[LinearOperator], device: torch.device) -> tuple[Tensor, float]:
    """|| |A| || <= absolute + relative ||A||: the absolute part per operator, the relative one common to all."""
    found = [magnitude(op) for op in ops]
    return torch.stack([one.absolute for one in found]).to(device), found[0].relative


def lower_side(
    ops: Sequence[LinearOperator], stacked: LinearOperator, vector: Tensor, absolute: Tensor, relative: float
) -> tuple[Tensor, Tensor, Tensor]:
    """log ||A v|| rounded down past its worst-case error, and unit vectors (left, right) with Re <left, A right> = ||A
    v||.

    `vector` (batch, n) lives on the smaller side of each operator; on the output side, A* takes the place of A.
    An application carries an error of at most gamma_depth || |A| || ||v||, with || |A| || <= absolute + relative ||A||.
    """
    forward = ops[0].in_size <= ops[0].out_size
    side = stacked if forward else stacked.T
    length = torch.linalg.vector_norm(vector, dim=1, keepdim=True)
    unit = (vector / torch.where(length > 0, length, 1.0)).reshape(side.in_shape)
    # Normalised by powers of two, so that squares neither over- nor underflow.
    image, exponent = normalised(side.apply(unit), ops[0])
    norm = torch.linalg.vector_norm(image.flatten(1), dim=1)
    absolute = absolute * torch.exp2(-exponent)
    other = image / torch.where(norm > 0, norm, 1.0).reshape(-1, *(1,) * (image.ndim - 1))
    error = product_error(depth(ops[0]), stacked.dtype)
    slack = gamma(2 * (math.prod(side.in_shape[1:]) + math.prod(side.out_shape[1:])) + 8)
    lower = (norm * (1 - 2 * slack) - 2 * error * absolute) / (1 + 2 * error * relative) * (1 - slack)
    left, right = (other, unit) if forward else (unit, other)
    return log_down(lower, exponent), left, right
