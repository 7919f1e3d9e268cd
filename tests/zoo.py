"""Small models of every construction that a tracer meets: name -> make(), which gives (module, example).

All are in float64 and in evaluation mode, with random weights and batch statistics that are the same in every call;
examples have two samples. `NONLIPSCHITZ` lists those that have no finite constant on the whole space.
"""

import zoo_images as zoo_images
import zoo_vectors as zoo_vectors
from zoo_entry import ZOO as ZOO

NONLIPSCHITZ = {"attention", "squared", "gated"}
