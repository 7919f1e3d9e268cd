"""Random directions that depend on a seed and nothing else."""

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

# Seeds of two draws of one run differ by at least this, so they do not meet within a million steps.
_STRIDE = 1 << 20


@final
@dataclass(frozen=True)
class Noise:
    """Draws for a whole batch, numbered: draw k is the same whatever was drawn before.

    So what a sample is given depends on its place in the batch, never on what its neighbours do.
    """

    seed: int
    restart: int

    def unit(self, like: Tensor, p: float, draw: int) -> Float64[Tensor, "n *shape"]:
        """A vector on the unit sphere of a norm for each sample; in linf every entry is uniform in [-1, 1]."""
        source = torch.Generator(like.device).manual_seed(self.seed + self.restart * _STRIDE + draw)
        if p == math.inf:
            return 2 * torch.rand(like.shape, generator=source, dtype=torch.float64, device=like.device) - 1
        found = torch.randn(like.shape, generator=source, dtype=torch.float64, device=like.device)
        if p == 1.0:
            # Signed exponentials, divided by their sum, are uniform on the l1 sphere.
            uniform = torch.rand(like.shape, generator=source, dtype=torch.float64, device=like.device)
            found = found.sign() * -torch.log1p(-uniform)
        length = torch.linalg.vector_norm(found.flatten(1), ord=p, dim=1)
        return found / length.clamp(min=1e-300).view(-1, *[1] * (like.ndim - 1))
