"""Which class a smoothed classifier predicts, or none."""

from typing import Final

import scipy
import torch
from jaxtyping import Int64
from torch import Tensor

from lipkit.certify.confidence_intervals import check_level
from lipkit.rounding.slacks import ROUNDINGS_8192

ABSTAIN: Final = -1
"""The label of inputs of which nothing is said."""


def top_class(counts: Int64[Tensor, "batch classes"], alpha: float) -> Int64[Tensor, " batch"]:
    """The class with most votes, or `ABSTAIN` where a coin could have made its lead over the second.

    With the two largest counts a >= b it abstains unless 2 P(X >= a) <= alpha, X binomial with a + b trials and share
    1/2. Guarantee: another class than the true top one is returned with probability `alpha` at most.
    Reference: Hung, Fithian 2019; Cohen, Rosenfeld, Kolter, ICML 2019.
    """
    check_level(alpha)
    if counts.shape[1] == 1:
        return torch.zeros_like(counts[:, 0])
    most, classes = counts.topk(2, dim=1)
    first, second = most.cpu().numpy().T
    # P(X >= a) is an incomplete beta function; no votes at all have no lead.
    tail = torch.from_numpy(scipy.special.betainc(first.clip(1), second + 1, 0.5)).to(counts.device)
    sure = (2 * tail <= alpha * (1 - ROUNDINGS_8192)) & (most[:, 0] > most[:, 1])
    return torch.where(sure, classes[:, 0], ABSTAIN)
