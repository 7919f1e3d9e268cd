"""OneClassSDF: scikit-learn's own checks, its constant against difference quotients, its thresholds by counting."""

import copy
import json
import math
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.neighbors import NearestNeighbors
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import RobustScaler
from sklearn.utils.estimator_checks import check_estimator
from torch import nn

from lipkit import nn as lnn
from lipkit.cli.inputs.safetensors_file import tensors_from, tensors_to
from lipkit.errors import ArgumentError, NonFiniteError, RecordError
from lipkit.estimators import OneClassSDF, PyODSigns
from support.unchecked import unchecked

# Small enough for a fit in a second.
SMALL = {"widths": (32, 32), "steps": 60, "random_state": 0}


def rows(count: int = 200, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 3)) * [1.0, 0.1, 20.0] + [0.0, 5.0, -3.0]


def copied(detector: OneClassSDF) -> OneClassSDF:
    """scikit-learn's copy without what was fitted."""
    found = clone(detector)
    assert isinstance(found, OneClassSDF)
    return found


@pytest.fixture(scope="module")
def fitted() -> OneClassSDF:
    return OneClassSDF(**SMALL).fit(rows())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_every_check_of_scikit_learn_passes():
    found = check_estimator(OneClassSDF(widths=(8, 8), steps=20), on_skip=None)
    assert len(found) > 40
    # Only checks of packages that are not installed are left out.
    skipped = {one["check_name"] for one in found if one["status"] != "passed"}
    assert skipped <= {"check_array_api_input", "check_classifier_data_not_an_array"}


@pytest.mark.train
def test_the_constant_holds_in_units_of_x_and_is_reached_up_to_training(fitted: OneClassSDF):
    x = rows(400, 1)
    pairs = x + np.random.default_rng(2).normal(size=x.shape) * [1.0, 0.1, 20.0] * 0.1
    slopes = np.abs(fitted.score_samples(x) - fitted.score_samples(pairs)) / np.linalg.norm(x - pairs, axis=1)
    constant = float(fitted.bound_.value)
    # The column with the smallest deviation decides: 1/std, and the network has constant 1 up to float32.
    assert constant == pytest.approx(1 / rows().std(0).min(), rel=1e-4)
    # Scores are rounded in float64.
    assert slopes.max() <= constant * (1 + 1e-9)
    gradients = np.linalg.norm(fitted.field_.gradient(torch.from_numpy(x)).numpy(), axis=1)
    assert gradients.max() > 0.3 * constant


def test_the_field_is_the_score(fitted: OneClassSDF):
    x = rows(20, 3)
    found = fitted.field_.measure(torch.from_numpy(x))
    assert np.all(np.abs(found.value.numpy() - fitted.score_samples(x)) <= 2 * found.error.numpy())
    assert fitted.score_samples(x).dtype == np.float64


def test_the_score_is_the_mixture_of_its_parts(fitted: OneClassSDF):
    x = rows(30, 9)
    inner = (x - rows().mean(0)) / rows().std(0)
    exact = np.linalg.norm(inner[:, None] - ((rows() - rows().mean(0)) / rows().std(0))[None], axis=2).min(1)
    network = fitted.field_.network
    assert network is not None
    with torch.no_grad():
        smooth = network(torch.from_numpy(inner)).flatten().numpy()
    # Sums of three squares in float64.
    np.testing.assert_allclose(fitted.score_samples(x), 0.5 * smooth + 0.5 * (0.05 - exact), atol=1e-12)
    alone = OneClassSDF(nearest=0.0, **SMALL).fit(rows())
    np.testing.assert_allclose(alone.score_samples(x), smooth, atol=1e-12)
    assert alone.field_.exact is None


def test_without_a_network_the_score_is_an_exact_distance_to_rows_or_flats():
    near = OneClassSDF(nearest=1.0, standardise=False).fit(rows())
    exact = np.linalg.norm(rows(30, 9)[:, None] - rows()[None], axis=2).min(1)
    # Sums of three squares in float64.
    np.testing.assert_allclose(near.score_samples(rows(30, 9)), 0.05 - exact, atol=1e-12)
    assert near.health_ == ()
    assert float(near.bound_.value) == 1.0
    # Two lines: rows on them are at distance 0, and others as far as elementary geometry says.
    along = np.random.default_rng(0).normal(size=(200, 1))
    lines = np.concatenate([along[:100] * [1.0, 0, 0], along[100:] * [0, 1.0, 0] + [0, 0, 50.0]])
    flat = OneClassSDF(nearest=1.0, flats=2, flat_dim=1, standardise=False, random_state=0).fit(lines)
    others = np.array([[3.0, 0.3, 0.4], [1.2, 7.0, 50.0 + 0.5]])
    # The lines are principal directions of sums of a hundred rows in float64.
    np.testing.assert_allclose(0.05 - flat.score_samples(others), [0.5, 1.3], atol=1e-9)
    np.testing.assert_allclose(0.05 - flat.score_samples(lines), 0, atol=1e-9)


def test_the_mean_distance_to_a_share_of_the_rows_is_that_of_numpy():
    detector = OneClassSDF(nearest=1.0, neighbors=0.2, standardise=False, random_state=0).fit(rows())
    gaps = np.sort(np.linalg.norm(rows(30, 9)[:, None] - rows()[None], axis=2), axis=1)
    # Sums of three squares, and means of forty roots, in float64.
    np.testing.assert_allclose(detector.score_samples(rows(30, 9)), 0.05 - gaps[:, :40].mean(1), atol=1e-12)
    among = np.sort(np.linalg.norm(rows()[:, None] - rows()[None], axis=2), axis=1)[:, 1:41].mean(1)
    ranked = PyODSigns(detector).fit(rows()).decision_scores_
    np.testing.assert_allclose(ranked, among - 0.05, atol=1e-12)
    everybody = OneClassSDF(nearest=1.0, neighbors=1.0, standardise=False, random_state=0)
    whole = np.linalg.norm(rows()[:, None] - rows()[None], axis=2).sum(1) / 199
    np.testing.assert_allclose(PyODSigns(everybody).fit(rows()).decision_scores_, whole - 0.05, atol=1e-12)


def test_anomalies_of_one_kind_among_the_rows_hide_behind_each_other_but_not_behind_a_share():
    strange = np.random.default_rng(3).normal(size=(20, 3)) * [0.05, 0.005, 1.0] + [4.0, 5.4, 77.0]
    table, labels = np.concatenate([rows(), strange]), np.repeat([0, 1], [200, 20])
    found = {
        share: roc_auc_score(
            labels, PyODSigns(OneClassSDF(nearest=1.0, neighbors=share, random_state=0)).fit(table).decision_scores_
        )
        for share in (0.0, 0.2)
    }
    # Twenty rows in a heap are nearer to each other than normal ones; 44 rows are more than the heap has.
    assert found[0.0] < 0.5
    assert found[0.2] > 0.99


@pytest.mark.parametrize(
    "change",
    [{"nearest": 1.0}, {"neighbors": 0.1}, {"flats": 3, "flat_dim": 2}, {"nearest": 1.0, "flats": 3}],
)
def test_mixtures_of_other_parts_keep_their_constant_and_can_be_stored(change: dict[str, object]):
    detector = OneClassSDF(**{**SMALL, "flat_dim": 1, "calibration": 0.2, "eps": 0.01, **change}).fit(rows())
    x, other = rows(100, 1), rows(100, 2)
    slopes = np.abs(detector.score_samples(x) - detector.score_samples(other)) / np.linalg.norm(x - other, axis=1)
    # Scores are rounded in float64.
    assert slopes.max() <= float(detector.bound_.value) * (1 + 1e-9)
    for one in (pickle.loads(pickle.dumps(detector)), OneClassSDF.from_state(*detector.to_state())):
        assert np.array_equal(one.score_samples(x), detector.score_samples(x))
        assert one.offset_ == detector.offset_
    found = detector.field_.measure(torch.from_numpy(x))
    assert np.all(np.abs(found.value.numpy() - detector.score_samples(x)) <= 2 * found.error.numpy())
    ranked = PyODSigns(detector).fit(rows()).decision_scores_
    assert np.isfinite(ranked).all()


def test_anomalies_score_low_and_further_ones_lower(fitted: OneClassSDF):
    inside, outside = rows(300, 4), rows(300, 4) * 4
    labels = np.r_[np.zeros(300), np.ones(300)]
    scores = fitted.score_samples(np.r_[inside, outside])
    distance = NearestNeighbors(n_neighbors=1).fit(rows() / rows().std(0))
    exact = distance.kneighbors(np.r_[inside, outside] / rows().std(0))[0][:, 0]
    # A short training comes close to what the exact distances tell apart; 0.03 is what 60 steps leave.
    assert roc_auc_score(labels, -scores) > roc_auc_score(labels, exact) - 0.03


def test_one_seed_gives_one_detector_and_two_give_two():
    first, again = OneClassSDF(**SMALL).fit(rows()), OneClassSDF(**SMALL).fit(rows())
    other = OneClassSDF(**{**SMALL, "random_state": 1}).fit(rows())
    assert np.array_equal(first.score_samples(rows()), again.score_samples(rows()))
    assert not np.array_equal(first.score_samples(rows()), other.score_samples(rows()))


def test_pickle_copies_and_files_give_equal_scores(fitted: OneClassSDF, tmp_path: Path):
    x, file = rows(50, 5), tmp_path / "detector.safetensors"
    assert fitted.bound_ is not None
    file.write_bytes(tensors_to(*fitted.to_state()))
    stored = OneClassSDF.from_state(*tensors_from(file, sealed=True))
    for one in (pickle.loads(pickle.dumps(fitted)), copy.deepcopy(fitted), stored):
        assert np.array_equal(one.score_samples(x), fitted.score_samples(x))
        assert one.offset_ == fitted.offset_
        assert one.health_ == fitted.health_
        assert one.get_params() == fitted.get_params()
        assert float(one.bound_.value) == float(fitted.bound_.value)


def test_a_state_of_something_else_is_refused(fitted: OneClassSDF):
    tensors, about = fitted.to_state()
    with pytest.raises(RecordError, match="not that of this estimator"):
        OneClassSDF.from_state({}, about)
    with pytest.raises(RecordError, match="settings"):
        OneClassSDF.from_state(tensors, {})
    settings = json.loads(about["settings"])
    # A share beyond 1 or a negative factor would prove too small a constant; nothing is below a threshold of NaN.
    for change in ({"offset": math.nan}, {"factor": -tensors["factor"]}, {"mean": tensors["mean"][:2]}):
        with pytest.raises(RecordError, match="not that of this estimator"):
            OneClassSDF.from_state({**tensors, **{k: torch.as_tensor(v) for k, v in change.items()}}, about)
    with pytest.raises(RecordError, match="nearest is the share"):
        OneClassSDF.from_state(tensors, {**about, "settings": json.dumps({**settings, "nearest": 2.0})})


def test_numbers_of_numpy_are_settings_like_others():
    grid = {"widths": np.array([8, 8]), "steps": np.int64(5), "margin": np.float32(0.1), "random_state": np.int64(3)}
    with unchecked():
        found = OneClassSDF(**grid).fit(rows())
    stored = OneClassSDF.from_state(*found.to_state())
    assert np.array_equal(stored.score_samples(rows()), found.score_samples(rows()))
    assert stored.margin == np.float32(0.1)
    assert stored.random_state == 3


@pytest.mark.train
def test_it_works_in_a_pipeline_and_in_a_grid_search():
    pipe = make_pipeline(RobustScaler(), OneClassSDF(**SMALL)).fit(rows())
    assert pipe.predict(rows(10)).shape == (10,)
    labels = np.r_[np.ones(200), -np.ones(200)]
    x = np.r_[rows(), rows(seed=6) * 5]
    search = GridSearchCV(OneClassSDF(**SMALL), {"margin": [0.05, 0.5]}, scoring="roc_auc", cv=StratifiedKFold(2))
    assert search.fit(x, labels).best_params_["margin"] in (0.05, 0.5)
    assert copied(OneClassSDF(**SMALL)).get_params() == OneClassSDF(**SMALL).get_params()


def test_calibrated_thresholds_are_order_statistics_of_held_out_rows():
    found = OneClassSDF(calibration=0.5, **SMALL).fit(rows())
    scores = np.sort(found.score_samples(rows()))
    # Lowered by rounding alone, of which the field bounds 1e-7 here, as below.
    above = scores[scores > found.offset_].min()
    assert found.offset_ < above <= found.offset_ + 1e-6
    lowered = OneClassSDF(calibration=0.5, eps=0.05, **SMALL).fit(rows())
    # The same random numbers, so the same network and the same rows: lowered by K eps, and by rounding, of which the
    # field bounds 1e-7, because layers that declare their constants are trusted to half of their digits.
    shift = float(lowered.bound_.value) * 0.05
    assert found.offset_ - shift - 1e-6 <= lowered.offset_ < found.offset_ - shift


def test_rows_that_repeat_are_flagged_alike_however_many_are_scored_at_once():
    # Each of seven rows makes up a seventh of the data, more than the tenth that may be flagged. The last digits of a
    # score depend on how many rows it is computed with, so an exact threshold flags one of the seven now and then.
    random = np.random.default_rng(0)
    kinds = random.normal(size=(7, 30))
    x = kinds[random.integers(0, 7, size=300)]
    for width in (16, 128):
        found = OneClassSDF(widths=(width, width), steps=15, calibration=0.5, random_state=0).fit(x)
        assert (found.predict(x) == 1).all()
        assert all(found.predict(one[None])[0] == 1 for one in kinds)


def test_the_default_threshold_is_a_share_of_the_training_rows(fitted: OneClassSDF):
    assert np.mean(fitted.predict(rows()) == -1) == pytest.approx(0.1, abs=1 / 200)
    assert np.array_equal(fitted.predict(rows()) == -1, fitted.decision_function(rows()) < 0)


@pytest.mark.train
def test_false_alarms_stay_below_the_share_under_attack():
    random, fresh = np.random.default_rng(7), 400
    detector = OneClassSDF(calibration=0.5, eps=0.2, contamination=0.1, widths=(16, 16), steps=40)
    alarms, plain = [], []
    for seed in range(12):
        x = random.normal(size=(78 + fresh, 2))
        found = copied(detector).set_params(random_state=seed).fit(x[:78])
        normal = torch.from_numpy(x[78:])
        gradient = found.field_.gradient(normal)
        moved = normal - 0.2 * gradient / gradient.norm(dim=1, keepdim=True).clamp(min=1e-12)
        alarms.append(np.mean(found.predict(moved.numpy()) == -1))
        plain.append(np.mean(found.score_samples(moved.numpy()) < found.offset_ + float(found.bound_.value) * 0.2))
    # Expected at most 10 %; three deviations of a mean of 12 rates, each spread by its 39 held-out rows (0.048).
    assert np.mean(alarms) <= 0.1 + 3 * 0.048 / math.sqrt(12)
    # Without the shift the same attack breaks the share, so the test can fail.
    assert np.mean(plain) > 0.1 + 3 * 0.048 / math.sqrt(12)


@pytest.mark.train
def test_a_network_of_the_users_is_copied_and_its_constant_proven():
    pictures = np.random.default_rng(8).random((60, 16))
    pictures[:, 0] = 0.0
    network = nn.Sequential(
        nn.Unflatten(1, (1, 4, 4)), lnn.Conv2d(1, 4, 3, padding=1), lnn.MaxMin(), nn.Flatten(), lnn.Linear(64, 1)
    )
    before = copy.deepcopy(network.state_dict())
    found = OneClassSDF(steps=10, network=network, random_state=0).fit(pictures)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert float(found.bound_.value) <= 1 + 1e-5
    assert found.score_samples(pictures).shape == (60,)
    made = OneClassSDF(steps=10, network=lambda: copy.deepcopy(network), random_state=0).fit(pictures)
    assert np.array_equal(found.score_samples(pictures), made.score_samples(pictures))
    stored = OneClassSDF.from_state(*found.to_state(), network=network)
    assert np.array_equal(found.score_samples(pictures), stored.score_samples(pictures))


def test_the_signs_of_pyod(fitted: OneClassSDF):
    found = PyODSigns(OneClassSDF(**SMALL)).fit(rows())
    assert np.array_equal(found.decision_function(rows()), -fitted.score_samples(rows()))
    assert np.mean(found.labels_) == pytest.approx(0.1, abs=1 / 200)
    assert np.array_equal(found.predict(rows(50, 9)), (found.decision_function(rows(50, 9)) > found.threshold_) * 1)
    # Each row is measured against the others: the distances of brute force, with the diagonal left out.
    inner = (rows() - rows().mean(0)) / rows().std(0)
    table = np.linalg.norm(inner[:, None] - inner[None], axis=2) + np.diag(np.full(200, np.inf))
    # Sums of three squares in float64.
    expected = found.decision_function(rows()) + 0.5 * table.min(1)
    np.testing.assert_allclose(found.decision_scores_, expected, atol=1e-12)
    held = PyODSigns(OneClassSDF(calibration=0.5, **SMALL)).fit(rows())
    assert held.threshold_ == -held.estimator_.offset_


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"contamination": 0.7}, r"contamination lies in \(0, 0.5\], got 0.7"),
        ({"calibration": 1.0}, r"calibration is a share"),
        ({"eps": 0.1}, "set calibration"),
        ({"nearest": 1.1}, "nearest is the share"),
        ({"neighbors": 1.5}, r"neighbors is the share of the rows that is averaged, in \[0, 1\], got 1.5"),
        ({"neighbors": 0.1, "flats": 2}, "flats=2 takes their place"),
        ({"flats": -1}, "flats is a whole number >= 0, got -1"),
        ({"flats": 201, "flat_dim": 1}, "200 rows of 3 columns have no 201 flats"),
        ({"flats": 2, "flat_dim": 3}, "no 2 flats of dimension 3; set flats to 200 and flat_dim to 2"),
        ({"eps": -1.0}, "eps is a finite length"),
        ({"calibration": 0.02}, "needs 9 rows held out"),
        ({"widths": (3,)}, "even numbers"),
        ({"network": lambda: 3}, "network is a torch.nn.Module"),
        ({"steps": 0}, "steps is a whole number"),
        ({"contamination": "auto"}, "contamination is a finite number, got 'auto'"),
        ({"steps": math.nan}, "steps is a finite number"),
        ({"widths": 8}, "widths are even numbers"),
        ({"network": 5}, "network is a torch.nn.Module"),
        ({"widths": (8.0,)}, "even numbers"),
        ({"standardise": "yes"}, "standardise is True or False, got 'yes'"),
        ({"contamination": 1e-300, "calibration": 0.3}, r"needs more than 10\^299 rows held out"),
        ({"distance": 0.0, "separation": 0.0}, "nothing to learn"),
    ],
)
def test_bad_settings_are_refused_with_a_sentence(change: dict[str, object], message: str):
    with unchecked(), pytest.raises(ArgumentError, match=message):
        OneClassSDF(**{**SMALL, **change}).fit(rows())


def test_bad_rows_are_refused_with_a_sentence():
    bad = rows()
    bad[7, 1] = np.nan
    with pytest.raises(NonFiniteError, match="row 7, column 1"):
        OneClassSDF(**SMALL).fit(bad)
    bad[:, 1] = 5.0
    with pytest.raises(ArgumentError, match="Column 1 of X is constant"):
        OneClassSDF(**SMALL).fit(bad)
    with pytest.raises(ValueError, match="minimum of 3"):
        OneClassSDF(**SMALL).fit(rows(2))


@pytest.mark.parametrize("unit", [1e-200, 1e-145, 1e145, 1e200])
def test_columns_whose_squares_leave_float64_are_refused(unit: float):
    # Their standard deviation would be 0 or infinite, and the column as good as absent.
    with pytest.raises(ArgumentError, match=r"Column 2 of X spans .* another unit"):
        OneClassSDF(**SMALL).fit(rows() * [1.0, 1.0, unit])


@pytest.mark.parametrize("columns", [1, 4])
@pytest.mark.parametrize("change", [{"nearest": 0.0}, {"nearest": 0.5}, {"nearest": 1.0}, {"flats": 3, "flat_dim": 1}])
def test_rows_without_a_score_are_named_and_not_taken_for_normal_ones(change: dict[str, float], columns: int):
    # Three columns are searched by a tree, twelve by products.
    table = np.tile(rows(), columns) + np.random.default_rng(8).normal(size=(200, 3 * columns)) * 0.1
    found = OneClassSDF(**{"widths": (8, 8), "steps": 5, "random_state": 0, **change}).fit(table)
    # A score of NaN is not below the threshold. The first size is infinite when it is standardised; the square of the
    # second is, which matters to distances.
    for size in (1.7e308,) if change.get("nearest") == 0 else (1.7e308, 1e200):
        query = np.tile(table, (50, 1))
        query[9001] = size
        with pytest.raises(NonFiniteError, match=r"Row 9001 of X has no finite score \(1 in all\)"):
            found.predict(query)


def test_no_warning_is_given():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        OneClassSDF(**{**SMALL, "steps": 5}).fit(rows()).predict(rows())


@pytest.mark.parametrize("change", [{}, {"nearest": 0.0}, {"flats": 3, "flat_dim": 1}, {"nearest": 1.0}])
def test_scores_and_constant_are_of_the_same_weights(change: dict[str, object]):
    small = {"widths": (8, 8), "steps": 5, "random_state": 0, **change}
    changed, whole = (OneClassSDF(**small).fit(rows()) for _ in range(2))
    bound = float(changed.bound_.value)
    field = changed.field_
    with torch.no_grad():
        for weight in () if field.network is None else field.network.parameters():
            weight.mul_(10)
        field.first.factor.mul_(10)
        for name in ("points", "origins", "bases", "given"):
            getattr(field.exact, name, torch.zeros(1)).mul_(10)
    # Nothing that can be reached is evaluated, so all is as in a detector that nobody touched.
    assert np.array_equal(changed.score_samples(rows(50, 1)), whole.score_samples(rows(50, 1)))
    x, other = rows(200, 1), rows(200, 2)
    slopes = np.abs(changed.score_samples(x) - changed.score_samples(other)) / np.linalg.norm(x - other, axis=1)
    # Scores are rounded in float64.
    assert slopes.max() <= bound * (1 + 1e-9)
    assert float(changed.bound_.value) == float(whole.bound_.value)


@pytest.mark.parametrize("late", [{"margin": 1.0}, {"nearest": 0.9}, {"nearest": 0.0}, {"flats": 2}, {"widths": (4,)}])
def test_a_state_is_of_the_settings_of_fit(late: dict[str, object]):
    found = OneClassSDF(widths=(8, 8), steps=5, random_state=0).fit(rows())
    before, scores = found.get_params(), found.score_samples(rows())
    stored = OneClassSDF.from_state(*found.set_params(**late).to_state())
    assert np.array_equal(stored.score_samples(rows()), scores)
    assert stored.get_params() == before
    again = OneClassSDF.from_state(*stored.set_params(**late).to_state())
    assert np.array_equal(again.score_samples(rows()), scores)
