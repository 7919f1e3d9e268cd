"""Recipes: a training run as one frozen dataclass."""

import enum
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar, TypeVar, final

import torch
from torch import Tensor, nn

from lipkit._seeds import check_seed
from lipkit.bound import Bound
from lipkit.bounds import DAG
from lipkit.certify import LocalRadii, head_pairwise
from lipkit.certify.attacks import Attack
from lipkit.certify.evaluate.accuracy import check_radii
from lipkit.data import Examples
from lipkit.errors import ArgumentError
from lipkit.losses import CosineSchedule, Progress, Schedule


def plain_fields(recipe: "Recipe") -> dict[str, str]:
    """The settings of a recipe as text: each as the command line takes it."""
    return {field.name: _spell(getattr(recipe, field.name)) for field in fields(recipe) if field.init}


def _spell(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_spell, value))
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return str(value.value if isinstance(value, enum.Enum) else value)


class Precision(enum.Enum):
    """The type of activations; weights and their updates stay in float32."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"

    @property
    def autocast(self) -> torch.dtype | None:
        """The type for torch's autocast; None leaves it off."""
        return torch.bfloat16 if self is Precision.BFLOAT16 else None


@final
@dataclass(frozen=True, eq=False)
class Sets:
    """Examples to train on, and examples that are only looked at when training is over."""

    train: Examples
    test: Examples

    def __post_init__(self) -> None:
        # Checked here because the test set is only used when the training is over.
        for name, examples in (("training", self.train), ("test", self.test)):
            if not len(examples):
                raise ArgumentError(f"The {name} set is empty; give it at least one example.")
        wanted, found = (tuple(examples.inputs.shape[1:]) for examples in (self.train, self.test))
        if wanted != found:
            raise ArgumentError(
                f"The test inputs have shape {found} and the training inputs {wanted}; give both the same shape."
            )


@final
@dataclass(frozen=True)
class Goal:
    """The evaluation at the end of a run.

    Args:
        eps: Radii in increasing order.
        p: The exponent of the norm in which radii are measured: 1, 2 or infinity.
        attack: Searches for counter-examples, in the same norm; None for certificates alone.
        samples: How many of the test samples are evaluated, from the first on; None for all.
        local: A search for larger radii near each sample; None for the constant alone.
    """

    eps: tuple[float, ...]
    p: float = 2.0
    attack: Attack | None = None
    samples: int | None = None
    local: LocalRadii | None = None

    def __post_init__(self) -> None:
        check_radii(self.eps)
        if self.samples is not None and self.samples < 1:
            raise ArgumentError(f"At least one sample is evaluated, got samples={self.samples}; None for all.")
        if self.attack is not None and self.attack.p != self.p:
            raise ArgumentError(
                f"The radii are in l{self.p:g} and the attack in l{self.attack.p:g}; use one norm for both."
            )


Part = TypeVar("Part", bound=nn.Module)


def single_module(model: nn.Module, kind: type[Part]) -> Part:
    """The one module of a type in a model: the network of a recipe, however it was wrapped to compile or distribute."""
    found = [module for module in model.modules() if type(module) is kind]
    if len(found) != 1:
        raise ArgumentError(f"The model must have one {kind.__name__}, got {len(found)}; give it a class of its own.")
    return found[0]


@dataclass(frozen=True)
class Recipe(ABC):
    """A training run as data: fields are what may be changed from the command line, methods say what is built.

    A recipe file defines one subclass, a frozen dataclass whose docstring is the claim. Everything random must come
    from torch's generators: they are seeded and stored, so that an interrupted run continues to the same result.

    Args:
        epochs: Passes over the training set.
        batch: Examples in a step, over all processes together.
        seed: Draws weights, batches and augmentation.
        precision: Type of the activations.
        compile: Whether the model is compiled.
        graph: Whether steps are recorded as a CUDA graph.
        ema: Decay of the average of the weights, in [0, 1); 0 for none.
        clip: Largest l2 norm of the gradient; 0 for none.
        data: Folder with the files of the data set.
    """

    epochs: int = 10
    batch: int = 128
    seed: int = 0
    precision: Precision = Precision.FLOAT32
    compile: bool = False
    graph: bool = False
    ema: float = 0.0
    clip: float = 0.0
    data: Path | None = None

    needs_data: ClassVar[bool] = False
    # The report's name for the number that `constant` gives.
    watches: ClassVar[str] = "constant of the network"

    def __post_init__(self) -> None:
        for name in ("epochs", "batch"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name} must be at least 1, got {getattr(self, name)}.")
        check_seed(self.seed)
        if not 0 <= self.ema < 1:
            raise ArgumentError(f"ema is a decay in [0, 1), 0 for none, got {self.ema}.")
        if not (math.isfinite(self.clip) and self.clip >= 0):
            raise ArgumentError(f"clip is a norm >= 0, 0 for none, got {self.clip}.")
        if self.needs_data and self.data is None:
            raise ArgumentError(f"{type(self).__name__} needs --data, the folder with the files of its data set.")

    @abstractmethod
    def sets(self) -> Sets:
        """The data."""

    @abstractmethod
    def model(self) -> nn.Module:
        """The network, newly drawn from torch's global generator."""

    @abstractmethod
    def loss(self, model: nn.Module, inputs: Tensor, labels: Tensor, progress: Progress) -> Tensor:
        """The loss of one batch; `progress` goes from 0 to 1 over the run and is what schedules are called with.

        With `graph` it is no float but `Dials`, and schedules of it are tensors; what else a step reads from Python is
        recorded once and for all.
        """

    @abstractmethod
    def optimizers(self, model: nn.Module) -> Sequence[torch.optim.Optimizer]:
        """The optimizers of the parameters; their learning rates are multiplied by `rate`."""

    @property
    @abstractmethod
    def goal(self) -> Goal | None:
        """The evaluation of the trained model; None if the run ends with the weights and certifies nothing."""

    @property
    def rate(self) -> Schedule:
        """The factor of the learning rates over the run; by default a cosine from 1 to 0."""
        return CosineSchedule(1.0, 0.0)

    def augmented(self, inputs: Tensor) -> Tensor:
        """Training inputs, changed at random; by default as they are."""
        return inputs

    def targets(self, examples: Examples) -> Tensor:
        """The labels that `loss` gets, one row for each training example; by default the class indices.

        Called once, before the first step, with the examples where training reads them; a checkpoint keeps the result.
        A recipe may train a teacher here and give its probabilities: the time counts as training.
        """
        return examples.labels

    def evaluated(self, test: Examples) -> Examples:
        """The test samples as the model takes them; by default as they are."""
        return test

    def settled(self, model: nn.Module) -> None:
        """Called on the final weights, for constraints that averaging breaks; by default nothing."""
        del model

    def bound(self, model: nn.Module, example: Tensor) -> Bound:
        """The constant that certifies; by default that of every pair of classes, from the last layer.

        What is before it is bounded by a fold, which is sharp for layers of norm one; for ordinary layers choose a
        method that looks at several at once, such as `bounds.LipLT()`.
        """
        return head_pairwise(model, example, DAG())

    def constant(self, model: nn.Module) -> float | None:
        """A number to watch while training, such as the constant of the network; None for none."""
        del model
        return None

    def quick(self) -> "Recipe":
        """The same in seconds, for tests: by default as it is."""
        return self
