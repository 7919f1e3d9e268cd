"""Optimizers that keep weights orthonormal with nothing in the forward pass, and wrappers that look for flat minima."""

from lipkit.optim.adam import RiemannianAdam as RiemannianAdam
from lipkit.optim.landing import Landing as Landing
from lipkit.optim.low_rank import Directions as Directions
from lipkit.optim.low_rank import LeadingDirections as LeadingDirections
from lipkit.optim.low_rank import RandomDirections as RandomDirections
from lipkit.optim.low_rank import SampledColumns as SampledColumns
from lipkit.optim.muon import StiefelMuon as StiefelMuon
from lipkit.optim.projected import Projected as Projected
from lipkit.optim.projunn import ProjUNND as ProjUNND
from lipkit.optim.projunn import ProjUNNT as ProjUNNT
from lipkit.optim.retraction import CayleyRetraction as CayleyRetraction
from lipkit.optim.retraction import ExponentialRetraction as ExponentialRetraction
from lipkit.optim.retraction import PolarRetraction as PolarRetraction
from lipkit.optim.retraction import QRRetraction as QRRetraction
from lipkit.optim.retraction import Retraction as Retraction
from lipkit.optim.riemannian import RiemannianSGD as RiemannianSGD
from lipkit.optim.sam import ASAM as ASAM
from lipkit.optim.sam import SAM as SAM
from lipkit.optim.split import Split as Split
from lipkit.optim.split import split_orthonormal as split_orthonormal
from lipkit.optim.weight_noise import AntiPGD as AntiPGD
from lipkit.optim.weight_noise import NoiseInjection as NoiseInjection
from lipkit.optim.weight_noise import WeightNoise as WeightNoise
