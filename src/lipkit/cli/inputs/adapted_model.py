"""A user's model as a classifier of a user's data: the entry of its output, the normalisation before it, its scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from lipkit.certify.attacks import TwoClasses
from lipkit.cli.inputs.model_fits_data import fit_to_model, run_on_first
from lipkit.data import Examples
from lipkit.errors import ArgumentError


@final
@dataclass(frozen=True)
class Adaptation:
    """The words of a command line on how a model and its data fit together.

    Args:
        output: The entry of the model's output that holds the scores, by name or position; None for a tensor.
        normalize: `MEAN,STD`, each one number or one for each channel with colons between them.
        classes: Names of the classes with commas between them, or a file with one in each line.
    """

    output: str | None = None
    normalize: str | None = None
    classes: str | None = None

    def adapt(self, model: nn.Module, test: Examples, target: str, data: str) -> tuple[nn.Module, Examples]:
        """The model with scores of shape (batch, classes) for inputs as the data have them, and the data with names.

        A single score becomes two classes, by its sign. Whatever does not fit is refused. `target` and `data` name the
        two in messages. Cost: two inputs through the model.
        """
        model = self.adapt_outputs(model, test.inputs, target, data)
        scores = run_on_first(model, test.inputs, target, data)
        if isinstance(scores, Tensor) and scores.numel() == 1:
            if int(test.labels.max()) > 1:
                raise ArgumentError(
                    f"{target} gives one score, whose sign tells class 0 from class 1, and {data} has labels up to "
                    f"{int(test.labels.max())}; give labels 0 and 1, or a model with one logit "
                    "for each class. A model without classes is for lipkit certify --regression."
                )
            model = TwoClasses(model).eval()
        test = fit_to_model(model, test, target, data)
        return model, test if self.classes is None else name_classes(test, parse_classes(self.classes))

    def adapt_outputs(self, model: nn.Module, inputs: Tensor, target: str, data: str) -> nn.Module:
        """The model behind its normalisation, with the entry of its output that is asked for."""
        if self.normalize is not None:
            mean, std = _parse_normalisation(self.normalize, inputs)
            model = nn.Sequential(Shifted(mean, std, inputs.ndim - 1), model).eval()
        given = run_on_first(model, inputs, target, data)
        if self.output is None:
            if not isinstance(given, Tensor) and (names := _names(given)):
                raise ArgumentError(
                    f"{target} gives a {type(given).__name__} with the entries {', '.join(names)}; name the one with "
                    "the scores by --output."
                )
            return model
        if isinstance(given, Tensor):
            raise ArgumentError(f"{target} gives one tensor, so --output {self.output} names nothing; leave it out.")
        if not isinstance(_entry(given, self.output), Tensor):
            known = ", ".join(_names(given)) or "none"
            raise ArgumentError(
                f"{target} gives a {type(given).__name__} without a tensor {self.output!r}; --output is one of its "
                f"entries: {known}."
            )
        return Picked(model, self.output).eval()


@final
class Shifted(nn.Module):
    """(x - mean) / std for each channel, as operations that are captured as they are, so that local bounds see them."""

    def __init__(self, mean: Sequence[float], std: Sequence[float], axes: int) -> None:
        super().__init__()
        self.mean: Tensor
        self.std: Tensor
        shape = (-1, *[1] * (axes - 1))
        # Not part of the state: the user's weights are those of the user's model.
        self.register_buffer("mean", torch.tensor(mean).reshape(shape), persistent=False)
        self.register_buffer("std", torch.tensor(std).reshape(shape), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """The normalised input."""
        return (x - self.mean.to(x.dtype)) / self.std.to(x.dtype)


@final
class Picked(nn.Module):
    """One entry of the output of a model, by its name or its position."""

    def __init__(self, model: nn.Module, entry: str) -> None:
        super().__init__()
        self.model, self.entry = model, entry

    def forward(self, x: Tensor) -> Tensor:
        """The entry."""
        found = _entry(self.model(x), self.entry)
        assert isinstance(found, Tensor)
        return found


def _entry(given: object, entry: str) -> object:
    """An entry of a dictionary, a tuple, a list or a model output of another library; None if there is none."""
    if isinstance(given, Mapping):
        values = list(given.values())
        if entry in given:
            return given[entry]
    elif isinstance(given, list | tuple):
        values = list(given)
        if entry in _names(given) and not entry.isdecimal():
            return getattr(given, entry)
    else:
        return None
    return values[int(entry)] if entry.isdecimal() and int(entry) < len(values) else None


def _names(given: object) -> list[str]:
    """The names that the entries of an output can be called by."""
    if isinstance(given, Mapping):
        return [str(name) for name in given]
    fields: Any = getattr(given, "_fields", None)
    if isinstance(given, tuple) and fields:
        return list(fields)
    return [str(i) for i in range(len(given))] if isinstance(given, list | tuple) else []


def _parse_normalisation(text: str, inputs: Tensor) -> tuple[list[float], list[float]]:
    try:
        mean, std = ([float(one) for one in part.split(":")] for part in text.split(","))
    except ValueError:
        raise ArgumentError(
            f"--normalize is MEAN,STD such as 0.13,0.31, or with one number for each channel 0.5:0.4:0.3,0.2:0.2:0.2; "
            f"got {text!r}."
        ) from None
    channels = inputs.shape[1] if inputs.ndim > 1 else 1
    for what, numbers in (("means", mean), ("deviations", std)):
        if len(numbers) not in (1, channels):
            raise ArgumentError(
                f"--normalize has {len(numbers)} {what}, but the inputs have {channels} "
                f"channel{'' if channels == 1 else 's'}; give one for each, or one for all."
            )
    # What torch stores must be a deviation too: 1e-60 is 0 in float32.
    if not bool(torch.isfinite(torch.tensor([*mean, *std])).all()) or not bool((torch.tensor(std) > 0).all()):
        raise ArgumentError(f"--normalize needs finite means and deviations above 0, got {text!r}.")
    return mean, std


def parse_classes(text: str) -> tuple[str, ...]:
    """The names of `--classes`: the lines of a file, or words with commas between them; each must be another."""
    if Path(text).is_file():
        try:
            lines = Path(text).read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise ArgumentError(f"--classes {text} is no text file in UTF-8; give one name in each line.") from error
        names = tuple(line.strip() for line in lines if line.strip())
    else:
        names = tuple(name.strip() for name in text.split(","))
        if len(names) == 1 and Path(text).suffix:
            raise ArgumentError(f"There is no file {text}; --classes names one with a class in each line, or is a,b,c.")
    twice = [name for name in names if names.count(name) > 1]
    if not all(names) or len(names) < 2 or twice:
        said = f"{twice[0]!r} twice" if twice and twice[0] else repr(text)
        raise ArgumentError(f"--classes names at least two classes, a,b,c or a file with one a line; got {said}.")
    return names


def name_classes(test: Examples, names: Sequence[str]) -> Examples:
    """The examples with these names for their classes, one for each score of the model."""
    if len(names) != len(test.classes):
        raise ArgumentError(
            f"--classes has {len(names)} names ({names[0]}, ..., {names[-1]}), and the model gives "
            f"{len(test.classes)} scores; give one name for each, in their order."
        )
    return replace(test, classes=tuple(names))
