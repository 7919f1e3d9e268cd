"""A convolutional text classifier whose answer changes little under single edits."""

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lipkit.certify.text.edit_constants import EditConstants, Pool, edit_constants
from lipkit.errors import ArgumentError

PAD = 0


@final
class EditClassifier(nn.Module):
    """tokens -> vectors -> convolutions with ReLU -> sum or mean over positions -> classes.

    Convolutions have no bias and are padded with kernel - 1 zeros at both ends, so a text is a signal on all integers
    that is zero outside: an edit moves what stands behind it and changes nothing else. Token 0 is padding, allowed at
    the end only, and embedded as 0; the head may have a bias. `constants` says how much one edit can change the logits.

    Reference: the architecture of Abad Rocamora, Chrysos, Cevher 2025 (LipsLev); the constants are ours.

    Args:
        tokens: Size of the vocabulary, padding included.
        width: Length of the vector of a token.
        channels: Output channels of each convolution.
        kernel: Taps of each convolution.
        classes: Number of classes.
        pool: Sum or mean over positions.
    """

    def __init__(
        self, tokens: int, width: int, channels: Sequence[int], kernel: int, classes: int, pool: Pool = Pool.SUM
    ) -> None:
        super().__init__()
        if min(tokens - 1, width, kernel, classes, *channels) < 1 or not channels:
            raise ArgumentError(
                f"Needs two tokens or more (one is padding), and positive sizes, got tokens={tokens}, width={width}, "
                f"channels={tuple(channels)}, kernel={kernel}, classes={classes}."
            )
        self.pool = pool
        self.embedding = nn.Embedding(tokens, width, padding_idx=PAD)
        widths = [width, *channels]
        self.convolutions = nn.ModuleList(
            nn.Conv1d(i, o, kernel, padding=kernel - 1, bias=False) for i, o in zip(widths, channels, strict=False)
        )
        self.head = nn.Linear(widths[-1], classes)

    @property
    def overhang(self) -> int:
        """The number of positions that the convolutions add to a text."""
        return sum(conv.weight.shape[2] - 1 for conv in self._layers)

    def forward(self, tokens: Int[Tensor, "n length"]) -> Float[Tensor, "n classes"]:
        """Logits of texts padded with 0 at the end."""
        real = tokens != PAD
        if bool((real[:, 1:] & ~real[:, :-1]).any()):
            raise ArgumentError("Padding (token 0) stands inside a text; it may only follow it.")
        # The padding row is zero by construction, but weights can be loaded: the mask makes it so.
        signal = (self.embedding(tokens) * real[:, :, None]).transpose(1, 2)
        if signal.shape[2] == 0:
            signal = signal.new_zeros(*signal.shape[:2], 1)
        for conv in self._layers:
            signal = torch.relu(conv(signal))
        features = signal.sum(2)
        if self.pool is Pool.MEAN:
            features = features / self.positions(real.sum(1))[:, None]
        return self.head(features)

    def positions(self, lengths: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
        """Over how many positions a text of some length is averaged; at least 1."""
        return (lengths + self.overhang).clamp(min=1)

    def constants(self, p: float = 2.0) -> EditConstants:
        """The change that one edit can make, with hidden vectors measured in l_p; differentiable in the weights."""
        kernels = [conv.weight for conv in self._layers]
        return edit_constants(self.embedding.weight[1:], kernels, self.head.weight, p, self.pool)

    @property
    def _layers(self) -> list[nn.Conv1d]:
        return [conv for conv in self.convolutions if isinstance(conv, nn.Conv1d)]
