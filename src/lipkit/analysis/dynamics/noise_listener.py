"""Listens to the backward pass of a training for the noise of its gradients, and says why where there is none."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from lipkit.analysis.dynamics.booking import Booking
from lipkit.analysis.dynamics.gradient_noise import (
    Contractions,
    Heard,
    Noise,
    contract,
    has_contractions,
    mixing_layer,
)
from lipkit.analysis.dynamics.row_check import RowCheck
from lipkit.analysis.dynamics.sign_probes import SignProbe, probe_gradients
from lipkit.analysis.singular_values.gram_decomposition import GramDecomposition
from lipkit.errors import LipkitError


@final
class NoiseListener:
    """One forward hook for all modules, and hooks on outputs for one backward pass after each measurement.

    A matrix that is used once is heard from inputs and output gradients: M (m + n) numbers, and no sample's gradient.
    All other layers (maps of images, attention projections, weights that are shared) are heard together by `probes`
    more backward passes with random signs, from the gradient of the model's output, whose rows are the samples.
    Samples are the rows of the model's output. A layer with more rows (positions or windows of a sample, folded into
    the first axis) is heard by random signs too; one with fewer is refused, and so is one whose rows turn out to be
    something else (`RowCheck`, at the first backward pass).
    `refusal` is None, or the first reason why there are no noise terms; from then on it does nothing.
    """

    def __init__(
        self,
        model: nn.Module,
        books: Sequence[Booking],
        refusal: str | None,
        probes: int,
        draws: torch.Generator,
        split: bool = False,
    ) -> None:
        self._model, self._books, self._probes, self._draws, self._split = model, books, probes, draws, split
        self.refusal = refusal
        self.listening = False
        self._probing = False
        self._handles: list[Any] = []
        self._heard: list[list[Heard]] = []
        self._calls: Counter[int] = Counter()
        self._rows: dict[int, int] = {}
        self._check = RowCheck()
        shared = _shared_weights(model)
        self.probed = {
            index
            for index, book in enumerate(books)
            if not has_contractions(book.layer.module, book.measured) or id(book.layer.parameter()) in shared
        }
        self.listen()

    def listen(self) -> None:
        """Wait for the next backward pass."""
        self.stop()
        self.listening = True

    def stop(self) -> None:
        """Hear nothing more."""
        self.listening = False
        self._forget()

    def refuse(self, reason: str) -> None:
        """Give up, with the first reason."""
        self.refusal = self.refusal or reason
        self.stop()

    def hook(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """A forward hook for all modules: a layer with a hook of its own could not be read as an operator meanwhile."""
        # A probe makes checkpoints run their part of the forward pass again; that is no new use.
        if not self._hearing() or torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        for index, book in enumerate(self._books):
            if book.layer.module is module:
                self._attend(index, module, args, output)
        if module is self._model and not self.refusal:
            # A layer whose weight was used by another module (torch's attention does so) was not called itself.
            self.probed.update(index for index in range(len(self._books)) if not self._calls[index])
            self._calls.clear()
            self._attend_model(output)

    def take(self, step: int, held: Sequence[bool]) -> None:
        """Noise terms of the backward pass that was heard; without one the last ones hold, and the ear stays open.

        Args:
            step: How many steps came before the one that these gradients made.
            held: Which layers the optimizer moves.
        """
        if not self.listening or self.refusal:
            return
        heard_any = any(self._heard)
        for index, (book, heard) in enumerate(zip(self._books, self._heard, strict=True)):
            parameter = book.layer.parameter()
            if not held[index] or (parameter is not None and not parameter.requires_grad):
                # What does not move has no noise.
                book.noise = Noise(0.0, 0.0, *[Noise(0.0, 0.0)] * (2 * self._split))
                continue
            if parameter is None or parameter.grad is None:
                continue
            if not heard and not heard_any and book.noise is not None:
                continue
            reason = None
            if len(heard) != 1:
                reason = f"went through {len(heard)} backward passes before step {step + 1}, not one"
            elif heard[0].samples < 2:
                reason = "had a batch of one sample, which has no variance"
            elif not heard[0].agree(parameter.grad, book.layer, book.measured):
                reason = _changed()
            elif isinstance(heard[0], Contractions) and not self._check.passes(index, heard[0]):
                reason = (
                    "has a first axis that is not that of the samples, or samples mix between it and the output; put "
                    "samples first"
                )
            if reason is not None:
                self.refuse(f"Layer {book.layer.name!r} {reason}.")
                return
            try:
                book.noise = heard[0].noise(book.layer, book.measured)
            except LipkitError as error:
                self.refuse(f"Layer {book.layer.name!r}: {error}")
                return
        self.listening = not heard_any
        if heard_any:
            self._check.finish()
        self._forget()

    def _forget(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._heard = [[] for _ in self._books]
        self._calls.clear()
        self._rows.clear()

    def _attend(self, index: int, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if self._samples_mix() or index in self.probed:
            return
        self._calls[index] += 1
        if not isinstance(output, Tensor) or not output.requires_grad:
            return
        if self._calls[index] > 1:
            # Used twice in one pass: its uses are heard together.
            self.probed.add(index)
        elif not args:
            self.refuse(f"Layer {self._books[index].layer.name!r} gets its input by keyword; give it by position.")
        else:
            x = args[0].detach()
            self._rows[index] = x.shape[0]
            output.register_hook(lambda gradient: self._hear(index, module, x, gradient))

    def _attend_model(self, output: Any) -> None:
        if self._samples_mix():
            return
        if isinstance(output, Tensor) and output.ndim:
            self._compare_rows(output.shape[0])
            if output.requires_grad and not self.refusal and (self.probed or not self._check.done):
                output.register_hook(lambda gradient: self._probe(output, gradient))
        elif moved := [i for i in sorted(self.probed) if _is_trained(self._books[i])]:
            kind = "a number" if isinstance(output, Tensor) else type(output).__name__
            name = self._books[moved[0]].layer.name
            self.refuse(f"Layer {name!r} needs the gradient of each sample's output, and the model gives {kind}.")

    def _compare_rows(self, samples: int) -> None:
        for index, rows in self._rows.items():
            if rows < samples:
                name = self._books[index].layer.name
                self.refuse(
                    f"Layer {name!r} sees {rows} rows and the model's output has {samples}, so it is not known which "
                    "of them are samples."
                )
                return
            if rows > samples:
                self.probed.add(index)

    def _samples_mix(self) -> bool:
        mixed = mixing_layer(self._model)
        if mixed is not None:
            self.refuse(f"Samples mix in the batch normalisation {mixed!r}, which uses statistics of the batch.")
        return mixed is not None

    def _hear(self, index: int, module: nn.Module, x: Tensor, gradient: Tensor) -> None:
        gram = self._books[index].measured.gram
        if not self._hearing() or index in self.probed or gram is None:
            return
        try:
            with torch.no_grad(), torch.autocast(gradient.device.type, enabled=False):
                self._heard[index].append(contract(module, x, gradient, gram, self._split))
        except LipkitError as error:
            self.refuse(f"Layer {self._books[index].layer.name!r}: {error}.")

    def _probe(self, output: Tensor, gradient: Tensor) -> None:
        if not self._hearing():
            return
        self._probing = True
        try:
            if not self._check.done and (layers := self._contracted()):
                self._check.probe(output, gradient, layers)
            self._hear_signs(output, gradient)
        except RuntimeError as error:
            # Some graphs (reentrant checkpoints, compiled modules) can be run through only once, and as a whole.
            names = [self._books[i].layer.name for i in sorted(self.probed) if _is_trained(self._books[i])]
            if names:
                self.refuse(f"Layer {names[0]!r} needs a second backward pass, which this graph refuses: {error}")
        finally:
            self._probing = False

    def _contracted(self) -> dict[int, tuple[nn.Parameter, GramDecomposition]]:
        """The layers that are heard from inputs and output gradients in this pass."""
        found: dict[int, tuple[nn.Parameter, GramDecomposition]] = {}
        for index in sorted(self._rows.keys() - self.probed):
            book = self._books[index]
            parameter, gram = book.layer.parameter(), book.measured.gram
            if parameter is not None and parameter.requires_grad and gram is not None:
                found[index] = parameter, gram
        return found

    def _hear_signs(self, output: Tensor, gradient: Tensor) -> None:
        found = {i: self._books[i].layer.parameter() for i in sorted(self.probed)}
        chosen = {i: p for i, p in found.items() if p is not None and p.requires_grad}
        if not chosen:
            return
        count = output.shape[0]
        rows = [
            probe_gradients(output, gradient, list(chosen.values()), self._signs(count)) for _ in range(self._probes)
        ]
        for (index, parameter), *gradients in zip(chosen.items(), *rows, strict=True):
            known = tuple(one.detach() for one in gradients if one is not None)
            if known:
                heard = SignProbe(count, known)
                self._heard[index].append(heard)
                self._handles.append(_on_gradient(parameter, heard))
            if parameter.grad is not None and bool(parameter.grad.any()):
                self.refuse(f"Layer {self._books[index].layer.name!r} {_changed()}.")
                return

    def _hearing(self) -> bool:
        return self.listening and not self.refusal and not self._probing

    def _signs(self, count: int) -> Tensor:
        return 2.0 * torch.randint(0, 2, (count,), generator=self._draws) - 1.0


def _on_gradient(parameter: nn.Parameter, heard: SignProbe) -> Any:
    def keep(found: Tensor) -> None:
        if found.grad is not None:
            heard.listen(found.grad)

    return parameter.register_post_accumulate_grad_hook(keep)


def _is_trained(book: Booking) -> bool:
    parameter = book.layer.parameter()
    return parameter is not None and parameter.requires_grad


def _shared_weights(model: nn.Module) -> set[int]:
    """The parameters that have several names."""
    names = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))
    return {key for key, count in names.items() if count > 1}


def _changed() -> str:
    reason = "had its gradient changed between the backward pass and the step (clipped, scaled or summed)"
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        count = torch.distributed.get_world_size()
        if count > 1:
            reason += f"; there are {count} processes, and each hears its own samples only"
    return reason
