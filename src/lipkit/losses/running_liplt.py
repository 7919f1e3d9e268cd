"""Constants of pairs of classes that follow a network through its training."""

from collections.abc import Callable
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lipkit.errors import ArgumentError, ShapeError, UnsupportedError
from lipkit.linops import LinearOperator, Shape
from lipkit.trace import Network
from lipkit.trace.capture import capture
from lipkit.trace.nodes import Split
from lipkit.trace.rewrites.fuse import Junctions, fuse

# Rounds before the first use.
_START = 10


@final
class RunningLipLT(nn.Module):
    """K_ab of a chain of linear layers and nonlinearities as `bounds.PairwiseLipLT` forms it, for use in a loss:

        m_s = ||P_s0|| + sum_{j < s} ||P_sj R_j|| m_j,   K_ab = ||(P_a - P_b)_0|| + sum_j ||((P_a - P_b) R)_j|| m_j.

    Every norm is read as ||P v|| at a direction v that is kept and improved by `steps` steps of power iteration
    whenever the module is called in training mode; all directions pass through a layer together, in one product. The
    first sample of `example` is traced once, and the operators hold the parameters of `model` themselves. One step
    keeps up with weights that move slowly; a loss that presses constants down from the start moves them fast, and needs
    more, or it presses where they no longer are.

    Guarantee: none; each norm is approached from below, so certify with `lipkit.pairwise` afterwards. Differentiable in
    the weights of linear layers; the directions are buffers, so that a run can be continued. Cost: with L layers, one
    pass forward and one back with at most (L/2)^2 vectors, `steps` times, one back with a vector for each class, and
    the gradients of the last.
    Limits: chains whose weights are parameters; branches and computed weights are refused.
    Reference: Fazlyab et al. 2023 for the constants and power iteration; passing all directions together is ours.

    Args:
        model: A chain of layers; its parameters are followed, not copied.
        example: A batch of inputs; the first sample is traced.
        steps: Steps of power iteration for each call in training mode.
    """

    def __init__(self, model: nn.Module, example: Float[Tensor, "batch ..."], steps: int = 1) -> None:
        super().__init__()
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise ArgumentError(f"steps is a number of power steps for each call, 1 or more, got {steps!r}.")
        self._steps = steps
        self._network = _chain(fuse(capture(model, example), Junctions()))
        self._splits = [node.split(2.0) for node in self._network.nodes]
        self._where: tuple[torch.dtype, torch.device] | None = None
        generator = torch.Generator().manual_seed(0)
        for j in range(len(self._splits)):
            drawn = torch.randn(len(self._splits) - j, *self._network.shape_of(j), generator=generator)
            self.register_buffer(f"direction{j}", _unit(drawn).to(example))
        for _ in range(_START):
            with torch.no_grad():
                self()

    def forward(self) -> Float[Tensor, "classes classes"]:
        """The constants of all differences of two outputs; in training mode the directions are improved after that."""
        return self._constants(improve=self.training)

    def now(self) -> Float[Tensor, "classes classes"]:
        """The same without a change of the directions, in every mode: what a log reads may not alter a run."""
        return self._constants(improve=False)

    def _constants(self, improve: bool) -> Tensor:
        self._follow()
        with torch.autocast(self._network.device.type, enabled=False):
            if improve:
                with torch.no_grad():
                    for _ in range(self._steps - 1):
                        self._improve(self._images())
            images = self._images()
            if improve:
                with torch.no_grad():
                    self._improve(images)
            return self._differences(_sizes(images))

    def _images(self) -> list[Tensor]:
        """P_sj R_j v_sj for each sink s, those of all sources j < s together.

        What flows into layer k has axes (sinks from k on, sources before k, *shape).
        """
        found: list[Tensor] = []
        flow: Tensor | None = None
        for k in range(1, len(self._splits) + 1):
            # A copy: the gradient needs the direction as it is now, and `_improve` overwrites it.
            new = self.get_buffer(f"direction{k - 1}").clone()
            new = (new if k == 1 else self._split(k - 1).scale.apply(new)).unsqueeze(1)
            flow = _each(self._block(k).apply, new if flow is None else torch.cat([flow, new], 1))
            found.append(flow[0])
            center = self._split(k).center
            flow = _each(None if center is None else center.apply, flow[1:], self._network.shape_of(k))
        return found

    def _improve(self, images: list[Tensor]) -> None:
        """v <- P* P v / ||P* P v|| for every direction; where that vanishes or leaves the range of numbers it stays."""
        back: Tensor | None = None
        for k in range(len(self._splits), 0, -1):
            here = images[k - 1].detach().unsqueeze(0)
            if back is not None:
                center = self._split(k).center
                fell = _each(None if center is None else center.adjoint, back, self._network.shape_into(k))
                here = torch.cat([here, fell])
            arrived = _each(self._block(k).adjoint, here)
            own, back = arrived[:, -1], arrived[:, :-1]
            own = own if k == 1 else self._split(k - 1).scale.adjoint(own)
            name = f"direction{k - 1}"
            length = torch.linalg.vector_norm(own.flatten(1), dim=1).reshape(-1, *(1,) * (own.ndim - 1))
            kept = self.get_buffer(name)
            # In place: a step that is recorded once and replayed (`graph`) reads the same memory every time.
            kept.copy_(torch.where((length > 0) & torch.isfinite(length), own / length, kept))

    def _differences(self, sizes: list[Tensor]) -> Tensor:
        device, dtype = self._network.device, self._block(self._network.sink).dtype
        classes = self._network.target[0]
        total = torch.zeros(classes, classes, device=device, dtype=dtype)
        rows = self._block(self._network.sink).adjoint(torch.eye(classes, device=device, dtype=dtype))
        for j in range(len(self._splits), 0, -1):
            total = total + _apart(self._split(j).scale.adjoint(rows)) * sizes[j - 1]
            center = self._split(j).center
            if center is None:
                # Nothing linear leads further back.
                return total
            rows = self._block(j).adjoint(center.adjoint(rows))
        return total + _apart(rows)

    def _block(self, k: int) -> LinearOperator:
        return self._network.blocks[k, k - 1]

    def _split(self, k: int) -> Split:
        return self._splits[k - 1]

    def _follow(self) -> None:
        """Bring the splits to where the directions were moved, and into their type."""
        place = next(self.buffers(), None)
        if place is None or (place.dtype, place.device) == self._where:
            return

        def like(op: LinearOperator) -> LinearOperator:
            return op.to(place.dtype, place.device)

        self._splits = [Split(None if s.center is None else like(s.center), like(s.scale)) for s in self._splits]
        self._where = (place.dtype, place.device)


def _chain(network: Network) -> Network:
    """The network, if each row uses the row before it only and every weight is a parameter."""
    if set(network.blocks) != {(k, k - 1) for k in range(1, network.sink + 1)}:
        raise UnsupportedError(
            f"RunningLipLT takes chains of layers, and this network of {len(network.nodes)} nodes has branches or "
            "constant rows; use lipkit.pairwise with PairwiseLipLT in the loss."
        )
    if len(network.target) != 1:
        raise ShapeError(f"Pairs of classes need outputs with one axis, got {network.target}; flatten them first.")
    if any(t.grad_fn is not None for op in network.blocks.values() for t in op.tensors()):
        raise UnsupportedError(
            "RunningLipLT follows parameters, and some weight of this network is computed from others (a "
            "parametrization, a fused norm); use lipkit.pairwise in the loss, which computes it anew."
        )
    return network


def _sizes(images: list[Tensor]) -> list[Tensor]:
    """m_1, m_2, ... from the images of the unit vectors."""
    sizes: list[Tensor] = []
    for found in images:
        norms = torch.linalg.vector_norm(found.flatten(1), dim=1)
        sizes.append(norms[0] + sum((n * m for n, m in zip(norms[1:], sizes, strict=True)), norms.new_zeros(())))
    return sizes


def _apart(rows: Float[Tensor, "classes *shape"]) -> Float[Tensor, "classes classes"]:
    flat = rows.flatten(1)
    return torch.linalg.vector_norm(flat[:, None] - flat[None], dim=2)


def _each(fn: Callable[[Tensor], Tensor] | None, values: Tensor, shape: Shape = ()) -> Tensor:
    """`fn` on the first two axes together; without one, zeros of `shape`."""
    if fn is None or not len(values):
        return values.new_zeros((*values.shape[:2], *shape))
    return fn(values.flatten(0, 1)).unflatten(0, values.shape[:2])


def _unit(vectors: Float[Tensor, "count *shape"]) -> Float[Tensor, "count *shape"]:
    lengths = torch.linalg.vector_norm(vectors.flatten(1), dim=1)
    return vectors / lengths.reshape(-1, *(1,) * (vectors.ndim - 1))
