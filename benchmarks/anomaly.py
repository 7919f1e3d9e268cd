"""Detectors of anomalies on the tables of ADBench: ours beside PyOD's, with certified AUROC, false alarms and speed.

    python benchmarks/anomaly.py one-class --data ADBENCH --out anomaly.json
    python benchmarks/anomaly.py unlabelled --data ADBENCH --out anomaly_unlabelled.json
    python benchmarks/anomaly.py alarms
    python benchmarks/anomaly.py speed

One class: half of the normal rows train, all others test, after at most 10,000 rows were drawn; nothing is duplicated,
columns are standardised by the training half, and constant columns are left out. Unlabelled: all rows train and are
ranked. One setting of each detector for all tables: PyOD's defaults, and `OneClassSDF()`. Results are stored after each
table, and a run goes on where it was stopped. Certified AUROC holds for moves of both classes, in standard deviations.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from scipy.stats import rankdata
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors

from lipkit import sdf
from lipkit._files import write_whole
from lipkit.bound import Bound
from lipkit.certify import certifiable_auroc
from lipkit.estimators import OneClassSDF

ROWS = 10_000
EPS = (0.1, 0.25, 0.5)
# One-class support vector machines take time quadratic in the rows.
OCSVM_ROWS = 2500
# Tables on which the setting was chosen; all others were looked at once, in the end.
CHOSEN_ON = (
    *("glass", "letter", "vowels", "cardio", "wine", "Stamps", "thyroid", "Ionosphere", "vertebral", "yeast", "WPBC"),
    "Pima",
)
UNLABELLED = (
    *("breastw", "cardio", "glass", "http", "Ionosphere", "Lymphography", "mammography", "musk", "optdigits", "Pima"),
    *("satimage-2", "shuttle", "smtp", "thyroid", "vertebral", "vowels", "WBC", "wine"),
)

# Scores of test rows, high for normal ones, and the constant if one is known.
Scores = tuple[np.ndarray, Bound | None]
Detector = Callable[[np.ndarray, np.ndarray, int], Scores]
Results = dict[str, dict[str, dict[str, dict[str, object]]]]


def ours(train: np.ndarray, test: np.ndarray, seed: int) -> Scores:
    """`OneClassSDF` with its defaults."""
    found = OneClassSDF(random_state=seed).fit(train)
    return found.score_samples(test), found.bound_


def nearest(neighbors: int) -> Detector:
    """Minus the mean distance to some nearest training rows, exactly; its constant is 1."""

    def detect(train: np.ndarray, test: np.ndarray, seed: int) -> Scores:
        del seed
        field = sdf.Points(torch.from_numpy(train), min(neighbors, len(train)), mean=True)
        return field(torch.from_numpy(test)).numpy(), field.bound

    return detect


def of_pyod(name: str) -> Detector:
    """A detector of PyOD with its defaults."""

    def detect(train: np.ndarray, test: np.ndarray, seed: int) -> Scores:
        import importlib

        module = importlib.import_module(f"pyod.models.{name.lower()}")
        rows = train[np.random.default_rng(seed).permutation(len(train))[:OCSVM_ROWS]] if name == "OCSVM" else train
        given = {"random_state": seed} if name in ("IForest", "CBLOF", "DeepSVDD") else {}
        if name == "DeepSVDD":
            given |= {"n_features": train.shape[1], "verbose": 0}
        found = getattr(module, name)(**given).fit(rows)
        if test is train and rows is train:
            return -found.decision_scores_, None
        return -found.decision_function(test), None

    return detect


ONE_CLASS: dict[str, Detector] = {
    "ours": ours,
    "1-NN": nearest(1),
    "mean of 5": nearest(5),
    **{name: of_pyod(name) for name in ("KNN", "LOF", "IForest", "OCSVM", "ECOD", "DeepSVDD")},
}
IN_RANKS: dict[str, Detector] = {
    "ours": ours,
    **{
        name: of_pyod(name)
        for name in (
            *("KNN", "LOF", "IForest", "OCSVM", "PCA", "ECOD", "COPOD", "CBLOF", "HBOS", "COF", "LODA", "SOD"),
            "DeepSVDD",
        )
    },
}


def draw(file: Path, seed: int, rows: int) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    """At most so many rows of a table, without replacement, with labels 1 for anomalies."""
    with np.load(file) as table:
        x, y = table["X"].astype(np.float64), table["y"].astype(int)
    random = np.random.default_rng(seed)
    if len(x) > rows:
        chosen = random.permutation(len(x))[:rows]
        x, y = x[chosen], y[chosen]
    return x, y, random


def split(file: Path, seed: int, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Half of the normal rows, all other rows, and the labels of those; standardised by the first."""
    x, y, random = draw(file, seed, rows)
    normal = random.permutation(np.flatnonzero(y == 0))
    learn, rest = normal[: len(normal) // 2], np.concatenate([normal[len(normal) // 2 :], np.flatnonzero(y == 1)])
    kept = np.ptp(x[learn], axis=0) > 0
    mean, std = x[learn][:, kept].mean(0), x[learn][:, kept].std(0)
    return (x[learn][:, kept] - mean) / std, (x[rest][:, kept] - mean) / std, y[rest]


def whole(file: Path, seed: int, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All rows twice, standardised, and their labels."""
    x, y, _ = draw(file, seed, rows)
    x = x[:, np.ptp(x, axis=0) > 0]
    x = (x - x.mean(0)) / x.std(0)
    return x, x, y


def measure(
    detector: Detector, train: np.ndarray, test: np.ndarray, labels: np.ndarray, seed: int
) -> dict[str, object]:
    """AUROC, certified AUROC where a constant is known, and the time of both; in percent and seconds."""
    start = time.perf_counter()
    scores, bound = detector(train, test, seed)
    found: dict[str, object] = {"seconds": round(time.perf_counter() - start, 2)}
    found["auroc"] = 100 * roc_auc_score(labels, -scores)
    if bound is not None:
        normal = torch.from_numpy(1 - labels)
        found["certified"] = [100 * certifiable_auroc(torch.from_numpy(scores), normal, bound, eps) for eps in EPS]
    return found


def run_tables(request: argparse.Namespace, detectors: dict[str, Detector], names: tuple[str, ...] | None) -> Results:
    """Every detector on every table with every seed; what is stored already is not repeated."""
    results: Results = json.loads(request.out.read_text()) if request.out.exists() else {}
    files = sorted(request.data.glob("*.npz"), key=lambda file: file.stat().st_size)
    for seed in request.seeds:
        for file in files:
            name = file.stem.partition("_")[2]
            if names is not None and name not in names:
                continue
            prepared = None
            for method, detector in detectors.items():
                cell = results.setdefault(name, {}).setdefault(method, {})
                if str(seed) in cell or (request.methods and method not in request.methods):
                    continue
                if prepared is None:
                    prepared = (split if names is None else whole)(file, seed, request.rows)
                try:
                    cell[str(seed)] = measure(detector, *prepared, seed)
                except (ValueError, RuntimeError, MemoryError, ImportError) as error:
                    cell[str(seed)] = {"failed": f"{type(error).__name__}: {error}"}
                write_whole(request.out, json.dumps(results, indent=1).encode())
                print(name, method, seed, cell[str(seed)], flush=True)
    return results


def mean_of(cells: dict[str, dict[str, object]], what: str, at: int | None = None) -> float:
    """The mean over seeds, NaN where nothing was measured."""
    values = [cell[what] for cell in cells.values() if what in cell]
    return float(np.mean([v if at is None else v[at] for v in values])) if values else float("nan")  # type: ignore[index]


def print_tables(results: Results) -> None:
    """AUROC of each table, then the means, certified means, mean ranks and seconds over the complete tables."""
    methods = [m for m in {m: 0 for row in results.values() for m in row} if any(results[t].get(m) for t in results)]
    print("table".ljust(18), *(m.rjust(9) for m in methods))
    for table, row in results.items():
        print(table.ljust(18), *(f"{mean_of(row.get(m, {}), 'auroc'):9.1f}" for m in methods))
    values = np.array([[mean_of(row.get(m, {}), "auroc") for m in methods] for row in results.values()])
    complete = np.array([not bool(np.isnan(row).any()) for row in values])
    ranks = np.array([rankdata(-row) for row in values[complete]])
    print(f"{int(complete.sum())} of {len(values)} tables have every number; means and ranks are over them")
    print("mean".ljust(18), *(f"{v:9.2f}" for v in values[complete].mean(0)))
    fresh = complete & np.array([table not in CHOSEN_ON for table in results])
    print("not tuned on".ljust(18), *(f"{v:9.2f}" for v in values[fresh].mean(0)))
    print("mean rank".ljust(18), *(f"{v:9.2f}" for v in ranks.mean(0)))
    rows = [row for row, fine in zip(results.values(), complete.tolist(), strict=True) if fine]
    for at, eps in enumerate(EPS):
        cells = [np.mean([mean_of(row[m], "certified", at) for row in rows]) for m in methods]
        print(f"certified {eps:g}".ljust(18), *(f"{v:9.2f}" for v in cells))
    print("seconds".ljust(18), *(f"{np.mean([mean_of(row[m], 'seconds') for row in rows]):9.2f}" for m in methods))


def print_alarms() -> None:
    """False alarms of thresholds, plain and under attack, with a score whose worst move is known: -|x| in R^5."""
    from lipkit.sdf.one_class import threshold

    random, runs, share, eps = np.random.default_rng(0), 20_000, 0.1, 0.1
    for rows in (20, 99):
        alarms = np.zeros(4)
        for _ in range(runs):
            held = -np.linalg.norm(random.normal(size=(rows, 5)), axis=1)
            fresh = -np.linalg.norm(random.normal(size=(1, 5)), axis=1)
            exact = float(threshold(torch.from_numpy(held), share))
            percentile = np.percentile(held, 100 * share)
            # A move of length eps outwards lowers this score by exactly eps.
            for at, (moved, level) in enumerate(((0.0, percentile), (0.0, exact), (eps, exact), (eps, exact - eps))):
                alarms[at] += np.mean(fresh - moved < level)
        print(
            f"{rows} rows, {share:.0%}: percentile {alarms[0] / runs:.2%}, order statistic {alarms[1] / runs:.2%}; "
            f"attacked {alarms[2] / runs:.2%}, lowered by K eps {alarms[3] / runs:.2%}"
        )


def print_speed() -> None:
    """Seconds to fit 10,000 rows of 30 columns, and to score 100,000 rows beside neighbours fitted on 100,000."""
    random = np.random.default_rng(0)
    train, many = random.normal(size=(10_000, 30)), random.normal(size=(100_000, 30))
    for name in ("ours", "KNN", "LOF", "IForest", "OCSVM", "ECOD", "DeepSVDD"):
        start = time.perf_counter()
        if name == "ours":
            model = OneClassSDF(random_state=0).fit(train)
        else:
            import importlib

            kind = getattr(importlib.import_module(f"pyod.models.{name.lower()}"), name)
            model = kind(n_features=30, verbose=0) if name == "DeepSVDD" else kind()
            model.fit(train)
        fitted = time.perf_counter()
        model.decision_function(many)
        print(f"{name}: fit {fitted - start:.1f} s, 100,000 rows in {time.perf_counter() - fitted:.1f} s", flush=True)
    start = time.perf_counter()
    NearestNeighbors(n_neighbors=5).fit(many).kneighbors(many[:2000] + 0.01)
    took = 50 * (time.perf_counter() - start)
    print(f"5 neighbours among 100,000 rows: {took:.0f} s for 100,000 rows, from 2,000 of them")


def main() -> None:
    """Run what is asked for, and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("one-class", "unlabelled", "alarms", "speed", "table"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--methods", nargs="+")
    parser.add_argument("--threads", type=int, default=1)
    request = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(request.threads)
    if request.what == "alarms":
        print_alarms()
    elif request.what == "speed":
        print_speed()
    elif request.what == "table":
        print_tables(json.loads(request.out.read_text()))
    elif request.what == "one-class":
        print_tables(run_tables(request, ONE_CLASS, None))
    else:
        print_tables(run_tables(request, IN_RANKS, UNLABELLED))


if __name__ == "__main__":
    main()
