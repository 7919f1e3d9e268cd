"""Whether a network that was read once still says what its model computes after the weights moved."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lipkit.bounds.certificates.identity import network_hash
from lipkit.errors import LipkitError
from lipkit.trace import Network


@torch.no_grad()
def numbers_follow(network: Network, tensors: Sequence[Tensor], read: Callable[[], Network]) -> bool:
    """Whether all numbers of a network are those of a new reading, once every trained tensor has other entries.

    A model may compute numbers from its weights that autograd does not see, such as a norm of `weight.detach()`. A
    network keeps them as they were when it was read, so its bounds would be of earlier weights. Here the tensors get
    other signs, sizes and directions for a moment, the model is read again, and both networks are compared to the bit.

    Guarantee: numbers that do not depend on the weights never differ. Cost: a reading, and two hashes.

    Args:
        network: The network, which holds the tensors themselves.
        tensors: The trained tensors; they have their entries back at the end.
        read: Reads the model anew.
    """
    before = [t.clone() for t in tensors]
    generator = torch.Generator().manual_seed(5)
    try:
        for t, old in zip(tensors, before, strict=True):
            noise = torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t)
            t.copy_(-1.5 * old + noise * (float(old.square().mean().sqrt()) or 1.0))
        return network_hash(network) == network_hash(read())
    except LipkitError:
        # It cannot be read for such weights, so it is read for those of every step.
        return False
    finally:
        for t, old in zip(tensors, before, strict=True):
            t.copy_(old)
