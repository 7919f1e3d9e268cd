"""Training of an energy on points: maximum likelihood, with short Langevin chains that are kept between steps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

import torch
from jaxtyping import Float, Float32, Float64
from torch import Tensor, nn

from lipkit._seeds import check_seed, generator
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError
from lipkit.losses import CosineSchedule
from lipkit.nn import ChannelPairing, MaxMin, Scale, near_identity, orthonormal_
from lipkit.optim import StiefelMuon, split_orthonormal
from lipkit.sdf._base import check_points
from lipkit.sdf.energies.energy import Energy
from lipkit.sdf.energies.langevin import ULA
from lipkit.sdf.given_numbers import as_whole
from lipkit.sdf.network_field import Network

# Of Muon, and of Adam. Usual ones let energies and chains chase each other in circles.
_MOMENTUM, _BETAS = 0.5, (0.0, 0.999)


@final
@dataclass(frozen=True)
class EnergyTraining:
    """Fit p = exp(-E)/Z to points by maximum likelihood, E a network of a constant that one chooses.

        gradient of -mean log p  =  E_data[grad E] - E_p[grad E],

    in the parameters of E: that of the Kantorovich-Rubinstein loss between data and p. Draws from p are the ends of
    Langevin chains that go on from one step of training to the next: each step moves all of them by `chain` steps of
    `ULA`, and starts a share of them anew from the even distribution. All stay in the box. Optimizers have little
    momentum here, because the chains answer to every step with a delay.

    The network: orthonormal matrices and MaxMin, trained by Muon on the Stiefel manifold, biases by Adam.

    Guarantee: E has the constant `constant` up to rounding, proven for the weights as they are; so |grad log p| is at
    most `constant`, and 1/constant is the shortest length over which the density can fall by a factor e. That p is near
    the data is not proven: the chains are short. Cost: `steps` (`chain` + 2) passes forward and backward.
    Reference: Béthune 2024, section 5.6; persistent chains: Tieleman 2008.

    Args:
        constant: K, in units of 1 / the unit of the points.
        width: Features of each layer, even.
        depth: Layers before the last one.
        steps: Steps of training.
        batch: Points in a step.
        chains: Number of chains.
        learning_rate: Of both optimizers, at the start; it falls to zero by a cosine.
        chain: Langevin steps of each chain for each step of training.
        langevin_step: Their step, in units of 1 / constant^2.
        anew: Share of the chains that start again at each step, evenly from the box.
        margin: How far the box reaches beyond the points, as a share of their range in each coordinate.
        seed: Draws the start, the batches and the noise.
    """

    constant: float = 20.0
    width: int = 64
    depth: int = 4
    steps: int = 1000
    batch: int = 512
    chains: int = 512
    learning_rate: float = 1.5e-3
    chain: int = 15
    langevin_step: float = 0.5
    anew: float = 0.002
    margin: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("constant", "learning_rate", "langevin_step", "margin"):
            if not 0 < getattr(self, name) < math.inf:
                raise ArgumentError(f"{name} must be a finite number > 0, got {getattr(self, name)}.")
        for name in ("width", "depth", "steps", "batch", "chains", "chain"):
            if as_whole(getattr(self, name), name) < 1:
                raise ArgumentError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.width % 2:
            raise ArgumentError(f"width must be even, because MaxMin sorts pairs, got {self.width}.")
        if not 0 <= self.anew <= 1:
            raise ArgumentError(f"anew is a share in [0, 1], got {self.anew}.")
        check_seed(self.seed)

    def __call__(self, points: Float[Tensor, "n d"], network: nn.Module | None = None) -> Energy:
        """The energy of points, on a box around them.

        Args:
            points: Draws of the distribution to learn, at least two, no coordinate the same for all.
            network: Trained instead of the network above, in place, by Adam with its parameters as they are; for
                comparison. The constant is proven for what comes out, and may be large.
        """
        data = self._check(points)
        low, high = data.amin(0), data.amax(0)
        reach = self.margin * (high - low)
        low, high = low - reach, high + reach
        numbers = generator(self.seed)
        if network is None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.seed)
                model = _steep_network(data, self.constant, self.width, self.depth)
            tied, free = split_orthonormal(model)
            optimizers = [StiefelMuon(tied, momentum=_MOMENTUM), torch.optim.Adam(free, betas=_BETAS)]
        else:
            model, tied = network, []
            optimizers = [torch.optim.Adam(model.parameters(), betas=_BETAS)]
        self._descend(model, optimizers, data.float(), (low.float(), high.float()), numbers)
        orthonormal_(tied)
        return Energy(Network(model, data[:1].float()), low, high)

    def _check(self, points: Float[Tensor, "n d"]) -> Float64[Tensor, "n d"]:
        if points.ndim != 2 or len(points) < 2 or points.shape[1] < 1:
            raise ShapeError(f"An energy is trained on at least two points, (n, d), got shape {tuple(points.shape)}.")
        data = check_points(points, points.shape[1]).detach().cpu()
        flat = (data.amax(0) == data.amin(0)).nonzero().flatten().tolist()
        if flat:
            raise ArgumentError(
                f"Coordinates {flat[:8]} are the same for all points, so the box around them has no width; leave them "
                "out."
            )
        return data

    def _descend(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        data: Float32[Tensor, "n d"],
        box: tuple[Float32[Tensor, " d"], Float32[Tensor, " d"]],
        numbers: torch.Generator,
    ) -> None:
        low, high = box
        sampler = ULA(self.langevin_step / self.constant**2, self.chain)
        chains = self._drawn_evenly(low, high, numbers)
        fall = CosineSchedule(1.0, 0.0)
        for step in range(self.steps):
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = self.learning_rate * fall(step / self.steps)
            chosen = torch.randint(len(data), (self.batch,), generator=numbers)
            again = torch.rand(self.chains, 1, generator=numbers) < self.anew
            starts = torch.where(again, self._drawn_evenly(low, high, numbers), chains)
            chains = sampler.walk(partial(_slope, model), starts, low, high, numbers)
            # One pass for both: a network with batch statistics would tell two apart.
            values = model(torch.cat([data[chosen], chains])).flatten()
            loss = values[: self.batch].mean() - values[self.batch :].mean()
            if not bool(torch.isfinite(loss)):
                raise NonFiniteError(
                    f"The loss of the energy is {loss.item()} at step {step}; lower the learning rate, "
                    f"{self.learning_rate}."
                )
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()

    def _drawn_evenly(self, low: Tensor, high: Tensor, numbers: torch.Generator) -> Float32[Tensor, "n d"]:
        return low + torch.rand(self.chains, len(low), generator=numbers) * (high - low)


def _slope(model: nn.Module, points: Float32[Tensor, "n d"]) -> Float32[Tensor, "n d"]:
    """Gradients of a network in its input, which leave those of its parameters alone."""
    leaf = points.detach().requires_grad_()
    (found,) = torch.autograd.grad(model(leaf).sum(), leaf)
    return found


def _steep_network(data: Float64[Tensor, "n d"], constant: float, width: int, depth: int) -> nn.Sequential:
    """E(x) = constant s g((x - center) / s), g of norm one and near the identity, s the scatter of the data."""
    center = data.mean(0)
    scale = float((data - center).square().sum(1).mean().sqrt())
    first = nn.Linear(data.shape[1], width)
    nn.init.orthogonal_(first.weight)
    with torch.no_grad():
        # Rows have length sqrt(d / width): with such biases the kinks of the first pairs lie where the data are.
        reach = 2 / math.sqrt(width)
        first.bias.uniform_(-reach, reach).sub_(first.weight @ (center / scale).float())
    parts: list[nn.Module] = [Scale(1 / scale), first, MaxMin(ChannelPairing.HALVES)]
    for _ in range(depth - 1):
        layer = nn.Linear(width, width)
        layer.weight = nn.Parameter(near_identity(width))
        nn.init.zeros_(layer.bias)
        parts += [layer, MaxMin(ChannelPairing.HALVES)]
    last = nn.Linear(width, 1)
    nn.init.orthogonal_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(*parts, last, Scale(constant * scale))
