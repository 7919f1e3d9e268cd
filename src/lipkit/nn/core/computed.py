"""Tensors that are computed from parameters each time they are used, unless a result is held or kept."""

import threading
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Self, final

import torch
from torch import Tensor, nn

from lipkit._compilers import is_compiling, is_exporting, is_transformed, is_transforming, runs_plainly
from lipkit.nn.core.precision import dtype_in_use, exact_products
from lipkit.nn.core.unchanged_bits import Seal, is_plain

# Attributes of a module that say nothing about what it computes.
_STATE = frozenset(("training", "holds", "kept"))


@final
@dataclass(frozen=True, eq=False)
class Circumstances:
    """Everything beside parameters that the bits of a result depend on: settings of torch, attributes of the module."""

    settings: tuple[object, ...]
    attributes: tuple[object, ...]

    def are(self, others: Self) -> bool:
        """Whether settings are equal, and attributes the same objects: methods and geometries cannot be changed."""
        pairs = zip(self.attributes, others.attributes, strict=True)
        same = self.settings == others.settings and len(self.attributes) == len(others.attributes)
        return same and all(mine is theirs for mine, theirs in pairs)


@final
@dataclass(frozen=True, eq=False)
class Result:
    """A tensor, its parameters, the circumstances in which it was computed, and the seal of parameters and tensor."""

    parameters: tuple[Tensor, ...]
    circumstances: Circumstances
    seal: Seal
    tensor: Tensor

    def serves(self, parameters: tuple[Tensor, ...], circumstances: Circumstances) -> bool:
        """Whether computing it again would give the same bits: nothing that it depends on was changed, nor itself."""
        return self.circumstances.are(circumstances) and self.seal.fits(*parameters, self.tensor)


@final
@dataclass
class Held:
    """Results of a module, one for each type it is used in.

    `fills` says whether results are taken in at their first use; `several`, whether other parameters came.
    """

    fills: bool = False
    several: bool = False
    results: dict[torch.dtype, Result] = field(default_factory=dict)


class Computed(nn.Module):
    """A module whose result depends on parameters alone: the weights of constrained layers.

    In training, and wherever a gradient may be asked for, the result is computed anew at every call. In two cases an
    earlier result is used, always after a comparison of all its parameters and of the result itself, bit by bit, with
    what they were: writes to `.data` and fused optimizers leave no other trace.

    *Kept*, for all threads: in evaluation mode, in main memory, if no gradient can reach the parameters (`no_grad`,
    `inference_mode`, or parameters that ask for none), the last result of each type. Not while code is compiled,
    exported, traced, transformed (`torch.func`) or watched by a mode. Memory: the result, a copy of it and one of the
    parameters, until the next call in training mode. Copies of a module, and what is saved, hold none of it.

    *Held*, for the thread that entered a block: within `frozen` the first result of each type, within `batched` one
    that was computed with others; both only for the very tensors they were computed from. Compiled programs hold
    nothing; exports use what is held, and take nothing in. Transforms of `torch.func` compute anew.

    The type counts because autocast may go on and off.
    """

    holds: dict[int, Held]
    kept: Held

    def __init__(self) -> None:
        super().__init__()
        self.holds = {}
        self.kept = Held()

    def __getstate__(self) -> dict[str, object]:
        """Without results: copies, and what is saved, are outside the block that holds, and compute their own."""
        return {**vars(self), "holds": {}, "kept": Held()}

    def __setstate__(self, state: dict[str, object]) -> None:
        """Models that were saved before results were kept have no place for them."""
        super().__setstate__({"kept": Held(), **state})

    @property
    def held(self) -> Held | None:
        """The results that this thread holds; None outside of `frozen` and `batched`."""
        return self.holds.get(threading.get_ident())

    def hold(self, fills: bool) -> Held:
        """Begin to hold, for this thread."""
        return self.holds.setdefault(threading.get_ident(), Held(fills))

    def release(self) -> None:
        """Hold nothing any more, for this thread."""
        self.holds.pop(threading.get_ident(), None)

    def take(self, held: Held, parameters: tuple[Tensor, ...], result: Tensor) -> None:
        """Hold a result of these parameters."""
        seal = Seal.of(*parameters, result)
        held.results[result.dtype] = Result(parameters, self._circumstances(parameters), seal, result)

    @abstractmethod
    def compute(self, *parameters: Tensor) -> Tensor:
        """The tensor, from scratch."""

    def forward(self, *parameters: Tensor) -> Tensor:
        """The tensor: one that is held or kept, or a new one."""
        if is_compiling() and not (is_exporting() and self.holds):
            return self.compute(*parameters)
        held = self.held if self.holds else None
        if held is not None:
            return self._held_result(held, parameters)
        if self.training:
            self.kept.results.clear()
        elif _nobody_differentiates(parameters) and self._is_stateless() and runs_plainly():
            return self._result_in(self.kept, parameters)
        return self.compute(*parameters)

    def _held_result(self, held: Held, parameters: tuple[Tensor, ...]) -> Tensor:
        found = held.results.get(dtype_in_use(parameters[0]))
        if is_exporting():
            # Tracers have stand-ins for parameters, which cannot be told apart.
            return self.compute(*parameters) if found is None or held.several else found.tensor
        if found is not None and any(a is not b for a, b in zip(found.parameters, parameters, strict=True)):
            # Others come by `torch.func.functional_call`, or where one module serves two layers.
            held.several = True
            return self.compute(*parameters)
        if is_transforming():
            # Bits cannot be compared here, so nothing is held. Free numbers that are differentiated get their gradient.
            free = not held.fills or any(map(is_transformed, parameters))
            with torch.set_grad_enabled(torch.is_grad_enabled() and free):
                return self.compute(*parameters)
        if held.fills:
            with torch.no_grad():
                return self._result_in(held, parameters)
        usable = found is not None and found.serves(parameters, self._circumstances(parameters))
        return found.tensor if found is not None and usable else self.compute(*parameters)

    def _result_in(self, held: Held, parameters: tuple[Tensor, ...]) -> Tensor:
        """The result that is there already, if it still serves; a new one, which is put there, otherwise."""
        dtype, circumstances = dtype_in_use(parameters[0]), self._circumstances(parameters)
        found = held.results.get(dtype)
        if found is not None and found.serves(parameters, circumstances):
            return found.tensor
        before = Seal.of(*parameters)
        # Another thread may write to the parameters meanwhile, and even write back what they were: only a result of the
        # copies is surely one of what was sealed.
        result = self.compute(*(parameters if before.copies is None else before.copies))
        if before.fits(*parameters):
            held.results[dtype] = Result(parameters, circumstances, before.extended(result), result)
        return result

    def _circumstances(self, parameters: tuple[Tensor, ...]) -> Circumstances:
        # Inference tensors serve only where they were made: elsewhere they refuse to be saved for a backward pass.
        settings = torch.get_num_threads(), exact_products(parameters[0]), torch.is_inference_mode_enabled()
        own = (value for name, value in vars(self).items() if name[0] != "_" and name not in _STATE)
        return Circumstances(settings, (type(self), *own))

    def _is_stateless(self) -> bool:
        """Whether all tensors come as arguments: changes of others would not be noticed."""
        return not (self._parameters or self._buffers or self._modules)


def _nobody_differentiates(parameters: tuple[Tensor, ...]) -> bool:
    wanted = torch.is_grad_enabled() and any(one.requires_grad for one in parameters)
    return not wanted and all(map(is_plain, parameters))
