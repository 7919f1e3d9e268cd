"""Matrices with orthonormal rows or columns, and how far a matrix is from one; by numpy, not by lipkit."""

import numpy as np
import torch
from torch import Tensor, nn


def orthonormal(rows: int, cols: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """A random one: the first factor of a Gaussian matrix."""
    draws = np.random.default_rng(seed)
    shape = (max(rows, cols), min(rows, cols))
    noise = draws.standard_normal(shape) + (1j * draws.standard_normal(shape) if dtype.is_complex else 0.0)
    q = torch.from_numpy(np.linalg.qr(noise)[0])
    return (q if rows >= cols else q.mT).to(dtype).contiguous()


def parameter(rows: int, cols: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Parameter:
    return nn.Parameter(orthonormal(rows, cols, seed, dtype))


def residual(matrix: Tensor) -> float:
    """||W'W - I||_2 of the tall form, in float64."""
    found = matrix.detach().flatten(1).numpy()
    tall = found if found.shape[0] >= found.shape[1] else found.T
    tall = tall.astype(np.complex128 if np.iscomplexobj(tall) else np.float64)
    return float(np.linalg.norm(tall.conj().T @ tall - np.eye(tall.shape[1]), 2))


def polar(matrix: Tensor) -> Tensor:
    """The nearest orthonormal matrix, by a decomposition."""
    left, _, right = np.linalg.svd(matrix.detach().numpy(), full_matrices=False)
    return torch.from_numpy(left @ right)
