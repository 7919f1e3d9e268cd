"""Optimizers that keep weights orthonormal, with nothing in the forward pass."""

from lipkit.optim.muon import StiefelMuon as StiefelMuon
from lipkit.optim.retraction import CayleyRetraction as CayleyRetraction
from lipkit.optim.retraction import PolarRetraction as PolarRetraction
from lipkit.optim.retraction import QRRetraction as QRRetraction
from lipkit.optim.retraction import Retraction as Retraction
from lipkit.optim.riemannian import RiemannianSGD as RiemannianSGD
