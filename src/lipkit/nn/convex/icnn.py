"""Networks that are convex in their input."""

import enum
from collections.abc import Callable, Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lipkit.errors import ArgumentError, ShapeError
from lipkit.linops import Shape
from lipkit.nn.convex._signed import NonNegativeMethod, keeps_convexity
from lipkit.nn.convex.activations import ConvexActivation, CumulativeMax, convex_activation
from lipkit.nn.convex.nonnegative import NonNegative
from lipkit.nn.convex.quadratic import ConvexQuadratic
from lipkit.nn.layers.linear import Linear

# The part of a usual start that is left of the squares beside a base potential; the squares have its square.
_BESIDE_A_BASE = 0.01


class ConvexOutput(enum.Enum):
    """The number that a convex network makes of its last layer z, of n entries."""

    # log(sum exp(n z)) / n: a maximum that is smooth on the scale 1/n.
    LOG_SUM_EXP = "log-sum-exp"
    SUM = "sum"
    # |max(z, 0)|^2 / 2.
    HALF_SQUARES = "half of squares"

    def of(self, z: Float[Tensor, "*batch units"]) -> Float[Tensor, "*batch"]:
        """The number, of the last axis."""
        match self:
            case ConvexOutput.LOG_SUM_EXP:
                units = z.shape[-1]
                return (z * units).logsumexp(-1) / units
            case ConvexOutput.SUM:
                return z.sum(-1)
            case ConvexOutput.HALF_SQUARES:
                return z.relu().square().sum(-1) / 2


@final
class ICNN(nn.Module):
    """A number that is a convex function of the input: z_(i+1) = g(W_i z_i + A_i x + b_i) with W_i >= 0 and A_i free.

        z_0 = (P x)^2 / h_0  (with `quadratic`),  or  g(A_0 x + b_0);   f(x) = out(z_L) + <c, x> + d

    Every step is a rule of convex functions: squares of affine ones, sums with weights >= 0, and a convex function that
    rises in every argument. W_i has norm at most one, which takes nothing away: the sizes of z_i are those of P, A, b.
    Guarantee: convex in x for all parameters, in real arithmetic with the numbers as stored;
    `lipkit.bounds.is_convex` proves it from the graph. No constant: A, P and c are free. `gradient` is
    monotone: <f'(x) - f'(y), x - y> >= 0.
    Start: A is zero but for the first (orthogonal), P uniform (Glorot). With `base` the network starts near it: the
    gradient of f within about 1 % of that of the base.
    Reference: Amos et al. 2017; Béthune 2024, section 7.1, for squares of inputs, maxima and the output; Bunne et al.
    2022 for the base.

    Args:
        features: Entries of an input, on its last axis.
        hidden: Entries of z_0, z_1, ..., before the activation.
        method: Makes the W_i, without negative entries: `NonNegative`, `Stochastic` or `Orthostochastic`.
        activation: g, a `ConvexActivation` or a module of torch.nn.
        output: The number made of the last z.
        quadratic: Whether z_0 are squares.
        base: A quadratic function that is added, and trained along.
    """

    def __init__(
        self,
        features: int,
        hidden: Shape = (32, 32, 32),
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        *,
        method: NonNegativeMethod = NonNegative(),  # noqa: B008 - immutable
        activation: ConvexActivation | nn.Module = CumulativeMax(),  # noqa: B008 - immutable
        output: ConvexOutput = ConvexOutput.LOG_SUM_EXP,
        quadratic: bool = True,
        base: ConvexQuadratic | None = None,
    ) -> None:
        super().__init__()
        if features < 1 or not isinstance(hidden, Sequence) or min(hidden, default=0) < 1:
            raise ArgumentError(
                f"ICNN needs features >= 1 and the sizes of its hidden layers, such as (32, 32), got {features} and "
                f"{hidden}."
            )
        if base is not None and base.features != features:
            raise ArgumentError(f"base is a function of {base.features} features, and the network of {features}.")
        keeps_convexity(method, "ICNN")
        self.features = features
        self.quadratic = quadratic
        self.output = output
        self.activation = convex_activation(activation)
        place = {"device": device, "dtype": dtype}
        self.squares = nn.Linear(features, hidden[0], False, **place) if quadratic else None
        self.base = base
        inputs: list[nn.Module] = []
        weights: list[nn.Module] = []
        width = hidden[0] if quadratic else self.activation.width(hidden[0])
        if not quadratic:
            inputs.append(nn.Linear(features, hidden[0], **place))
        for units in hidden[1:]:
            weights.append(Linear(width, units, False, **place, method=method))
            inputs.append(nn.Linear(features, units, **place))
            width = self.activation.width(units)
        self.weights = nn.ModuleList(weights)
        self.inputs = nn.ModuleList(inputs)
        self.tail = nn.Linear(features, 1, **place)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights anew, as the constructor does; a base is left as it is."""
        with torch.no_grad():
            for layer in (*self.inputs, self.tail):
                assert isinstance(layer, nn.Linear)
                layer.weight.zero_()
                layer.bias.zero_()
            for layer in self.weights:
                assert isinstance(layer, Linear)
                layer.reset_parameters()
            first = self.inputs[0] if self.squares is None else self.squares
            assert isinstance(first, nn.Linear)
            if self.squares is None:
                nn.init.orthogonal_(first.weight)
            else:
                nn.init.xavier_uniform_(first.weight)
            if self.base is not None:
                first.weight.mul_(_BESIDE_A_BASE)

    def forward(self, x: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch"]:
        """The value of f at every input."""
        if x.shape[-1:] != (self.features,):
            raise ShapeError(f"ICNN({self.features}) got an input of shape {tuple(x.shape)}.")
        inputs = list(self.inputs)
        if self.squares is None:
            z = self.activation(inputs.pop(0)(x))
        else:
            z = self.squares(x).square() / self.squares.out_features
        for weight, skip in zip(self.weights, inputs, strict=True):
            z = self.activation(weight(z) + skip(x))
        found = self.output.of(z) + self.tail(x).squeeze(-1)
        return found if self.base is None else found + self.base(x)

    def gradient(self, x: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch features"]:
        """The gradient of f at every input: a monotone map, differentiable in the parameters.

        Cost: one evaluation and one backward pass.
        """
        return gradient_of(self, x)

    def extra_repr(self) -> str:
        """The arguments it is built from."""
        return f"{self.features}, activation={self.activation}, output={self.output.value!r}"


def gradient_of(
    function: Callable[[Tensor], Tensor], x: Float[Tensor, "*batch features"]
) -> Float[Tensor, "*batch features"]:
    """The gradients of a module that gives one number for each input; they can be differentiated again."""
    values, pull, *_ = torch.func.vjp(function, x)
    return pull(torch.ones_like(values))[0]
