"""Nonlinearities: what a network has between its linear operators."""

from lipkit.trace.nodes._base import Node as Node
from lipkit.trace.nodes._base import Split as Split
from lipkit.trace.nodes.activations.smooth import Piecewise as Piecewise
from lipkit.trace.nodes.activations.smooth import Smooth as Smooth
from lipkit.trace.nodes.attention.attention import Attention as Attention
from lipkit.trace.nodes.attention.log_softmax import LogSoftmax as LogSoftmax
from lipkit.trace.nodes.attention.log_softmax import LogSumExp as LogSumExp
from lipkit.trace.nodes.attention.softmax import Softmax as Softmax
from lipkit.trace.nodes.entrywise_product import Product as Product
from lipkit.trace.nodes.interpolation import Interpolation as Interpolation
from lipkit.trace.nodes.matrix_product import MatrixProduct as MatrixProduct
from lipkit.trace.nodes.normalization import Normalization as Normalization
from lipkit.trace.nodes.order_statistics import OrderStatistics as OrderStatistics
from lipkit.trace.nodes.pointwise import RELU as RELU
from lipkit.trace.nodes.pointwise import Activation as Activation
from lipkit.trace.nodes.pointwise import Identity as Identity
from lipkit.trace.nodes.pointwise import PiecewiseLinear as PiecewiseLinear
from lipkit.trace.nodes.pointwise import Pointwise as Pointwise
from lipkit.trace.nodes.unit_vectors import Unit as Unit
from lipkit.trace.nodes.vector_norm import VectorNorm as VectorNorm
from lipkit.trace.nodes.window_maxima import WindowMax as WindowMax
