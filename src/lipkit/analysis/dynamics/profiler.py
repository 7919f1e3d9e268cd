"""A profiler around any training loop: which layer makes the constant grow, and through which part of the update."""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self, final

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from lipkit.analysis.dynamics.books import Books
from lipkit.analysis.dynamics.followed_layers import as_call, find_layers, why_unmoved, why_untracked
from lipkit.analysis.dynamics.history import History
from lipkit.analysis.dynamics.layer_record import collect_history
from lipkit.analysis.dynamics.noise.noise_listener import NoiseListener
from lipkit.analysis.dynamics.noise.process_sums import Processes
from lipkit.analysis.dynamics.norm_fold import NormFold, fold_of
from lipkit.analysis.dynamics.profiler_state import StoredState
from lipkit.analysis.dynamics.tracked_layers import AsMatrix, Reading
from lipkit.analysis.dynamics.update_rules import DecayShares, group_of, why_moved_elsewhere, why_not_plain_sgd
from lipkit.bounds.lipschitz import network_of
from lipkit.errors import ArgumentError, LipkitError
from lipkit.regularizers.linear_layers import Convolution, Example

# The form of a stored state; a later form has another number.
_VERSION = 4


@final
class Profiler:
    """Records why log of the norms of linear and convolution layers changes, while any loop trains the model.

        with analysis.Profiler(model, optimizer, example, every=10) as profile:
            ...                                  # forward, backward, optimizer.step(), as always
        profile.history

    log K is the fold over the network (`bounds.DAG` without joint norms) at sigma_1 of all layers of
    `regularizers.layers_of`; everything else, normalisation among it, counts as 1. In a chain it is the sum of
    log sigma_1. A network that cannot be read has this sum too, and `history.refused["fold"]` says why;
    `refused["layers"]` names matrices of other layers (recurrent ones, embeddings), and `refused["optimizer"]` layers
    that another optimizer moves, which are not followed.

    Training is not touched: the same bits with and without it. Hooks on modules and on the optimizer's step leave
    with the block. Noise terms of matrices come from inputs and output gradients of layers; those of true convolutions,
    attention projections and shared weights from one more backward pass for all of them, with random signs on the
    samples, which are the rows of the model's output. No sample's gradient is stored.
    They are refused by name where samples mix, where gradients are changed between the backward pass and the step
    (clipping, scaling, several passes), and for other optimizers than plain SGD. A loss that couples samples cannot be
    noticed: the noise terms are then wrong. With several processes the steps are those of the averaged gradient, so
    all books are the same in each of them; noise terms need `synchronise`, as a process hears its own samples only.

    Guarantee: ESTIMATE; a diagnostic. Cost: five copies of the weights, one of them in float64; ten products with
    vectors a layer and step; a decomposition of a Gram matrix for each layer every `every` steps, on a GPU about a
    hundred products of it instead. The host waits for the device at a measurement, at the first step after it, and
    where noise is heard. Reference: Luo 2025, chapter 4; the realised tracker and the books are ours.

    Args:
        model: Any torch model.
        optimizer: Any torch optimizer of it.
        example: An input of the model, which is run once in evaluation mode to learn shapes.
        every: Steps between two measurements. First-order terms are booked at each step, second-order ones are held.
        convolutions: How a convolution is read.
        seed: Of the draws of the sampled tracker and of random signs, which have a generator of their own.
        split: Whether noise terms are also split into variances and covariances of entries of the gradient, which costs
            about another gradient of the weights after each measurement.
        synchronise: Whether noise terms are of the batches of all processes of torch.distributed, whose gradients are
            averaged (as `DistributedDataParallel` does). Each of them profiles its own copy of the model then, with the
            same arguments, and batches of one size.
        probes: Backward passes with random signs after each measurement, if a layer needs them; the noise terms of one
            deviate by about their own size, and a mean over many does not.
        wrt: Which argument, or which module's result, the fold is with respect to, as in `lipkit.lipschitz`: a model
            that reads words has a constant from its embedding on.
        output: Which of several results the fold is of, as in `lipkit.lipschitz`.
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
        probes: int = 1,
        split: bool = False,
        synchronise: bool = False,
        wrt: str | tuple[str, ...] | None = None,
        output: str | int | None = None,
    ) -> None:
        if every < 1:
            raise ArgumentError(f"A profiler measures every 1 or more steps, got every={every}.")
        if probes < 1:
            raise ArgumentError(f"A profiler takes 1 or more probes, got probes={probes}.")
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if not any(id(p) in held for p in model.parameters()):
            raise ArgumentError(
                f"The {type(optimizer).__name__} holds no parameter of the model, so a profile would show nothing; "
                "give the optimizer that trains this model."
            )
        self._model, self._optimizer, self._every, self._probes = model, optimizer, every, probes
        self._reading = AsMatrix() if convolutions is None else convolutions
        self._layers = find_layers(model, example, self._reading)
        self._seed, self._split = seed, split
        self._processes = Processes.joined() if synchronise else Processes()
        self._handles: list[Any] = []
        self._books: Books | None = None
        self._resumes = False
        self._example, self._wrt, self._output = example, wrt, output
        self._folded: tuple[NormFold, str | None] | None = None

    def __enter__(self) -> Self:
        if self._handles:
            raise ArgumentError("This profiler is running already; leave its block before you enter it again.")
        if not self._resumes:
            self._start()
        self._resumes = False
        self._handles = [
            self._optimizer.register_step_pre_hook(self._before_step),
            self._optimizer.register_step_post_hook(self._after_step),
            register_module_forward_hook(self._listener.hook),
        ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if kind is None and self._step > self._steps[-1]:
            self._measure()
        self._listener.stop()

    @property
    def history(self) -> History:
        """The record so far, from before the first step on; can be read inside the block."""
        books = self._require_books().each
        fold, missing = self._fold()
        what = "fold of" if missing is None else "sum of log"
        reads = any(isinstance(layer.module, Convolution) for layer in self._layers)
        label = (
            f"{what} sigma_1 over {len(books)} layers; {f'{self._reading.label}; ' if reads else ''}normalisation, "
            "activations, pools and everything else count as 1; an estimate, no bound"
        )
        return collect_history([book.record for book in books], self._steps, fold, label, self._refused())

    def _refused(self) -> dict[str, str]:
        noise = self._listener.refusal or self._elsewhere or self._require_books().why_unheard()
        split = None
        if self._split and (noise or self._listener.probed):
            split = noise or (
                f"Layer {self._layers[min(self._listener.probed)].name!r} is heard by random signs, which do not show "
                "the variances of single entries; its noise terms are not split."
            )
        found = {
            "expected": noise,
            "sampled": noise,
            "decay": self._decays.refusal or self._decays.why_not_of(self._layers),
            "fold": self._fold()[1],
            "split": split,
            "optimizer": self._elsewhere,
            "drift": why_unmoved(self._layers),
            "layers": why_untracked(self._model, self._layers),
        }
        return {name: reason for name, reason in found.items() if reason is not None}

    def state_dict(self) -> dict[str, Tensor | str]:
        """Everything that a later run needs to go on to the same history: tensors on the CPU, and sentences.

        Take it inside the block, between two steps, together with the states of model and optimizer: leaving the block
        adds a measurement. Names are flat, so that tensors go into a safetensors file and the rest into JSON.
        Cost: two copies of the weights of all layers.
        """
        books = self._require_books()
        found: dict[str, Tensor | str] = {
            "version": torch.tensor(_VERSION),
            "every": torch.tensor(self._every),
            "step": torch.tensor(self._step),
            "steps": torch.tensor(self._steps),
            "listening": torch.tensor(int(self._listener.listening)),
            "draws": self._draws.get_state().clone(),
        }
        reasons = {
            "refusal": self._listener.refusal,
            "decay_refusal": self._decays.refusal,
            "elsewhere": self._elsewhere,
        }
        found.update({name: reason for name, reason in reasons.items() if reason is not None})
        found.update({f"decays.{name}": tensor for name, tensor in self._decays.state().items()})
        for index, (layer, state) in enumerate(zip(self._layers, books.states(), strict=True)):
            found[f"layers.{index}.name"] = layer.name
            found.update({f"layers.{index}.{name}": tensor for name, tensor in state.items()})
        return found

    def load_state_dict(self, state: Mapping[str, Tensor | str]) -> None:
        """Go on from a state when the block is entered next; give model and optimizer their states first.

        On the same machine the history is then the same, bit by bit, as without the interruption.

        Args:
            state: What `state_dict` of a profiler with the same model, `every` and reading gave.
        """
        if self._handles:
            raise ArgumentError("This profiler is running; load its state before you enter the block.")
        stored = StoredState(state)
        stored.check("version", _VERSION)
        stored.check("every", self._every)
        stored.check_names([layer.name for layer in self._layers])
        books = self._start()
        books.restore([stored.part(f"layers.{i}.", list(names)) for i, names in enumerate(books.states())])
        self._step, self._steps = stored.number("step"), stored.tensor("steps").tolist()
        self._draws.set_state(stored.tensor("draws"))
        self._decays.restore(stored.part("decays.", list(self._decays.state())))
        self._decays.refusal = stored.sentence("decay_refusal")
        self._listener.resume(stored.sentence("refusal"), bool(stored.number("listening")))
        self._elsewhere = stored.sentence("elsewhere")
        self._resumes = True

    def _fold(self) -> tuple[NormFold, str | None]:
        """The fold of the model, read once; the product and a reason where it cannot be."""
        if self._folded is None:
            try:
                with torch.no_grad():
                    network = network_of(self._model, as_call(self._example), self._wrt, self._output)
                    self._folded = fold_of(network, self._layers), None
            except LipkitError as error:
                reason = f"log K is the product of all norms, because the network cannot be read: {error}"
                self._folded = NormFold(), reason
        return self._folded

    def _require_books(self) -> Books:
        if self._books is None:
            raise ArgumentError("This profiler has no history yet; enter its block, with analysis.Profiler(...) as p.")
        return self._books

    def _start(self) -> Books:
        self._books = Books(self._layers)
        self._groups: list[int | None] = []
        self._count = 0
        self._decays = DecayShares(self._optimizer)
        self._draws = torch.Generator().manual_seed(self._seed)
        refusal = why_not_plain_sgd(self._optimizer, self._layers)
        self._listener = NoiseListener(
            self._model, self._books.each, refusal, self._probes, self._draws, self._split, self._processes
        )
        self._step, self._steps = 0, [0]
        self._elsewhere: str | None = None
        self._factors: list[float] = []
        # Read before the first step: weights that are no numbers any more would not be understood.
        self._fold()
        return self._books

    @torch.no_grad()
    def _before_step(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        self._listener.refusal = self._listener.refusal or why_not_plain_sgd(optimizer, self._layers)
        self._factors = self._decays.advance()
        count = sum(len(group["params"]) for group in optimizer.param_groups)
        if count != self._count:
            # Groups may be added while a training goes on.
            self._count = count
            self._groups = [group_of(optimizer, layer.parameter()) for layer in self._layers]
        self._require_books().before_step()

    @torch.no_grad()
    def _after_step(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        # Only now: a closure makes its gradients within the step, and a scaled step changes them there.
        self._listener.take(self._step, [group is not None for group in self._groups])
        self._book(optimizer)
        self._step += 1
        if self._step % self._every == 0:
            self._measure()
        else:
            self._follow()

    def _book(self, optimizer: torch.optim.Optimizer) -> None:
        draws = torch.randn(len(self._layers), dtype=torch.float64, generator=self._draws).tolist()
        groups = optimizer.param_groups
        rates = [0.0 if group is None else float(groups[group].get("lr", 0.0)) for group in self._groups]
        # An optimizer leaves parameters without a gradient alone, so that nothing of them decays.
        factors = [
            0.0 if group is None or _is_still(layer.parameter()) else self._factors[group]
            for group, layer in zip(self._groups, self._layers, strict=True)
        ]
        self._require_books().after_step(factors, rates, draws)

    def _follow(self) -> None:
        self._require_books().follow()

    @torch.no_grad()
    def _measure(self) -> None:
        books = self._require_books()
        self._elsewhere = self._elsewhere or why_moved_elsewhere(self._optimizer, self._layers, books.moved)
        books.measure(self._step)
        self._steps.append(self._step)
        self._listener.listen()


def _is_still(parameter: nn.Parameter | None) -> bool:
    return parameter is not None and parameter.grad is None
