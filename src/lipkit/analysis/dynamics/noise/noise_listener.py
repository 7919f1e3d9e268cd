"""Listens to the backward pass of a training for the noise of its gradients, and says why where there is none."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from lipkit.analysis.dynamics.booking import Booking
from lipkit.analysis.dynamics.followed_layers import shared_weights
from lipkit.analysis.dynamics.noise import reasons
from lipkit.analysis.dynamics.noise.gradient_noise import (
    Contractions,
    Heard,
    Noise,
    contract,
    has_contractions,
    mixing_layer,
)
from lipkit.analysis.dynamics.noise.process_sums import Processes
from lipkit.analysis.dynamics.noise.row_check import RowCheck, at_first_gradient, rows_of
from lipkit.analysis.dynamics.noise.sign_probes import SignProbe, probe_gradients
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
    something else (`RowCheck`, at the first backward pass). With several `processes` each sums up its own samples.
    `refusal` is None, or the first reason why there are no noise terms; from then on it does nothing.
    """

    def __init__(
        self,
        model: nn.Module,
        books: Sequence[Booking],
        refusal: str | None,
        probes: int,
        draws: torch.Generator,
        split: bool,
        processes: Processes,
    ) -> None:
        self._model, self._books, self._probes, self._draws, self._split = model, books, probes, draws, split
        self._processes = processes
        self.refusal = refusal
        self.listening = False
        self._probing = False
        self._handles: list[Any] = []
        self._heard: list[list[Heard]] = []
        self._calls: Counter[int] = Counter()
        self._rows: dict[int, int] = {}
        self._check = RowCheck()
        shared = shared_weights(model)
        self.probed = {
            index
            for index, book in enumerate(books)
            if not has_contractions(book.layer.module, book.measured) or id(book.layer.parameter()) in shared
        }
        self.listen()

    def listen(self) -> None:
        """Wait for the next backward pass."""
        self.stop()
        # A reason that comes later may be of one process only, until all have heard of it.
        self._due = self.refusal is None
        self.listening = True

    def resume(self, refusal: str | None, listening: bool) -> None:
        """Go on with a stored reason, or as one that waited for a backward pass or did not."""
        self.refusal = refusal
        self.listening = self._due = listening

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
        if not self._due:
            return
        stories = [self._story(index, held[index], step) for index in range(len(self._books))]
        # All processes give up together, and take part in the same sums.
        refusals, ears, told = zip(*self._processes.gather((self.refusal, any(self._heard), stories)), strict=True)
        names = [book.layer.name for book in self._books]
        reason = next(filter(None, refusals), None) or reasons.heard_differently(names, told) or self._sum_up(stories)
        if reason is not None:
            self._due = False
            self.refuse(reason)
            return
        self.listening = self._due = not any(ears)
        if any(ears):
            self._check.finish()
        self._forget()

    def _story(self, index: int, held: bool, step: int) -> str | None:
        """What was heard of a layer in this process; None if nothing has to be. Or why nothing can be known."""
        book, heard = self._books[index], self._heard[index]
        parameter = book.layer.parameter()
        if not held or (parameter is not None and not parameter.requires_grad):
            # What does not move has no noise.
            book.noise = Noise(0.0, 0.0, *[Noise(0.0, 0.0)] * (2 * self._split))
            return None
        if parameter is None or parameter.grad is None:
            return None
        if not heard and not any(self._heard) and book.noise is not None:
            return None
        reason = None
        if len(heard) != 1:
            reason = reasons.passes_before(len(heard), step)
        elif heard[0].samples * self._processes.count < 2:
            reason = reasons.ONE_SAMPLE
        elif isinstance(heard[0], Contractions) and not self._check.passes(index, heard[0]):
            reason = reasons.WRONG_ROWS
        if reason is not None:
            self.refuse(f"Layer {book.layer.name!r} {reason}.")
            return None
        return heard[0].story

    def _sum_up(self, stories: Sequence[str | None]) -> str | None:
        """Noise terms of the layers that were heard; or why there are none.

        No process stops half-way, because others wait for its sums: what one finds is told when all layers are through.
        """
        told = [(book, heard[0]) for book, heard, story in zip(self._books, self._heard, stories, strict=True) if story]
        changed = self._processes.first([self._why_changed(book, heard) for book, heard in told])
        return changed or self._processes.first([self._hear_noise(book, heard) for book, heard in told])

    def _why_changed(self, book: Booking, heard: Heard) -> str | None:
        parameter = book.layer.parameter()
        assert parameter is not None, "its story was told"
        assert parameter.grad is not None, "its story was told"
        if heard.agree(parameter.grad, book.measured, self._processes):
            return None
        return f"Layer {book.layer.name!r} {reasons.gradient_changed(self._processes)}."

    def _hear_noise(self, book: Booking, heard: Heard) -> str | None:
        try:
            book.noise = heard.noise(book.layer, book.measured, self._processes)
        except LipkitError as error:
            return f"Layer {book.layer.name!r}: {error}"
        return None

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
        rows = rows_of(output)
        if rows:
            self._compare_rows(rows[0].shape[0])
            if not self.refusal and (self.probed or not self._check.done):
                at_first_gradient(rows, self._probe)
        elif moved := self._trained_by_signs():
            kind = "a number" if isinstance(output, Tensor) else type(output).__name__
            self.refuse(f"Layer {moved[0]!r} needs the gradient of each sample's output, and the model gives {kind}.")

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
            if names := self._trained_by_signs():
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
            probe_gradients(output, gradient, list(chosen.values()), self._processes.draw_weights(count, self._draws))
            for _ in range(self._probes)
        ]
        for (index, parameter), *gradients in zip(chosen.items(), *rows, strict=True):
            known = tuple(one.detach() for one in gradients if one is not None)
            if known:
                heard = SignProbe(count, known, self._processes.count == 1)
                self._heard[index].append(heard)
                self._handles.append(_on_gradient(parameter, heard))
            if parameter.grad is not None and bool(parameter.grad.any()):
                self.refuse(f"Layer {self._books[index].layer.name!r} {reasons.gradient_changed(self._processes)}.")
                return

    def _trained_by_signs(self) -> list[str]:
        """The names of layers that are heard by signs and have a gradient."""
        books = [self._books[index] for index in sorted(self.probed)]
        return [book.layer.name for book in books if (p := book.layer.parameter()) is not None and p.requires_grad]

    def _hearing(self) -> bool:
        return self.listening and not self.refusal and not self._probing


def _on_gradient(parameter: nn.Parameter, heard: SignProbe) -> Any:
    def keep(found: Tensor) -> None:
        if found.grad is not None:
            heard.listen(found.grad)

    return parameter.register_post_accumulate_grad_hook(keep)
