"""Inputs with their labels."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.data import Dataset

from lipkit._seeds import generator
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError


@final
@dataclass(frozen=True, eq=False)
class Examples(Dataset[tuple[Tensor, Tensor]]):
    """A data set in memory: inputs as a model takes them, one class index each, and the names of the classes.

    `name` is the one that reports use, such as "MNIST test"; "" where there is none.

    Args:
        inputs: Samples along the first axis, floating point.
        labels: One class index for each sample.
        classes: Names of the classes, in the order of their indices.
    """

    inputs: Float[Tensor, "count ..."]
    labels: Int[Tensor, " labels"]
    classes: tuple[str, ...]
    name: str = ""

    def __post_init__(self) -> None:
        if self.labels.ndim != 1 or self.labels.is_floating_point() or not self.inputs.is_floating_point():
            raise ArgumentError(
                f"Inputs are floating point and labels one whole number each, got {self.inputs.dtype} and "
                f"{self.labels.dtype} of shape {tuple(self.labels.shape)}."
            )
        if len(self.inputs) != len(self.labels):
            raise ShapeError(f"One label for each input is needed, got {len(self.labels)} for {len(self.inputs)}.")
        if len(self.labels) and not (int(self.labels.min()) >= 0 and int(self.labels.max()) < len(self.classes)):
            raise ArgumentError(
                f"Labels of {len(self.classes)} classes lie in 0..{len(self.classes) - 1}, got "
                f"{int(self.labels.min())}..{int(self.labels.max())}."
            )
        if not bool(torch.isfinite(self.inputs).all()):
            raise NonFiniteError("Some inputs are NaN or infinite; clean the data first.")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.inputs[index], self.labels[index]

    def at(self, places: Int[Tensor, " some"] | Sequence[int]) -> "Examples":
        """The examples at the given places, in that order."""
        chosen = torch.as_tensor(places, dtype=torch.long)
        return replace(self, inputs=self.inputs[chosen], labels=self.labels[chosen])

    def split(self, held: int, seed: int) -> tuple["Examples", "Examples"]:
        """(the others, `held` drawn at random by `seed`): the same for the same seed, on every machine."""
        if not 0 < held < len(self):
            raise ArgumentError(f"Of {len(self)} examples between 1 and {len(self) - 1} can be held out, got {held}.")
        order = torch.randperm(len(self), generator=generator(seed))
        return self.at(order[held:]), self.at(order[:held])
