"""Norms of the linear parts of a layer, whether they are constrained or written out."""

from torch import nn

from lipkit.bound import Bound
from lipkit.linops import Dense
from lipkit.nn.layers._constrained_layer import ConstrainedLayer
from lipkit.norms import Auto


def linear_norm(layer: nn.Linear) -> Bound:
    """The norm of a dense layer: declared where its weight is constrained, proven from the numbers otherwise.

    After `condense` a layer has plain weights; what is built on it still has a constant, of the weights as they are.
    Guarantee: EXACT or UPPER.
    """
    if isinstance(layer, ConstrainedLayer):
        return layer.declared_lipschitz((layer.in_features,))
    return Auto(failure=0)(Dense(layer.weight))
