"""Why a constant grows, where, and at which frequencies: diagnostics of weights, training and data."""

from lipkit.analysis.frequencies.frequency_bands import GaussianBaseline as GaussianBaseline
from lipkit.analysis.frequencies.frequency_bands import ReplacementBaseline as ReplacementBaseline
from lipkit.analysis.frequencies.frequency_bands import RoundRings as RoundRings
from lipkit.analysis.frequencies.frequency_bands import SquareRings as SquareRings
from lipkit.analysis.frequencies.frequency_bands import ZeroBaseline as ZeroBaseline
from lipkit.analysis.frequencies.frequency_bands import bands as bands
from lipkit.analysis.frequencies.frequency_bands import high_pass as high_pass
from lipkit.analysis.frequencies.frequency_bands import low_pass as low_pass
