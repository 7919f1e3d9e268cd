"""From a torch model to the network it computes."""

from lipkit.regions import Reach as Reach
from lipkit.trace.network import Network as Network
from lipkit.trace.network import Origin as Origin
from lipkit.trace.network import chain as chain
