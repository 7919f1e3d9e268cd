"""The numbers that a callback logs: the constant of a model as it is now, and what it certifies."""

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lipkit.bounds import DAG, Method
from lipkit.certify import accuracy, head_pairwise
from lipkit.certify.evaluate.accuracy import check_radii
from lipkit.data import Examples
from lipkit.errors import ArgumentError


@final
class TrainingWatch:
    """Measures a model on samples that are held out: `pairwise_lipschitz` (the largest constant of a difference of two
    scores, up to sqrt(2) times that of the model), `clean`, and `certified@EPS` for each radius, as shares in [0, 1].

    Guarantee: `pairwise_lipschitz` is an upper bound, and the certified shares count what is proven of these samples,
    rounding included (`certify.accuracy`). Cost: the bound, and one evaluation of the samples in float64; so give
    hundreds of samples, not all, and a cheap method.

    Args:
        inputs: The samples, as the model takes them.
        labels: One class index for each.
        eps: Radii in l2, in increasing order.
        method: Bounds everything before the last layer; by default a fold over the network.
    """

    def __init__(
        self,
        inputs: Float[Tensor, "count ..."],
        labels: Int[Tensor, " count"],
        eps: Sequence[float],
        method: Method | None = None,
    ) -> None:
        self._eps = check_radii(eps)
        for name, given in (("inputs", inputs), ("labels", labels)):
            if not isinstance(given, Tensor):
                raise ArgumentError(
                    f"`{name}` of a watch are a torch.Tensor, got a {type(given).__name__}; "
                    "torch.as_tensor makes one of an array."
                )
        if not len(labels):
            raise ArgumentError("A watch needs at least one sample, got none.")
        names = tuple(str(k) for k in range(int(labels.max()) + 1))
        self._samples = Examples(inputs.detach().cpu(), labels.detach().cpu(), names)
        self._method = DAG() if method is None else method

    def __call__(self, model: nn.Module) -> dict[str, float]:
        """The numbers of a model, which is left as it was: its modes, its gradients and its random numbers."""
        place = next((parameter for parameter in model.parameters()), torch.zeros(()))
        example = self._samples.inputs[:1].to(place.detach())
        # A loader of data draws a number, which would change the course of the training.
        with torch.random.fork_rng(devices=[]):
            with torch.no_grad():
                bound = head_pairwise(model, example, self._method)
            found = accuracy(model, self._samples, bound, self._eps).overall
        shares = {
            f"certified@{eps:g}": one.count / one.total for eps, one in zip(self._eps, found.certified, strict=True)
        }
        return {
            "pairwise_lipschitz": float(bound.value.max()), "clean": found.clean.count / found.clean.total, **shares
        }  # fmt: skip
