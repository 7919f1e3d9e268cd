"""What a report says of a private training: read off its ledger, so that no other file is believed."""

from dataclasses import dataclass
from typing import Self, final

from lipkit.privacy import Spent


@final
@dataclass(frozen=True)
class PrivacyClaim:
    """The guarantee of a private training, and everything that it depends on.

    `epsilon` is of the `steps` that the ledger counts, and `planned_epsilon` of all that were planned. `others` are the
    other releases of the same records that both include, and `tuning` says how the settings were chosen.
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
    statement: str

    @classmethod
    def of(cls, spent: Spent, tuning: str) -> Self:
        """The claim of what a ledger says was spent. Cost: the accountant, for the steps so far and for all."""
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
            statement=str(plan),
        )
