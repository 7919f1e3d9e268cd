"""The request of `lipkit smooth`: its options, and what they mean."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch

from lipkit.certify import smoothing as rs
from lipkit.certify.evaluate.evaluation import said_radius
from lipkit.cli.commands.evaluation_request import parse_norm, parse_radii
from lipkit.cli.inputs.adapted_model import Adaptation, parse_classes
from lipkit.cli.inputs.datasets import test_set
from lipkit.cli.inputs.smoothing_words import parse_maps, parse_noise, parse_smoothing_method
from lipkit.cli.options import PYTHON_MODEL, WEIGHTS, argument, option, spell_command
from lipkit.cli.training import Goal
from lipkit.cli.training.recipe import Precision
from lipkit.data import Examples
from lipkit.errors import ArgumentError

# Written even where they have their defaults, so that a command says what it is about.
_EXPLICIT = ("data", "sigma", "eps", "n", "device", "seed")
# How the model's inputs and outputs are meant; on record where they are given.
_OF_INPUTS = ("output", "normalize", "label", "classes")


@final
@dataclass(frozen=True)
class SmoothRequest:
    """Certify any classifier by votes under noise; ends at any time, and the same command continues.

    Each radius holds with probability 1 - alpha. `lipkit recertify` makes other certificates from the votes.
    """

    model: str = argument(PYTHON_MODEL, "MODEL")
    data: str = option("digits, mnist:FOLDER, fashion-mnist:FOLDER, cifar10:FOLDER, a .npz file with x and y, or .csv.")
    sigma: float = option("Standard deviation of the noise, in units of the data.")
    n: int = option("Samples of each image that prove.", 100_000, least=1)
    n0: int = option("Samples of each image that choose its class.", 100, least=1)
    alpha: float = option("Probability that a radius is wrong, for each image by itself.", 0.001)
    eps: str = option("Radii of the table, in increasing order.", "0,0.25,0.5,0.75,1")
    noise: str = option("gaussian, for radii in l2; uniform or laplace, in l1.", "gaussian")
    norm: str | None = option("Norm of the radii; another one than the noise's is through that: 2, 1 or inf.", None)
    method: str = option(
        "intersection-union, cohen, class-partition, bonferroni, low-variance or anytime:RADIUS.", "intersection-union"
    )
    maps: str = option("How samples vote: hardmax, softmax:TEMPERATURE, sparsemax:TEMPERATURE:MASS, ...", "hardmax")
    lipschitz: str | None = option("Use a Lipschitz bound of the model too, by this method of `lipkit bound`.", None)
    weights: Path | None = option(WEIGHTS, None)
    output: str | None = option("Entry of the model's output, by name or position, if it is no tensor.", None)
    normalize: str | None = option(
        "MEAN,STD before the model; M1:M2:M3,S1:S2:S3 for channels. Radii stay in data units.", None
    )
    label: str | None = option("Column of a .csv file with the labels; by default the last.", None)
    classes: str | None = option("Names of the classes: a,b,c or a file with one in each line.", None)
    stride: int = option("Only every k-th image, such as 20 for every 20th.", 1, least=1)
    samples: int | None = option("Only the first so many, after --stride.", None, least=1)
    block: int = option("Noisy copies in one forward pass.", 1000, least=1)
    precision: str = option("float32; or bfloat16, which certifies the model as it computes in that.", "float32")
    out: Path | None = option("Folder for votes as they come, and the report; the same continues.", None)
    device: str = option("cpu or cuda.", "cpu")
    seed: int = option("Draws the noise, and weights where there are none.", 0)
    json: Path | None = option("File for the shares.", None)

    @property
    def adaptation(self) -> Adaptation:
        """How the model and the data are made to fit each other."""
        return Adaptation(self.output, self.normalize, self.classes)

    def test_set(self) -> Examples:
        """The images to be certified."""
        names = None if self.classes is None else parse_classes(self.classes)
        found = test_set(self.data, self.label, names)
        return found.at(range(0, len(found), self.stride)[: self.samples])

    @property
    def radii(self) -> tuple[float, ...]:
        """The radii of the table."""
        return tuple(parse_radii(self.eps))

    @property
    def goal(self) -> Goal:
        """Radii, norm and number of images."""
        return Goal(self.radii, self.p, samples=self.samples)

    @property
    def law(self) -> rs.Noise:
        """The law of the noise."""
        return parse_noise(self.noise, self.sigma)

    @property
    def p(self) -> float:
        """The norm of the radii."""
        return self.law.p if self.norm is None else parse_norm(self.norm)

    @property
    def votes(self) -> tuple[rs.SimplexMap, ...]:
        """How samples vote."""
        return parse_maps(self.maps)

    @property
    def statistics(self) -> rs.Method:
        """The method that makes radii of votes."""
        return parse_smoothing_method(self.method)

    @property
    def autocast(self) -> torch.dtype | None:
        """The type that activations are cast to; None leaves them as they are."""
        try:
            return Precision(self.precision).autocast
        except ValueError:
            raise ArgumentError(f"--precision is float32 or bfloat16, got {self.precision!r}.") from None

    def check(self) -> None:
        """Refuse words that mean nothing, before anything is loaded."""
        _ = self.goal, self.votes, self.statistics, self.autocast
        if self.lipschitz is not None and all(math.isinf(one.coordinate) for one in self.votes):
            raise ArgumentError(
                f"--lipschitz says nothing of hard votes, which jump; add soft ones, such as --maps softmax:0.3 with "
                f"--method {self.method}, or --maps hardmax,softmax:0.3,softmax:1 with --method low-variance."
            )
        if not 0 < self.alpha < 1:
            raise ArgumentError(f"--alpha is a probability in (0, 1), got {self.alpha:g}.")

    @property
    def command(self) -> str:
        """The command that does it again."""
        return spell_command("smooth", self, _EXPLICIT)

    @property
    def options(self) -> dict[str, str]:
        """Every setting that changes votes or radii, as text; files are told apart by their hashes instead."""
        return {
            "noise": str(self.law),
            "samples": f"{self.n} that prove, {self.n0} that choose",
            "alpha": repr(self.alpha),
            "eps": ", ".join(map(said_radius, self.radii)),
            "norm": "linf" if self.p == math.inf else f"l{self.p:g}",
            "method": self.method,
            "maps": self.maps,
            "lipschitz": self.lipschitz or "none",
            **{name: value for name in _OF_INPUTS if (value := getattr(self, name)) is not None},
            "block": str(self.block),
            "precision": self.precision,
            "seed": str(self.seed),
        }
