"""What a model spells out in several operations, put back into the one node that it is."""

import torch

from lipkit.trace.network import Network
from lipkit.trace.rewrites.spelled_attention import merge_attention, merge_masks
from lipkit.trace.rewrites.spelled_gates import merge_gates
from lipkit.trace.rewrites.spelled_normalization import merge_normalizers
from lipkit.trace.rules.sorting import merge_max_min


def recognized(network: Network) -> Network:
    """The same function with known patterns as single nodes: gates, normalisation, attention, MaxMin pairs.

    To be called on a network as it is lowered, one operation in each row, before anything is fused. Constants only
    become smaller: products, which have none on the whole space, become activations that have one.
    """
    return merge_max_min(merge_attention(merge_masks(merge_normalizers(merge_gates(network)))))


def checked(plain: Network, rewritten: Network) -> Network:
    """`rewritten` if it gives the values of `plain` at random points, otherwise `plain`.

    A rewriting that is wrong would make every later number wrong, the lower bounds too, because all of them read the
    same network; what torch itself was asked to compute is never wrong.
    """
    if rewritten is plain:
        return plain
    generator = torch.Generator().manual_seed(0)
    # Two scales: near zero many functions agree, far out saturated ones do.
    x = torch.randn(4, *plain.source, generator=generator, dtype=torch.float64)
    scales = torch.tensor([0.1, 1.0, 1.0, 5.0], dtype=torch.float64).reshape(-1, *(1,) * len(plain.source))
    with torch.no_grad():
        expected, found = (
            network.detach().to(torch.float64)((x * scales).to(plain.device)) for network in (plain, rewritten)
        )
    size = expected.abs().nan_to_num().amax() if expected.numel() else expected.new_zeros(())
    # The same function in another order of operations, in float64.
    same = torch.allclose(found, expected, rtol=1e-6, atol=1e-8 * float(size), equal_nan=True)
    return rewritten if same else plain
