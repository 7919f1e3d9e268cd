"""The hardest and the safest test images, each with the nearest image of another class that a search finds."""

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor, nn

from lipkit._runtime import evaluating
from lipkit._seeds import generator
from lipkit.certify import Forward, SampleResult
from lipkit.certify.attacks import PGD, MinimalRadius, Nearest
from lipkit.certify.attacks.neighbourhood import NORMS
from lipkit.certify.evaluate.counterexample import provably_changed, refuse_contradiction
from lipkit.data import Examples
from lipkit.errors import ArgumentError
from lipkit.nn.core.freeze import frozen
from lipkit.report.html.pixels import Pixels
from lipkit.report.results.contents import Gallery, Picture

# Images in each row; how often the reach of the search is doubled at most.
_EACH, _DOUBLINGS = 8, 12


def why_no_gallery(data: Examples) -> str:
    """The reason why these data have no gallery; "" for images, which have one."""
    shape = tuple(data.inputs.shape[1:])
    if len(shape) == 3 and shape[0] in (1, 3):
        return ""
    return f"The inputs have shape {shape}; only images of 1 or 3 channels are shown."


def gallery(model: nn.Module, data: Examples, samples: Sequence[SampleResult], p: float, seed: int) -> Gallery:
    """The eight correctly classified images of smallest and of largest certified radius, with their neighbours.

    A neighbour is searched by PGD in l_p within the range of the data's entries, the reach of the search doubled until
    it finds one, which is then drawn nearer (`MinimalRadius`). Its distance is an upper bound of the true one, the
    certified radius a lower bound. A neighbour that provably contradicts its certificate raises a
    `BrokenCertificateError`. Ties are broken by the place in the data set, so the choice is repeatable.
    Cost: a few hundred gradients of sixteen images.
    """
    if p not in NORMS:
        raise ArgumentError(f"Neighbours are searched in l1, l2 and linf, got l{p:g}.")
    right = sorted((s for s in samples if s.predicted == s.label), key=lambda s: (s.radius, s.index))
    hardest = right[:_EACH]
    safest = sorted(right[len(hardest) :][-_EACH:], key=lambda s: (-s.radius, s.index))
    low, high = _box(data.inputs)
    search = _Search(model, data, p, low, high, seed)
    return Gallery(search.pictures(hardest), search.pictures(safest), low, high, str(search.attack(1.0)).split(" (")[0])


class _Search:
    def __init__(self, model: nn.Module, data: Examples, p: float, low: float, high: float, seed: int) -> None:
        self._model, self._data, self._p, self._low, self._high = model, data, p, low, high
        self._generator = generator(seed)
        parameter = next(model.parameters(), None)
        self._to = data.inputs.new_zeros(()) if parameter is None else parameter.detach()

    def attack(self, eps: float) -> PGD:
        return PGD(eps, self._p, self._low, self._high, steps=20)

    def pictures(self, samples: Sequence[SampleResult]) -> tuple[Picture, ...]:
        if not samples:
            return ()
        chosen = self._data.at([s.index for s in samples])
        x, labels = chosen.inputs.to(self._to), chosen.labels.to(self._to.device)
        radii = torch.tensor([s.radius for s in samples], dtype=torch.float64, device=self._to.device)
        with frozen(self._model):
            found = self._nearest(x, labels, radii)
            found = self._check_certificates(x, labels, radii, found, samples)
        with torch.no_grad(), evaluating(self._model):
            became = self._model(found.points).argmax(1).tolist()
        return tuple(
            Picture(s.index, s.label, s.radius, Pixels.of(x[i]), Pixels.of(found.points[i]), became[i], distance)
            if distance < math.inf
            else Picture(s.index, s.label, s.radius, Pixels.of(x[i]), None, None, None)
            for i, (s, distance) in enumerate(zip(samples, found.radius.tolist(), strict=True))
        )

    def _nearest(self, x: Float[Tensor, "n ..."], labels: Int[Tensor, " n"], radii: Float64[Tensor, " n"]) -> Nearest:
        points, distances = x.clone(), torch.full_like(radii, math.inf)
        # No two points of the box are farther apart than two opposite corners.
        diameter = (self._high - self._low) * x[0].numel() ** (1 / self._p)
        finite = radii[torch.isfinite(radii)]
        eps = min(diameter, max(diameter * 2.0**-_DOUBLINGS, 1.5 * float(finite.max()) if len(finite) else diameter))
        for _ in range(_DOUBLINGS + 1):
            rows = torch.isinf(distances).nonzero().squeeze(1)
            if not len(rows):
                break
            search = MinimalRadius(self.attack(eps), rounds=2)
            found = search(self._model, x[rows], labels[rows], generator=self._generator)
            points[rows], distances[rows] = found.points, found.radius
            if eps >= diameter:
                break
            eps = min(2 * eps, diameter)
        return Nearest(points, distances)

    def _check_certificates(
        self, x: Tensor, labels: Tensor, radii: Tensor, found: Nearest, samples: Sequence[SampleResult]
    ) -> Nearest:
        """Compare the neighbours with the certificates; drop those that have another class by rounding alone."""
        inside = (found.radius < radii).nonzero().squeeze(1)
        if not len(inside):
            return found
        after = Forward(self._model, x[:1])(found.points[inside])
        places = [samples[i].index for i in inside.tolist()]
        refuse_contradiction(
            x[inside], found.points[inside], labels[inside], after, radii[inside], self._p, places, Path()
        )
        distances = found.radius.clone()
        distances[inside[~provably_changed(after, labels[inside])]] = math.inf
        return Nearest(found.points, distances)


def _box(inputs: Tensor) -> tuple[float, float]:
    """[0, 1] for pixels that lie there, otherwise the range of the data."""
    low, high = float(inputs.min()), float(inputs.max())
    return (0.0, 1.0) if low >= 0 and high <= 1 else (low, high)
