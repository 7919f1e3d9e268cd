"""One batch normalisation for the whole network, before its last dense layer."""

from copy import deepcopy

from torch import nn

from lipkit.errors import UnsupportedError
from lipkit.nn.normalization.batch_norm import BatchNorm

_BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def one_batch_norm(model: nn.Module, *, bounded: bool = True) -> nn.Module:
    """A copy of `model` without its batch normalisations, but with one in front of its last nn.Linear.

    Each normalisation divides by a deviation that nothing bounds, and the product of their constants grows with depth
    (published: about 1e9 with all of them, 1e3 with one, for three points of accuracy). With `bounded` the remaining
    one is `lipkit.nn.BatchNorm`, of constant 1; otherwise nn.BatchNorm1d. "Last" is the order of registration.
    Guarantee: none by itself; bound the model, or convert it with `lipschitzify`.
    Reference: Delattre, thesis 2024, section 4.4.

    Args:
        model: Any torch model with an nn.Linear; it is copied.
        bounded: Whether the remaining normalisation has constant 1.
    """
    copied = deepcopy(model)
    dense = [(path, module) for path, module in copied.named_modules() if isinstance(module, nn.Linear)]
    if not dense or dense[-1][0] == "":
        raise UnsupportedError(
            f"{type(model).__name__} has no nn.Linear inside it to put the normalisation in front of; add one, or "
            "place lipkit.nn.BatchNorm by hand."
        )
    for path, module in list(copied.named_modules()):
        if isinstance(module, _BATCH_NORM) and path:
            copied.set_submodule(path, nn.Identity())
    path, last = dense[-1]
    features = last.in_features
    place = {"device": last.weight.device, "dtype": last.weight.dtype}
    norm = BatchNorm(features, **place) if bounded else nn.BatchNorm1d(features, **place)
    copied.set_submodule(path, nn.Sequential(norm, last))
    return copied
