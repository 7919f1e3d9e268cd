"""A smoothed classifier with gradients: what an attack descends, and what training for smoothing evaluates."""

import math
from collections.abc import Callable
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lipkit._seeds import check_seed
from lipkit.errors import ArgumentError


@final
class Noisy(nn.Module):
    """x -> log (1/m) sum_i softmax f(x + sigma e_i), e_i standard normal: logits of a smoothed classifier.

    Differentiable in x and in the weights. `certify.attacks.PGD` on it with a seed is the attack of SmoothAdv, because
    the cross-entropy of these logits is `losses.SmoothedCrossEntropy`; `copies` gives what the losses of noisy logits
    take.

    Guarantee: none; the mean of m draws is an estimate. `Smoothed` certifies. Cost: m forward passes, in one batch.
    Reference: Salman et al. 2019.

    Args:
        model: Maps a batch to logits; a module's parameters belong to this module too.
        sigma: Standard deviation of the noise.
        draws: The number m of noisy copies of each input.
        seed: If given, every call and every input gets the same m noise vectors, so this is one fixed function, which
            is what an attack needs. Otherwise each call and each input has noise of its own from torch's generator,
            which a recorded step draws anew as well.
    """

    def __init__(
        self, model: Callable[[Tensor], Tensor], sigma: float, draws: int = 1, *, seed: int | None = None
    ) -> None:
        super().__init__()
        if not (math.isfinite(sigma) and sigma >= 0):
            raise ArgumentError(f"sigma is a finite standard deviation >= 0, got {sigma}.")
        if draws < 1:
            raise ArgumentError(f"draws is a number of noisy copies >= 1, got {draws}.")
        self.model, self.sigma, self.draws = model, sigma, draws
        self.seed = None if seed is None else check_seed(seed)

    def copies(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "draws batch classes"]:
        """The logits of the noisy copies of each input."""
        noisy = x + self.sigma * self._noise(x)
        logits = self.model(noisy.flatten(0, 1))
        return logits.unflatten(0, (self.draws, len(x)))

    def forward(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch classes"]:
        """The logarithms of the mean probabilities, in float32 at least."""
        logits = self.copies(x)
        wide = torch.promote_types(logits.dtype, torch.float32)
        return logits.log_softmax(2, dtype=wide).logsumexp(0) - math.log(self.draws)

    def _noise(self, x: Tensor) -> Tensor:
        if self.seed is None:
            return torch.randn((self.draws, *x.shape), dtype=x.dtype, device=x.device)
        source = torch.Generator(x.device).manual_seed(self.seed)
        # The same for all inputs: an attack drops inputs from the batch, which must not move the noise of the others.
        return torch.randn((self.draws, 1, *x.shape[1:]), generator=source, dtype=x.dtype, device=x.device)

    def extra_repr(self) -> str:
        """The settings, for its text."""
        return f"sigma={self.sigma:g}, draws={self.draws}, seed={self.seed}"
