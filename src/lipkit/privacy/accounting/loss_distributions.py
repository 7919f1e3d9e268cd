"""Accounting by privacy loss distributions, and the price of tuning: both through the package dp-accounting."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any, final

from lipkit.errors import ArgumentError, NotProvenError, UnsupportedError
from lipkit.privacy.accounting._base import Accountant, Releases, check_delta

_PACKAGE = "dp-accounting"
# Numbers that a grid of losses may have: a gigabyte.
_MOST_LOSSES = 1e8
# Deviations within which the losses of a release are written down, and more.
_REACH = 40.0


@final
@dataclass(frozen=True)
class PLD(Accountant):
    """Privacy loss distributions: the tightest epsilon for Poisson batches; needs `pip install lipkit[privacy]`.

    The losses of a release are rounded up to multiples of `interval` and convolved by fast Fourier transforms.

    Guarantee: an upper bound in real arithmetic, within about steps * interval of the truth at worst and far nearer in
    practice. The rounding errors of the transforms are not covered by a proof; at rate 1 the result agrees with
    `Gaussian` to eight digits. Cost: a tenth of a second to some seconds.
    Reference: Koskela, Jälkö, Honkela 2020; Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022.

    Args:
        interval: The width of the grid of losses.
    """

    interval: float = 1e-4

    def __post_init__(self) -> None:
        if not 0.0 < self.interval <= 0.1:
            raise ArgumentError(f"The interval of losses lies in (0, 0.1], got {self.interval}.")

    @property
    def name(self) -> str:
        return f"privacy loss distributions ({_PACKAGE} {_version()}, interval {self.interval:g})"

    def _epsilon(self, releases: Sequence[Releases], delta: float) -> float:
        library = _library()
        self._require_memory(min(one.sigma for one in releases))
        accountant = library.pld.PLDAccountant(
            library.NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=self.interval
        )
        accountant.compose(_event(library, releases))
        return float(accountant.get_epsilon(delta))

    def _require_memory(self, sigma: float) -> None:
        """Refuse noise that is so small that its losses, of about 1/(2 sigma^2), do not fit on the grid."""
        if (0.5 / sigma + _REACH) / sigma > _MOST_LOSSES * self.interval:
            raise NotProvenError(
                f"The losses of noise of multiplier {sigma:g} are too large for a grid of {self.interval:g}; take more "
                "noise, or account by RDP()."
            )


@final
@dataclass(frozen=True)
class RandomRuns:
    """How many times a run is repeated to choose the best: a random number with a given mean.

    Args:
        mean: The mean number of runs.
        shape: Of the negative binomial law (above 0): 0 is logarithmic, 1 geometric, infinity Poisson.
    """

    mean: float
    shape: float = 0.0

    def __post_init__(self) -> None:
        if not 1.0 < self.mean < math.inf:
            raise ArgumentError(f"The mean number of runs is above 1, got {self.mean}; one run costs what it costs.")
        if not self.shape >= 0.0:
            raise ArgumentError(f"The shape of the law of runs is 0 or more, got {self.shape}.")
        # Whole numbers are written down as 27 and read back as 27.0, which a report would not take for the same.
        object.__setattr__(self, "mean", float(self.mean))
        object.__setattr__(self, "shape", float(self.shape))


def tuned_epsilon(releases: Sequence[Releases], delta: float, runs: RandomRuns) -> float:
    """The epsilon of the best of a random number of runs, each of which makes all of `releases`, rounded up.

    Choosing settings on the private records costs, and more runs cost more; settings from another public data set cost
    nothing. The number of runs is drawn beforehand, from `runs`, and the settings of each at random.

    Guarantee: an upper bound, by Rényi divergences. Needs `pip install lipkit[privacy]`.
    Reference: Papernot, Steinke 2022.
    """
    delta = check_delta(delta)
    library = _library()
    accountant = library.rdp.RdpAccountant()
    accountant.compose(library.dp_event.RepeatAndSelectDpEvent(_event(library, releases), runs.mean, runs.shape))
    return math.nextafter(float(accountant.get_epsilon(delta)), math.inf)


def _event(library: Any, releases: Sequence[Releases]) -> Any:
    events = library.dp_event
    return events.ComposedDpEvent([_repeated(events, one) for one in releases])


def _repeated(events: Any, one: Releases) -> Any:
    gaussian = events.GaussianDpEvent(one.sigma)
    sampled = gaussian if one.rate == 1.0 else events.PoissonSampledDpEvent(one.rate, gaussian)
    return events.SelfComposedDpEvent(sampled, one.steps)


def _library() -> ModuleType:
    try:
        import dp_accounting
    except ImportError as error:
        raise UnsupportedError(
            f"This needs the package {_PACKAGE}, which is not installed; "
            "pip install 'lipkit[privacy]', or account by RDP(), in a command by --accountant=rdp (at rate 1 also by "
            "Gaussian(), --accountant=gaussian)."
        ) from error
    return dp_accounting


def _version() -> str:
    try:
        return version(_PACKAGE)
    except PackageNotFoundError:
        return "not installed"
