"""A training step as one launch: recorded as a CUDA graph, then replayed."""

import math
from collections.abc import Callable, Sequence
from typing import final

import torch
from torch import Tensor

from lipkit.cli.training.delayed_checks import read_later
from lipkit.cli.training.processes import Team
from lipkit.errors import ArgumentError, NonFiniteError
from lipkit.losses import Dials, Progress
from lipkit.optim import ASAM, SAM, StiefelMuon, WeightNoise

# Steps before the first recording: they compile, and make the states of optimizers, which must outlive a recording.
_EAGER = 3


@final
class RecordedStep:
    """Augmentation, loss, gradients and optimizers of a step, replayed by one launch instead of thousands.

    What differs between steps lies in tensors: the batch, the learning rates, and what schedules say of the progress
    (`Dials`). `StiefelMuon(every=k)` does not do the same at every step, so there is one graph for each of its k
    phases. The first steps run as usual. Random numbers go on as torch's generator counts them.

    Guarantee: the same operations as without a graph, so the same numbers up to the order of sums; a loss that is not
    finite is reported one step late, when the weights have moved already. Limits: one process on CUDA; Adam and its kin
    (those of torch with `capturable`) and `StiefelMuon`; whatever waits for the device, such as `float(tensor)`, cannot
    be recorded and is refused. Cost: memory for the activations of one step.
    """

    def __init__(
        self,
        move: Callable[[Tensor, Tensor, Progress], Tensor],
        optimizers: Sequence[torch.optim.Optimizer],
        team: Team,
    ) -> None:
        if team.device.type != "cuda" or team.size > 1:
            raise ArgumentError(
                f"A step is recorded on one CUDA device, got {team.size} processes on {team.device.type}; train with "
                "--graph=false there."
            )
        for optimizer in optimizers:
            _make_recordable(optimizer, team.device)
        self._move, self._optimizers = move, optimizers
        self._phased = [optimizer for optimizer in optimizers if isinstance(optimizer, StiefelMuon)]
        self._period = math.lcm(*(optimizer.period for optimizer in self._phased))
        self._dials = Dials(team.device)
        self._stream = torch.cuda.Stream(team.device)
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self._batch: tuple[Tensor, Tensor] | None = None
        self._steps = 0
        self._answer: Callable[[], bool] | None = None

    def __call__(self, inputs: Tensor, labels: Tensor, progress: float) -> Tensor:
        """One step on a batch; returns its loss, which the next step overwrites."""
        if self._batch is None:
            self._batch = inputs.clone(), labels.clone()
        for held, new in zip(self._batch, (inputs, labels), strict=True):
            held.copy_(new)
        self._dials.turn(progress)
        phase = self._steps % self._period
        if self._steps < max(_EAGER, self._period):
            loss = self._as_usual()
        else:
            if phase in self._graphs:
                for optimizer in self._phased:
                    optimizer.count_replayed()
            else:
                self._record(phase)
            graph, loss = self._graphs[phase]
            graph.replay()
        self._steps += 1
        # The answer to the last step: this one is under way by now, so the device does not wait.
        self.require_finite()
        self._answer = read_later(torch.isfinite(loss.detach()))
        return loss

    def require_finite(self) -> None:
        """Refuse to go on after a loss that was not finite."""
        if self._answer is not None and not self._answer():
            raise NonFiniteError(
                "The loss of a recorded step is not finite. Lower the learning rate, or clip gradients with --clip=1; "
                "--graph=false names the step and the layer."
            )

    def _as_usual(self) -> Tensor:
        """Run the step on the stream that records it later: gradients remember the stream they are summed on."""
        assert self._batch is not None, "the batch is copied before"
        here = torch.cuda.current_stream()
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            loss = self._move(*self._batch, self._dials).detach()
        here.wait_stream(self._stream)
        return loss

    def _record(self, phase: int) -> None:
        assert self._batch is not None, "the batch is copied before"
        self._dials.close()
        graph = torch.cuda.CUDAGraph()
        # Graphs never run at the same time, so they share their memory.
        pool = next((one.pool() for one, _ in self._graphs.values()), None)
        try:
            with torch.cuda.graph(graph, pool, self._stream, capture_error_mode="thread_local"):
                loss = self._move(*self._batch, self._dials).detach()
        except RuntimeError as error:
            raise ArgumentError(
                f"A step of this recipe cannot be recorded ({str(error).splitlines()[0]}); it must not wait for the "
                "device. Train with --graph=false."
            ) from error
        self._graphs[phase] = graph, loss


def _make_recordable(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Let the learning rates be tensors on the device, which the loop refills; refuse optimizers that cannot."""
    looks_around = isinstance(optimizer, SAM | ASAM | WeightNoise)
    for group in optimizer.param_groups:
        if "capturable" in group and not looks_around:
            group["capturable"] = True
        elif not isinstance(optimizer, StiefelMuon):
            raise ArgumentError(
                f"{type(optimizer).__name__} cannot be recorded; use an optimizer of torch with `capturable`, such as "
                "Adam, or StiefelMuon, or train with --graph=false."
            )
        group["lr"] = torch.full((), float(group["lr"]), device=device)
