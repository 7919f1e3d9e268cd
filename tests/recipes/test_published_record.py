"""The record on CIFAR-10 in docs/results.md: its table is what the stored counts say, its certificate can be read."""

import dataclasses
import json
import math
import re
import statistics
from pathlib import Path

import torch
from torch import nn

from lipkit.bounds.certificates.certificate import Certificate
from lipkit.cli.inputs import load
from lipkit.cli.inputs.recipe_file import recipe_class
from support.repository import ROOT

TEXT = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
SECTION = TEXT[TEXT.index("## CIFAR-10 with shifts, recorded steps and soft labels") :]
COUNTS = json.loads((ROOT / "docs" / "cifar10_shift.json").read_text(encoding="utf-8"))
# Places of 36, 72, 108 and 255 of 255 in the radii.
PLACES = (36, 72, 108, 255)


def test_every_seed_has_the_figures_of_its_counts() -> None:
    assert [COUNTS["radii"][place] for place in PLACES] == [36 / 255, 72 / 255, 108 / 255, 1.0]
    for seed, run in enumerate(COUNTS["runs"]):
        assert run["images"] == 10_000
        row = re.search(rf"^\| seed {seed} \|(.*)$", SECTION, re.MULTILINE)
        assert row is not None
        shown = re.findall(r"(\d+\.\d\d) \[", row[1])
        assert shown == [f"{count / 100:.2f}" for count in (run["right"], *(run["certified"][i] for i in PLACES))]


def test_mean_and_deviation_are_those_of_the_seeds() -> None:
    columns = [[run["right"] / 100 for run in COUNTS["runs"]]]
    columns += [[run["certified"][place] / 100 for run in COUNTS["runs"]] for place in PLACES]
    for name, measure in (("mean", statistics.mean), ("standard deviation", statistics.stdev)):
        row = re.search(rf"^\| {name} \|(.*)$", SECTION, re.MULTILINE)
        assert row is not None
        shown = re.findall(r"\d+\.\d\d", row[1])
        assert shown == [f"{measure(column):.2f}" for column in columns]


def test_the_attack_left_what_is_counted() -> None:
    (attack,) = COUNTS["attacked"]
    row = re.search(r"^\| attacked \|(.*)$", SECTION, re.MULTILINE)
    assert row is not None
    # Shares under an attack are rounded up.
    up = [math.ceil(10_000 * left / attack["images"]) / 100 for left in attack["left"]]
    assert re.findall(r"\d+\.\d\d", row[1]) == [f"{share:.2f}" for share in up]
    assert f"first {attack['images']:,} images" in SECTION


def test_the_certificate_can_be_read_and_has_the_constant_of_the_page() -> None:
    paper = Certificate.load(ROOT / "docs" / "cifar10_shift_certificate.json")
    assert paper.kind.certifies
    assert paper.model.name == "ShiftNet"
    # Rounded up: what is printed is a bound too.
    assert f"K = {math.ceil(paper.value * 1e4) / 1e4:.4f};" in SECTION


def test_the_certificate_is_of_the_network_that_the_recipe_names() -> None:
    paper = Certificate.load(ROOT / "docs" / "cifar10_shift_certificate.json")
    # On the meta device nothing is computed: only names and shapes count here.
    with torch.device("meta"):
        made = load.model(f"{ROOT / 'recipes' / 'cifar10_shift.py'}:network")
    assert isinstance(made, nn.Module)
    stored = {one.name: tuple(one.shape) for one in paper.model.state if one.stored}
    assert stored == {name: tuple(value.shape) for name, value in made.state_dict().items()}


def test_with_mirror_images_the_logits_are_means_and_the_constants_stay() -> None:
    torch.manual_seed(0)
    recipe = recipe_class(ROOT / "recipes" / "cifar10_shift.py")(data=Path()).quick()
    model = dataclasses.replace(recipe, mirrored=True).model()
    alone = dataclasses.replace(recipe, mirrored=False).model()
    alone.load_state_dict(model.state_dict())
    x = torch.rand(4, 3, 32, 32)
    with torch.no_grad():
        both, one, other = model.eval()(x), alone.eval()(x), alone(x.flip(3))
        # Training sees one side: the recipe flips images at random.
        torch.testing.assert_close(model.train()(x), one)
    torch.testing.assert_close(both, (one + other) / 2)
    torch.testing.assert_close(both, model.eval()(x.flip(3)))
    assert not torch.allclose(both, one)
    # The halves add up to the constant of one side; the stem's norm is found from other draws, to a thousandth.
    pairs = [recipe.bound(net.requires_grad_(False), x[:1]).value for net in (model, alone)]
    torch.testing.assert_close(*pairs, rtol=1e-2, atol=0)
