"""A model on a data set: clean, certified and attacked accuracy, on one process or many, resumable."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lipkit.bound import Bound
from lipkit.bounds.fingerprint import state_prints
from lipkit.certify._shards import Data, Place, batches
from lipkit.certify.attacks import Attack
from lipkit.certify.counterexample import contradiction
from lipkit.certify.evaluation import Evaluation
from lipkit.certify.forward import Forward, Logits
from lipkit.certify.radius import Radii, radius
from lipkit.certify.records import Records, Sample
from lipkit.errors import ArgumentError, MetricError

# A constant for all samples, or the constants around the inputs of a batch.
Constant = Bound | Callable[[Tensor], Bound]


def accuracy(
    model: nn.Module,
    data: Data,
    bound: Constant,
    eps: Sequence[float],
    *,
    norm: float = 2.0,
    attack: Attack | None = None,
    logits: Callable[[Tensor], Logits] | None = None,
    records: str | Path | None = None,
    level: float = 0.95,
    seed: int = 0,
    progress: Callable[[int, int | None], None] | None = None,
) -> Evaluation:
    """Clean, certified and attacked accuracy of a classifier at the radii `eps` in l_`norm`.

    `data` is a DataLoader, a Dataset or any iterable of (inputs, labels) in a fixed order; inputs are those the model
    takes, so a normalisation belongs into the model, where the constant counts it. `bound` is a constant of the model
    (see `radius`), or a function that gives one around the inputs of a batch, such as
    `lambda x: bounds.Local(bounds.DAG())(network, Ball(x, 0.5))`. Logits are evaluated in float64 with their rounding
    error (`Forward`), unless `logits` gives them.

    With `attack`, samples that are classified correctly are attacked at every radius. An attack that provably changes
    the class inside a certified radius stops the evaluation with a `BrokenCertificateError`; the counter-example is
    saved in `records` or in the working directory.

    With `records`, results are appended to that folder as they come and an interrupted run continues where it was.
    Under torch.distributed every process takes its share of the samples, and all return the whole evaluation; `records`
    must then be a folder that all processes see. The table is the same for any number of processes and interruptions:
    the attack draws from `seed` and the place of a batch. `progress` is called with the samples done and their number
    in this process.

    Guarantee: certified <= true robust accuracy <= attacked, on these samples, with the bound's failure probability.
    Cost: one float64 evaluation of each sample, and the attack.
    """
    eps = _checked(eps)
    if attack is not None and attack.norm != norm:
        raise MetricError(f"The radii are in l{norm:g} and the attack in l{attack.norm:g}; use one norm for both.")
    place = Place.here()
    model_in = _Model(model, logits)
    store = (
        None
        if records is None
        else Records(records, _settings(model, bound, eps, norm, attack, level, seed), place.rank)
    )
    done = {} if store is None else store.read()
    place.meet()
    fresh: list[Sample] = []
    failure = bound.failure if isinstance(bound, Bound) else 0.0
    training = model.training
    model.eval()
    try:
        seen = 0
        for indices, inputs, labels, total in batches(data, place, done.keys()):
            x, y = model_in.placed(inputs, labels)
            run = _Batch(model_in, x, y, indices, norm, seed, Path(records or "."))
            found, found_failure = run.samples(bound, eps, attack)
            found = [sample for sample in found if sample.index not in done]
            # One constant fails once; constants of single samples fail each by themselves.
            failure = found_failure if isinstance(bound, Bound) else min(failure + found_failure, 1 - 2.0**-53)
            fresh += found
            if store is not None:
                store.append(found)
            seen += len(found)
            if progress is not None:
                progress(seen, total)
    finally:
        model.train(training)
    place.meet()
    samples = list(store.read().values()) if store is not None else place.gathered(fresh)
    return Evaluation.of(samples, eps, norm, level, place.largest(failure))


class _Model:
    """The model, where it lives, and its logits; captured at the first batch."""

    def __init__(self, model: nn.Module, logits: Callable[[Tensor], Logits] | None) -> None:
        self.module = model
        self._logits = logits
        parameter = next(model.parameters(), None)
        self._device = torch.device("cpu") if parameter is None else parameter.device
        self._dtype = torch.float32 if parameter is None else parameter.dtype

    def placed(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if not inputs.is_floating_point():
            raise ArgumentError(f"Inputs must be floating point, got {inputs.dtype}; convert them as in training.")
        return inputs.to(self._device), labels.to(self._device)

    def logits(self, inputs: Tensor) -> Logits:
        if self._logits is None:
            self._logits = Forward(self.module, inputs[:1].to(self._dtype))
        return self._logits(inputs)


@dataclass(frozen=True, eq=False)
class _Batch:
    """One batch on its way through the model."""

    model: _Model
    x: Float[Tensor, "batch ..."]
    y: Int[Tensor, " batch"]
    indices: Sequence[int]
    norm: float
    seed: int
    folder: Path

    def samples(self, bound: Constant, eps: Sequence[float], attack: Attack | None) -> tuple[list[Sample], float]:
        """What is found of each sample, and the failure probability of the constants used."""
        x, y = self.x, self.y
        found = self.model.logits(x)
        constant = bound if isinstance(bound, Bound) else bound(x)
        radii = radius(found.value, y, constant, error=found.error, at=x).in_norm(self.norm, math.prod(x.shape[1:]))
        predicted = found.value.argmax(1)
        broken: list[Tensor] = []
        right = predicted == y
        for e in eps if attack is not None else ():
            assert attack is not None
            # What a smaller radius broke stays broken: the smaller ball is part of the larger one.
            broken.append(self._attacked(right, radii, replace(attack, eps=e)))
            right = right & ~broken[-1]
        rows = torch.stack(broken, dim=1).tolist() if broken else [()] * len(x)
        columns = (self.indices, y.tolist(), predicted.tolist(), radii.value.tolist(), rows)
        return [Sample(i, a, b, r, tuple(row)) for i, a, b, r, row in zip(*columns, strict=True)], radii.failure

    def _attacked(self, right: Bool[Tensor, " batch"], radii: Radii, attack: Attack) -> Bool[Tensor, " batch"]:
        """Which samples are wrong after an attack: those that were, and those whose class it changed."""
        broken = ~right
        places = right.nonzero().flatten()
        if not len(places):
            return broken
        x, y = self.x[places], self.y[places]
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.indices[0])
        moved = attack(self.model.module, x, y, generator=generator)
        after = self.model.logits(moved)
        indices = [self.indices[i] for i in places.tolist()]
        contradiction(x, moved, y, after, radii.value[places], self.norm, indices, self.folder)
        broken[places] = after.value.argmax(1) != y
        return broken


def _checked(eps: Sequence[float]) -> tuple[float, ...]:
    found = tuple(float(e) for e in eps)
    if not found or not all(math.isfinite(e) and e >= 0 for e in found) or list(found) != sorted(set(found)):
        raise ArgumentError(f"`eps` lists radii >= 0 in increasing order, got {list(eps)}.")
    return found


def _settings(
    model: nn.Module, bound: Constant, eps: Sequence[float], norm: float, attack: Attack | None, level: float, seed: int
) -> dict[str, Any]:
    state = {one.name: one.sha256 for one in state_prints(model.state_dict())}
    said = [x.hex() for x in bound.log_value.flatten().tolist()] if isinstance(bound, Bound) else repr(bound)
    return {
        "model": state,
        "bound": said,
        "eps": list(eps),
        "norm": norm if math.isfinite(norm) else "inf",
        "attack": None if attack is None else repr(attack),
        "level": level,
        "seed": seed,
    }
