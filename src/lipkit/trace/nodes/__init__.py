"""Nonlinearities: what a network has between its linear operators."""

from lipkit.trace.nodes._base import Node as Node
from lipkit.trace.nodes._base import Split as Split
from lipkit.trace.nodes.piecewise_linear import RELU as RELU
from lipkit.trace.nodes.piecewise_linear import PiecewiseLinear as PiecewiseLinear
from lipkit.trace.nodes.pointwise import Activation as Activation
from lipkit.trace.nodes.pointwise import Identity as Identity
from lipkit.trace.nodes.pointwise import Pointwise as Pointwise
