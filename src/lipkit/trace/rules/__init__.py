"""The rules, one function for each operation; importing this package registers all of them."""

from lipkit.trace.network import Refusal as Refusal
from lipkit.trace.rules import arithmetic as arithmetic
from lipkit.trace.rules import averages as averages
from lipkit.trace.rules import batch_norm as batch_norm
from lipkit.trace.rules import convolution as convolution
from lipkit.trace.rules import gathers as gathers
from lipkit.trace.rules import linear_operations as linear_operations
from lipkit.trace.rules import matrix as matrix
from lipkit.trace.rules import max_pooling as max_pooling
from lipkit.trace.rules import moments as moments
from lipkit.trace.rules import moving as moving
from lipkit.trace.rules import normalization as normalization
from lipkit.trace.rules import pointwise as pointwise
from lipkit.trace.rules import shape as shape
from lipkit.trace.rules import softmax as softmax
from lipkit.trace.rules import sorting as sorting
from lipkit.trace.rules._registry import RULES as RULES
from lipkit.trace.rules._registry import Rule as Rule
from lipkit.trace.rules._registry import Sample as Sample
from lipkit.trace.rules._registry import lowers as lowers
from lipkit.trace.rules.products import choices as choices
from lipkit.trace.rules.products import elementwise_binary as elementwise_binary
from lipkit.trace.rules.products import multilinear as multilinear
