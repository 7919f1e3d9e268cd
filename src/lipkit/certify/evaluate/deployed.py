"""The model as it runs, in its own precision, beside its network in float64: do both decide alike?"""

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lipkit.certify.radii.forward import Forward, Logits
from lipkit.errors import CaptureError
from lipkit.trace.agreement import AnswerCheck


@final
class Deployed:
    """A model in its own type, with whatever casts and settings (autocast, TF32) are on where it is called.

    A certificate is about real arithmetic; the answers that users get are rounded. Answers that differ from those of
    the network by more than rounding show that the network is not that of the model, and are refused.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype, forward: object) -> None:
        self._model, self._dtype = model, dtype
        self._check = AnswerCheck(forward.network, self._run) if isinstance(forward, Forward) else None

    def decides_otherwise(
        self, x: Float[Tensor, "batch ..."], found: Logits, indices: Sequence[int]
    ) -> Bool[Tensor, " batch"]:
        """Which samples get another class from the model as it runs than from the logits; NaN is no class.

        Cost: one evaluation of the model in its own type.
        """
        # A copy: a model may work in place.
        own = x.to(self._dtype, copy=True)
        answers = self._run(own)
        if answers.numel() != found.value.numel():
            raise CaptureError(
                f"The model gives {answers.numel()} numbers for {len(x)} samples, and its logits are "
                f"{found.value.numel()}; evaluate the model that the logits are of."
            )
        answers = answers.reshape(found.value.shape)
        if self._check is not None:
            self._check.refuse_differences(own, found.value, answers, [f"sample {i}" for i in indices])
        return ~torch.isfinite(answers).all(1) | (answers.argmax(1) != found.value.argmax(1))

    def _run(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            try:
                answer = self._model(x.clone())
            except Exception:  # noqa: BLE001 - whatever a model raises that takes one sample at a time
                answer = torch.cat([self._model(one) for one in x.clone().split(1)])
        (leaf,) = (leaf for leaf in pytree.tree_leaves(answer) if isinstance(leaf, Tensor))
        return leaf
