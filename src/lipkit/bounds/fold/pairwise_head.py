"""Constants of differences of outputs from the last linear layer, with everything before it bounded by any method."""

from dataclasses import dataclass, field, replace
from typing import final

from torch import Tensor

from lipkit.bound import Bound, Scope
from lipkit.bounds._base import Method
from lipkit.bounds.auto import Auto
from lipkit.bounds.fold.pairwise import Pairwise, differences_of_rows
from lipkit.errors import KindError
from lipkit.linops import LinearOperator, Reshape, product
from lipkit.regions import Region
from lipkit.trace import Network


@final
@dataclass(frozen=True)
class PairwiseHead(Pairwise):
    """K_ab = ||w_a - w_b||_q L, with the rows w of the last linear layer and L = `trunk` of the network before it.

    q is dual to the norm p in which the trunk is bounded (l_p to l_p).

    Guarantee: UPPER, if the trunk's is; its failure is passed on. Cost: that of `trunk`, and all differences of rows.
    Where the output adds up several values (a skip connection around the head) there is no last layer, and K_ab is
    that of the whole map, ||e_a - e_b||_q L; `PairwiseLipLT` is sharper there.
    Reference: the last-layer form of Tsuzuku et al. 2018.
    """

    trunk: Method = field(default_factory=Auto)

    def __str__(self) -> str:
        return f"differences of rows of the last layer, and for all layers before it: {self.trunk}"

    def _bound(self, network: Network, region: Region) -> Bound:
        j, head = self._head(network)
        inner = self._trunk(before(network, j), region)
        sources: list[tuple[LinearOperator, Tensor]] = [(head, inner.log_value)]
        return replace(
            differences_of_rows(self, inner.metric, network, sources, (inner,), inner.region), note=inner.note
        )

    def _head(self, network: Network) -> tuple[int, LinearOperator]:
        """All linear operations after the last value that is not linear in one other: that value, and their product."""
        rows, j = network.rows(), network.sink
        head: LinearOperator = Reshape(network.target, network.target)
        while len(rows.get(j, ())) == 1 and (j == network.sink or network.nodes[j - 1].is_identity):
            ((j, op),) = rows[j].items()
            head = product(head, op)
        return j, head

    def _trunk(self, network: Network, region: Region) -> Bound:
        found = self.trunk(network, region)
        if not found.kind.certifies or found.of is not Scope.WHOLE or found.metric.p_in != found.metric.p_out:
            raise KindError(
                f"The trunk needs an upper bound of the whole map from a norm to itself, got {found}; choose another "
                "method, or a region of one input."
            )
        return found


def before(network: Network, j: int) -> Network:
    """The network x -> y_j."""
    if j == network.sink:
        return network
    shape = network.shape_of(j)
    blocks = {at: op for at, op in network.blocks.items() if at[0] <= j}
    return replace(
        network,
        nodes=network.nodes[:j],
        blocks={**blocks, (j + 1, j): Reshape(shape, shape)},
        biases={k: b for k, b in network.biases.items() if k <= j},
        origins=(*network.origins[:j], network.origins[-1]) if network.origins else (),
        target=shape,
    )
