"""Whether the first axis that a layer sees is that of the samples: one more backward pass, once, tells."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import partial
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lipkit._seeds import generator
from lipkit.analysis.dynamics.noise.gradient_noise import Contractions
from lipkit.analysis.dynamics.noise.process_sums import Processes
from lipkit.analysis.dynamics.noise.sign_probes import probe_gradients
from lipkit.analysis.singular_values.gram_decomposition import GramDecomposition


def rows_of(output: object) -> list[Tensor]:
    """The tensors with a first axis that a gradient may reach, in what a model returned."""
    if isinstance(output, Tensor):
        return [output] if output.ndim and output.requires_grad else []
    parts: Iterable[object] = ()
    if isinstance(output, Mapping):
        parts = output.values()
    elif isinstance(output, list | tuple):
        parts = output
    elif is_dataclass(output):
        parts = vars(output).values()
    return [tensor for part in parts for tensor in rows_of(part)]


def at_first_gradient(outputs: Sequence[Tensor], act: Callable[[Tensor, Tensor], None]) -> None:
    """Call act(output, gradient) for the first output that a gradient reaches; others in the loss are left out."""
    begun: list[bool] = []

    def begin(output: Tensor, gradient: Tensor) -> None:
        if not begun:
            begun.append(True)
            act(output, gradient)

    for output in outputs:
        output.register_hook(partial(begin, output))


_ALONE = Processes()


@final
class RowCheck:
    """Compares the rows of layers with the samples, which are the rows of the model's output.

    With random signs eps_i on the rows of the output's gradient, a layer whose rows are the samples gets the gradient
    sum_i (eps_i - mean eps) S_i. If its first axis is another one (positions, windows), or samples mix on the way to
    the output, it gets something else, although the sum without signs is right.
    """

    def __init__(self) -> None:
        self.done = False
        self._weights = torch.empty(0)
        self._seen: dict[int, tuple[Tensor, Tensor]] = {}

    def probe(
        self,
        output: Float[Tensor, "samples ..."],
        gradient: Float[Tensor, "samples ..."],
        layers: Mapping[int, tuple[nn.Parameter, GramDecomposition]],
    ) -> None:
        """Hear the signed gradient of these layers, as both vectors see it. Cost: one backward pass."""
        # A generator of its own: draws of the sampled tracker stay what they are.
        # And rows are those of this process, whatever others hear.
        self._weights = _ALONE.draw_weights(output.shape[0], generator(0))
        parameters = [parameter for parameter, _ in layers.values()]
        found = probe_gradients(output, gradient, parameters, self._weights)
        self._seen = {}
        for (index, (_, gram)), whole in zip(layers.items(), found, strict=True):
            if whole is not None:
                wide = whole.flatten(1).to(torch.float64)
                self._seen[index] = wide @ gram.right, wide.mT @ gram.left

    def finish(self) -> None:
        """Check nothing more: which axis is which does not change."""
        self.done, self._seen = True, {}

    def passes(self, index: int, heard: Contractions) -> bool:
        """Whether the rows of a layer are the samples; yes for a layer that was not probed."""
        if index not in self._seen:
            return True
        return heard.sums_agree(self._seen[index], self._weights.to(heard.a.device), _ALONE)
