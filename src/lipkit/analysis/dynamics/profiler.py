"""A profiler around any training loop: which layer makes the constant grow, and through which part of the update."""

from types import TracebackType
from typing import Any, Self, final

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from lipkit.analysis.dynamics.booking import Booking
from lipkit.analysis.dynamics.gradient_noise import Contractions, contract, mixing_layer
from lipkit.analysis.dynamics.history import History
from lipkit.analysis.dynamics.tracked_layers import AsMatrix, Reading
from lipkit.analysis.dynamics.update_rules import DecayShares, group_of, why_not_plain_sgd
from lipkit.errors import ArgumentError, LipkitError
from lipkit.regularizers.linear_layers import Example, layers_of


@final
class Profiler:
    """Records why log of the norms of linear and convolution layers changes, while any loop trains the model.

        with analysis.Profiler(model, optimizer, example, every=10) as profile:
            ...                                  # forward, backward, optimizer.step(), as always
        profile.history

    `log K = sum of log sigma_1` over all layers of `regularizers.layers_of`; normalisation, activations and pools count
    as 1. So it is the product bound of a chain; of a network with branches it is the sum of logarithms, and no bound.

    Training is not touched: the same bits with and without it. Hooks on modules and on the optimizer's step leave
    with the block. Noise terms come from inputs and output gradients of layers; no sample's gradient is stored.
    They are refused by name where samples mix, where gradients are changed between the backward pass and the step
    (clipping, scaling, several passes, several processes, shared weights), and for other optimizers than plain SGD.
    A loss that couples samples cannot be noticed: the noise terms are then wrong.

    Guarantee: ESTIMATE; a diagnostic. Cost: a copy of the weights, ten products with vectors a layer and step; a
    decomposition of a Gram matrix for each layer every `every` steps. Reference: Luo 2025, chapter 4; the realised
    tracker and the books are ours.

    Args:
        model: Any torch model.
        optimizer: Any torch optimizer of it.
        example: An input of the model, which is run once in evaluation mode to learn shapes.
        every: Steps between two measurements. First-order terms are booked at each step, second-order ones are held.
        convolutions: How a convolution is read.
        seed: Of the draws of the sampled tracker, which has a generator of its own.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        example: Example,
        every: int = 10,
        *,
        convolutions: Reading | None = None,
        seed: int = 0,
    ) -> None:
        if every < 1:
            raise ArgumentError(f"A profiler measures every 1 or more steps, got every={every}.")
        self._model, self._optimizer, self._every = model, optimizer, every
        self._reading = AsMatrix() if convolutions is None else convolutions
        self._layers = self._reading.track(layers_of(model, example))
        self._seed = seed
        self._handles: list[Any] = []
        self._books: list[Booking] = []

    def __enter__(self) -> Self:
        if self._handles:
            raise ArgumentError("This profiler is running already; leave its block before you enter it again.")
        self._books = [Booking(layer) for layer in self._layers]
        self._groups = [group_of(self._optimizer, layer.parameter()) for layer in self._layers]
        self._decays = DecayShares(self._optimizer)
        self._draws = torch.Generator().manual_seed(self._seed)
        self._refusal = why_not_plain_sgd(self._optimizer) or self._unmodelled()
        self._heard: list[list[Contractions]] = [[] for _ in self._books]
        self._listening = True
        self._step, self._diffused = 0, 0.0
        total = sum(book.log_norm for book in self._books)
        self._steps, self._rows = [0], [(total, total, total, total)]
        self._factors: list[float] = []
        self._handles = [
            self._optimizer.register_step_pre_hook(self._before_step),
            self._optimizer.register_step_post_hook(self._after_step),
        ]
        self._handles.append(register_module_forward_hook(self._listen))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self._listening = [], False
        if kind is None and self._step > self._steps[-1]:
            self._measure()

    @property
    def history(self) -> History:
        """The record so far, from before the first step on; can be read inside the block."""
        if not self._books:
            raise ArgumentError("This profiler has no history yet; enter its block, with analysis.Profiler(...) as p.")
        log_constant, realised, expected, sampled = torch.tensor(self._rows, dtype=torch.float64).unbind(1)
        refused = {} if self._refusal is None else {"expected": self._refusal, "sampled": self._refusal}
        if self._decays.refusal is not None:
            refused["decay"] = self._decays.refusal
        return History(
            f"sum of log sigma_1 over {len(self._books)} layers; {self._reading.label}; normalisation, activations and "
            "pools count as 1; the product bound of a chain only",
            torch.tensor(self._steps),
            log_constant,
            realised,
            None if self._refusal else expected,
            None if self._refusal else sampled,
            tuple(book.record.freeze() for book in self._books),
            refused,
        )

    def _unmodelled(self) -> str | None:
        if not isinstance(self._reading, AsMatrix):
            return "Noise terms exist for convolutions as matrices only; give convolutions=analysis.AsMatrix()."
        computed = [layer.name for layer in self._layers if layer.parameter() is None]
        if computed:
            return f"The weight of {computed[0]!r} is computed from other parameters, so its steps are not plain SGD."
        return None

    def _listen(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        # One hook for all modules: a layer with a hook of its own could not be read as an operator meanwhile.
        if not self._listening or self._refusal or torch.compiler.is_compiling():
            return
        if not isinstance(output, Tensor) or not output.requires_grad:
            return
        for index, layer in enumerate(self._layers):
            if layer.module is module:
                self._attend(index, module, args, output)

    def _attend(self, index: int, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        mixed = mixing_layer(self._model)
        if mixed is not None:
            self._refuse(f"Samples mix in the batch normalisation {mixed!r}, which uses statistics of the batch.")
        elif not args:
            self._refuse(f"Layer {self._layers[index].name!r} gets its input by keyword; give it by position.")
        else:
            x = args[0].detach()
            output.register_hook(lambda gradient: self._hear(index, module, x, gradient))

    def _hear(self, index: int, module: nn.Module, x: Tensor, gradient: Tensor) -> None:
        gram = self._books[index].measured.gram
        if not self._listening or self._refusal or gram is None:
            return
        wide = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
        try:
            with torch.no_grad(), torch.autocast(gradient.device.type, enabled=False):
                self._heard[index].append(contract(module, x, wide, gram))
        except LipkitError as error:
            self._refuse(f"Layer {self._layers[index].name!r}: {error}.")

    def _refuse(self, reason: str) -> None:
        self._refusal = self._refusal or reason
        self._heard = [[] for _ in self._books]

    @torch.no_grad()
    def _before_step(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        self._refusal = self._refusal or why_not_plain_sgd(optimizer)
        if self._listening and not self._refusal:
            self._take_noise()
        factors = self._decays.advance()
        self._factors = [0.0 if group is None else factors[group] for group in self._groups]
        for book in self._books:
            book.before_step()

    def _take_noise(self) -> None:
        """Noise terms of the backward pass that was heard; without one the last ones hold, and the ear stays open."""
        heard_any = any(self._heard)
        for book, heard in zip(self._books, self._heard, strict=True):
            parameter, gram = book.layer.parameter(), book.measured.gram
            assert gram is not None, "noise is refused for operators"
            if parameter is None or parameter.grad is None:
                continue
            if not heard and not heard_any and book.noise is not None:
                continue
            reason = None
            if len(heard) != 1:
                reason = f"went through {len(heard)} backward passes before step {self._step + 1}, not one"
            elif heard[0].a.shape[0] < 2:
                reason = "had a batch of one sample, which has no variance"
            elif not heard[0].agree(parameter.grad.flatten(1), gram):
                reason = "had its gradient changed between the backward pass and the step (clipped, scaled or summed)"
            if reason is not None:
                self._refuse(f"Layer {book.layer.name!r} {reason}.")
                return
            book.noise = heard[0].noise(gram)
        self._listening = not heard_any
        self._heard = [[] for _ in self._books]

    @torch.no_grad()
    def _after_step(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        variances: list[Tensor] = []
        for book, group, factor in zip(self._books, self._groups, self._factors, strict=True):
            rate = 0.0 if group is None else float(optimizer.param_groups[group].get("lr", 0.0))
            variances.append(book.after_step(factor, rate).cpu())
        draw = torch.randn((), dtype=torch.float64, generator=self._draws)
        self._diffused += float(torch.stack(variances).sum().sqrt() * draw)
        self._step += 1
        if self._step % self._every == 0:
            self._measure()
        else:
            for book in self._books:
                book.follow()

    @torch.no_grad()
    def _measure(self) -> None:
        # All layers first: one that cannot be measured leaves the books as they are.
        measured = [book.measure(self._step) for book in self._books]
        for book, found in zip(self._books, measured, strict=True):
            book.close(found)
        expected = sum(book.expected for book in self._books)
        true = sum(book.log_norm for book in self._books)
        self._steps.append(self._step)
        self._rows.append((true, sum(book.realised for book in self._books), expected, expected + self._diffused))
        self._listening = bool(self._handles)
        self._heard = [[] for _ in self._books]
