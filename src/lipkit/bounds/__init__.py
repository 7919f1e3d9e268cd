"""Whole-network bounds: frozen dataclasses that turn a network and a region into a bound with its kind."""

from lipkit.bounds._base import Method as Method
from lipkit.bounds.best import Best as Best
from lipkit.bounds.dag import DAG as DAG
from lipkit.bounds.dag import Fold as Fold
from lipkit.bounds.dag import Product as Product
from lipkit.bounds.liplt import LipLT as LipLT
from lipkit.bounds.pairwise import Pairwise as Pairwise
from lipkit.bounds.pairwise import PairwiseDAG as PairwiseDAG
from lipkit.bounds.pairwise import PairwiseLipLT as PairwiseLipLT
