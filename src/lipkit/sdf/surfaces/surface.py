"""A network that is the signed distance of a surface, with a proven constant."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lipkit._seeds import check_seed, derive_seed, generator
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError
from lipkit.losses import HKR, WarmCosineSchedule
from lipkit.optim import StiefelMuon, split_orthonormal
from lipkit.sdf._base import check_points
from lipkit.sdf.meshes.mesh_field import Mesh
from lipkit.sdf.meshes.triangles import Triangles
from lipkit.sdf.network_field import Network
from lipkit.sdf.resumable_training import Checkpoints, ResumableTraining
from lipkit.sdf.surfaces.folded_network import folded_network, sorting_network
from lipkit.sdf.surfaces.outward_normals import outward_normals
from lipkit.sdf.surfaces.surface_samples import (
    SurfaceSamples,
    draw_around_mesh,
    draw_around_points,
    labelled,
    require_extent,
)

# Share of the steps in which the rate rises.
_WARM = 0.03
# Matrices move at every so many steps: their products cost half as much as the batch's, however large it is.
_EVERY = 2
# Power of errors in the loss: 1 leaves sharp places alone, 2 leaves the mean larger.
_POWER = 1.5
# Margin of labels, in diagonals, and the weight of the hinge, which must be large for zeros to be where labels change.
_MARGIN, _HINGE = 0.01, 100.0
# Share of points without normals that may lie outside, and how many are evaluated at once.
_OUTSIDE, _ROWS = 0.01, 8192


@final
@dataclass(frozen=True)
class Surface:
    """Trains a network to be the signed distance of a surface: a regression by orthonormal layers and MaxMin.

        f = sdf.Surface()(mesh)                    # a closed mesh: exact distances are the targets
        f = sdf.Surface().of_points(p, normals)    # samples of a surface: estimated distances
        f = sdf.Surface().of_points(p)             # without normals: estimated sides as well
        f = sdf.Surface().of_labels(x, inside)     # points inside and outside: no distances at all

    The network starts near a product of orthogonal matrices close to the identity, which keeps gradients through many
    layers, and `StiefelMuon` keeps them orthonormal. Its slope can be one everywhere, as that of a distance.

    Guarantee: the constant of the field is proven for the weights as they are, in the units of the surface; |f| bounds
    the distance to f's own zero set. How far that is from the surface is what `deviation` proves.
    Cost: `samples` queries of the mesh, then `steps` steps on batches of `batch` points. Same seed, same field, on one
    machine and number of threads. `to_state` of the field gives tensors and strings, and `sdf.Network.from_state` the
    same field again.
    Reference: Béthune 2024, examples 4.2 and 5.2, for 1-Lipschitz networks as distances; this training is ours.

    Args:
        width: Neurons of a hidden layer, an even number.
        depth: Number of hidden layers.
        steps: Number of updates.
        seed: Draws points and weights.
        batch: Points in one step.
        samples: Points whose distance is known; each is seen steps batch/samples times.
        rate: Largest learning rate, in units of the surface's diagonal. Take more with fewer steps: a network that did
            not get far has values near 0 everywhere.
    """

    width: int = 128
    depth: int = 8
    steps: int = 6000
    seed: int = 0
    batch: int = 1024
    samples: int = 400_000
    rate: float = 5e-3

    def __post_init__(self) -> None:
        check_seed(self.seed)
        for name, least in (("width", 2), ("depth", 1), ("steps", 1), ("batch", 1), ("samples", 10)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ArgumentError(f"{name} is a whole number of at least {least}, got {value}.")
        if self.width % 2:
            raise ArgumentError(f"width is even, because neurons are sorted in pairs, got {self.width}.")
        if not 0 < self.rate < float("inf"):
            raise ArgumentError(f"rate is a finite number > 0, got {self.rate}.")
        if self.batch > self.samples:
            raise ArgumentError(f"batch is at most samples = {self.samples}, got {self.batch}.")

    def __call__(
        self,
        surface: Mesh | Triangles,
        progress: Callable[[int, int], None] | None = None,
        checkpoints: Checkpoints | None = None,
    ) -> Network:
        """The field of a closed mesh; an open one is refused, and `close_holes` caps it.

        Args:
            surface: The mesh, or its triangles.
            progress: Called with the steps done and the steps in all, about a hundred times.
            checkpoints: Keeps the state of the training, which then goes on where it was stopped; the points are drawn
                again.
        """
        if not isinstance(surface, Mesh | Triangles):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentError(
                f"Surface() is trained on a Mesh or its Triangles, got {type(surface).__name__}; sdf.read_mesh reads a "
                "file."
            )
        mesh = surface if isinstance(surface, Mesh) else Mesh(surface.vertices, surface.faces)
        drawn = draw_around_mesh(mesh, self.samples, derive_seed(self.seed, 0))
        return self._train(drawn, _error, progress, None, checkpoints)

    def of_points(
        self,
        points: Float[Tensor, "n d"],
        normals: Float[Tensor, "normals d"] | None = None,
        progress: Callable[[int, int], None] | None = None,
        checkpoints: Checkpoints | None = None,
    ) -> Network:
        """The field of samples of a closed surface, in any number of dimensions; it need not know normals.

        Distances of the targets are estimates, from nearest samples. Without normals the sides are estimates too
        (`outward_normals`), and the zero set is moved to the first percentile of the values at the points.

        Guarantee: the constant is proven, and |f| bounds the distance to f's own zero set, as for a mesh. Without
        normals at least 99 % of the points have f >= 0, up to rounding. Nothing else: neither that f is near 0 on the
        surface between the samples, nor that each side is the true one, above all at parts thinner than the samples are
        apart. Points that show no two sides, or only a part of a surface, are refused; for those, and for points that
        fill a volume, `sdf.one_class.OneClass` makes a layer around them.
        Reference: Béthune 2024, section 5.3, for the percentile; the signed regression in place of one-class learning
        is ours.

        Args:
            points: Samples of the surface.
            normals: One for each point, pointing outwards, of any length; None to estimate them.
            progress: Called with the steps done and the steps in all, about a hundred times.
            checkpoints: As for a mesh.
        """
        cloud = check_points(points, points.shape[1] if points.ndim == 2 else 3)
        if len(cloud) < 4:
            raise ShapeError(f"A surface needs at least 4 points, got {len(cloud)}.")
        if normals is None:
            require_extent(cloud)
            outwards = outward_normals(cloud, derive_seed(self.seed, 3))
        else:
            outwards = check_points(normals, cloud.shape[1])
        if len(outwards) != len(cloud):
            raise ShapeError(f"Each of {len(cloud)} points has one normal, got {len(outwards)} normals.")
        drawn = draw_around_points(cloud, outwards, self.samples, derive_seed(self.seed, 0))
        return self._train(drawn, _error, progress, cloud if normals is None else None, checkpoints)

    def of_labels(
        self,
        points: Float[Tensor, "n d"],
        inside: Bool[Tensor, " labels"],
        progress: Callable[[int, int], None] | None = None,
        checkpoints: Checkpoints | None = None,
    ) -> Network:
        """The field of points that are known to be inside or outside, and nothing else, by `losses.HKR`.

        Where p points a volume lie inside of the surface and q outside, the zero set moves by m (p - q)/(p + q), m a
        hundredth of the diagonal, outwards if positive. So draw all of them near the surface from one density.

        Reference: Béthune 2024, theorem 2; what happens where classes touch is ours (`tests/sdf/one_class`).
        """
        drawn = check_points(points, points.shape[1] if points.ndim == 2 else 3)
        if inside.dtype != torch.bool or inside.shape != drawn.shape[:1]:
            raise ShapeError(
                f"Each of {len(drawn)} points has a label, True inside and False outside, got {inside.dtype} of shape "
                f"{tuple(inside.shape)}."
            )
        if not bool(inside.any()) or bool(inside.all()):
            raise ArgumentError(f"Both sides need points, got {int(inside.sum())} of {len(inside)} inside.")
        # The hinge is the plain mean: class means would make densities differ that are equal.
        loss = HKR(_MARGIN, _HINGE, balanced_hinge=False)
        return self._train(
            labelled(drawn, inside), lambda scores, labels: loss(scores, labels > 0), progress, None, checkpoints
        )

    def _train(
        self,
        drawn: SurfaceSamples,
        loss_of: Callable[[Tensor, Tensor], Tensor],
        progress: Callable[[int, int], None] | None,
        inside: Tensor | None,
        checkpoints: Checkpoints | None,
    ) -> Network:
        # In units of the diagonal, around 0, whatever the units of the surface are.
        points = ((drawn.points - drawn.center) / drawn.diagonal).float()
        targets = (drawn.values / drawn.diagonal).float()
        model = folded_network(points.shape[1], self.width, self.depth, derive_seed(self.seed, 1))
        tied, others = split_orthonormal(model)
        optimizers = [StiefelMuon(tied, self.rate, every=_EVERY), torch.optim.Adam(others, self.rate)]
        schedule, source = WarmCosineSchedule(_WARM), generator(derive_seed(self.seed, 2))
        order, place, first = torch.randperm(len(points), generator=source), 0, 0
        training = ResumableTraining(vars(self), (points, targets), model, optimizers, source)
        if checkpoints is not None and (left := checkpoints.load()) is not None:
            first, more = training.resume(left)
            order, place = more["order"], more["place"]
        for step in range(first, self.steps):
            if place + self.batch > len(order):
                order, place = torch.randperm(len(points), generator=source), 0
            chosen, place = order[place : place + self.batch], place + self.batch
            loss = loss_of(model(points[chosen]).flatten(), targets[chosen])
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = self.rate * float(schedule(step / self.steps))
                optimizer.step()
            if progress is not None and ((step + 1) % max(1, self.steps // 100) == 0 or step + 1 == self.steps):
                progress(step + 1, self.steps)
            if checkpoints is not None:
                state = partial(training.state, step + 1, {"order": order, "place": place})
                checkpoints.after_update(step + 1, self.steps, state)
        if not all(bool(torch.isfinite(p).all()) for p in model.parameters()):
            raise NonFiniteError(f"Training ended with weights that are not finite; lower the rate {self.rate:g}.")
        trained = sorting_network(model, drawn.center, drawn.diagonal)
        if inside is not None:
            _lower(trained, inside)
        return Network(trained, drawn.center[None])


@torch.no_grad()
def _lower(model: nn.Sequential, inside: Tensor) -> None:
    """Move the level set of the first percentile of the values at some points to 0."""
    values = torch.cat([model(part).flatten() for part in inside.split(_ROWS)]).sort().values
    last = model[-1]
    assert isinstance(last, nn.Linear)
    last.bias.sub_(values[int(_OUTSIDE * len(values))])


def _error(values: Tensor, targets: Tensor) -> Tensor:
    return (values - targets).abs().pow(_POWER).mean()
