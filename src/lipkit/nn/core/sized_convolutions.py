"""Convolutions of torch that refuse sizes on which their kernel promises nothing: condensed circles with a stride."""

from typing import final

from torch import Tensor, nn

from lipkit.nn.layers._weighted import Sized


@final
class SizedConv1d(Sized, nn.Conv1d):
    """nn.Conv1d on the sizes that its `geometry` accepts."""

    def forward(self, input: Tensor) -> Tensor:
        """The convolution, after checking the size of the input."""
        self.check_size(input)
        return super().forward(input)


@final
class SizedConv2d(Sized, nn.Conv2d):
    """nn.Conv2d on the sizes that its `geometry` accepts."""

    def forward(self, input: Tensor) -> Tensor:
        """The convolution, after checking the size of the input."""
        self.check_size(input)
        return super().forward(input)


@final
class SizedConv3d(Sized, nn.Conv3d):
    """nn.Conv3d on the sizes that its `geometry` accepts."""

    def forward(self, input: Tensor) -> Tensor:
        """The convolution, after checking the size of the input."""
        self.check_size(input)
        return super().forward(input)


SIZED: dict[type[nn.Module], type[nn.Module]] = {nn.Conv1d: SizedConv1d, nn.Conv2d: SizedConv2d, nn.Conv3d: SizedConv3d}
