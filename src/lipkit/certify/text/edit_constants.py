"""Constants of convolutional text classifiers: how much one edit can change the logits."""

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.bound import Kind
from lipkit.errors import ArgumentError, NonFiniteError
from lipkit.linops import Dense
from lipkit.norms import Auto, Mixed, dual_exponent
from lipkit.rounding.slacks import ROUNDINGS_8192, ULP

# Covers the roundings of the sums and products of numbers >= 0 below; each bound that enters is rounded up already.
_INFLATION = 1 + ROUNDINGS_8192


class Pool(enum.Enum):
    """Pooling over the positions of a text; the value is its description."""

    SUM = "sum over positions"
    MEAN = "mean over positions"


@final
@dataclass(frozen=True, eq=False)
class EditConstants:
    """Constants of one network with respect to the Levenshtein distance; upper bounds, in float64.

    One substitution moves the features, summed over positions, by `substitution` at most; one insertion or deletion by
    `indel`. No position's vector is longer than `position`. `heads` has ||w_a - w_b|| in the dual norm.
    """

    substitution: Float64[Tensor, ""]
    indel: Float64[Tensor, ""]
    position: Float64[Tensor, ""]
    heads: Float64[Tensor, "classes classes"]
    pool: Pool = Pool.SUM
    kind: Kind = Kind.UPPER

    @property
    def pairs(self) -> Float64[Tensor, "classes classes"]:
        """K_ab, for all pairs of classes, of one edit.

            sums    |(z_a - z_b)(x) - (z_a - z_b)(x')| <= K_ab d_lev(x, x')
            means   one edit between texts averaged over N and N' positions changes z_a - z_b by K_ab/max(N, N')

        For means the indel constant has one more `position`: S'/N' - S/N = (S' - S)/N' - S/(N N') with N' = N + 1, and
        ||S|| <= N `position`.
        """
        moved = self.indel if self.pool is Pool.SUM else self.indel + self.position
        return self.heads * torch.maximum(self.substitution, moved) * _INFLATION


def edit_constants(
    embedding: Float[Tensor, "tokens width"],
    kernels: Sequence[Float[Tensor, "_ _ _"]],
    head: Float[Tensor, "classes features"],
    p: float = 2.0,
    pool: Pool = Pool.SUM,
) -> EditConstants:
    """Constants of embedding -> (convolution, ReLU) x depth -> pool -> head, per edit, in l_p with p in {1, 2, inf}.

    With S = sum_s ||K_s|| and T = ||sum_s K_s|| of a layer, E = max ||e_i|| over the tokens, and D = max ||e_i - e_j||
    over the tokens and 0:

        position      B_l = S_l B_(l-1),                              B_0 = E
        substitution  c_l = (T_l c_(l-1) + D S_1 ... S_l)/2,          c_0 = D
        indel         c_l = (T_l c_(l-1) + B_l + r_l)/2,              c_0 = E,
                      r_l = S_l r_(l-1) + D_(l-1) min over m of sum_j |j - m| ||K_j||,   r_0 = 0,

    D_0 = D and D_l = 2^(1/p) B_l, the distance of two vectors >= 0 of length B_l. Proof.
    (1) Under a substitution the changes of v, the convolution's values, add up to D S_1 ... S_l (Young).
    (2) Let x' be x with an element more. Of the windows that hold it, the one with the new element at tap m stays
    alone: at most B_l. The others pair with the windows of x across the gap: the one with the new element at tap s then
    differs in the taps j >= s if s > m, j <= s if s < m, so that tap j counts |j - m| times. What had changed before,
    r_(l-1) in all, is multiplied by S_l. So the changes add up to B_l + r_l.
    (3) ReLU(v) = (v + |v|)/2. The sum of v is sum_s K_s times the sum of the layer's input, and the sum of |v| changes
    by no more than the changes of v add up to. One layer attains both constants.

    Since the minimum is at most S (taps - 1)/2, indel <= R B_depth with R the receptive field.

    Guarantee: UPPER, differentiable. d edits cost d times as much. Cost: tokens^2 distances, one norm a tap.
    Limit: no biases and no normalisation in the convolutions; D uses all tokens.

    Args:
        embedding: Vectors of the tokens, without padding.
        kernels: Kernels of the convolutions, (outputs, inputs, taps) each.
        head: Weight of the last layer.
        p: Exponent of the norm of hidden vectors: 1, 2 or infinity.
        pool: Sum or mean over positions.
    """
    if p not in (1.0, 2.0, math.inf):
        raise ArgumentError(f"Edit constants are known in l1, l2 and linf, got p={p}.")
    for tensor in (embedding, *kernels, head):
        if not bool(torch.isfinite(tensor).all()):
            raise NonFiniteError("Some weights are NaN or infinite, so there is no constant; repair the weights first.")
    longest, spread = _token_sizes(embedding.to(torch.float64), p)
    position, moved, changed = longest, torch.zeros_like(longest), spread
    indel, substitution = longest, spread
    for kernel in kernels:
        taps, together = _tap_norms(kernel, p)
        total = taps.sum()
        places = torch.arange(len(taps), dtype=torch.float64, device=taps.device)
        shifts = ((places[:, None] - places[None]).abs() * taps[None]).sum(1).amin()
        moved = (total * moved + spread * shifts) * _INFLATION
        position, changed = total * position * _INFLATION, total * changed * _INFLATION
        indel = (together * indel + position + moved) / 2 * _INFLATION
        substitution = (together * substitution + changed) / 2 * _INFLATION
        spread = position * 2.0 ** (1 / p) * _INFLATION
    return EditConstants(substitution, indel, position, _distances(head.to(torch.float64), dual_exponent(p)), pool)


def _token_sizes(embedding: Float64[Tensor, "tokens width"], p: float) -> tuple[Tensor, Tensor]:
    """The longest token, and the largest distance of two tokens, padding (0) included; rounded up."""
    padded = torch.cat([torch.zeros_like(embedding[:1]), embedding])
    longest = torch.linalg.vector_norm(embedding, ord=p, dim=1).amax() * _INFLATION
    # In slices: a large vocabulary squared does not fit into memory with its vectors.
    return longest, torch.stack([_distances(part, p, padded).amax() for part in padded.split(256)]).amax()


def _distances(rows: Tensor, p: float, others: Tensor | None = None) -> Tensor:
    others = rows if others is None else others
    return torch.cdist(rows, others, p=p, compute_mode="donot_use_mm_for_euclid_dist") * _INFLATION


def _tap_norms(kernel: Tensor, p: float) -> tuple[Float64[Tensor, " taps"], Float64[Tensor, ""]]:
    """The norm of every tap, and that of their sum."""
    norm = Auto() if p == 2.0 else Mixed(p, p)
    wide = kernel.to(torch.float64)
    taps = [bound.value for bound in norm.many([Dense(tap) for tap in wide.unbind(2)])]
    # The sum of the taps is rounded; its error is below that many units of the sum of their entries' sizes.
    error = wide.detach().abs().sum() * wide.shape[2] * ULP
    return torch.stack(taps), norm(Dense(wide.sum(2))).value + error
