"""Why a constant grows, where, and at which frequencies: diagnostics of weights, training and data."""

from lipkit.analysis.frequencies.frequency_bands import GaussianBaseline as GaussianBaseline
from lipkit.analysis.frequencies.frequency_bands import ReplacementBaseline as ReplacementBaseline
from lipkit.analysis.frequencies.frequency_bands import RoundRings as RoundRings
from lipkit.analysis.frequencies.frequency_bands import SquareRings as SquareRings
from lipkit.analysis.frequencies.frequency_bands import ZeroBaseline as ZeroBaseline
from lipkit.analysis.frequencies.frequency_bands import bands as bands
from lipkit.analysis.frequencies.frequency_bands import high_pass as high_pass
from lipkit.analysis.frequencies.frequency_bands import low_pass as low_pass
from lipkit.analysis.frequencies.robustness_score import PrintedScore as PrintedScore
from lipkit.analysis.frequencies.robustness_score import SignedScore as SignedScore
from lipkit.analysis.frequencies.robustness_score import importance as importance
from lipkit.analysis.frequencies.robustness_score import score as score
from lipkit.analysis.frequencies.shapley_values import shapley as shapley
from lipkit.analysis.frequencies.spectral_game import ScoreInterval as ScoreInterval
from lipkit.analysis.frequencies.spectral_game import SpectralGame as SpectralGame
from lipkit.analysis.frequencies.spectral_game import SpectralValues as SpectralValues
