"""How a model enters the zoo."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

Made = tuple[nn.Module, Tensor]
ZOO: dict[str, Callable[[], Made]] = {}


def entry(*shape: int) -> Callable[[Callable[[], nn.Module]], Callable[[], Made]]:
    """Register a model under the name of the function that builds it, with an example of two samples of `shape`."""

    def register(build: Callable[[], nn.Module]) -> Callable[[], Made]:
        def make() -> Made:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                module = build().double().eval()
                for child in module.modules():
                    if isinstance(child, nn.modules.batchnorm._BatchNorm) and child.running_var is not None:
                        _ = child.running_var.uniform_(0.5, 2.0)
                        assert child.running_mean is not None
                        _ = child.running_mean.normal_()
                return module, torch.randn(2, *shape, dtype=torch.float64)

        ZOO[build.__name__] = make
        return make

    return register


class Plain(nn.Module):
    """A module made of parts and a function that runs them."""

    def __init__(self, run: Callable[..., Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)
