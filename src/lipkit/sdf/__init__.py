"""Signed distances: fields with a proven constant, positive inside."""

from lipkit.sdf._base import Field as Field
from lipkit.sdf._base import Readings as Readings
from lipkit.sdf.energies.energy import Energy as Energy
from lipkit.sdf.energies.energy_training import EnergyTraining as EnergyTraining
from lipkit.sdf.energies.langevin import MALA as MALA
from lipkit.sdf.energies.langevin import ULA as ULA
from lipkit.sdf.energies.log_partition import LogPartition as LogPartition
from lipkit.sdf.energies.log_partition import log_partition as log_partition
from lipkit.sdf.exact.solids import Sphere as Sphere
from lipkit.sdf.network_field import Network as Network
