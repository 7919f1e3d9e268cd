"""What the ledger of a run says of its privacy."""

from pathlib import Path

from lipkit.cli.training import PrivateRecipe, Recipe
from lipkit.cli.training.steps.private_steps import LEDGER
from lipkit.privacy import Ledger
from lipkit.report.results.privacy_claim import PrivacyClaim


def read_privacy(recipe: Recipe, folder: Path) -> PrivacyClaim | None:
    """The claim of a private training, from the ledger in its folder; None for all other trainings.

    Cost: that of the recipe's accountant. A ledger that is missing, damaged or edited raises a `RecordError`.
    """
    if not isinstance(recipe, PrivateRecipe):
        return None
    return PrivacyClaim.of(Ledger.read(folder / LEDGER, recipe.accountant.accountant), recipe.tuning.value)
