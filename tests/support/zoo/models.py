"""Small models of every construction that a tracer meets: name -> make(), which gives (module, example).

All are in float64 and in evaluation mode, with random weights and batch statistics that are the same in every call;
examples have two samples. `NONLIPSCHITZ` lists those that have no finite constant on the whole space.
"""

from support.zoo import images as images
from support.zoo import vectors as vectors
from support.zoo.entry import ZOO as ZOO

NONLIPSCHITZ = {"attention", "squared", "gated"}
