"""A classifier of the plane, drawn as a map: where it says what, and how far each answer is certified."""

import torch
from torch import nn

from lipkit._runtime import evaluating
from lipkit.bound import Bound
from lipkit.certify import accuracy
from lipkit.data import Examples
from lipkit.report.results.contents import Plane

# Points of a side of the map; test points shown on it.
_SIDE, _SHOWN = 161, 300
# How far the map goes beyond the test points, as a part of their range.
_MARGIN = 0.05


def in_the_plane(data: Examples) -> bool:
    """Whether the inputs are points that a map can show."""
    return tuple(data.inputs.shape[1:]) == (2,)


def plane(model: nn.Module, data: Examples, bound: Bound) -> Plane:
    """The class that the model gives to each point of a grid around the test points, and its certified radius.

    Radii are those of `certify.accuracy`, rounding included, of the class that the model itself gives.
    Cost: an evaluation of 161 x 161 points.
    """
    low, high = data.inputs.amin(0), data.inputs.amax(0)
    room = _MARGIN * (high - low)
    across, up = (
        torch.linspace(float(a), float(b), _SIDE, dtype=torch.float64)
        for a, b in zip(low - room, high + room, strict=True)
    )
    grid = torch.cartesian_prod(up, across).flip(1).to(data.inputs)
    parameter = next(model.parameters(), None)
    grid = grid if parameter is None else grid.to(parameter.device)
    with torch.no_grad(), evaluating(model):
        given = model(grid).argmax(1)
    found = accuracy(model, [(grid, given)], bound, (1.0,), p=float(bound.metric.p_in)).samples
    shown = data.at(range(min(_SHOWN, len(data))))
    return Plane(
        across=tuple(across.tolist()),
        up=tuple(up.tolist()),
        predicted=tuple(one.predicted for one in found),
        radii=tuple(float(one.radius) for one in found),
        points=tuple((float(x), float(y)) for x, y in shown.inputs),
        labels=tuple(map(int, shown.labels)),
    )
