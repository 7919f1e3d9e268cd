"""Networks that are convex in one input and free in another."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lipkit.errors import ArgumentError, ShapeError
from lipkit.linops import Shape
from lipkit.nn.convex._signed import NonNegativeMethod, keeps_convexity
from lipkit.nn.convex.activations import ConvexActivation, CumulativeMax, convex_activation
from lipkit.nn.convex.icnn import ConvexOutput, gradient_of
from lipkit.nn.convex.nonnegative import NonNegative
from lipkit.nn.layers.linear import Linear

# The size of the first weights of gates, and of the maps from the context.
_SMALL = 0.01


class _Step(nn.Module):
    """z -> g(W (z * [gate(u)]_+) + A (y * scale(u)) + B u + b), with W >= 0; the first step has no z."""

    def __init__(
        self,
        context: int,
        features: int,
        width: int,
        units: int,
        method: NonNegativeMethod,
        device: torch.device | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        place = {"device": device, "dtype": dtype}
        self.weight = Linear(width, units, False, **place, method=method) if width else None
        self.gate = nn.Linear(context, width, **place) if width else None
        self.scale = nn.Linear(context, features, **place)
        self.convex_input = nn.Linear(features, units, False, **place)
        self.context_input = nn.Linear(context, units, **place)

    def reset_parameters(self) -> None:
        """Draw all weights anew: gates near 1 for z; scales near 1 for y where there is no z, and near 0 elsewhere."""
        with torch.no_grad():
            for layer, bias in ((self.gate, 1.0), (self.scale, 1.0 if self.weight is None else 0.0)):
                if layer is not None:
                    layer.weight.normal_(0, _SMALL)
                    layer.bias.fill_(bias)
            nn.init.orthogonal_(self.convex_input.weight)
            self.context_input.weight.normal_(0, _SMALL)
            self.context_input.bias.zero_()
            if self.weight is not None:
                self.weight.reset_parameters()

    def forward(self, z: Tensor | None, u: Tensor, y: Tensor) -> Tensor:
        """The step before its activation."""
        found = self.convex_input(y * self.scale(u)) + self.context_input(u)
        if z is None or self.weight is None or self.gate is None:
            return found
        return found + self.weight(z * self.gate(u).relu())


@final
class PICNN(nn.Module):
    """A number f(x, y) that is convex in y for every context x, and free in x.

        u_(i+1) = t(V_i u_i + a_i),   u_0 = x
        z_(i+1) = g(W_i (z_i * [G_i u_i + g_i]_+) + A_i (y * (S_i u_i + s_i)) + B_i u_i + b_i),   W_i >= 0
        f = out(z_L) + <y, C u + c>

    The context multiplies z by numbers >= 0 and y by any numbers, so each step keeps convexity in y.
    Guarantee: convex in y for all contexts and parameters, in real arithmetic with the numbers as stored. No constant.
    Start: the context passes unchanged but for t; gates are near one. The first scales of y are near one, and later
    ones near zero: with all of them near zero, as is common, the network would start without y.
    Reference: Amos et al. 2017.

    Args:
        context: Entries of x, on its last axis.
        features: Entries of y, on its last axis.
        hidden: Entries of z_1, z_2, ..., before the activation.
        method: Makes the W_i, without negative entries.
        activation: g, a `ConvexActivation` or a module of torch.nn.
        context_activation: t; any module, nn.LeakyReLU(0.2) if None.
        output: The number made of the last z.
    """

    def __init__(
        self,
        context: int,
        features: int,
        hidden: Shape = (32, 32, 32),
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        *,
        method: NonNegativeMethod = NonNegative(),  # noqa: B008 - immutable
        activation: ConvexActivation | nn.Module = CumulativeMax(),  # noqa: B008 - immutable
        context_activation: nn.Module | None = None,
        output: ConvexOutput = ConvexOutput.LOG_SUM_EXP,
    ) -> None:
        super().__init__()
        if min(context, features) < 1 or not hidden or min(hidden) < 1:
            raise ArgumentError(
                f"PICNN needs context, features and hidden layers of 1 or more, got {context}, {features}, {hidden}."
            )
        keeps_convexity(method, "PICNN")
        self.context = context
        self.features = features
        self.output = output
        self.activation = convex_activation(activation)
        self.context_activation = nn.LeakyReLU(0.2) if context_activation is None else context_activation
        place = {"device": device, "dtype": dtype}
        self.contexts = nn.ModuleList(nn.Linear(context, context, **place) for _ in hidden)
        width, steps = 0, []
        for units in hidden:
            steps.append(_Step(context, features, width, units, method, device, dtype))
            width = self.activation.width(units)
        self.steps = nn.ModuleList(steps)
        self.tail = nn.Linear(context, features, **place)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights anew, as the constructor does."""
        for step in self.steps:
            assert isinstance(step, _Step)
            step.reset_parameters()
        with torch.no_grad():
            for layer in self.contexts:
                assert isinstance(layer, nn.Linear)
                nn.init.eye_(layer.weight)
                layer.bias.zero_()
            self.tail.weight.normal_(0, _SMALL)
            self.tail.bias.zero_()

    def forward(
        self, x: Float[Tensor, "*batch context"], y: Float[Tensor, "*batch features"]
    ) -> Float[Tensor, "*batch"]:
        """The value of f at every pair of a context and an input."""
        if x.shape[-1:] != (self.context,) or y.shape[-1:] != (self.features,) or x.shape[:-1] != y.shape[:-1]:
            raise ShapeError(
                f"PICNN({self.context}, {self.features}) got a context of shape {tuple(x.shape)} and an input of shape "
                f"{tuple(y.shape)}; it takes (*batch, {self.context}) and (*batch, {self.features})."
            )
        u, z = x, None
        for step, layer in zip(self.steps, self.contexts, strict=True):
            z = self.activation(step(z, u, y))
            u = self.context_activation(layer(u))
        assert z is not None
        return self.output.of(z) + (y * self.tail(u)).sum(-1)

    def gradient(
        self, x: Float[Tensor, "*batch context"], y: Float[Tensor, "*batch features"]
    ) -> Float[Tensor, "*batch features"]:
        """The gradient of f in y: a monotone map of y for every context, differentiable in the parameters."""
        return gradient_of(lambda inputs: self(x, inputs), y)

    def extra_repr(self) -> str:
        """The arguments it is built from."""
        return f"{self.context}, {self.features}, activation={self.activation}, output={self.output.value!r}"
