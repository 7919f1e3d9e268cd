"""Diagnostics of votes: what shares look like before anything is certified."""

from jaxtyping import Float
from torch import Tensor


def distance_to_uniform(shares: Float[Tensor, "*batch classes"]) -> Float[Tensor, "*batch"]:
    """Total variation between shares and equal ones, sum_k |p_k - 1/c| / 2: between 0 and 1 - 1/c.

    Where it is small no class has a majority. There, bounds of each rival's share certify what 1 - p_label cannot.
    Reference: Delattre 2025, table 6.1.
    """
    return (shares - 1 / shares.shape[-1]).abs().sum(-1) / 2
