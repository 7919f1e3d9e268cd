"""What `lipkit surface` is asked for."""

from dataclasses import dataclass
from pathlib import Path
from typing import final

from lipkit import sdf
from lipkit._seeds import check_seed
from lipkit.cli.options import argument, option, spell_command
from lipkit.errors import ArgumentError

_AXES = ("x", "y", "z")
# Of the steps, samples, cells, pixels and evaluations that are asked for, --quick does so many.
_QUICK = 10
# What is not asked for is what the library takes.
_TRAINING = sdf.Surface()


@final
@dataclass(frozen=True)
class SurfaceRequest:
    """Learn the signed distance of a mesh by a network of proven constant, and prove how far its surface is off.

    Ends at any time, and the same command continues where it was; training goes on from its last checkpoint.
    """

    mesh: str = argument("A closed surface of triangles: .obj, .ply, .stl or .off.", "MESH")
    out: Path = option("Folder for the model, the surface that it describes, and the page; the same continues.")
    close_holes: bool = option("Cap the holes of an open mesh.", False, "--close-holes")
    width: int = option("Neurons of a hidden layer, an even number.", _TRAINING.width, least=2)
    depth: int = option("Hidden layers.", _TRAINING.depth, least=1)
    steps: int = option("Updates.", _TRAINING.steps, least=1)
    batch: int = option("Points of one update.", _TRAINING.batch, least=1)
    samples: int = option("Points whose distance to the mesh is known.", _TRAINING.samples, least=10)
    rate: float = option("Largest learning rate.", _TRAINING.rate)
    tolerance: float = option("How far apart the ends of the proven deviation may be, in percent of the diagonal.", 0.2)
    evaluations: int = option("Points at most for the proven deviation.", 400_000, least=1)
    resolution: int = option("Cells along the longest side, for the surface that is written.", 128, least=2)
    pixels: int = option("Width and height of the picture.", 256, least=1)
    up: str = option("The axis that points upwards in the picture and the slice: x, y or z.", "z")
    quick: bool = option("A tenth of the work, and a rough surface.", False, "--quick")
    seed: int = option("Draws points and weights.", _TRAINING.seed)
    json: Path | None = option("File for the numbers of the page.", None)

    @property
    def command(self) -> str:
        """The command that does it again."""
        return spell_command("surface", self, ("out", "seed"))

    @property
    def options(self) -> dict[str, str]:
        """Every setting that changes the results, as text; files are told apart by their hashes instead."""
        training = ("close_holes", "width", "depth", "steps", "batch", "samples", "rate", "seed", "quick")
        names = (*training, "tolerance", "evaluations", "resolution", "pixels", "up")
        return {name.replace("_", "-"): str(getattr(self, name)) for name in names}

    def check(self) -> None:
        """Refuse what means nothing, before anything is read."""
        check_seed(self.seed, "--seed")
        if self.up not in _AXES:
            raise ArgumentError(f"--up is x, y or z, got {self.up!r}.")
        if not 0 < self.tolerance < float("inf"):
            raise ArgumentError(f"--tolerance is a finite number > 0, got {self.tolerance:g}.")
        if self.resolution > 2048:
            raise ArgumentError(f"--resolution is at most 2048, got {self.resolution}.")
        _ = self.training

    @property
    def training(self) -> sdf.Surface:
        """The training; its own refusals name the setting."""
        samples = self.fewer(self.samples, 10)
        batch = min(self.batch, samples) if self.quick else self.batch
        return sdf.Surface(self.width, self.depth, self.fewer(self.steps), self.seed, batch, samples, self.rate)

    @property
    def axis(self) -> int:
        """The coordinate that points upwards."""
        return _AXES.index(self.up)

    def fewer(self, count: int, least: int = 1) -> int:
        """A tenth of a number with --quick."""
        return max(least, count // _QUICK) if self.quick else count

    def smaller(self, side: int) -> int:
        """A side of a picture or a grid, about a third with --quick."""
        return max(2, side // 3) if self.quick else side
