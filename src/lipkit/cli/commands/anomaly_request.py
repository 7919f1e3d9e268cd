"""What `lipkit anomaly` is asked for."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

from lipkit.certify.evaluate.evaluation import said_radius
from lipkit.cli.commands.evaluation_request import parse_radii
from lipkit.cli.options import argument, option, spell_command
from lipkit.errors import ArgumentError

if TYPE_CHECKING:
    from lipkit.estimators import OneClassSDF

# scikit-learn takes seeds of 32 bits.
_SEEDS = 2**32


@final
@dataclass(frozen=True)
class AnomalyRequest:
    """Find anomalies in a table by a network of proven constant, and certify its scores.

    With labels it learns from a share of the normal rows and is tested on all other rows; without, it learns from all
    rows. Ends at any time, and the same command continues where it was; training goes on from its last checkpoint.
    """

    data: str = argument("A .npz file with X, and y where there are labels (1 for anomalies); or a .csv file.", "DATA")
    out: Path = option("Folder for the model, the scores and the page; the same continues.")
    label: str | None = option("Column of labels of a .csv file, by name or position; none by default.", None)
    train: float = option("Share of the normal rows to learn from, where there are labels.", 0.5)
    contamination: float = option("Share of normal rows that may be flagged, in (0, 0.5].", 0.1)
    calibration: float = option("Share of the rows to learn from held out for the threshold; 0 promises nothing.", 0.0)
    eps: float = option("Length of moves against which the threshold is kept; needs --calibration.", 0.0)
    margin: float = option("Margin of the hinge, in standard deviations.", 0.05)
    weight: float = option("Weight of the hinge.", 100.0)
    widths: str = option("Even numbers of neurons, one for each hidden layer.", "128,128,128,128")
    steps: int = option("Updates; at most five for each row.", 500, least=1)
    distance: float = option("Factor on the regression of distances to the rows.", 0.02)
    separation: float = option("Factor on the hinge against complementary samples.", 1.0)
    nearest: float = option("Share of the exact distance in the score; 1 trains no network.", 0.5)
    neighbors: float = option("Share of the rows whose distances are averaged; 0 for the nearest row alone.", 0.0)
    flats: int = option("Flats (affine subspaces) that it is measured to; 0 for rows.", 0, least=0)
    flat_dim: int = option("Dimension of each flat.", 15, least=0)
    standardise: bool = option("Bring columns to deviation 1; not for columns of one unit, such as pixels.", True)
    robust: bool = option("Standardise by medians, which outliers among the rows do not move far.", False)
    logarithmic: bool = option("Then asinh, for columns of several orders of magnitude.", False)
    radii: str | None = option(
        "Lengths of moves of the table; by default some that the scores suggest, and --eps.", None
    )
    seed: int = option("Draws the rows to learn from, the weights and the batches.", 0)
    json: Path | None = option("File for the numbers of the page.", None)

    @property
    def command(self) -> str:
        """The command that does it again."""
        return spell_command("anomaly", self, ("out", "seed"))

    @property
    def options(self) -> dict[str, str]:
        """Every setting that changes the results, as text; files are told apart by their hashes instead."""
        names = ("label", "train", "contamination", "calibration", "eps", "margin", "weight", "widths", "steps")
        rest = ("distance", "separation", "nearest", "neighbors", "flats", "flat_dim", "standardise", "robust")
        found = {name.replace("_", "-"): str(getattr(self, name)) for name in (*names, *rest, "logarithmic", "seed")}
        return found | {"radii": ", ".join(map(said_radius, self.moves)) or "by the scores"}

    @property
    def moves(self) -> tuple[float, ...]:
        """The lengths of moves of the table; () for those that scores suggest."""
        found = () if self.radii is None else tuple(parse_radii(self.radii, "--radii"))
        if any(not 0 <= one < float("inf") for one in found) or list(found) != sorted(set(found)):
            raise ArgumentError(f"--radii lists lengths >= 0 in increasing order, got {self.radii}.")
        return found

    def check(self) -> None:
        """Refuse what means nothing, before anything is read."""
        from lipkit.estimators.refusals import check_settings

        if not 0 <= self.seed < _SEEDS:
            raise ArgumentError(f"--seed lies in [0, 2^32), got {self.seed}.")
        if not 0 < self.train < 1:
            raise ArgumentError(f"--train is a share in (0, 1), got {self.train:g}.")
        _ = self.moves
        check_settings(self.detector().get_params(deep=False))

    def detector(self) -> "OneClassSDF":
        """The detector, untrained."""
        from lipkit.estimators import OneClassSDF

        return OneClassSDF(
            margin=self.margin, weight=self.weight, widths=self._widths(), steps=self.steps, distance=self.distance,
            separation=self.separation, nearest=self.nearest, neighbors=self.neighbors,
            flats=self.flats, flat_dim=self.flat_dim, standardise=self.standardise, robust=self.robust,
            logarithmic=self.logarithmic, contamination=self.contamination, calibration=self.calibration, eps=self.eps,
            random_state=self.seed,
        )  # fmt: skip

    def _widths(self) -> tuple[int, ...]:
        try:
            found = tuple(int(part) for part in self.widths.split(","))
        except ValueError:
            found = ()
        if not found or any(one < 2 or one % 2 for one in found):
            raise ArgumentError(f"--widths lists even numbers of neurons such as 128,128, got {self.widths!r}.")
        return found
