"""The Hessian of a loss in the parameters of a model, as an operator that is never written out."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from lipkit._runtime import without_casts
from lipkit.errors import ArgumentError, NonFiniteError, UnsupportedError
from lipkit.linops import Diagonal, LinearOperator, Shape, rounding_is_bounded

Loss = Callable[[Tensor, Tensor], Tensor]


@final
@dataclass(frozen=True, eq=False)
class Hessian(LinearOperator):
    """v -> H v for the second derivative H of loss(model(x), y) in the flat parameters, by double backward.

    The parameters are those that require gradients, in the order of `named_parameters`, tied ones once, each flattened
    as torch stores it; `layers` restricts them, which gives the diagonal block of these layers. Every norm and estimate
    of lipkit takes the operator; `hessian.to(torch.float64)` computes in float64. At kinks (ReLU) it is the Hessian of
    the piece that autograd chooses. A loss that couples samples has the Hessian of that coupled loss.

    Guarantee: ESTIMATE; rounding of a product is not bounded, so no norm of it certifies. A model whose loss is random
    or changes its state (dropout or batch normalisation in training mode) is refused.
    Cost: a product is a forward, a backward and a double backward pass; several in one batch, and all of one call of
    `extreme_eigenvalues`, `estimate_trace` and `spectral_density`, share the first two and hold their graph in memory.

    Args:
        model: The model; its parameters are used as they are at the time of a product.
        loss: Takes outputs and targets, gives a number.
        data: Inputs and targets, one batch.
        layers: Names of submodules or parameters of the model; all if None.
        parameters: The tensors themselves; set from the model. So are `constants`, other parameters and buffers, and
            `names`, those of both.
    """

    model: nn.Module
    loss: Loss
    data: tuple[Tensor, Tensor]
    layers: Sequence[str] | None = None
    parameters: tuple[Tensor, ...] = ()
    constants: tuple[Tensor, ...] = ()
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.parameters:
            return
        object.__setattr__(self, "layers", None if self.layers is None else tuple(self.layers))
        _refuse_state(self.model)
        names, others = self._choose()
        held = {**dict(self._objective.named_parameters()), **dict(self._objective.named_buffers())}
        object.__setattr__(self, "parameters", tuple(held[name].detach() for name in names))
        object.__setattr__(self, "constants", tuple(held[name].detach() for name in others))
        object.__setattr__(self, "names", (*names, *others))
        self._check_loss()

    @property
    def in_shape(self) -> Shape:
        return (sum(p.numel() for p in self.parameters),)

    @property
    def out_shape(self) -> Shape:
        return self.in_shape

    @property
    def point(self) -> Float[Tensor, " n"]:
        """The parameters as one vector, a copy."""
        return torch.cat([p.flatten().to(self.dtype) for p in self.parameters])

    def value(self, point: Float[Tensor, " n"] | None = None) -> Float[Tensor, ""]:
        """The loss at the model's parameters, or at others; differentiable in these."""
        return self._evaluate(self.parameters if point is None else self._split(point))

    def products(self) -> Callable[[Tensor], Tensor]:
        """v -> H v for vectors of `dtype`; forward and backward pass are made now, and their graph is kept."""
        leaves = [p.detach().requires_grad_() for p in self.parameters]
        with torch.enable_grad():
            gradient = torch.autograd.grad(self._evaluate(leaves), leaves, create_graph=True, materialize_grads=True)
        # A loss that is linear in some parameters has gradients that do not depend on anything.
        live = [i for i, g in enumerate(gradient) if g.requires_grad]

        def product(v: Tensor) -> Tensor:
            parts = self._split(v)
            if not live:
                return torch.zeros_like(v)
            with sdpa_kernel(SDPBackend.MATH):
                found = torch.autograd.grad(
                    [gradient[i] for i in live],
                    leaves,
                    [parts[i].to(gradient[i].dtype) for i in live],
                    retain_graph=True,
                    materialize_grads=True,
                )
            return torch.cat([part.flatten().to(v.dtype) for part in found])

        return product

    def _apply(self, x: Tensor) -> Tensor:
        dtype = torch.promote_types(x.dtype, self.dtype)
        if x.is_complex():
            return torch.complex(self._apply(x.real), self._apply(x.imag))
        product = self.to(dtype).products()
        return torch.stack([product(v) for v in x.to(dtype)]) if len(x) else x.to(dtype)

    def _adjoint(self, y: Tensor) -> Tensor:
        return self._apply(y)

    @property
    def _objective(self) -> "_Objective":
        return _Objective(self.model, self.loss)

    def _choose(self) -> tuple[list[str], list[str]]:
        """Names of the parameters that count, and of all that is held fixed."""
        objective = self._objective
        parameters = dict(objective.named_parameters())
        known = {name for name, _ in self.model.named_modules()} | {name for name, _ in self.model.named_parameters()}
        wanted = [""] if self.layers is None else self.layers
        if unknown := [name for name in wanted if name not in known]:
            raise ArgumentError(f"The model has no layer {unknown[0]!r}; its layers are {sorted(known - {''})}.")

        def counts(name: str) -> bool:
            own = name.removeprefix("model.")
            return own != name and any(one in ("", own) or own.startswith(f"{one}.") for one in wanted)

        chosen = [name for name, p in parameters.items() if counts(name) and p.requires_grad]
        if not chosen:
            raise ArgumentError(
                f"No parameter of {self.layers or 'the model'} requires gradients, so there is no Hessian."
            )
        rest = [name for name in (*parameters, *dict(objective.named_buffers())) if name not in set(chosen)]
        return chosen, rest

    def _evaluate(self, parameters: Sequence[Tensor]) -> Tensor:
        state = dict(zip(self.names, (*parameters, *self.constants), strict=True))
        # Fused attention has no second derivative.
        with sdpa_kernel(SDPBackend.MATH), without_casts():
            return torch.func.functional_call(self._objective, state, self.data)

    def _split(self, v: Tensor) -> tuple[Tensor, ...]:
        parts = v.split([p.numel() for p in self.parameters])
        return tuple(part.reshape(p.shape) for part, p in zip(parts, self.parameters, strict=True))

    def _check_loss(self) -> None:
        with torch.no_grad():
            values = [self.value() for _ in range(1 + self.model.training)]
        if values[0].numel() != 1 or values[0].ndim:
            raise ArgumentError(f"The loss must be a number, got shape {tuple(values[0].shape)}; take its mean.")
        if not math.isfinite(float(values[0])):
            raise NonFiniteError(f"The loss is {float(values[0])}, so it has no Hessian; check data and weights.")
        if float(values[0]) != float(values[-1]):
            raise UnsupportedError(
                "The loss is random in training mode, so it has no Hessian; call model.eval() first."
            )


@rounding_is_bounded.register(Hessian)
def _is_not_bounded(_: Hessian) -> bool:
    return False


def relative_hessian(hessian: Hessian) -> LinearOperator:
    """D H D with D = diag |parameters|: the curvature per relative change of each parameter.

    Its eigenvalues and its trace do not change if a neuron's incoming weights are multiplied by c > 0 and its outgoing
    ones divided by c, which leaves a ReLU network as it is and the eigenvalues of H not.

    Guarantee: ESTIMATE. Cost: that of H. Reference: Dinh et al. 2017 for the need; the form is that of adaptive
    sharpness (Kwon et al. 2021).
    """
    scale = Diagonal(hessian.point.abs(), hessian.in_shape)
    return scale @ hessian @ scale


class _Objective(nn.Module):
    """(x, y) -> loss(model(x), y)."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.loss(self.model(x), y)


def _refuse_state(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if module.training and isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise UnsupportedError(
                f"{name or 'The model'} ({type(module).__name__}) is in training mode, where a loss changes its "
                "running statistics; call model.eval() first."
            )
