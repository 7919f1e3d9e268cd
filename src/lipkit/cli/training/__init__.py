"""Training runs that survive: recipes, the one loop, and what it leaves on disk."""

from lipkit.cli.training.private_recipe import Accounting as Accounting
from lipkit.cli.training.private_recipe import PrivateRecipe as PrivateRecipe
from lipkit.cli.training.private_recipe import Tuning as Tuning
from lipkit.cli.training.recipe import Goal as Goal
from lipkit.cli.training.recipe import Precision as Precision
from lipkit.cli.training.recipe import Recipe as Recipe
from lipkit.cli.training.recipe import Sets as Sets
from lipkit.cli.training.recipe import single_module as single_module
from lipkit.cli.training.teacher import Teacher as Teacher
