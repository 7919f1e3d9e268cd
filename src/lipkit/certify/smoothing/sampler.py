"""Votes of one image under noise, in fixed blocks: counts and moments on the device, without waiting for it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor, nn

from lipkit._runtime import evaluating
from lipkit.certify.smoothing.noise import Noise
from lipkit.certify.smoothing.samples import Moments, Samples
from lipkit.certify.smoothing.simplex_maps import Hardmax, SimplexMap, Softmax, Sparsemax
from lipkit.certify.smoothing.sources import Stream, open_source
from lipkit.errors import NonFiniteError, ShapeError, TooLargeError
from lipkit.nn.core.freeze import frozen

Classifier = nn.Module | Callable[[Tensor], Tensor]

# Whether the samples so far are enough.
Stop = Callable[[Samples], bool]

# Classes whose moments are kept one by one; the votes of all others are kept as one sum.
TRACKED = 64


@final
@dataclass(frozen=True, eq=False)
class Sampler:
    """Noisy copies of one image on their way through a model.

    A forward pass always has `block` copies of one image, also where fewer are left: surplus rows are computed and not
    counted. So a sample has the same bits however the work is divided and wherever it was interrupted.
    """

    model: Classifier
    noise: Noise
    maps: tuple[SimplexMap, ...]
    num_classes: int
    seed: int
    block: int

    def draw(self, x: Float[Tensor, "..."], image: int, n0: int, n: int, stop: Stop | None = None) -> Samples:
        """Everything that certificates of one image rest on, as a batch of one. Cost: n0 + n forward passes.

        With `stop` the samples that prove end early: it is asked after 1, 2, 4, 8, ... blocks. Without it the device is
        waited for once, at the end.
        """
        # In float32, as logs keep it: certificates from a log are those of the run.
        selection = torch.cat(list(self._logits(x, image, Stream.SELECTION, n0))).float()
        tally = _Tally.start(self.maps, self.num_classes, _choose_tracked(selection))
        sane = torch.isfinite(selection).all()
        for number, logits in enumerate(self._logits(x, image, Stream.PROOF, n), start=1):
            tally.add(logits)
            sane = sane & torch.isfinite(logits).all()
            if stop is not None and number.bit_count() == 1 and bool(sane):
                found = self._samples(selection, tally, adaptive=True)
                if stop(found):
                    return found
        _require_finite(sane, image)
        return self._samples(selection, tally, adaptive=stop is not None)

    def _samples(self, selection: Tensor, tally: "_Tally", adaptive: bool) -> Samples:
        counts = tally.counts[None].cpu()
        moments = tuple(Moments(one, a[None].cpu(), b[None].cpu()) for one, a, b in tally.moments())
        tracked = tally.tracked[None].cpu()
        return Samples(selection[None].cpu(), counts, counts.sum(1), tracked, moments, self.maps, adaptive, self.noise)

    def choose(self, x: Float[Tensor, "..."], image: int, n0: int) -> Float[Tensor, "n0 classes"]:
        """The logits of the samples that choose, alone."""
        found = torch.cat(list(self._logits(x, image, Stream.SELECTION, n0))).float()
        _require_finite(torch.isfinite(found).all(), image)
        return found.cpu()

    def count(self, x: Float[Tensor, "..."], image: int, n: int) -> Int64[Tensor, " classes"]:
        """How many of n samples of a third stream have each class as their largest logit."""
        counts = torch.zeros(self.num_classes, dtype=torch.int64, device=x.device)
        sane = torch.ones((), dtype=torch.bool, device=x.device)
        for logits in self._logits(x, image, Stream.PREDICTION, n):
            _count(counts, logits)
            sane = sane & torch.isfinite(logits).all()
        _require_finite(sane, image)
        return counts.cpu()

    def _logits(
        self, x: Float[Tensor, "..."], image: int, stream: Stream, total: int
    ) -> Iterator[Float[Tensor, "rows classes"]]:
        """The logits of `total` noisy copies, block by block, in float32 at least."""
        # Noise is added in float32 at least, and the sum is rounded to the type of the model.
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        rows = min(self.block, total)
        for number in range(-(-total // rows)):
            source = open_source(self.seed, image, stream, number, wide)
            noisy = (wide + self.noise.draw(source, (rows, *x.shape))).to(x.dtype)
            try:
                logits = self.model(noisy)
            except torch.OutOfMemoryError as error:
                raise TooLargeError(
                    f"A block of {rows} noisy copies does not fit into memory; give a smaller block."
                ) from error
            except RuntimeError as error:
                raise ShapeError(
                    f"The model failed on {rows} noisy copies of one input, of shape {tuple(noisy.shape)} and "
                    f"{noisy.dtype} ({str(error).splitlines()[0]}); inputs have shape (batch, ...): one is x[None]."
                ) from error
            self._check(logits, rows)
            left = min(rows, total - number * rows)
            # A copy: a model may write its next answers where these are.
            yield logits[:left].to(torch.promote_types(logits.dtype, torch.float32), copy=True)

    def _check(self, logits: object, rows: int) -> None:
        expected = (rows, self.num_classes)
        if not isinstance(logits, Tensor) or not logits.is_floating_point() or tuple(logits.shape) != expected:
            got = f"{logits.dtype} of shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits)
            raise ShapeError(
                f"The model gave {got} for {rows} noisy copies, expected logits of shape {expected}; "
                "give the model's own num_classes, or wrap it in a function that returns its logits."
            )


@contextmanager
def prepared(model: Classifier) -> Iterator[None]:
    """No gradients, the model in evaluation mode with its computed weights held, and one algorithm for convolutions."""
    with torch.no_grad(), _repeatable_convolutions():
        if not isinstance(model, nn.Module):
            yield
            return
        with evaluating(model), frozen(model):
            yield


@contextmanager
def _repeatable_convolutions() -> Iterator[None]:
    """cuDNN without its search for the fastest algorithm: it measures times, so bits would depend on the moment."""
    # Not `cudnn.flags`, which also puts the precision of products back to its default.
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.deterministic
    cudnn.benchmark, cudnn.deterministic = False, True
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.deterministic = before


@final
@dataclass(eq=False)
class _Tally:
    """Running counts and moments, on the device."""

    families: "tuple[_Family, ...]"
    counts: Int64[Tensor, " classes"]
    tracked: Int64[Tensor, " tracked"]
    # 1 for classes that are not tracked, None where there are none.
    others: Float64[Tensor, " classes"] | None

    @classmethod
    def start(cls, maps: Sequence[SimplexMap], classes: int, tracked: Int64[Tensor, " tracked"]) -> "_Tally":
        where = tracked.device
        others = None
        if len(tracked) < classes:
            others = torch.ones(classes, dtype=torch.float64, device=where).index_fill(0, tracked, 0.0)
        families = tuple(_Family.of(group, len(tracked) + 1, where) for group in _group(maps))
        return cls(families, torch.zeros(classes, dtype=torch.int64, device=where), tracked, others)

    def add(self, logits: Float[Tensor, "rows classes"]) -> None:
        _count(self.counts, logits)
        for family in self.families:
            family.add(logits, self.tracked, self.others)

    def moments(self) -> Iterator[tuple[SimplexMap, Tensor, Tensor]]:
        """(map, first, second) in the order in which the maps were declared."""
        rows = {
            place: (one, family.first[i], family.second[i])
            for family in self.families
            for i, (place, one) in enumerate(family.maps)
        }
        yield from (rows[place] for place in sorted(rows))


@final
@dataclass(eq=False)
class _Family:
    """Maps that differ in their temperature alone: tau_T(z) = tau_1(z / T), so all are one call with one more axis."""

    maps: tuple[tuple[int, SimplexMap], ...]
    common: SimplexMap
    temperatures: Float64[Tensor, " maps"] | None
    first: Float64[Tensor, "maps entries"]
    second: Float64[Tensor, "maps entries"]

    @classmethod
    def of(cls, maps: Sequence[tuple[int, SimplexMap]], entries: int, device: torch.device) -> "_Family":
        common, temperatures = maps[0][1], None
        if len(maps) > 1:
            common = _at_one(common)
            temperatures = torch.tensor([_temperature(one) for _, one in maps], dtype=torch.float64, device=device)
        zero = torch.zeros(len(maps), entries, dtype=torch.float64, device=device)
        return cls(tuple(maps), common, temperatures, zero, zero.clone())

    def add(self, logits: Tensor, tracked: Tensor, others: Tensor | None) -> None:
        scaled = logits[None]
        if self.temperatures is not None:
            # Maps ignore a common shift; without it large logits would overflow when they are divided.
            below = scaled - scaled.amax(-1, keepdim=True)
            scaled = below / self.temperatures.to(logits)[:, None, None]
        # Rounding may leave the simplex by a digit; the intervals of the statistics may not be left.
        votes = self.common(scaled).double().clamp(0.0, self.common.mass)
        kept = votes.index_select(-1, tracked)
        rest = torch.zeros_like(votes[..., :1])
        if others is not None:
            rest = (votes * others).sum(-1, keepdim=True).clamp(max=self.common.mass)
        entries = torch.cat([kept, rest], dim=-1)
        self.first += entries.sum(1)
        self.second += entries.square().sum(1)


def _group(maps: Sequence[SimplexMap]) -> list[list[tuple[int, SimplexMap]]]:
    """Maps with their places, by what they are at temperature 1; one that is not known to scale so is alone."""
    groups: dict[Any, list[tuple[int, SimplexMap]]] = {}
    for place, one in enumerate(maps):
        if not isinstance(one, Hardmax):
            groups.setdefault(_at_one(one) if isinstance(one, Softmax | Sparsemax) else place, []).append((place, one))
    return list(groups.values())


def _at_one(one: Any) -> Any:
    return replace(one, temperature=1.0)


def _temperature(one: Any) -> float:
    return float(one.temperature)


def _count(counts: Int64[Tensor, " classes"], logits: Float[Tensor, "rows classes"]) -> None:
    # Not bincount, which waits for the largest index. Sums of whole numbers do not depend on their order.
    votes = logits.argmax(1)
    counts.scatter_add_(0, votes, torch.ones_like(votes))


def _choose_tracked(selection: Float[Tensor, "n0 classes"]) -> Int64[Tensor, " tracked"]:
    """The classes with the largest mean softmax over the samples that choose, in increasing order."""
    classes = selection.shape[1]
    if classes <= TRACKED:
        return torch.arange(classes, device=selection.device)
    return selection.double().softmax(1).mean(0).topk(TRACKED).indices.sort().values


def _require_finite(sane: Bool[Tensor, ""], image: int) -> None:
    if not bool(sane):
        raise NonFiniteError(
            f"The model gave NaN or infinite logits for noisy copies of image {image}, and nothing can be said of "
            "their votes; check its weights, or evaluate it in a wider type."
        )
