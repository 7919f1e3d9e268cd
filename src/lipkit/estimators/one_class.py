"""A detector of anomalies with a proven constant, as an estimator of scikit-learn."""

import copy
import json
import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from operator import methodcaller
from typing import Any, Self, cast, final

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, OutlierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from lipkit.bound import Bound
from lipkit.errors import ArgumentError, NonFiniteError, RecordError
from lipkit.estimators.detector_field import DetectorField
from lipkit.estimators.detector_training import DetectorTraining, make_network, plain, steps_for, stored_distance
from lipkit.estimators.refusals import check_settings, finite_rows, finite_scores
from lipkit.estimators.standardised import Standardise, standardise
from lipkit.sdf import Checkpoints, Flats
from lipkit.sdf.one_class import GaussianColumns, Health, OneClass, Proposal, UniformBox, rows_needed, threshold
from lipkit.sdf.one_class.false_alarms import said_rows

# Rows that are evaluated at once.
_BATCH = 8192


@final
class OneClassSDF(OutlierMixin, BaseEstimator):
    """One-class detector: a network of proven constant that is positive on the rows and falls with their distance.

    Columns are standardised inside, a network of orthogonal layers is trained by `sdf.one_class.OneClass`. The score
    is its value, mixed with the exact distance to the nearest training row or to flats near the rows, which knows
    local structure best; a convex combination keeps the constant. Rows with low scores are anomalies. Scores are
    computed in float64.

    Guarantee: |score(x) - score(x')| <= K |x - x'| for all rows, in units of X, with K = `bound_`. With `calibration`,
    a normal row is flagged with probability at most `contamination`, even after it was moved by `eps`, if it is
    exchangeable with the rows of `fit`. Without calibration `contamination` is the share of the training rows that is
    flagged, which promises nothing.
    Cost: `steps` steps on batches of 384; a query searches 10,000 rows at most. Limits: constant columns and NaN are
    refused; without calibration the distance of a training row is 0, so new rows are flagged more often than those.
    Reference: Béthune 2024, chapter 5; the regression of distances and the mixture are ours.

    Args:
        margin: Margin of the hinge, in standardised units; see `sdf.one_class.OneClass`.
        weight: Weight of the hinge against KR.
        widths: Even numbers of neurons, one for each hidden layer.
        steps: Number of updates; at most five for each row.
        distance: Factor on the regression of distances to the rows.
        separation: Factor on HKR against complementary samples.
        nearest: Share of the exact distance in the score, in [0, 1]. With 0 the network is alone, whose queries do not
            depend on the number of rows; with 1 no network is trained.
        neighbors: Share of the rows whose distances are averaged, in [0, 1]; 0 for the nearest row alone. Rows that may
            hold anomalies themselves ask for more, such as 0.2: a few of a kind are near each other, not near many.
        flats: Number of flats (affine subspaces) that the exact distance is measured to; 0 for rows.
        flat_dim: Dimension of each flat.
        standardise: Whether columns are standardised; False for columns of one unit, such as pixels.
        robust: Whether columns are standardised by medians, which outliers among the rows do not move far.
        logarithmic: Whether asinh follows, a logarithm for large entries: for columns of several orders of magnitude.
            Its slope is at most 1, so `bound_` is proven as before.
        contamination: Share of rows that is flagged, in (0, 0.5].
        calibration: Share of the rows that is held out for the threshold, in [0, 1); 0 promises nothing.
        eps: Length of moves against which the threshold is kept, in units of X; needs a calibration.
        network: A module of constant 1 with one output for each row, or a function that makes one; it is copied. Its
            rows are those of X as they are, not standardised, so it begins with `torch.nn.Unflatten` for images, and
            complementary samples are uniform between the least and the largest entry of X. None for orthogonal layers.
        random_state: Where random numbers start: a number, a `RandomState`, or None.
    """

    n_features_in_: int
    feature_names_in_: np.ndarray
    _fitted: dict[str, Any]

    def __init__(
        self,
        margin: float = 0.05,
        weight: float = 100.0,
        widths: Sequence[int] = (128, 128, 128, 128),
        steps: int = 500,
        distance: float = 0.02,
        separation: float = 1.0,
        nearest: float = 0.5,
        neighbors: float = 0.0,
        flats: int = 0,
        flat_dim: int = 15,
        standardise: bool = True,
        robust: bool = False,
        logarithmic: bool = False,
        contamination: float = 0.1,
        calibration: float = 0.0,
        eps: float = 0.0,
        network: nn.Module | Callable[[], nn.Module] | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.margin = margin
        self.weight = weight
        self.widths = widths
        self.steps = steps
        self.distance = distance
        self.separation = separation
        self.nearest = nearest
        self.neighbors = neighbors
        self.flats = flats
        self.flat_dim = flat_dim
        self.standardise = standardise
        self.robust = robust
        self.logarithmic = logarithmic
        self.contamination = contamination
        self.calibration = calibration
        self.eps = eps
        self.network = network
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: object = None, checkpoints: Checkpoints | None = None) -> Self:
        """Train on rows of the one class; `y` is not looked at, and `checkpoints` keeps what a killed training did."""
        del y
        asked = self.get_params(deep=False)
        check_settings(asked)
        rows = self._table(X, True)
        random = check_random_state(self.random_state)
        seed = int(random.randint(2**31 - 1))
        learn, held = self._split(rows, random)
        self.field_, self.health_ = self._train(learn, seed, checkpoints)
        self.offset_ = self._level(rows, held)
        self._fitted = _plain_settings(asked)
        return self

    def recompute_offset(self, X: ArrayLike) -> float:
        """`offset_` again, from the rows of `fit` and the network as it is; `random_state` must be a number.

        Guarantee: the same number on the same machine, so that a threshold that somebody states can be checked.
        """
        check_is_fitted(self, "offset_")
        if not isinstance(self.random_state, Integral):
            raise ArgumentError(
                f"The rows held out are drawn by random_state={self.random_state}; a number repeats it."
            )
        rows = self._table(X, False)
        random = check_random_state(self.random_state)
        random.randint(2**31 - 1)
        return self._level(rows, self._split(rows, random)[1])

    def score_samples(self, X: ArrayLike) -> np.ndarray:
        """Scores in float64; normal rows score high, and `bound_` is their constant."""
        check_is_fitted(self, "offset_")
        return self._scores(self._table(X, False))

    def decision_function(self, X: ArrayLike) -> np.ndarray:
        """Scores minus `offset_`: negative for anomalies. Divided by `bound_`, a distance that proves the sign."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: ArrayLike) -> np.ndarray:
        """-1 for anomalies, 1 for normal rows."""
        return np.where(self.decision_function(X) < 0, -1, 1)

    @property
    def bound_(self) -> Bound:
        """The constant of `score_samples` in l2, in units of X; proven when it is first asked for."""
        check_is_fitted(self, "offset_")
        return self.field_.bound

    def to_state(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Tensors and strings from which `from_state` makes an estimator with the same scores, without pickle.

        Settings are those of `fit`, whatever `set_params` changed since.
        """
        check_is_fitted(self, "offset_")
        field = self.field_
        network, exact, first = field.network, field.exact, field.first
        weights = {} if network is None else network.state_dict()
        tensors = {f"network.{name}": value for name, value in weights.items()}
        tensors |= {"mean": first.mean, "factor": first.factor}
        if isinstance(exact, Flats):
            tensors |= {"origins": exact.origins, "bases": exact.given}
        elif exact is not None:
            tensors["rows"] = exact.points
        tensors["offset"] = torch.tensor(self.offset_, dtype=torch.float64)
        names = getattr(self, "feature_names_in_", None)
        about = {
            "settings": json.dumps(self._fitted, default=methodcaller("tolist")),
            "features": json.dumps(self.n_features_in_),
            "names": json.dumps(None if names is None else list(names)),
            "health": json.dumps([vars(one) for one in self.health_]),
        }
        return tensors, about

    @classmethod
    def from_state(
        cls, tensors: Mapping[str, Tensor], about: Mapping[str, str], network: nn.Module | None = None
    ) -> Self:
        """The estimator of a state.

        Args:
            tensors: Of `to_state`.
            about: Of `to_state`.
            network: The module that the estimator was made with, if it was; only its layers matter.
        """
        try:
            settings, width = json.loads(about["settings"]), json.loads(about["features"])
            names, health = json.loads(about["names"]), json.loads(about["health"])
            found = cls(**settings, network=network)
            found.widths = tuple(found.widths)
            check_settings(found.get_params(deep=False))
            model = None
            if found.nearest < 1:
                model = plain(make_network(network, width, found.widths, 0))
                kept = {name.removeprefix("network."): v for name, v in tensors.items() if name.startswith("network.")}
                model.load_state_dict(kept)
            first = Standardise(tensors["mean"], tensors["factor"], bool(found.logarithmic))
            exact = stored_distance(tensors, found.flats, found.neighbors) if found.nearest else None
            found.field_ = DetectorField(first, model, exact, found.nearest, found.margin)
            found.offset_ = float(tensors["offset"])
            if not all(bool(torch.isfinite(one).all()) for one in tensors.values()):
                raise NonFiniteError("Some of its numbers are NaN or infinite")
            found.health_ = tuple(Health(**one) for one in health)
            found._fitted = _plain_settings(found.get_params(deep=False))
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise RecordError(
                f"The state is not that of this estimator ({error}); give what to_state returned, and its network."
            ) from error
        found.n_features_in_ = width
        if names is not None:
            found.feature_names_in_ = np.asarray(names, dtype=object)
        return found

    def _table(self, X: ArrayLike, reset: bool) -> np.ndarray:
        least = 3 if reset else 1
        found = validate_data(
            self, cast(Any, X), reset=reset, dtype=np.float64, ensure_min_samples=least, ensure_all_finite=False
        )
        return finite_rows(np.asarray(found))

    def _split(self, rows: np.ndarray, random: np.random.RandomState) -> tuple[np.ndarray, np.ndarray]:
        """The rows to learn from, and those that are held out."""
        if not self.calibration:
            return rows, rows[:0]
        count = int(self.calibration * len(rows))
        needed = rows_needed(self.contamination)
        if count < needed or len(rows) - count < 3:
            raise ArgumentError(
                f"contamination={self.contamination:g} needs {said_rows(needed)} rows held out and 3 to learn from; "
                f"calibration={self.calibration:g} of {len(rows)} rows holds out {count}. Give more rows or change it."
            )
        order = random.permutation(len(rows))
        return rows[order[count:]], rows[order[:count]]

    def _train(self, rows: np.ndarray, seed: int, kept: Checkpoints | None) -> tuple[DetectorField, tuple[Health, ...]]:
        first = self._before(rows)
        recipe = OneClass(
            self.margin, self.weight, self.distance, self.separation, steps_for(self.steps, len(rows)),
            proposal=self._proposal(rows),
        )  # fmt: skip
        train = DetectorTraining(
            recipe, self.network, self.widths, self.nearest, self.neighbors, self.flats, self.flat_dim
        )
        return train(first, first(torch.tensor(rows)), seed, kept)

    def _proposal(self, rows: np.ndarray) -> Proposal:
        if self.network is None and self.standardise:
            return GaussianColumns()
        return UniformBox(float(rows.min()), float(rows.max()))

    def _before(self, rows: np.ndarray) -> Standardise:
        if self.network is None and self.standardise:
            return standardise(rows, bool(self.robust), bool(self.logarithmic))
        width = rows.shape[1]
        return Standardise(torch.zeros(width, dtype=torch.float64), torch.ones(width, dtype=torch.float64))

    def _scores(self, rows: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            parts = [self.field_.fast(part) for part in torch.tensor(rows).split(_BATCH)]
        return finite_scores(torch.cat(parts).numpy())

    def _level(self, rows: np.ndarray, held: np.ndarray) -> float:
        """The threshold: of the rows that are held out, or if there are none a percentile of all."""
        if len(held):
            return self._calibrated(held)
        return float(np.percentile(self._scores(rows), 100 * self.contamination))

    def _calibrated(self, held: np.ndarray) -> float:
        # The last digits of a score depend on the rows it is computed with, and rows may be equal, so four times the
        # largest error of the held-out rows is taken off: computed scores are off before and after a move, and some
        # rows round worse than those. True scores move by K eps at most.
        found = self.field_.measure(torch.tensor(held))
        level = float(threshold(found.value, self.contamination))
        shift = math.nextafter(float(self.field_.bound.value.detach()) * self.eps, math.inf) if self.eps else 0.0
        return math.nextafter(level - shift - 4 * float(found.error.max()), -math.inf)


def _plain_settings(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a state can hold: without the network, and without a source of random numbers that moved on."""
    kept = {name: copy.deepcopy(value) for name, value in asked.items() if name not in ("network", "random_state")}
    return {**kept, "random_state": asked["random_state"] if isinstance(asked["random_state"], Integral) else None}
