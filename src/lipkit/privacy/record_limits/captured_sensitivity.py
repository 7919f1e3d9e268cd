"""What one record can do to the gradient of a model, proven before any record is seen."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from lipkit.bound import Bound, Kind
from lipkit.bounds.lipschitz import network_of
from lipkit.errors import ArgumentError, CaptureError, NotProvenError, ShapeError, UnsupportedError
from lipkit.nn import condense
from lipkit.norms import Auto, Norm
from lipkit.privacy.gradient_clipping import Clip
from lipkit.privacy.input_ball import Inputs
from lipkit.privacy.record_limits.gradient_fold import Cotangent, NormFold, input_ball
from lipkit.privacy.record_limits.limits import Limits
from lipkit.privacy.record_limits.loss_constants import logit_gradient
from lipkit.privacy.record_limits.own_derivatives import (
    refuse_foreign_derivatives,
    refuse_hooks,
    refuse_longer_gradients,
)
from lipkit.privacy.record_limits.public_records import public_records
from lipkit.privacy.record_limits.stale_constants import numbers_follow
from lipkit.regions import Reach
from lipkit.rounding.slacks import MILLIONS_OF_ROUNDINGS
from lipkit.trace import Network
from lipkit.trace.nodes.declared import Declared

# Room for the rounding of sums over a batch, in one record's gradient. `private_steps.piece_sizes` adds up no more
# records in float32 than fit into it; pieces are added up in float64.
FLOAT_SLACK = 2.0**-7


def sensitivity(
    model: nn.Module, loss: nn.Module, inputs: Inputs, clip: Clip | None = None, *, norm: Norm = Auto(failure=0)
) -> Limits:
    """Bounds of one record's gradient in each tensor that the model multiplies with or adds, for its current weights.

        |d loss(f(inputs(x)), y) / d w|_2 <= limits[name].value   for every record (x, y)

    By norms: those of the values forward from the ball, those of the cotangents backward from the loss. A kernel counts
    with `kernel_factor`, a bias with the root of the number of places that it is added to, a tensor that is used twice
    with the sum of its uses. No norm need be 1, and no bias small: proven norms of the weights as they are serve. The
    gradient of a constrained layer is that of the weight it computes, not of its free numbers; its chain rule is free
    of charge after noise was added.

    Args:
        model: The model; tensors that do not ask for gradients are constants.
        loss: How one output is compared with its label; see `logit_gradient` for which are known.
        inputs: Where records lie.
        clip: How gradients in the outputs are clipped, if they are.
        norm: How operators are measured, without chance.

    Guarantee: UPPER in real arithmetic and for a pass in float64, enlarged by 1 + 2^-7 for the rounding of sums over a
    batch. A pass in float32 is allowed what was measured (2^-16 of what is added up), which is not proven.
    Layers that mix records, keep statistics or draw numbers, and trained tensors without a rule are refused by name.
    Cost: one capture, one norm a layer. Reference: Béthune 2024, section 6.2; graphs, counts and ranges are ours.
    """
    refuse_layers(model)
    plain = condense(model)
    known = Sensitivity(plain, inputs)
    refuse_longer_gradients(plain, inputs)
    return known.limits(loss, clip, norm)


@final
class Sensitivity:
    """The same for many steps: a condensed model is captured once, and its limits follow its tensors.

    Args:
        plain: A condensed model, whose tensors are written in place from step to step; see `follows`.
        inputs: Where records lie.
    """

    def __init__(self, plain: nn.Module, inputs: Inputs) -> None:
        self.inputs = inputs
        self._plain = plain
        self._named = {id(p): name for name, p in plain.named_parameters() if p.requires_grad}
        self._sizes = {name: p.numel() for name, p in plain.named_parameters() if p.requires_grad}
        complex_ones = [name for name, p in plain.named_parameters() if p.requires_grad and p.is_complex()]
        if complex_ones:
            raise UnsupportedError(f"{', '.join(complex_ones)}: complex tensors have no rule here; freeze them.")
        example = next((p for p in plain.parameters() if p.is_floating_point()), None)
        if example is None or not self._named:
            raise ArgumentError("No tensor of the model is trained, so there is no gradient to bound; unfreeze one.")
        self._example = torch.zeros((1, *inputs.shape), dtype=example.dtype, device=example.device)
        refuse_hooks(plain)
        _refuse_training_mode(plain, inputs, self._example)
        refuse_foreign_derivatives(plain, inputs, self._example)
        self._network = self._read("", self._example)
        self._opened: dict[str, Network] = {}
        self._views: dict[Tensor, _Found] = {}

    @cached_property
    def follows(self) -> bool:
        """Whether the limits follow the tensors: not where a trained module declared a constant when it was read, or
        where the network holds numbers that were computed from parameters then, seen by autograd or not."""
        declared = any(
            isinstance(node, Declared) and any(t.requires_grad for t in node.tensors()) for node in self._network.nodes
        )
        live = [t for t in self._network.tensors() if t.requires_grad]
        trained = [p for p in self._plain.parameters() if p.requires_grad]
        return (
            not declared
            and all(_is_view(t, leaf) for t in live for leaf in _leaves(t))
            and numbers_follow(self._network, trained, lambda: self._read("", self._example))
        )

    def limits(self, loss: nn.Module, clip: Clip | None = None, norm: Norm = Auto(failure=0)) -> Limits:
        """The bounds for the tensors as they are now."""
        shape = self._network.target
        if len(shape) > 1:
            raise ShapeError(f"The outputs of one record must be a vector, as a loss takes it, got {shape}; flatten.")
        end = logit_gradient(loss, shape[0] if shape else 1, clip)
        total = dict.fromkeys(self._sizes, 0.0)
        seen: set[str] = set()
        start = input_ball(self._network.source, self.inputs.radius, self._network.device)
        with torch.enable_grad():
            for name, bound in self._gradients(self._network, "", start, end, norm):
                total[name] += bound
                seen.add(name)
        if missing := total.keys() - seen:
            raise UnsupportedError(
                f"{', '.join(sorted(missing))}: no rule bounds the gradient of these, because the network does not "
                "multiply with them or add them as they are; freeze them with requires_grad_(False)."
            )
        how = f"norms forward and backward, loss {end.norm:.6g}-Lipschitz"
        bounds = {n: Bound.from_value(v * (1 + FLOAT_SLACK), Kind.UPPER, how) for n, v in total.items()}
        return Limits(bounds, self._sizes)

    def _gradients(
        self, network: Network, path: str, start: Reach, end: Cotangent, norm: Norm
    ) -> Iterator[tuple[str, float]]:
        """The names of the trained tensors of a network, each time one is used, with bounds of their gradients."""
        fold = NormFold(network, start, end, norm)
        for use in fold.uses():
            found = self._parameter(use.tensor)
            yield found.name, use.bound * found.stretch
        for k, node in enumerate(network.nodes, 1):
            trained = [t for t in node.tensors() if t.requires_grad]
            if not trained:
                continue
            if not isinstance(node, Declared):
                names = ", ".join(sorted({self._parameter(t).name for t in trained}))
                raise UnsupportedError(f"{names}: {node} is trained, for which there is no rule; freeze it.")
            inner = ".".join(filter(None, (path, node.path.partition("@")[0])))
            z = fold.values[0][k]
            if inner not in self._opened:
                self._opened[inner] = self._read(inner, torch.zeros(node.size).to(self._example))
            body = self._opened[inner]
            low, high, center = (t.reshape(body.source) for t in (z.low, z.high, z.center))
            reach = Reach(low, high, center, z.radius)
            yield from self._gradients(body, inner, reach, Cotangent(fold.cotangents[1][k]), norm)

    def _read(self, path: str, example: Tensor) -> Network:
        """The network of a part, in which the part itself declares nothing; parts of it may."""
        part = self._plain.get_submodule(path)
        with torch.enable_grad(), _silent(part):
            network = network_of(part, example)
        if any(isinstance(node, Declared) and node.path.partition("@")[0] == "" for node in network.nodes):
            raise CaptureError(f"What {path or 'the model'} computes cannot be read; freeze it, or replace it.")
        for node in network.nodes:
            if isinstance(node, Declared) and node.promise.failure > 0:
                raise NotProvenError(
                    f"The constant {node} may be wrong with probability {node.promise.failure:.3g}, which no epsilon "
                    "counts; declare one that is proven without chance."
                )
        return network

    def _parameter(self, tensor: Tensor) -> "_Found":
        """The parameter that a tensor is a view of or a number computed from."""
        # Of a view nothing changes with the weights, so it is looked at once.
        if tensor not in self._views:
            found = self._computed(tensor)
            if not _is_view(tensor, self._plain.get_parameter(found.name)):
                return found
            self._views[tensor] = found
        return self._views[tensor]

    def _computed(self, tensor: Tensor) -> "_Found":
        leaves = _leaves(tensor)
        names = [self._named[id(leaf)] for leaf in leaves if id(leaf) in self._named]
        if len(leaves) != 1 or not names:
            raise UnsupportedError(
                f"{', '.join(sorted(names)) or 'A tensor'}: the network multiplies with or adds something computed "
                "from it, for which there is no rule; freeze it with requires_grad_(False)."
            )
        leaf = leaves[0]
        if tensor is leaf:
            return _Found(names[0], 1.0)
        if tensor.numel() == 1:
            # A number h of a few others, such as the share of a branch: |d loss / d w| = |d loss / d h| |d h / d w|.
            (slopes,) = torch.autograd.grad(tensor.sum(), leaf, retain_graph=True)
            return _Found(names[0], float(torch.linalg.vector_norm(slopes.double())) * (1 + MILLIONS_OF_ROUNDINGS))
        if not _is_view(tensor, leaf):
            raise UnsupportedError(
                f"{names[0]}: the network uses numbers computed from it, for which there is no rule; freeze it with "
                "requires_grad_(False), or condense the model first."
            )
        (counts,) = torch.autograd.grad(tensor.sum(), leaf, retain_graph=True)
        return _Found(names[0], float(counts.max().round()) ** 0.5)


@final
@dataclass(frozen=True)
class _Found:
    """The parameter behind a tensor, and how much longer its gradient can be than that of the tensor."""

    name: str
    stretch: float


def _is_view(tensor: Tensor, leaf: Tensor) -> bool:
    return tensor.untyped_storage().data_ptr() == leaf.untyped_storage().data_ptr()


def _leaves(tensor: Tensor) -> list[Tensor]:
    """The tensors that a tensor is computed from and that ask for gradients."""
    if tensor.grad_fn is None:
        return [tensor]
    found: dict[int, Tensor] = {}
    stack, seen = [tensor.grad_fn], set[object]()
    while stack:
        step = stack.pop()
        variable = getattr(step, "variable", None)
        if isinstance(variable, Tensor):
            found[id(variable)] = variable
        for after, _ in step.next_functions:
            if after is not None and after not in seen:
                seen.add(after)
                stack.append(after)
    return list(found.values())


@contextmanager
def _silent(part: nn.Module) -> Iterator[None]:
    """The part without its declaration, so that it is read operation by operation."""
    if not hasattr(part, "declared_lipschitz"):
        yield
        return

    def nothing(in_shape: tuple[int, ...]) -> Bound:
        raise UnsupportedError(f"This part is read operation by operation, on inputs of {in_shape}.")

    vars(part)["declared_lipschitz"] = nothing
    try:
        yield
    finally:
        del vars(part)["declared_lipschitz"]


def refuse_layers(model: nn.Module) -> None:
    """Refuse hooks, and layers that are known to mix records, keep statistics, or draw numbers in their mode."""
    refuse_hooks(model)
    for name, part in model.named_modules():
        place = f"{type(part).__name__}{f' at {name}' if name else ''}"
        if isinstance(part, _BatchNorm) and (part.training or not part.track_running_stats):
            raise UnsupportedError(
                f"{place} mixes the records of a batch and keeps their statistics, so one record moves the gradients "
                "of all; put it into evaluation mode, or use lipkit.nn.LayerCentering in its place."
            )
        if isinstance(part, _DropoutNd) and part.training and part.p > 0:
            raise UnsupportedError(f"{place} draws numbers in training, for which no bound is proven; remove it.")


@torch.no_grad()
def _refuse_training_mode(plain: nn.Module, inputs: Inputs, like: Tensor) -> None:
    """Refuse a copy of a model that computes something else in the mode it is in than in evaluation mode.

    That is how statistics of a batch, drawn numbers and changed buffers show, whoever wrote the layer.
    """
    if not any(part.training for part in plain.modules()):
        return
    x = public_records(inputs, 3, like)
    modes = {part: part.training for part in plain.modules()}
    before = {name: buffer.clone() for name, buffer in plain.named_buffers()}
    with torch.random.fork_rng(devices=[]):
        trained = plain(x)
    moved = [name for name, buffer in plain.named_buffers() if not torch.equal(buffer, before[name])]
    evaluated = plain.eval()(x)
    for part, mode in modes.items():
        part.training = mode
    # A third of the digits: what a rounding of another order explains.
    allowed = torch.finfo(trained.dtype).eps ** (2 / 3) * float(evaluated.abs().max())
    if moved or not bool((trained - evaluated).abs().max() <= allowed):
        what = f"changes its buffer {moved[0]}" if moved else "computes something else in training than in evaluation"
        raise UnsupportedError(
            f"The model {what}: batch statistics and drawn numbers have no bound; call model.eval() if that is what "
            "you train, or remove the layer."
        )
