"""Private training: noised sums of gradients without clipping, each counted on the disk before it is released."""

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, final

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.optim import Optimizer

from lipkit.errors import ArgumentError
from lipkit.nn import condense
from lipkit.norms import Norm
from lipkit.privacy.allocations import Allocation, Optimal
from lipkit.privacy.entropy import Entropy, SystemEntropy
from lipkit.privacy.gradient_clipping import Clip, Quantile
from lipkit.privacy.input_ball import Inputs
from lipkit.privacy.ledger import MOST_RESERVED, Ledger, Spent
from lipkit.privacy.plan import Plan
from lipkit.privacy.private_steps.accepted_records import Records, two_tensors
from lipkit.privacy.private_steps.circumstances import refuse_circumstances, refuse_optimizers, refuse_types
from lipkit.privacy.private_steps.drawn_rows import Batches
from lipkit.privacy.private_steps.free_numbers import FreeNumbers
from lipkit.privacy.private_steps.piece_sizes import most_rows, piece_size
from lipkit.privacy.private_steps.record_sums import RecordSums
from lipkit.privacy.private_steps.separate_records import refuse_mixing_loss, refuse_mixing_model
from lipkit.privacy.private_steps.views import Views
from lipkit.privacy.record_limits.captured_sensitivity import Sensitivity, refuse_layers
from lipkit.privacy.record_limits.limits import Limits
from lipkit.privacy.record_limits.loss_constants import stated_gradient
from lipkit.privacy.record_limits.own_derivatives import refuse_longer_gradients
from lipkit.privacy.record_limits.step_norms import StepNorm

_OPTIMAL, _SYSTEM, _STEP_NORM = Optimal(), SystemEntropy(), StepNorm()


@final
class Training:
    """Trains a model so that what it learns is private, by proven limits of what one record can do to a gradient.

        training = privacy.Training(model, loss, optimizer, (x, y), plan, privacy.Inputs((784,), 10.0), ledger=path)
        for _ in range(plan.steps):
            training.step()
        training.spent()            # .epsilon .delta .steps

    A step releases, for each tensor w that the network multiplies with or adds,

        (sum_{i in batch} d loss_i / d w + N(0, s_w^2)) / planned batch size,

    where the deviations s_w follow from sigma, the limits of the weights as they are, and the allocation. All else is
    computed from that: the gradients of the parameters (a constrained layer computes its weight once a step as a leaf,
    and the noised gradient is pulled back to its free numbers), the optimizer's step, then `after`.

    Guarantee: the parameters after any number of steps are (epsilon, delta)-private as `spent` says, in real
    arithmetic, for whoever sees them and the plan, and nothing else computed from the records. No loss is returned: it
    would be a release. Every step is in the ledger, on the disk, before it is made. Whatever can be refused is refused
    by the constructor, before anything is released.
    Cost of a step: a pass forward and back, one norm a layer and one normal number a weight; memory: a piece of `chunk`
    records. The norms and the noise do not depend on the batch: 8 ms of one core for 784-128-10, where a pass of 4,096
    records takes 20. A model with trained residual layers, or with numbers computed from its weights, is read anew in
    every step. Cost of the constructor: a copy of the records; the model is read twice (a fifth of a second each for a
    few layers, and half a second more for the first reading of a process) and tried on public records, which takes
    about eight passes of a piece: one to two seconds of one core.
    Reference: Béthune 2024, chapter 6; what is released, and the way back to free numbers, are ours.

    Args:
        model: The model, in float32 or float64; tensors that do not ask for gradients are constants.
        loss: A loss of single records with a constant in the outputs; with `clip`, any loss of single records.
        optimizer: Of all trained parameters of the model; one that evaluates no closure. Or several, each of some of
            them, such as `StiefelMuon` for orthonormal matrices and Adam for the others.
        records: Records and labels. Their number is never compared with that of the plan.
        plan: The public numbers.
        inputs: The ball that records are moved onto; it is applied here.
        ledger: The file that counts the steps.
        clip: How gradients in the outputs are clipped, if they are.
        allocation: How the noise is shared among the tensors.
        after: Called after each step, to project weights for example. It must not read the records.
        views: How each record is changed before it is used, if it is; it counts once, whatever the number of views.
        entropy: Where noise and batches come from.
        chunk: How many records are in memory at once, at most; fewer where float32 cannot add up so many well enough.
        norm: How operators are measured, without chance.
        at_least: How many steps a checkpoint knows of; a ledger with fewer is refused.
        reserve: How many steps the ledger writes down at once, and a kill may take at most.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        records: tuple[Float[Tensor, "rows ..."], Shaped[Tensor, "rows ..."]],
        plan: Plan,
        inputs: Inputs,
        *,
        ledger: Path,
        clip: Clip | None = None,
        allocation: Allocation = _OPTIMAL,
        after: Callable[[], object] | None = None,
        views: Views | None = None,
        entropy: Entropy = _SYSTEM,
        chunk: int = 4096,
        norm: Norm = _STEP_NORM,
        at_least: int = 0,
        reserve: int = MOST_RESERVED,
    ) -> None:
        if isinstance(chunk, bool) or chunk < 1:
            raise ArgumentError(f"chunk is a number of records, 1 or more, got {chunk}.")
        if not isinstance(ledger, Path):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentError(f"ledger is a pathlib.Path, got {ledger!r}; write Path({str(ledger)!r}).")
        if not (clip is None or isinstance(clip, Clip)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentError(f"clip is a privacy.Fixed or privacy.Quantile, got {clip!r}; write privacy.Fixed(0.2).")
        x, y = two_tensors(records)
        refuse_types(model, loss)
        refuse_circumstances(_device(model))
        self._optimizers = (optimizer,) if isinstance(optimizer, Optimizer) else tuple(optimizer)
        refuse_optimizers(self._optimizers, model)
        refuse_layers(model)
        self._loss, self._plan, self._inputs = loss, plan, inputs
        self._clip, self._allocation, self._after, self._entropy = clip, allocation, after, entropy
        self._norm, self._views = norm, views
        self._plain = condense(model)
        self._device = _device(self._plain)
        self._sensitivity = Sensitivity(self._plain, inputs)
        self._follows = self._sensitivity.follows
        self._free = FreeNumbers(model, self._plain)
        limits = self._limits()
        allocation.deviations(limits, self._noise_multiplier())
        outputs = self._example_outputs()
        if clip is not None:
            clip(outputs)
        refuse_longer_gradients(self._plain, inputs)
        stated = stated_gradient(loss, outputs[0].numel())
        end = stated.norm if clip is None else min(stated.norm, clip.limit)
        most = most_rows(plan, chunk)
        refuse_mixing_model(self._plain, inputs, most)
        self._piece = piece_size(self._plain, inputs, limits.values_by_name(), end, most)
        if views is not None:
            views.refuse_mixing(inputs, outputs)
        self._records = Records(x, y, inputs, loss, outputs, chunk)
        refuse_mixing_loss(loss, self._records.y.to(self._device), outputs, stated, most)
        self._batches = Batches(plan, len(self._records), entropy)
        self._turn = threading.Lock()
        self._ledger = Ledger.open(ledger, plan, at_least, reserve)

    @property
    def clip(self) -> Clip | None:
        """How gradients in the outputs are clipped in the next step; public, as it follows from noised counts."""
        return self._clip

    def step(self) -> None:
        """Make one step: count it, add up the gradients of a batch, add noise, and let the optimizer use the result."""
        # A second step would write other weights under the first, whose limits do not hold for them.
        if not self._turn.acquire(blocking=False):
            raise ArgumentError(
                "A step of this training is running, in another thread or in `after`; wait for its end."
            )
        try:
            self._step()
        finally:
            self._turn.release()

    def _step(self) -> None:
        refuse_circumstances(self._device)
        self._free.write()
        if not self._follows:
            self._sensitivity = Sensitivity(self._plain, self._inputs)
        deviations = self._allocation.deviations(self._limits(), self._noise_multiplier())
        number = self._ledger.charge()
        # Nothing before this line has read a record.
        released = self._noise(deviations)
        count = self._add_batch(number, released)
        self._free.pull_back({name: total / self._plan.batch for name, total in released.items()})
        if isinstance(self._clip, Quantile):
            noise = self._entropy.normal(torch.zeros(()), self._clip.deviation)
            self._clip = self._clip.after(count + float(noise), self._plan.batch)
        for optimizer in self._optimizers:
            optimizer.step()
        if self._after is not None:
            self._after()

    def spent(self) -> Spent:
        """What all steps so far have cost, from the ledger."""
        return self._ledger.spent()

    def close(self) -> None:
        """Let go of the ledger, which gives back what was reserved and not used."""
        self._ledger.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _noise(self, deviations: Mapping[str, float]) -> dict[str, Tensor]:
        """Noise in the shapes of all tensors, by one draw: each asks the system for entropy, or a device to run."""
        tensors = [self._plain.get_parameter(name) for name in deviations]
        drawn = self._entropy.normal(torch.empty(sum(t.numel() for t in tensors), device=self._device), 1.0)
        parts = drawn.split([t.numel() for t in tensors])
        return {
            name: part.reshape(t.shape).mul_(deviation)
            for (name, deviation), t, part in zip(deviations.items(), tensors, parts, strict=True)
        }

    def _add_batch(self, number: int, totals: dict[str, Tensor]) -> float:
        sums, count = RecordSums(self._plain, self._loss, self._clip), 0.0
        for chosen in self._batches.pieces(number, self._piece):
            x, y = self._records.rows(chosen, self._device)
            if self._views is None:
                count += sums.add(x, y, totals)
                continue
            for view in self._views.each(x, self._inputs):
                count += sums.add(view, y, totals, 1 / self._views.count)
        return count

    def _limits(self) -> Limits:
        return self._sensitivity.limits(self._loss, self._clip, self._norm)

    def _noise_multiplier(self) -> float:
        """What is left for the gradients if a count of clipped records is released with them."""
        return self._clip.left(self._plan.sigma) if isinstance(self._clip, Quantile) else self._plan.sigma

    def _example_outputs(self) -> Tensor:
        example = next(p for p in self._plain.parameters() if p.is_floating_point())
        with torch.no_grad():
            return self._plain(torch.zeros(2, *self._inputs.shape, dtype=example.dtype, device=example.device))


def _device(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))
