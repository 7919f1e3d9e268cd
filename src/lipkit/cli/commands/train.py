"""`lipkit train`: a recipe from its file to its report."""

from lipkit.cli.console import terminal
from lipkit.cli.inputs import option_words
from lipkit.cli.inputs.device import device_of
from lipkit.cli.runs.result_files import plain, print_warnings, write_json
from lipkit.cli.runs.run import Order, load_recipe, run, run_without_goal
from lipkit.cli.training import Recipe
from lipkit.cli.training.processes import Team
from lipkit.errors import ArgumentError


def train_recipe(order: Order) -> None:
    """Run a recipe to its report, and print the shares. Settings, device and recipe are checked first."""
    option_words.check_json(order.json)
    recipe, device = load_recipe(order), device_of(order.device)
    if recipe.goal is None:
        _train_only(order, recipe, Team.join(device))
        return
    team = Team.join(device)
    found = run(order, recipe, team)
    if team.leads:
        say = terminal().print
        say(str(found.evaluation), markup=False, highlight=False)
        print_warnings(found.warnings)
        say(f"report in {order.out / 'report.html'}", soft_wrap=True, markup=False, highlight=False)
        write_json(order.json, plain(found.evaluation, found.warnings))
    team.leave()


def _train_only(order: Order, recipe: Recipe, team: Team) -> None:
    if order.json is not None:
        raise ArgumentError(f"{type(recipe).__name__} certifies nothing, so there are no figures for --json.")
    weights = run_without_goal(order, recipe, team)
    if team.leads:
        if order.profile is not None:
            page = weights.with_name("profile.html")
            terminal().print(f"profile in {page}", soft_wrap=True, markup=False, highlight=False)
        terminal().print(
            f"weights in {weights}; nothing is certified yet. `lipkit bound` bounds their Lipschitz constant, and "
            "`lipkit smooth` certifies a classifier under noise.",
            soft_wrap=True,
            markup=False,
            highlight=False,
        )
    team.leave()
