"""A network whose attention is spelled out: scores, softmax, and the mean of the values, each a node of its own."""

from dataclasses import replace

import torch

from lipkit.linops import Index, LinearOperator, Reshape, product
from lipkit.trace import Network, Origin
from lipkit.trace.nodes import Attention, Identity, MatrixProduct, Node, Pointwise, Softmax


def attention_in_steps(network: Network) -> Network:
    """The same function with every `Attention` as an identity for (Q, K, V) and three nodes.

    Ranges and derivatives that are composed through the single steps know how queries and keys move together. A node
    of its own knows that probabilities add up to 1. Which one is tighter depends on the region.
    """
    new: dict[int, int] = {0: 0}
    nodes: list[Node] = []
    origins: list[Origin] = []
    blocks: dict[tuple[int, int], LinearOperator] = {}
    biases: dict[int, torch.Tensor] = {}
    for k, row in network.rows().items():
        at = len(nodes) + 1
        blocks.update({(at, new[j]): op for j, op in row.items()})
        if k in network.biases:
            biases[at] = network.biases[k]
        node = network.nodes[k - 1] if k < network.sink else None
        if isinstance(node, Attention):
            steps, inner, mask = _steps(node, network.device)
            blocks.update({(at + i, at + j): op for (i, j), op in inner.items()})
            if mask is not None:
                biases[at + 2] = mask
        else:
            steps = [] if node is None else [node]
        nodes += steps
        origins += [network.origin(k)] * max(1, len(steps))
        new[k] = len(nodes)
    return replace(network, nodes=tuple(nodes), blocks=blocks, biases=biases, origins=tuple(origins))


def _steps(
    node: Attention, device: torch.device
) -> tuple[list[Node], dict[tuple[int, int], LinearOperator], torch.Tensor | None]:
    """The nodes, the blocks between them by their places 0 to 3, and what is added to the scores."""
    h, q, k, w, out = node.heads, node.queries, node.keys, node.width, node.out
    of_q, of_k, of_v = torch.arange(node.shape[0], device=device).split([h * q * w, h * k * w, h * k * out])
    turned = of_k.reshape(h, k, w).mT.reshape(-1)
    scores, values = MatrixProduct(h, q, w, k), MatrixProduct(h, q, k, out)
    hidden = None if node.mask is None or not bool((node.mask == -torch.inf).any()) else node.mask == -torch.inf
    softmax = Softmax((h, q, k), hidden=hidden)
    chances = h * q * k
    everything = torch.arange(values.shape[0], device=device)
    blocks: dict[tuple[int, int], LinearOperator] = {
        (1, 0): Index(torch.cat([of_q, turned]), node.shape),
        (2, 1): Reshape(scores.target, softmax.shape) * node.scale,
        (3, 2): _put(softmax.target, everything[:chances], values.shape),
        (3, 0): product(_put((len(of_v),), everything[chances:], values.shape), Index(of_v, node.shape)),
    }
    mask = None
    if node.mask is not None:
        mask = node.mask if hidden is None else node.mask.masked_fill(hidden, 0.0)
    return [Pointwise(Identity(), node.shape), scores, softmax, values], blocks, mask


def _put(source: tuple[int, ...], at: torch.Tensor, target: tuple[int, ...]) -> LinearOperator:
    """x -> a vector of shape `target` that holds the entries of x at these places, and zero elsewhere."""
    return product(Index(at, target).T, Reshape(source, (len(at),)))
