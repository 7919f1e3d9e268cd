"""The methods for matrices, and matrices that are hard for some of them."""

import math

import torch
from torch import Tensor

from lipkit.bound import Metric
from lipkit.nn.methods._base import WeightMethod
from lipkit.nn.methods.cayley import Cayley
from lipkit.nn.methods.clipping import Clip
from lipkit.nn.methods.exponential import Exponential
from lipkit.nn.methods.frobenius import Frobenius
from lipkit.nn.methods.householder import Householder
from lipkit.nn.methods.lp_ball import LpBall
from lipkit.nn.methods.newton_schulz import NewtonSchulz
from lipkit.nn.methods.polar import Polar
from lipkit.nn.methods.qr import QR, QRFactorization
from lipkit.nn.methods.singular_clip import SingularClip
from lipkit.nn.methods.unit_rows import UnitLines, UnitRows

EUCLIDEAN, SUM, LARGEST = Metric(2.0, math.inf), Metric(1.0, 1.0), Metric(math.inf, math.inf)

# Isometries from every free matrix, and those that need one of full rank.
ALWAYS: tuple[WeightMethod, ...] = (Cayley(), Exponential(), Householder(), Polar())
FULL_RANK: tuple[WeightMethod, ...] = (*(QR(by) for by in QRFactorization), NewtonSchulz(25))
ISOMETRIES = (*ALWAYS, *FULL_RANK)
CONTRACTIONS: tuple[WeightMethod, ...] = (SingularClip(), Frobenius(), Clip(), LpBall(2.0), LpBall(2.0, 0.5))
OTHER_NORMS: tuple[WeightMethod, ...] = (
    *(UnitRows(), UnitLines(EUCLIDEAN), UnitLines(LARGEST), UnitLines(SUM)),
    *(LpBall(1.0), LpBall(math.inf), LpBall(math.inf, 0.5)),
)
METHODS = (*ISOMETRIES, *CONTRACTIONS, *OTHER_NORMS)

SHAPES = ((9, 9), (14, 5), (4, 11), (1, 6), (6, 1), (1, 1), (8, 7))


def gaussian(rows: int, cols: int, seed: int = 0) -> Tensor:
    return torch.randn(1, rows, cols, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def orthogonal(rows: int, cols: int, seed: int = 0) -> Tensor:
    left, _, right = torch.linalg.svd(gaussian(rows, cols, seed), full_matrices=False)
    return left @ right


def ordinary(rows: int, cols: int) -> dict[str, Tensor]:
    """Free matrices of full rank and moderate condition."""
    return {
        "Gaussian": gaussian(rows, cols),
        "small": 1e-3 * gaussian(rows, cols, 1),
        "trained": orthogonal(rows, cols) + 0.05 * gaussian(rows, cols, 2),
        "identity": torch.eye(rows, cols, dtype=torch.float64)[None],
    }


def degenerate(rows: int, cols: int) -> dict[str, Tensor]:
    """Free matrices that are singular or out of proportion."""
    some = gaussian(rows, cols)
    left, values, right = torch.linalg.svd(some, full_matrices=False)
    steep = torch.logspace(0, -9, values.shape[-1], dtype=torch.float64)
    return {
        "zero": torch.zeros_like(some),
        "ones": torch.ones_like(some),
        "rank one": some[:, :, :1] @ some[:, :1],
        "ill-conditioned": (left * steep) @ right,
        "huge": 1e30 * some,
        "tiny": 1e-38 * some,
        "one entry": torch.nn.functional.one_hot(torch.tensor(0), rows * cols).double().reshape(1, rows, cols),
    }
