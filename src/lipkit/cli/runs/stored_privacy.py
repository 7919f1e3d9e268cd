"""What the ledger of a run says of its privacy."""

from pathlib import Path

import torch
from torch import Tensor

from lipkit.cli.inputs import load
from lipkit.cli.training import PrivateRecipe, Recipe
from lipkit.cli.training.steps.private_steps import LEDGER
from lipkit.privacy import Ledger
from lipkit.report.results.privacy_claim import PrivacyClaim


def read_privacy(recipe: Recipe, folder: Path) -> PrivacyClaim | None:
    """The claim of a private training, from the ledger in its folder; None for all other trainings.

    Where the recipe planted canaries, they are scored by the stored weights. Cost: that of the recipe's accountant. A
    ledger that is missing, damaged or edited raises a `RecordError`.
    """
    if not isinstance(recipe, PrivateRecipe):
        return None
    spent = Ledger.read(folder / LEDGER, recipe.accountant.accountant)
    return PrivacyClaim.of(spent, recipe.tuning.value, recipe.runs_tried, _canary_scores(recipe, folder))


def _canary_scores(recipe: PrivateRecipe, folder: Path) -> tuple[Tensor, Tensor] | None:
    if type(recipe).canary_scores is PrivateRecipe.canary_scores:
        return None
    # The weights that are drawn here are replaced at once.
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        model = recipe.model()
        load.weights(model, folder / "model.safetensors")
        return recipe.canary_scores(model.eval())
