"""The loss and the Lipschitz constant over a plane of weights through the present ones, as plain numbers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from lipkit.bound import Bound, Kind
from lipkit.errors import ArgumentError, NonFiniteError

# A change of every parameter, by its name in the model.
Direction = Mapping[str, Tensor]


@final
@dataclass(frozen=True, eq=False)
class Landscape:
    """Loss and log K at the weights theta + a d_1 + b d_2; rows are the steps a, columns the steps b.

    `kind` is the weakest kind of all constants on the grid: each of them is proven if it certifies. The picture
    between the points of the grid proves nothing, and neither does the loss, which is that of the given data.
    """

    first: Float64[Tensor, " rows"]
    second: Float64[Tensor, " columns"]
    loss: Float64[Tensor, "rows columns"]
    log_constant: Float64[Tensor, "rows columns"]
    kind: Kind


def random_directions(
    model: nn.Module, generator: torch.Generator, *, filter_normalised: bool = True
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Two random orthogonal directions in the space of all parameters.

    Filter-normalised, each row (filter) of a weight has the length of the row it changes, and vectors (biases, scales
    of normalisation) stay as they are: so a step of 1 means the same for large and for small weights. The two are
    orthogonal in each row; a row of one entry moves in the first direction only. Otherwise both are Gaussian over all
    parameters and have the length of all of them together.

    Cost: two draws of the size of the model, in float64. Reference: Li et al. 2018; Luo 2025, figure 4.1.

    Args:
        model: Whose parameters are moved; frozen ones too.
        generator: Of the draws, on the CPU.
        filter_normalised: Whether each row has its own length.
    """
    weights = {name: p.detach().to("cpu", torch.float64) for name, p in model.named_parameters()}
    if not any(weight.any() for weight in weights.values()):
        raise ArgumentError(f"{type(model).__name__} has no parameter that is not zero, so no direction has a length.")
    drawn = [
        {name: torch.randn(weight.shape, generator=generator, dtype=torch.float64) for name, weight in weights.items()}
        for _ in range(2)
    ]
    make = _by_rows if filter_normalised else _as_a_whole
    one, two = make(weights, *drawn)
    like = dict(model.named_parameters())
    return {n: d.to(like[n]) for n, d in one.items()}, {n: d.to(like[n]) for n, d in two.items()}


def landscape(
    model: nn.Module,
    loss: Callable[[nn.Module], Tensor],
    bound: Callable[[nn.Module], Bound],
    directions: tuple[Direction, Direction],
    first: Sequence[float],
    second: Sequence[float],
) -> Landscape:
    """Loss and log of a Lipschitz constant on a grid of the plane that two directions span at the present weights.

        directions = analysis.random_directions(model, torch.Generator().manual_seed(0))
        steps = torch.linspace(-1, 1, 21).tolist()
        fold = bounds.DAG()
        analysis.landscape(model, lambda m: cross_entropy(m(x), y), lambda m: fold(lipkit.capture(m, x[:1])),
                           directions, steps, steps)

    Parameters and buffers are changed in place and put back bit by bit, also after an exception.

    Guarantee: log K has the kind of its bounds at the points of the grid; the picture proves nothing.
    Cost: a loss and a bound at every point, without gradients. Reference: Luo 2025, figures 4.1 and 5.6.

    Args:
        model: Any torch model, in the mode in which the loss is meant.
        loss: The loss of the model, one number.
        bound: Its Lipschitz constant.
        directions: Changes of parameters by name; those without a name stay.
        first: Steps along the first direction; 0 is where the model is.
        second: Steps along the second one.
    """
    if not first or not second:
        raise ArgumentError(f"A grid has steps along both directions, got {len(first)} and {len(second)}.")
    losses, constants, kinds = [], [], set[Kind]()
    with torch.no_grad(), _moving(model, directions) as move:
        for a in first:
            for b in second:
                move(a, b)
                value, found = float(loss(model)), bound(model)
                height = float(found.log_value)
                if not torch.isfinite(torch.tensor([value, height])).all():
                    raise NonFiniteError(
                        f"At the steps ({a:g}, {b:g}) the loss is {value} and log K is {height}; "
                        "make the grid smaller or the directions shorter."
                    )
                losses.append(value)
                constants.append(height)
                kinds.add(found.kind)
    shape = (len(first), len(second))
    return Landscape(
        torch.tensor(first, dtype=torch.float64),
        torch.tensor(second, dtype=torch.float64),
        torch.tensor(losses, dtype=torch.float64).reshape(shape),
        torch.tensor(constants, dtype=torch.float64).reshape(shape),
        _weakest(kinds),
    )


def project_weights(
    weights: Sequence[Mapping[str, Tensor]], centre: Mapping[str, Tensor], directions: tuple[Direction, Direction]
) -> Float64[Tensor, "weights 2"]:
    """The steps (a, b) of the points of a plane that are nearest to given weights: a training's path on a landscape.

    What leaves the plane is lost; random directions show little of a path, differences of weights show more.

    Args:
        weights: Parameters by name, such as copies of `model.state_dict()` along a training.
        centre: Those where the landscape has its middle.
        directions: Of the landscape.
    """
    rows = [_flat(one, centre) for one in directions]
    plane = torch.stack(rows, dim=1)
    moved = [
        _flat({name: point[name].to("cpu", torch.float64) - _wide(old) for name, old in centre.items()}, centre)
        for point in weights
    ]
    if not moved:
        raise ArgumentError("A path has at least one point, got none.")
    if int(torch.linalg.matrix_rank(plane)) < 2:
        raise ArgumentError("The two directions are parallel or zero, so they span no plane; give others.")
    return torch.linalg.lstsq(plane, torch.stack(moved, dim=1)).solution.mT


def _wide(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", torch.float64)


def _flat(values: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> Tensor:
    return torch.cat(
        [(_wide(values[n]) if n in values else torch.zeros_like(_wide(t))).flatten() for n, t in like.items()]
    )


def _weakest(kinds: set[Kind]) -> Kind:
    for kind in (Kind.ESTIMATE, Kind.LOWER):
        if kind in kinds:
            return kind if len(kinds) == 1 else Kind.ESTIMATE
    return Kind.UPPER if Kind.UPPER in kinds else Kind.EXACT


def _by_rows(
    weights: dict[str, Tensor], one: dict[str, Tensor], two: dict[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    for name, weight in weights.items():
        if weight.ndim < 2:
            one[name], two[name] = torch.zeros_like(weight), torch.zeros_like(weight)
            continue
        rows, d, e = weight.flatten(1), one[name].flatten(1), two[name].flatten(1)
        lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        d = torch.nn.functional.normalize(d, dim=1)
        e = torch.nn.functional.normalize(e - (d * e).sum(1, keepdim=True) * d, dim=1) if d.shape[1] > 1 else d * 0
        one[name], two[name] = (d * lengths).reshape(weight.shape), (e * lengths).reshape(weight.shape)
    return one, two


def _as_a_whole(
    weights: dict[str, Tensor], one: dict[str, Tensor], two: dict[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    length = torch.linalg.vector_norm(_flat(weights, weights))
    if len(_flat(weights, weights)) < 2:
        raise ArgumentError("A model with one number has no second direction.")
    d, e = _flat(one, weights), _flat(two, weights)
    d = d / torch.linalg.vector_norm(d)
    e = e - (d @ e) * d
    e = e / torch.linalg.vector_norm(e)
    sizes = [weight.numel() for weight in weights.values()]

    def cut(flat: Tensor) -> dict[str, Tensor]:
        parts = (flat * length).split(sizes)
        return {name: part.reshape(weights[name].shape) for name, part in zip(weights, parts, strict=True)}

    return cut(d), cut(e)


@contextmanager
def _moving(model: nn.Module, directions: tuple[Direction, Direction]) -> Iterator[Callable[[float, float], None]]:
    """Puts the parameters at (a, b) whenever it is called, and everything back in the end."""
    parameters = dict(model.named_parameters())
    for direction in directions:
        for name, change in direction.items():
            if name not in parameters or parameters[name].shape != change.shape:
                found = f"shape {tuple(parameters[name].shape)}" if name in parameters else "no such parameter"
                raise ArgumentError(
                    f"A direction moves {name!r} of shape {tuple(change.shape)}, and the model has {found}; "
                    "make directions for this model."
                )
    before = {name: p.detach().clone() for name, p in parameters.items()}
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]

    def move(a: float, b: float) -> None:
        for name, parameter in parameters.items():
            moved: Float[Tensor, ...] = before[name]
            for step, direction in zip((a, b), directions, strict=True):
                if name in direction and step != 0:
                    moved = moved + step * direction[name].to(moved)
            parameter.copy_(moved)
        for buffer, old in buffers:
            buffer.copy_(old)

    try:
        yield move
    finally:
        with torch.no_grad():
            move(0.0, 0.0)
