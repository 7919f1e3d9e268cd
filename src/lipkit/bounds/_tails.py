"""The constant of the output with respect to every inner value of a network."""

from collections.abc import Mapping

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit._logarithm import log_product
from lipkit.bound import Bound
from lipkit.bounds._row import Term, fold_row
from lipkit.trace import Network


def tails(network: Network, norms: Mapping[tuple[int, int], Bound]) -> dict[int, Float64[Tensor, ""]]:
    """log M_j for every node j: a change of y_j by d, earlier values kept, moves the output by M_j d at most, in l2.

        M_j = fold over the rows k that read y_j of ||A_kj|| Lip(phi_k) M_k,   M = 1 at the output:
    the fold of the transposed network. `norms` are upper bounds of the norms of the blocks; the result is rounded up.
    A node that the output does not depend on has log M = -inf.
    """
    sink = network.sink
    after: dict[int, Tensor] = {sink: torch.zeros((), dtype=torch.float64)}
    found: dict[int, Tensor] = {}
    users: dict[int, list[int]] = {}
    for k, j in sorted(network.blocks):
        users.setdefault(j, []).append(k)
    for j in range(sink - 1, 0, -1):
        terms = [Term(network.blocks[k, j].T, norms[k, j], after[k]) for k in users.get(j, [])]
        found[j] = fold_row(terms, 2.0, None).log_constant
        constant = network.nodes[j - 1].log_constant(2.0)
        after[j] = log_product(found[j], constant.to(found[j].device), 1.0)
    return found
