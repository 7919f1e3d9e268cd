"""The public numbers of a private training: fixed before the first record is read."""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Self, final

from lipkit.errors import ArgumentError
from lipkit.privacy.accounting._base import (
    Accountant,
    Releases,
    check_count,
    check_delta,
    check_epsilon,
    check_sigma,
)
from lipkit.privacy.accounting.budget import least_sigma
from lipkit.privacy.accounting.loss_distributions import PLD
from lipkit.privacy.batch_sampling import Poisson, Sampling, Shuffled, Whole


@final
class Plan:
    """What a private training will do, in public numbers: records, batch, steps, delta, and either epsilon or sigma.

        plan = privacy.Plan(records=60_000, batch=4_096, steps=400, delta=1e-5, epsilon=2.93)
        plan.sigma     # the least noise multiplier for which the accountant proves epsilon <= 2.93
        print(plan)    # the sentence for a paper

    The guarantee compares data sets that differ in one record, while all numbers of the plan stay as they are: the
    divisor of a batch, the rate and the noise never come from the data. `records` is public and never compared with
    the rows of a table. The number that was not given is computed when it is read, by `accountant` and no other.

    Guarantee: that of the accountant; sigma found from epsilon is on the safe side. Cost: nothing until sigma or
    epsilon is read; then about 12 calls of the accountant, or one.

    Args:
        records: The public number of records.
        batch: The planned number of records in a batch, which every sum is divided by.
        steps: How many steps there are at most.
        delta: Below 1/records; see `usual_delta`.
        epsilon: What must not be exceeded; or
        sigma: the noise multiplier, the deviation of the noise over the sensitivity of the sum.
        accountant: Who proves epsilon. `PLD()` needs dp-accounting.
        sampling: `Poisson()`, `Whole()`, or `Shuffled()`, which is billed without amplification.
        others: Other releases of the same records that the plan pays for, such as those of `release_moments`. They
            count as made before the first step.
    """

    def __init__(
        self,
        records: int,
        batch: int,
        steps: int,
        delta: float,
        *,
        epsilon: float | None = None,
        sigma: float | None = None,
        accountant: Accountant = PLD(),
        sampling: Sampling = Poisson(),
        others: Sequence[Releases] = (),
    ) -> None:
        records, batch, steps = (
            check_count(records, "records"),
            check_count(batch, "batch"),
            check_count(steps, "steps"),
        )
        if batch > records:
            raise ArgumentError(f"batch is a whole number between 1 and the {records} records, got {batch}.")
        delta = check_delta(delta)
        if not delta < 1 / records:
            raise ArgumentError(
                f"delta lies below 1/records = {1 / records:g}, because at {delta:g} giving away a whole record would "
                f"count as private; the usual one is {usual_delta(records):g}."
            )
        if (epsilon is None) == (sigma is None):
            raise ArgumentError(f"A plan has either epsilon or sigma, got epsilon={epsilon} and sigma={sigma}.")
        sampling.check(records, batch)
        self._records, self._batch, self._steps, self._delta = records, batch, steps, delta
        self._epsilon = None if epsilon is None else check_epsilon(epsilon)
        self._sigma = None if sigma is None else check_sigma(sigma)
        self._accountant, self._sampling, self._others = accountant, sampling, tuple(others)

    @property
    def records(self) -> int:
        """The public number of records."""
        return self._records

    @property
    def batch(self) -> int:
        """The planned size of a batch, and the divisor of every sum."""
        return self._batch

    @property
    def steps(self) -> int:
        """The largest number of steps."""
        return self._steps

    @property
    def delta(self) -> float:
        """The delta of the guarantee."""
        return self._delta

    @property
    def accountant(self) -> Accountant:
        """Who proves epsilon."""
        return self._accountant

    @property
    def sampling(self) -> Sampling:
        """How batches are drawn."""
        return self._sampling

    @property
    def others(self) -> tuple[Releases, ...]:
        """Other releases of the same records that the plan pays for."""
        return self._others

    @property
    def rate(self) -> float:
        """batch / records."""
        return self._batch / self._records

    @cached_property
    def sigma(self) -> float:
        """The noise multiplier: as given, or the least for which the accountant proves at most the given epsilon."""
        if self._sigma is not None:
            return self._sigma
        assert self._epsilon is not None
        return least_sigma(
            lambda sigma: [*self._others, self._sampling.releases(self._records, self._batch, sigma, self._steps)],
            self._epsilon,
            self._delta,
            self._accountant,
        )

    @cached_property
    def epsilon(self) -> float:
        """What all steps cost: as given, or what the accountant proves for the given sigma, rounded up."""
        return self._epsilon if self._epsilon is not None else self.epsilon_after(self._steps)

    def releases(self, steps: int) -> Releases:
        """What so many steps are billed as."""
        return self._sampling.releases(self._records, self._batch, self.sigma, steps)

    def epsilon_after(self, steps: int) -> float:
        """What the first `steps` steps and all other releases cost, rounded up."""
        return self._accountant.epsilon([*self._others, self.releases(steps)], self._delta)

    def facts(self) -> dict[str, int | str]:
        """The numbers that a ledger is bound to, exactly: floats as hexadecimal digits."""
        return {
            "records": self._records,
            "batch": self._batch,
            "steps": self._steps,
            "delta": self._delta.hex(),
            "sigma": self.sigma.hex(),
            "sampling": repr(self._sampling),
            "others": "; ".join(f"{one.steps} {one.rate.hex()} {one.sigma.hex()}" for one in self._others),
        }

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any], accountant: Accountant = PLD()) -> Self:
        """The plan of these `facts`, with the sigma that they state; what is no plan raises an `ArgumentError`."""
        known = {repr(one): one for one in (Poisson(), Whole(), Shuffled())}
        try:
            records, batch, steps = (int(facts[name]) for name in ("records", "batch", "steps"))
            delta, sigma = (float.fromhex(facts[name]) for name in ("delta", "sigma"))
            sampling = known[facts["sampling"]]
            parts = (one.split() for one in facts["others"].split("; ") if one)
            others = [Releases(float.fromhex(rate), float.fromhex(noise), int(count)) for count, rate, noise in parts]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ArgumentError(f"These are no facts of a plan: {facts}; give those that Plan.facts made.") from error
        return cls(records, batch, steps, delta, sigma=sigma, accountant=accountant, sampling=sampling, others=others)

    def __repr__(self) -> str:
        given = f"epsilon={self._epsilon}" if self._epsilon is not None else f"sigma={self._sigma}"
        return (
            f"Plan(records={self._records}, batch={self._batch}, steps={self._steps}, delta={self._delta:g}, {given}, "
            f"accountant={self._accountant!r}, sampling={self._sampling!r}, others={self._others!r})"
        )

    def __str__(self) -> str:
        return (
            f"(epsilon, delta) = ({_up(self.epsilon)}, {self._delta:g})-differential privacy under "
            f"{self._sampling.relation}, with {self._records} records, batches of {self._batch} and {self._steps} "
            f"steps as fixed public constants; batches by {self._sampling.describe(self._records, self._batch)}; "
            f"Gaussian noise of multiplier {_down(self.sigma)}; {self._describe_others()}"
            f"accountant: {self._accountant.name}."
        )

    def _describe_others(self) -> str:
        said = (f"{one.steps} at rate {one.rate:.6g} with multiplier {_down(one.sigma)}" for one in self._others)
        return f"other releases of the same records that are counted: {', '.join(said)}; " if self._others else ""


def usual_delta(records: int) -> float:
    """The largest power of ten below 1/records: 10^-(floor(log10 records) + 1). 60,000 records: 1e-5."""
    # Counting digits: a logarithm may be rounded to the wrong side at powers of ten.
    return float(f"1e-{len(str(check_count(records, 'records')))}")


def _up(value: float) -> str:
    """Four decimals, rounded up, without zeros at the end."""
    return f"{math.ceil(value * 1e4 * (1 - 1e-12)) / 1e4:.4f}".rstrip("0").rstrip(".")


def _down(value: float) -> str:
    """Six digits, rounded down."""
    scale = 10.0 ** (5 - math.floor(math.log10(value)))
    return f"{math.floor(value * scale) / scale:.6g}"


def difference(facts: Any, plan: Plan) -> str:
    """In which numbers the facts of another plan differ, as a clause."""
    if not isinstance(facts, dict):
        return "it names none"
    ours = plan.facts()
    wrong = [name for name in ours if facts.get(name) != ours[name]]
    said = ", ".join(f"{name} {_plain(facts.get(name))} there and {_plain(ours[name])} here" for name in wrong)
    return said or "it has other fields"


def _plain(value: Any) -> str:
    if isinstance(value, str) and value.startswith("0x"):
        return repr(float.fromhex(value))
    return str(value)
