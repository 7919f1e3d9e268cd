"""A small ordinary network, trained in seconds, whose probabilities soften the labels of another."""

from collections.abc import Callable
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval

from lipkit.data import Examples
from lipkit.losses import PiecewiseSchedule

# The usual recipe of the nine-layer network: peak of the rate for a batch of 512, and where in the run it lies.
_RATE, _BATCH, _PEAK = 0.4, 512, 0.2
# Where an image is cut out of its frame of two zeros: the middle, and up, down, left and right.
_CORNERS = ((2, 2), (0, 2), (4, 2), (2, 0), (2, 4))


@final
class Teacher(nn.Module):
    """A residual network of nine layers for images whose sides are multiples of 8, without any normalisation.

    It is trained with batch normalisation by `teach`, which folds that into the convolutions; so it computes the same
    in training and evaluation mode. It knows nothing of Lipschitz constants.
    Reference: Page 2018 (how to train your ResNet) for the network.

    Args:
        channels: Channels of the images.
        classes: Number of classes.
        width: Channels of the first layer; later ones have up to eight times as many.
    """

    def __init__(self, channels: int, classes: int, width: int = 64) -> None:
        super().__init__()
        self.net = _ResNet(channels, classes, width, nn.Identity)
        self.sizes = channels, classes, width
        self.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue] - torch's types forget it

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch classes"]:
        """Logits."""
        return self.net(x)

    @torch.no_grad()
    def probabilities(self, images: Float[Tensor, "count channels height width"]) -> Float[Tensor, "count classes"]:
        """Softmax of logits that are averaged over ten views: the image, four moves by two pixels, and all mirrored."""
        found: list[Tensor] = []
        for part in images.split(_BATCH):
            framed = functional.pad(part, (2, 2, 2, 2))
            views = [framed[:, :, y : y + part.shape[2], x : x + part.shape[3]] for y, x in _CORNERS]
            logits = sum((self(view) + self(view.flip(3)) for view in views), torch.zeros(()).to(part))
            found.append((logits / (2 * len(views))).softmax(1))
        return torch.cat(found)

    def teach(
        self, examples: Examples, augmented: Callable[[Tensor], Tensor], epochs: int, precision: torch.dtype | None
    ) -> None:
        """Train on examples that lie on the device of the teacher: label smoothing 0.1, Nesterov steps.

        Args:
            augmented: changes a batch of inputs at random, as the student's training does.
            precision: type of the activations, None for that of the weights.
        """
        device = examples.inputs.device
        net = _ResNet(*self.sizes, nn.BatchNorm2d).to(device)
        net.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue] - torch's types forget it
        batch = min(_BATCH, len(examples))
        optimizer = torch.optim.SGD(net.parameters(), _RATE, 0.9, weight_decay=5e-4, nesterov=True)
        rate = PiecewiseSchedule(((0.0, 0.0), (_PEAK, _RATE), (1.0, 0.0)))
        steps = len(examples) // batch
        for epoch in range(epochs):
            order = torch.randperm(len(examples), device=device)
            for place in range(steps):
                chosen = order[place * batch : (place + 1) * batch]
                progress = (epoch * steps + place + 1) / (epochs * steps + 1)
                optimizer.param_groups[0]["lr"] = rate(progress) * batch / _BATCH
                with torch.autocast(device.type, precision, precision is not None):
                    logits = net(augmented(examples.inputs[chosen]))
                loss = functional.cross_entropy(logits.float(), examples.labels[chosen], label_smoothing=0.1)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
        self._take(net.eval())

    @torch.no_grad()
    def _take(self, trained: nn.Module) -> None:
        """The weights of a trained network with its normalisation folded in."""
        for block, own in zip(_blocks(trained), _blocks(self.net), strict=True):
            assert isinstance(block.norm, nn.BatchNorm2d), "made so by `teach`"
            own.conv.load_state_dict(fuse_conv_bn_eval(block.conv, block.norm).state_dict())
        self.net.get_submodule("head").load_state_dict(trained.get_submodule("head").state_dict())


@final
class _Block(nn.Module):
    """Convolution, normalisation, ReLU."""

    def __init__(self, many: int, few: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.norm = norm(few)
        self.conv = nn.Conv2d(many, few, 3, padding=1, bias=isinstance(self.norm, nn.Identity))

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.norm(self.conv(x)))


@final
class _ResNet(nn.Module):
    def __init__(self, channels: int, classes: int, width: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.stem = _Block(channels, width, norm)
        self.down = nn.ModuleList(_Block(width << i, width << i + 1, norm) for i in range(3))
        # Two blocks beside the identity, after the first and the last halving.
        self.beside = nn.ModuleList(
            nn.Sequential(_Block(wide, wide, norm), _Block(wide, wide, norm)) for wide in (2 * width, 8 * width)
        )
        self.head = nn.Linear(8 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for i, down in enumerate(self.down):
            x = functional.max_pool2d(down(x), 2)
            if i != 1:
                x = x + self.beside[i // 2](x)
        # Small logits at the start, as in the reference.
        return self.head(x.amax((2, 3))) / 8


def _blocks(net: nn.Module) -> list[_Block]:
    return [module for module in net.modules() if isinstance(module, _Block)]
