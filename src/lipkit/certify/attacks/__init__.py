"""Attacks: searches for inputs of another class inside a ball, to hold certificates against."""

from lipkit.certify.attacks._base import Attack as Attack
from lipkit.certify.attacks.attacked_model import Classifier as Classifier
from lipkit.certify.attacks.boundary_step import BoundaryStep as BoundaryStep
from lipkit.certify.attacks.foolbox_adapter import Foolbox as Foolbox
from lipkit.certify.attacks.minimal_distance import MinimalRadius as MinimalRadius
from lipkit.certify.attacks.minimal_distance import Nearest as Nearest
from lipkit.certify.attacks.neighbourhood import Neighbourhood as Neighbourhood
from lipkit.certify.attacks.objectives import CrossEntropy as CrossEntropy
from lipkit.certify.attacks.objectives import EveryClass as EveryClass
from lipkit.certify.attacks.objectives import Margin as Margin
from lipkit.certify.attacks.objectives import Objective as Objective
from lipkit.certify.attacks.objectives import margins as margins
from lipkit.certify.attacks.pgd import PGD as PGD
from lipkit.certify.attacks.step_sizes import Constant as Constant
from lipkit.certify.attacks.step_sizes import Halving as Halving
from lipkit.certify.attacks.step_sizes import Schedule as Schedule
from lipkit.certify.attacks.torchattacks_adapter import TorchAttacks as TorchAttacks
from lipkit.certify.attacks.two_classes import TwoClasses as TwoClasses
from lipkit.certify.attacks.worst_of import WorstOf as WorstOf
from lipkit.certify.attacks.worst_of import usual_attacks as usual_attacks
