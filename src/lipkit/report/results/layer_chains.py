"""Models whose chains are taken apart, so that their layers can be looked at one by one."""

import copy

from torch import nn

from lipkit.nn import Sequential


def opened(model: nn.Module) -> nn.Module:
    """The same function with every `lipkit.nn.Sequential` as torch's, which promises nothing as a whole.

    A network captured from it has a row for each layer, where the chain would be one node. Layers, their promises and
    their tensors are those of the model itself, which is left as it is; blocks that are no chains (residual ones, for
    example) stay whole, because their constant is smaller than what their parts say. Guarantee: it computes the same.
    Cost: one small object for each module that holds a chain.
    """
    return _opened(model, {})


def _opened(module: nn.Module, known: dict[nn.Module, nn.Module]) -> nn.Module:
    # Of a module that stands in several places there is one afterwards too.
    if module not in known:
        plain = module.condensed() if isinstance(module, Sequential) else module
        inner = {name: None if part is None else _opened(part, known) for name, part in plain._modules.items()}
        if any(inner[name] is not part for name, part in plain._modules.items()):
            plain = copy.copy(plain) if plain is module else plain
            plain._modules = inner
        known[module] = plain
    return known[module]
