"""One batch on its way through the model: its logits, radii, decisions, and what an attack does to them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor, nn

from lipkit._seeds import derive_seed
from lipkit.bound import Bound
from lipkit.bounds.certificates.identity import network_hash
from lipkit.certify.attacks import Attack
from lipkit.certify.attacks.coarse_products import coarse_products
from lipkit.certify.evaluate.counterexample import provably_changed, refuse_contradiction, seen_changed
from lipkit.certify.evaluate.deployed import Deployed
from lipkit.certify.evaluate.records import SampleResult
from lipkit.certify.radii.forward import Forward, Logits
from lipkit.certify.radii.local_radius import LocalRadii, LocalRadius, LocalSearch
from lipkit.certify.radii.radius import Radii, radius, require_subject
from lipkit.errors import ArgumentError, NonFiniteError
from lipkit.rounding.float64 import vector_norms

# A constant for all samples, or the constants around the inputs of a batch.
Constant = Bound | Callable[[Tensor], Bound]


@final
class Evaluated:
    """The model, where it lives, and its logits; captured at the first batch."""

    def __init__(self, model: nn.Module, logits: Callable[[Tensor], Logits] | None) -> None:
        self.module = model
        self._logits = logits
        parameter = next(model.parameters(), None)
        self._device = torch.device("cpu") if parameter is None else parameter.device
        self.dtype = torch.float32 if parameter is None else parameter.dtype
        self._deployed: Deployed | None = None
        self._search: LocalSearch | None = None

    def placed(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """A batch where the model lives, if it is one."""
        if not inputs.is_floating_point():
            raise ArgumentError(f"Inputs must be floating point, got {inputs.dtype}; convert them as in training.")
        if not bool(torch.isfinite(inputs).all()):
            raise NonFiniteError("Some inputs are NaN or infinite, so nothing can be said of them; clean the data.")
        return inputs.to(self._device), labels.to(self._device)

    def network(self, inputs: Tensor, labels: Tensor) -> str:
        """A hash of what evaluates the logits; "" where they are given, since nothing is captured then."""
        forward = self._captured(self.placed(inputs[:1], labels[:1])[0])
        return network_hash(forward.network) if isinstance(forward, Forward) else ""

    def require(self, bound: Bound, inputs: Tensor) -> None:
        """Refuse a bound of another network, or of inputs of another shape; with given logits only the latter."""
        forward = self._captured(inputs)
        require_subject(bound, forward.subject if isinstance(forward, Forward) else None, inputs)

    def decides_otherwise(self, inputs: Tensor, found: Logits, indices: Sequence[int]) -> Bool[Tensor, " batch"]:
        """Which samples get another class from the model as it runs; refuses logits that are not the model's."""
        if self._deployed is None:
            self._deployed = Deployed(self.module, self.dtype, self._captured(inputs))
        return self._deployed.decides_otherwise(inputs, found, indices)

    def logits(self, inputs: Tensor) -> Logits:
        """The logits of a batch, with their errors."""
        return self._captured(inputs)(inputs)

    def search(self, local: LocalRadii, p: float, inputs: Tensor) -> LocalSearch:
        """The search for radii near each sample, prepared once; refused where logits are given."""
        if self._search is None:
            forward = self._captured(inputs)
            if not isinstance(forward, Forward):
                raise ArgumentError("Radii near each sample need the captured model; leave out `logits`, or `local`.")
            self._search = local.prepare(forward, p)
        return self._search

    def _captured(self, inputs: Tensor) -> Callable[[Tensor], Logits]:
        if self._logits is None:
            # A copy, which is an ordinary tensor also where the data were made in inference mode.
            self._logits = Forward(self.module, inputs[:1].to(self.dtype, copy=True))
        return self._logits


@final
@dataclass(frozen=True, eq=False)
class Batch:
    """One batch on its way through the model."""

    model: Evaluated
    x: Float[Tensor, "batch ..."]
    y: Int[Tensor, " batch"]
    indices: Sequence[int]
    p: float
    seed: int
    folder: Path

    def samples(
        self,
        bound: Constant,
        eps: Sequence[float],
        attack: Attack | None,
        local: LocalRadii | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> list[SampleResult]:
        """The result of each sample; `progress` is called with how many have their radii near themselves."""
        x, y = self.x, self.y
        found = self.model.logits(x)
        otherwise = self.model.decides_otherwise(x, found, self.indices).tolist()
        constant = bound if isinstance(bound, Bound) else bound(x)
        radii = radius(found, y, constant, at=x).in_norm(self.p, math.prod(x.shape[1:]))
        near = [LocalRadius(value) for value in radii.value.tolist()]
        if local is not None:
            near = self._near(found, radii, eps, self.model.search(local, self.p, x), progress)
            radii = replace(radii, value=radii.value.new_tensor([one.value for one in near]))
        predicted = _predicted(found.value, y)
        broken: list[Tensor] = []
        right = predicted == y
        unproven = torch.zeros_like(right)
        for e in eps if attack is not None else ():
            assert attack is not None
            # What a smaller radius broke stays broken: the smaller ball is part of the larger one.
            seen, sure = self._attacked(right, radii, replace(attack, eps=e))
            unproven |= seen & ~sure
            right = right & ~seen
            broken.append(~right)
        rows = torch.stack(broken, dim=1).tolist() if broken else [()] * len(x)
        columns = (self.indices, y.tolist(), predicted.tolist(), radii.value.tolist(), rows, unproven.tolist())
        # A constant computed for this batch may fail with it: each sample carries that, which counts it often enough.
        own = 0.0 if isinstance(bound, Bound) else radii.failure
        stated = constant.subject is None
        return [
            SampleResult(
                i, a, b, r, tuple(row), own, u, stated=stated and n.proof is None, otherwise=o, ball=n.ball,
                proof="" if n.proof is None else n.proof.value,
            )
            for i, a, b, r, row, u, o, n in zip(*columns, otherwise, near, strict=True)
        ]  # fmt: skip

    def _near(
        self, found: Logits, radii: Radii, eps: Sequence[float], search: LocalSearch,
        progress: Callable[[int], None] | None,
    ) -> list[LocalRadius]:  # fmt: skip
        """The radii by what holds near each sample, where that is more."""
        made: list[LocalRadius] = []
        for i, (label, start) in enumerate(zip(self.y.tolist(), radii.value.tolist(), strict=True)):
            one = Logits(found.value[i : i + 1], found.error[i : i + 1], found.subject)
            made.append(search.enlarge(self.x[i], label, one, start, eps))
            if progress is not None:
                progress(i + 1)
        return made

    def _attacked(
        self, right: Bool[Tensor, " batch"], radii: Radii, attack: Attack
    ) -> tuple[Bool[Tensor, " batch"], Bool[Tensor, " batch"]]:
        """Which samples that are right an attack changes, as seen and as proven."""
        seen, sure = torch.zeros_like(right), torch.zeros_like(right)
        places = right.nonzero().flatten()
        if not len(places):
            return seen, sure
        x, y = self.x[places], self.y[places]
        generator = torch.Generator().manual_seed(derive_seed(self.seed, self.indices[0]))
        with coarse_products(x.device):
            moved = attack(self.model.module, x.to(self.model.dtype), y, generator=generator)
        after = self.model.logits(moved)
        indices = [self.indices[i] for i in places.tolist()]
        refuse_contradiction(x, moved, y, after, radii.value[places], self.p, indices, self.folder)
        # In another type the attack may have begun elsewhere; only what is in the ball of the input counts.
        near = vector_norms((moved.double() - x.double()).flatten(1), self.p) <= attack.eps
        inside = near if x.dtype != moved.dtype else torch.ones_like(near)
        # A change that rounding alone may explain does not count.
        seen[places], sure[places] = seen_changed(after, y) & inside, provably_changed(after, y) & inside
        return seen, sure


def _predicted(z: Float64[Tensor, "batch classes"], labels: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
    """The class of the largest logit; another than the label where they tie, which is no decision for it."""
    own = labels[:, None].long()
    rival = z.scatter(1, own, -math.inf).max(1)
    return torch.where(z.gather(1, own)[:, 0] > rival.values, labels.long(), rival.indices)
