"""Where the eigenvalues of a symmetric matrix lie, seen from a few products with a vector."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

# Products with a vector: they show the ends of the range of a thousand eigenvalues up to a hundredth of it.
_PRODUCTS = 20
# The part of the range that is added at both ends.
_MORE = 0.04
# The part of the largest eigenvalue that rounding in float32 hides.
_HIDDEN = 2.0**-19


def range_of(gram: Float[Tensor, "batch cols cols"]) -> tuple[float, float]:
    """The least and the largest eigenvalue of all matrices, widened a little; an estimate, which proves nothing.

    The ends of the range of Ritz values of the Lanczos iteration, from the same random vector at every call. Numbers
    that are not finite give (0, inf).
    """
    generator = torch.Generator().manual_seed(0)
    vector = torch.randn(gram.shape[-1], 1, generator=generator, dtype=gram.dtype).expand(len(gram), -1, 1)
    vector = vector / torch.linalg.vector_norm(vector, dim=1, keepdim=True)
    before, coupling = torch.zeros_like(vector), torch.zeros_like(vector[:, :1])
    diagonal: list[Tensor] = []
    couplings: list[Tensor] = []
    for _ in range(_PRODUCTS):
        image = torch.bmm(gram, vector) - coupling * before
        diagonal.append((image * vector).sum(1, keepdim=True))
        image = image - diagonal[-1] * vector
        coupling = torch.linalg.vector_norm(image, dim=1, keepdim=True)
        couplings.append(coupling)
        if bool((coupling <= _HIDDEN * diagonal[0]).all()):
            # The vector has a part in every eigenspace, and no other one is left.
            break
        before, vector = vector, image / coupling
    middle = torch.cat(diagonal, 1)[..., 0].to(torch.float64)
    sides = torch.cat(couplings, 1)[:, :-1, 0].to(torch.float64)
    small = torch.diag_embed(middle) + torch.diag_embed(sides, 1) + torch.diag_embed(sides, -1)
    if not bool(torch.isfinite(small).all()):
        return 0.0, math.inf
    values = torch.linalg.eigvalsh(small)
    least, most = float(values.min()), float(values.max())
    room = _MORE * (most - least) + _HIDDEN * most
    return least - room, most + room
