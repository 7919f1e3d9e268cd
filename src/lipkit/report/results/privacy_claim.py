"""What a report says of a private training: read off its ledger, so that no other file is believed."""

from dataclasses import dataclass
from typing import Self, final

from torch import Tensor

from lipkit.privacy import RandomRuns, Spent, audit, tuned_epsilon

# The confidence of what canaries prove.
_CONFIDENCE = 0.95


@final
@dataclass(frozen=True)
class TunedClaim:
    """What the choice of settings adds: `epsilon` is that of the best of a random number of runs of this plan.

    Their number has this `mean` and follows the negative binomial law of this `shape`.
    """

    epsilon: float
    mean: float
    shape: float

    @classmethod
    def of(cls, spent: Spent, runs: RandomRuns) -> Self:
        """The claim of all planned steps, by Rényi divergences. Needs `pip install lipkit[privacy]`."""
        plan = spent.plan
        releases = [*plan.others, plan.releases(plan.steps)]
        return cls(tuned_epsilon(releases, plan.delta, runs), runs.mean, runs.shape)


@final
@dataclass(frozen=True)
class CanaryClaim:
    """What planted records prove from below: epsilon is at least `least`, with this confidence.

    `inside` of them were trained on and `outside` were not.
    """

    least: float
    inside: int
    outside: int
    confidence: float

    @classmethod
    def of(cls, spent: Spent, inside: Tensor, outside: Tensor) -> Self:
        """The bound that these scores prove, at the delta of the plan. Cost: that of `privacy.audit`."""
        least = audit(inside, outside, spent.delta, _CONFIDENCE)
        return cls(least, len(inside), len(outside), _CONFIDENCE)


@final
@dataclass(frozen=True)
class PrivacyClaim:
    """The guarantee of a private training, and everything that it depends on.

    `epsilon` is of the `steps` that the ledger counts, and `planned_epsilon` of all that were planned. `others` are the
    other releases of the same records that both include, and `tuning` says how the settings were chosen; where they
    were paid for, `tuned` has the epsilon of that. `canaries` is the audit of a run that planted some.
    """

    epsilon: float
    delta: float
    steps: int
    planned: int
    planned_epsilon: float
    sigma: float
    records: int
    batch: int
    relation: str
    sampling: str
    accountant: str
    others: tuple[str, ...]
    tuning: str
    tuned: TunedClaim | None
    canaries: CanaryClaim | None
    statement: str

    @classmethod
    def of(
        cls, spent: Spent, tuning: str, runs: RandomRuns | None = None, scores: tuple[Tensor, Tensor] | None = None
    ) -> Self:
        """The claim of what a ledger says was spent. Cost: the accountant, for the steps so far and for all.

        Args:
            spent: What was spent.
            tuning: How the settings were chosen.
            runs: By which law runs were repeated on the private records, if they were.
            scores: Those of planted records, inside and outside, if there are any.
        """
        plan = spent.plan
        return cls(
            epsilon=spent.epsilon,
            delta=plan.delta,
            steps=spent.steps,
            planned=plan.steps,
            planned_epsilon=plan.epsilon,
            sigma=plan.sigma,
            records=plan.records,
            batch=plan.batch,
            relation=plan.sampling.relation,
            sampling=plan.sampling.describe(plan.records, plan.batch),
            accountant=plan.accountant.name,
            others=tuple(f"{one.steps} at rate {one.rate:.6g} with multiplier {one.sigma:.6g}" for one in plan.others),
            tuning=tuning,
            tuned=None if runs is None else TunedClaim.of(spent, runs),
            canaries=None if scores is None else CanaryClaim.of(spent, *scores),
            statement=str(plan),
        )
