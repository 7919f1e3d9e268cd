"""Strings of the command line as the types they stand for; nowhere else are strings options."""

import math
import os
from collections.abc import Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lipkit.bound import Metric
from lipkit.bounds import Best, GradientAscent, Local, Method, Sampling
from lipkit.bounds.certificates.json_codec import known
from lipkit.errors import ArgumentError, MetricError
from lipkit.linops import Shape
from lipkit.regions import Ball, Box, Everywhere, Region

# The method of those who name none.
DEFAULT = "auto"
# Types of inputs of which an example can be drawn.
_TYPES = {
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
}


def known_methods() -> dict[str, type[Any]]:
    """The methods that need no further settings, by their class names in small letters."""
    found = {cls.__name__.lower(): cls for cls in known(Method).values() if cls.__module__.startswith("lipkit.")}
    return {name: cls for name, cls in sorted(found.items()) if not any(_is_required(f) for f in fields(cls))}


def parse_method(text: str, metric: Metric, region: Region, budget: float | None) -> Method:
    """The method of a name, or the best of several with commas between them.

    A method that knows nothing of regions is wrapped in `Local` where there is one.
    """
    names = [name.strip() for name in text.split(",")]
    chosen = [_make_method(name, _class(name), metric, region, budget) for name in names]
    return chosen[0] if len(chosen) == 1 else Best(tuple(chosen))


def parse_methods_in_norm(text: str, metric: Metric) -> list[Method]:
    """The methods of a list with commas, without those that cannot measure in these norms."""
    able: list[Method] = []
    for name in text.split(","):
        cls = _class(name.strip())
        try:
            able.append(_make_method(name.strip(), cls, metric, Everywhere(), None))
        except (ArgumentError, MetricError):
            # It knows other norms, or l2 alone.
            continue
    return able


def parse_lower(text: str, metric: Metric, seed: int) -> Method | None:
    """A method for lower bounds by its name, or None for `none`."""
    # Fewer points than in the library: this search is a remark beside the bound.
    searches: list[Method] = [GradientAscent(steps=20, metric=metric, seed=seed), Sampling(64, metric, seed=seed)]
    classes = {type(search).__name__.lower(): search for search in searches}
    if text.lower() == "none":
        return None
    if text.lower() not in classes:
        raise ArgumentError(f"There is no search {text!r}; --lower is one of none, {', '.join(classes)}.")
    return classes[text.lower()]


def _class(name: str) -> type[Any]:
    classes = known_methods()
    if name.lower() not in classes:
        raise ArgumentError(f"There is no method {name!r}; methods are {', '.join(classes)}.")
    return classes[name.lower()]


def _make_method(name: str, cls: type[Any], metric: Metric, region: Region, budget: float | None) -> Method:
    settings: dict[str, Any] = {f.name: f for f in fields(cls)}
    given: dict[str, Any] = {}
    if "metric" in settings:
        given["metric"] = metric
    elif metric != Metric(2.0, 2.0):
        raise ArgumentError(f"The method {name} measures in l2 only; leave out --norm, or use another method.")
    if budget is not None:
        if "budget" not in settings:
            able = [known for known, one in known_methods().items() if any(f.name == "budget" for f in fields(one))]
            raise ArgumentError(f"The method {name} has no budget of time; {', '.join(able) or 'no method'} has.")
        given["budget"] = budget
    made = cls(**given)
    return made if made.reads_region or region == Everywhere() else Local(made)


def _is_required(f: Field[Any]) -> bool:
    return f.default is MISSING and f.default_factory is MISSING


def parse_metric(text: str) -> Metric:
    """`2`, `1` or `inf` for both norms, or two of them, `1,inf`."""
    parts = text.split(",")
    try:
        exponents = [float(part) for part in parts]
    except ValueError:
        exponents = []
    if len(exponents) not in (1, 2) or not all(p >= 1 for p in exponents):
        raise ArgumentError(f"--norm is 2, 1, inf or two of them such as 1,inf; got {text!r}.")
    return Metric(exponents[0], exponents[-1])


def parse_shape(text: str) -> tuple[Shape, torch.dtype | None]:
    """`3,32,32` is the shape of one sample; `16:int64` says the type of its entries too."""
    sizes, _, kind = text.partition(":")
    try:
        found = tuple(int(size) for size in sizes.split(",") if size.strip())
    except ValueError:
        found = (0,)
    if any(size < 1 for size in found):
        raise ArgumentError(f"--shape is whole numbers with commas such as 3,32,32, without batch axis; got {text!r}.")
    dtype = getattr(torch, kind, None) if kind else None
    if kind and dtype not in _TYPES:
        raise ArgumentError(f"--shape {text} names the type {kind!r}; it is one of torch's, such as int64 or float32.")
    return found, dtype


def draw_example(texts: Sequence[str], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """One random sample of every shape, with a batch axis; whole numbers are zeros."""
    found: list[Tensor] = []
    for text in texts:
        size, kind = parse_shape(text)
        kind = dtype if kind is None else kind
        draw = torch.randn if kind.is_floating_point else torch.zeros
        try:
            found.append(draw((1, *size), dtype=kind))
        except (RuntimeError, TypeError) as error:
            raise ArgumentError(f"An input of --shape {text} does not fit into memory; give a smaller one.") from error
    return tuple(found)


def parse_wrt(texts: Sequence[str]) -> str | tuple[str, ...] | None:
    """The inputs with respect to which the bound is meant: None for all, one name, or several."""
    return None if not texts else texts[0] if len(texts) == 1 else tuple(texts)


def parse_output(text: str | None) -> str | int | None:
    """A result by its name or its position."""
    return int(text) if text is not None and text.isdecimal() else text


def make_ball(radius: float, center: Tensor, source: Shape, p: float) -> Ball:
    """A ball around a point of the input space, which may have a batch axis of one in front."""
    if tuple(center.shape) not in (source, (1, *source)):
        raise ArgumentError(f"--at has shape {tuple(center.shape)}, but the model takes inputs of shape {source}.")
    return Ball(center.reshape(source), radius, p)


def parse_box(text: str, source: Shape) -> Box:
    """The box that `low,high` spans in every coordinate."""
    low, high = parse_ends(text)
    return Box(*(torch.full(source, end, dtype=torch.float64) for end in (low, high)))


def parse_ends(text: str) -> tuple[float, float]:
    """`low,high` as two finite numbers in order."""
    try:
        low, high = map(float, text.split(","))
    except ValueError:
        low, high = math.nan, math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise ArgumentError(f"--box is two numbers in order such as 0,1; got {text!r}.")
    return low, high


def check_json(path: Path | None) -> None:
    """Refuse a file that cannot be one, before anything runs: a folder, or in a folder that does not exist."""
    if path is not None and path.is_dir():
        raise ArgumentError(f"--json {path} is a folder; name a file.")
    if path is not None and not path.absolute().parent.is_dir():
        raise ArgumentError(f"--json {path} lies in no folder that exists.")
    if path is not None and not os.access(path.absolute().parent, os.W_OK):
        raise ArgumentError(f"--json {path} may not be written (Permission denied); name another file.")
