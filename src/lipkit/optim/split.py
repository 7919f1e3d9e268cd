"""The parameters of a model in two lists: those an optimizer keeps orthonormal, and the others."""

from typing import NamedTuple

from torch import nn
from torch.nn.utils.parametrize import ParametrizationList

from lipkit.errors import ArgumentError
from lipkit.optim._optimizer import as_matrix, is_orthonormal, tall


class Split(NamedTuple):
    """The two lists; together every parameter of the model once."""

    orthonormal: list[nn.Parameter]
    others: list[nn.Parameter]


def split_orthonormal(model: nn.Module) -> Split:
    """The weights that have orthonormal rows or columns now, for the optimizers on orthogonal matrices, and all others.

        tied, free = split_orthonormal(model)
        optimizers = [StiefelMuon(tied, lr=3e-3), torch.optim.Adam(free, lr=3e-3)]

    Weights are matrices and kernels with one tap, orthonormal up to the rounding of their type: as
    torch.nn.init.orthogonal_, `near_identity`, `orthonormal_` and `ShiftBlock(method=None)` leave them. Call it on a
    new model, before steps of training. Free numbers behind a weight that a method computes are among the others:
    the method keeps its weight orthogonal, whatever they are. Cost: one product for each matrix.

    Args:
        model: A model with at least one such weight.
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(
            f"split_orthonormal takes a torch.nn.Module, got {type(model).__name__}; give the model itself."
        )
    free = {
        id(numbers)
        for module in model.modules()
        if isinstance(module, ParametrizationList)
        for numbers in module.parameters()
    }
    tied: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for parameter in model.parameters():
        (others if id(parameter) in free or not _is_orthonormal(parameter) else tied).append(parameter)
    if not tied and free:
        raise ArgumentError(
            "No plain weight of the model has orthonormal rows or columns: its layers compute their weights from free "
            "numbers, which any optimizer may take, such as torch.optim.Adam(model.parameters()). For StiefelMuon use "
            "plain layers (torch.nn.Linear, ShiftBlock(method=None)) and start them with torch.nn.init.orthogonal_."
        )
    if not tied:
        raise ArgumentError(
            "No weight of the model has orthonormal rows or columns; start with torch.nn.init.orthogonal_ or "
            "lipkit.nn.near_identity, or give all parameters to an ordinary optimizer."
        )
    return Split(tied, others)


def _is_orthonormal(parameter: nn.Parameter) -> bool:
    if parameter.ndim < 2 or any(n != 1 for n in parameter.shape[2:]) or not parameter.is_floating_point():
        return False
    return is_orthonormal(tall(as_matrix(parameter)))
