"""Noise on the weights: independent, anti-correlated, or only while the loss is evaluated."""

from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor

from lipkit._seeds import normal
from lipkit.errors import ArgumentError
from lipkit.optim._wrapper import Closure, Wrapper, check_size, displaced, require_closure


class Noisy(Wrapper):
    """A wrapper with a noise level `sigma` in each group and a generator that makes its draws reproducible."""

    def __init__(
        self, base: torch.optim.Optimizer, sigma: float, generator: torch.Generator | None, options: dict[str, Any]
    ) -> None:
        self.generator = generator
        super().__init__(base, {"sigma": sigma, **options})

    def check(self, group: dict[str, Any]) -> None:
        """A noise level that is a finite number >= 0."""
        check_size(self, "sigma", group["sigma"])

    def draw_noise(self) -> list[tuple[Tensor, Tensor]]:
        """A draw from N(0, sigma^2) for every parameter with a positive noise level, in float32 at least."""
        return [(parameter, sigma * self._normal(parameter)) for parameter, sigma in self._noisy()]

    def _noisy(self) -> list[tuple[Tensor, float]]:
        return [
            (parameter, group["sigma"])
            for group in self.param_groups
            if group["sigma"]
            for parameter in group["params"]
            if parameter.requires_grad
        ]

    def _normal(self, parameter: Tensor) -> Tensor:
        return normal(parameter, self.generator, torch.promote_types(parameter.dtype, torch.float32))

    def key(self, name: str) -> str:
        """The key of `name` in a state: with a number behind it where noise is wrapped around noise."""
        below, base = 0, self.base
        while isinstance(base, Wrapper):
            below, base = below + isinstance(base, Noisy), base.base
        return f"{name}{below}" if below else name

    def state_dict(self) -> dict[str, Any]:
        """The wrapped optimizer's state, and the generator's: a run that is resumed draws what it would have drawn."""
        found = super().state_dict()
        return found if self.generator is None else {**found, self.key("generator"): self.generator.get_state()}

    def require(self, state_dict: Mapping[str, Any]) -> None:
        """Refuse what every wrapper refuses, and a state without the generator's."""
        super().require(state_dict)
        if self.generator is None:
            return
        if self.key("generator") not in state_dict:
            raise ArgumentError("This state was saved without a generator, so its draws cannot be continued.")
        try:
            torch.Generator(self.generator.device).set_state(state_dict[self.key("generator")].cpu())
        except (RuntimeError, TypeError, AttributeError) as error:
            raise ArgumentError(f"The generator of this state cannot be taken up ({error}); save it again.") from error

    def take_up(self, state_dict: dict[str, Any]) -> None:
        """Load the wrapped optimizer first, then the generator."""
        super().take_up(state_dict)
        if self.generator is not None:
            self.generator.set_state(state_dict[self.key("generator")].cpu())

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "generator": self.generator}


@final
class NoiseInjection(Noisy):
    """Perturbed gradient descent: after each base step w <- w + xi, xi ~ N(0, sigma^2 I), new at each step.

    Guarantee: none; sigma 0 is the base step, bit for bit. In expectation it smooths the loss, and it leaves saddles
    behind. Cost: one draw for each parameter. `step` takes a closure or none, as the base does.
    References: Jin et al. 2017; in this form Orvieto et al. 2022.

    Args:
        base: The optimizer that takes the steps.
        sigma: Standard deviation of the noise, in units of the weights.
        generator: Source of the noise; torch's global one if None.
    """

    def __init__(
        self, base: torch.optim.Optimizer, sigma: float = 1e-3, generator: torch.Generator | None = None
    ) -> None:
        super().__init__(base, sigma, generator, {})

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One base step, and one draw of noise."""
        loss = self.base.step(closure)
        for parameter, noise in self.draw_noise():
            parameter.add_(noise.to(parameter.dtype))
        return loss


@final
class AntiPGD(Noisy):
    """Anti-correlated perturbations: after base step n, w <- w + xi_n - xi_(n-1), xi_n ~ N(0, sigma^2 I).

    The noise telescopes: after any number of steps w carries xi_last - xi_0 and nothing more, so weights do not wander
    off, while every gradient is still taken at a noisy point. Once a group's `sigma` is set to 0, the next step takes
    xi_last out.

    Guarantee: none; sigma 0 is the base step, bit for bit. Cost: one draw for each parameter, and a copy of the last.
    Reference: Orvieto, Kersting, Proske, Bach, Lucchi 2022, who show that for small steps it descends on the loss plus
    sigma^2/2 times the trace of its Hessian.

    Args:
        base: The optimizer that takes the steps.
        sigma: Standard deviation of the noise, in units of the weights.
        generator: Source of the noise; torch's global one if None.
    """

    def __init__(
        self, base: torch.optim.Optimizer, sigma: float = 1e-3, generator: torch.Generator | None = None
    ) -> None:
        self.last: dict[Tensor, Tensor] = {}
        super().__init__(base, sigma, generator, {})

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One base step, and the difference of this draw and the last."""
        loss = self.base.step(closure)
        fresh = {parameter for parameter, _ in self._noisy()} - self.last.keys()
        if fresh:
            # The first draw of all is part of no step.
            self.last |= {parameter: noise for parameter, noise in self.draw_noise() if parameter in fresh}
        drawn = dict(self.draw_noise())
        for parameter, before in self.last.items():
            change = drawn[parameter] - before if parameter in drawn else -before
            parameter.add_(change.to(parameter.dtype))
        self.last = drawn
        return loss

    def state_dict(self) -> dict[str, Any]:
        """The state of every noisy optimizer, and the last draw by the position of its parameter."""
        places = {parameter: i for i, parameter in enumerate(self.parameters())}
        return {
            **super().state_dict(),
            self.key("last"): {places[parameter]: noise for parameter, noise in self.last.items()},
        }

    def require(self, state_dict: Mapping[str, Any]) -> None:
        """Refuse what every noisy optimizer refuses, and last draws that fit no parameter."""
        super().require(state_dict)
        if self.key("last") not in state_dict:
            raise ArgumentError("This state was saved without a last draw, so its noise cannot be taken out again.")
        shapes = [tuple(parameter.shape) for parameter in self.parameters()]
        for place, noise in state_dict[self.key("last")].items():
            if not 0 <= place < len(shapes) or tuple(noise.shape) != shapes[place]:
                of = shapes[place] if 0 <= place < len(shapes) else "no parameter"
                raise ArgumentError(
                    f"The last draw of parameter {place} has shape {tuple(noise.shape)}, expected {of}."
                )

    def take_up(self, state_dict: dict[str, Any]) -> None:
        """Load what every noisy optimizer loads, and the last draw."""
        super().take_up(state_dict)
        everything = self.parameters()
        self.last = {everything[i]: noise.to(everything[i].device) for i, noise in state_dict[self.key("last")].items()}

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "last": self.last}


@final
class WeightNoise(Noisy):
    """A base step with the mean gradient at w + Delta over `draws` of Delta ~ N(0, sigma^2 I): min E L(w + Delta).

    To second order the smoothed loss is L(w) + sigma^2/2 trace of its Hessian.

    Guarantee: the gradient is an unbiased estimate of the smoothed loss's; sigma 0 is the base step from one
    evaluation, bit for bit. Cost: `draws` evaluations, a copy of the weights and one of the gradients. `step` returns
    the mean loss.
    Limits: as of `SAM`: batch statistics are updated in every evaluation, no gradient scalers.
    References: An 1996; Bishop 1995 for noise as regularisation.

    Args:
        base: The optimizer that takes the steps.
        sigma: Standard deviation of the noise, in units of the weights.
        draws: Noisy evaluations for each step.
        generator: Source of the noise; torch's global one if None.
    """

    def __init__(
        self,
        base: torch.optim.Optimizer,
        sigma: float = 1e-2,
        draws: int = 1,
        generator: torch.Generator | None = None,
    ) -> None:
        if draws < 1:
            raise ArgumentError(f"WeightNoise.draws must be at least 1, got {draws}.")
        self.draws = draws
        super().__init__(base, sigma, generator, {})

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One step; the closure is called once for each draw."""
        evaluate = require_closure(closure, self)
        noisy = [parameter for parameter, _ in self._noisy()]
        if not noisy:
            loss = evaluate()
            self.base.step()
            return loss
        losses: list[Any] = []
        sums: dict[Tensor, Tensor] = {}
        for _ in range(self.draws):
            with displaced(noisy):
                for parameter, noise in self.draw_noise():
                    parameter.add_(noise.to(parameter.dtype))
                losses.append(evaluate())
            for parameter in self.parameters():
                if parameter.grad is not None:
                    # A closure may reuse the gradients' memory, so they are added up elsewhere.
                    before = sums.get(parameter)
                    sums[parameter] = parameter.grad.clone() if before is None else before.add_(parameter.grad)
        for parameter, total in sums.items():
            parameter.grad = total.div_(self.draws)
        self.base.step()
        return sum(losses[1:], losses[0]) / self.draws

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "draws": self.draws}
