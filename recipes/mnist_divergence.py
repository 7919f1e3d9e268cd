"""Claim: without a constraint the weights of a network on MNIST grow as long as one trains, and with them its Lipschitz
constant, although accuracy stopped improving after the first epoch; Adam is worse than SGD.

    lipkit train recipes/mnist_divergence.py --data FOLDER --out runs/divergence-sgd
    lipkit train recipes/mnist_divergence.py --data FOLDER --out runs/divergence-adam --optimizer=adam

Data: the four IDX files of MNIST. Seeds: one. Hardware: two CPU cores or one GPU; --double=true computes in float64.
The journal's `constant` is the largest spectral norm of a layer, in the l2 operator norm at its true input size.
Published (Béthune 2024, example 4.5, SGD at 0.1 or Adam at 1e-3): the largest norm grows fivefold over 25 epochs,
accuracy above 98 % after one epoch and 98.5 to 99.5 % after that. At 0.1 the network here dies in epoch 5, so SGD takes
0.03. The companion code takes Frobenius norms of reshaped kernels for spectral ones.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

import lipkit
from lipkit.bound import Bound
from lipkit.bounds import PairwiseDAG
from lipkit.certify.attacks import PGD
from lipkit.cli.training import Goal, Recipe, Sets
from lipkit.data import Examples, mnist
from lipkit.losses import ConstantSchedule, Progress, Schedule
from lipkit.regularizers import TrainingNorm, layers_of


class Optimizer(enum.Enum):
    """Which optimizer."""

    SGD = "sgd"
    ADAM = "adam"


@dataclass(frozen=True)
class MnistDivergence(Recipe):
    """Two convolutions and two dense layers with ReLU and max-pooling, cross-entropy, nothing else."""

    epochs: int = 25
    batch: int = 32
    optimizer: Optimizer = Optimizer.SGD
    sgd_rate: float = 0.03
    double: bool = False
    channels: tuple[int, int] = (32, 64)
    width: int = 256
    eps: tuple[float, ...] = (0.01, 0.1, 0.5)
    attack_steps: int = 40
    samples: int = 500

    needs_data = True
    watches = "largest norm of a layer"

    def sets(self) -> Sets:
        """The published split."""
        assert self.data is not None, "a recipe that needs data is refused without"
        return Sets(self._typed(mnist(self.data)), self._typed(mnist(self.data, train=False)))

    def _typed(self, examples: Examples) -> Examples:
        return replace(examples, inputs=examples.inputs.to(self._type))

    @property
    def _type(self) -> torch.dtype:
        return torch.float64 if self.double else torch.float32

    def model(self) -> nn.Module:
        """3 x 3 convolutions, pooled twice, and two dense layers."""
        first, second = self.channels
        model = nn.Sequential(
            *(nn.Conv2d(1, first, 3), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(first, second, 3), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(25 * second, self.width), nn.ReLU(), nn.Linear(self.width, 10)),
        )
        return model.to(self._type)

    def loss(self, model: nn.Module, inputs: Tensor, labels: Tensor, progress: Progress) -> Tensor:
        """Cross-entropy."""
        return nn.functional.cross_entropy(model(inputs), labels)

    def optimizers(self, model: nn.Module) -> Sequence[torch.optim.Optimizer]:
        """SGD with momentum 0.9, or Adam at 1e-3."""
        if self.optimizer is Optimizer.SGD:
            return [torch.optim.SGD(model.parameters(), lr=self.sgd_rate, momentum=0.9)]
        return [torch.optim.Adam(model.parameters(), lr=1e-3)]

    @property
    def rate(self) -> Schedule:
        """Constant: what grows is not to be hidden by steps that vanish."""
        return ConstantSchedule(1.0)

    def constant(self, model: nn.Module) -> float:
        """The largest norm of a layer, an upper bound within 5 %."""
        example = torch.zeros(1, 1, 28, 28).to(next(model.parameters()))
        with torch.no_grad():
            return max(float(TrainingNorm()(layer.operator()).value) for layer in layers_of(model, example))

    def bound(self, model: nn.Module, example: Tensor) -> Bound:
        """Layer by layer, the last one by pairs: the product is what this is about."""
        return lipkit.pairwise(model, example, PairwiseDAG())

    @property
    def goal(self) -> Goal:
        """Small radii on the first images of the test set, with an attack of 40 steps."""
        return Goal(self.eps, attack=PGD(eps=0.5, steps=self.attack_steps, low=0.0, high=1.0), samples=self.samples)

    def quick(self) -> "MnistDivergence":
        """One epoch of a small network."""
        return replace(
            self, attack_steps=2, epochs=1, batch=500, channels=(4, 4), width=16, eps=(0.01, 0.1), samples=16
        )
