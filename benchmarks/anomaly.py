"""Detectors of anomalies on the tables of ADBench: ours beside others, with certified AUROC, false alarms and speed.

    python benchmarks/anomaly.py one-class --data ADBENCH --out anomaly.json
    python benchmarks/anomaly.py unlabelled --data ADBENCH --out anomaly_unlabelled.json
    python benchmarks/anomaly.py table --out seed0.json seed1.json
    python benchmarks/anomaly.py alarms
    python benchmarks/anomaly.py speed

One class: half of the normal rows train, all others test, after at most 10,000 rows were drawn; nothing is duplicated,
columns are standardised by the training half, and constant columns are left out. Unlabelled: all rows train and are
ranked. One setting of each detector for all tables: the defaults of PyOD, and `OneClassSDF()`. With one class 5-NN,
LOF, IForest and OCSVM are those of scikit-learn, which PyOD calls with the same settings; ECOD and DeepSVDD need PyOD,
and their cells stay free without it. Results are stored after each table, and a run goes on where it was stopped.
Certified AUROC holds for moves of both classes, in standard deviations.

DTE-NP is the nearest-neighbour form of diffusion time estimation (Livernoche et al. 2024) as its code has it: the most
likely of 300 noise levels, which cannot tell rows apart whose mean squared distance to five neighbours is beyond the
largest level; "no cap" is that mean itself.
"""

import argparse
import importlib
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import rankdata
from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import LocalOutlierFactor, NearestNeighbors
from sklearn.svm import OneClassSVM

from lipkit import sdf
from lipkit._files import write_whole
from lipkit.bound import Bound, Kind
from lipkit.certify import certifiable_auroc
from lipkit.estimators import OneClassSDF, PyODSigns

ROWS = 10_000
# Anomalies that stay in an unlabelled table from which few rows are drawn.
LEAST = 10
EPS = (0.1, 0.25, 0.5)
NEIGHBORS = 5
# Noise levels of DTE-NP.
LEVELS = 300
# One-class support vector machines take time quadratic in the rows.
OCSVM_ROWS = 2500
# Tables on which the setting was chosen. A first setting, without the exact distance, was run on all of them.
CHOSEN_ON = (
    *("glass", "letter", "vowels", "cardio", "wine", "Stamps", "thyroid", "Ionosphere", "vertebral", "yeast", "WPBC"),
    *("Pima", "fault", "Wilt", "ALOI", "landsat", "SpamBase", "InternetAds"),
)
UNLABELLED = (
    *("breastw", "cardio", "glass", "http", "Ionosphere", "Lymphography", "mammography", "musk", "optdigits", "Pima"),
    *("satimage-2", "shuttle", "smtp", "thyroid", "vertebral", "vowels", "WBC", "wine"),
)

# PyOD's files whose names are not those of their class.
MODULES = {"DeepSVDD": "deep_svdd"}

# Scores of test rows, high for normal ones, and the constant if one is known.
Scores = tuple[np.ndarray, Bound | None]
Detector = Callable[[np.ndarray, np.ndarray, int], Scores]
Results = dict[str, dict[str, dict[str, dict[str, object]]]]


def ours(train: np.ndarray, test: np.ndarray, seed: int) -> Scores:
    """`OneClassSDF` with its defaults."""
    found = OneClassSDF(random_state=seed).fit(train)
    return found.score_samples(test), found.bound_


def ours_among_others(train: np.ndarray, test: np.ndarray, seed: int) -> Scores:
    """The same where rows are ranked that were trained on, each against the others, as PyOD's detectors do."""
    del test
    return -PyODSigns(OneClassSDF(random_state=seed)).fit(train).decision_scores_, None


def nearest(neighbors: int) -> Detector:
    """Minus the mean distance to some nearest training rows, exactly; its constant is 1."""

    def detect(train: np.ndarray, test: np.ndarray, seed: int) -> Scores:
        del seed
        field = sdf.Points(torch.from_numpy(train), min(neighbors, len(train)), mean=True)
        return field(torch.from_numpy(test)).numpy(), field.bound

    return detect


def squares(train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Mean squared distances to the five nearest training rows."""
    search = NearestNeighbors(n_neighbors=min(NEIGHBORS, len(train))).fit(train)
    return (search.kneighbors(test)[0] ** 2).mean(1)


def fifth(train: np.ndarray, test: np.ndarray, seed: int) -> Scores:
    """Minus the distance to the fifth nearest training row; its constant is 1, see `sdf.Points`."""
    del seed
    search = NearestNeighbors(n_neighbors=min(NEIGHBORS, len(train))).fit(train)
    found = -search.kneighbors(test)[0][:, -1]
    return found, Bound.from_value(1.0, Kind.UPPER, "a distance")


def without_cap(train: np.ndarray, test: np.ndarray, seed: int) -> Scores:
    """Minus the mean of five squared distances; it has no constant."""
    del seed
    return -squares(train, test), None


def published_dte(train: np.ndarray, test: np.ndarray, seed: int) -> Scores:
    """Minus the level t whose variance v has the largest inverse gamma density, -(d/2) log v - s/(2 v) in logarithms.

    s is the mean of five squared distances, and v = 1 - prod (1 - beta) up to t, beta from 1e-4 to 0.01. The largest v
    is .78, so all rows with s > .78 d come out near the last level.
    """
    del seed
    dim = train.shape[1]
    if dim <= 2:
        raise ValueError(f"DTE-NP is not defined for {dim} columns: its inverse gamma law has the shape d/2 - 1")
    variance = 1 - np.cumprod(1 - np.linspace(1e-4, 0.01, LEVELS))
    likely = -dim / 2 * np.log(variance) - squares(train, test)[:, None] / (2 * variance)
    return -likely.argmax(1).astype(np.float64), None


def local_factor(train: np.ndarray, test: np.ndarray, seed: int) -> Scores:
    """The local outlier factor with 20 neighbours, times -1."""
    del seed
    return LocalOutlierFactor(min(20, len(train) - 1), novelty=True).fit(train).score_samples(test), None


def forest(train: np.ndarray, test: np.ndarray, seed: int) -> Scores:
    """An isolation forest of 100 trees."""
    return IsolationForest(random_state=seed).fit(train).score_samples(test), None


def vector_machine(train: np.ndarray, test: np.ndarray, seed: int) -> Scores:
    """A one-class support vector machine of some of the rows, for its time is quadratic in them."""
    return OneClassSVM().fit(fewer(train, seed)).decision_function(test), None


def fewer(train: np.ndarray, seed: int) -> np.ndarray:
    """At most so many rows as a support vector machine gets."""
    return train[np.random.default_rng(seed).permutation(len(train))[:OCSVM_ROWS]]


def pyod_class(name: str) -> Callable[..., Any]:
    """A detector of PyOD, by its name."""
    return getattr(importlib.import_module(f"pyod.models.{MODULES.get(name, name.lower())}"), name)


def of_pyod(name: str) -> Detector:
    """A detector of PyOD with its defaults."""

    def detect(train: np.ndarray, test: np.ndarray, seed: int) -> Scores:
        kind = pyod_class(name)
        rows = fewer(train, seed) if name == "OCSVM" else train
        given = {"random_state": seed} if name in ("IForest", "CBLOF", "DeepSVDD") else {}
        if name == "DeepSVDD":
            given |= {"n_features": train.shape[1], "verbose": 0}
        found = kind(**given).fit(rows)
        if test is train and rows is train:
            return -found.decision_scores_, None
        return -found.decision_function(test), None

    return detect


ONE_CLASS: dict[str, Detector] = {
    "ours": ours,
    "1-NN": nearest(1),
    "mean of 5": nearest(NEIGHBORS),
    "5-NN": fifth,
    "DTE-NP": published_dte,
    "no cap": without_cap,
    "LOF": local_factor,
    "IForest": forest,
    "OCSVM": vector_machine,
    **{name: of_pyod(name) for name in ("ECOD", "DeepSVDD")},
}
IN_RANKS: dict[str, Detector] = {
    "ours": ours_among_others,
    **{
        name: of_pyod(name)
        for name in (
            *("KNN", "LOF", "IForest", "OCSVM", "PCA", "ECOD", "COPOD", "CBLOF", "HBOS", "COF", "LODA", "SOD"),
            "DeepSVDD",
        )
    },
}


def draw(file: Path, seed: int, rows: int, least: int = 0) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    """At most so many rows of a table, without replacement, with labels 1 for anomalies; of these at least so many."""
    with np.load(file) as table:
        x, y = table["X"].astype(np.float64), table["y"].astype(int)
    random = np.random.default_rng(seed)
    if len(x) > rows:
        order = random.permutation(len(x))
        chosen = order[:rows]
        strange = order[y[order] == 1][:least]
        if y[chosen].sum() < len(strange):
            chosen = np.concatenate([strange, order[y[order] == 0][: rows - len(strange)]])
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
    x, y, _ = draw(file, seed, rows, LEAST)
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
    out: Path = request.out[0]
    results: Results = json.loads(out.read_text()) if out.exists() else {}
    absent: set[str] = set()
    files = sorted(request.data.glob("*.npz"), key=lambda file: file.stat().st_size)
    for seed in request.seeds:
        for file in files:
            name = file.stem.partition("_")[2]
            if names is not None and name not in names:
                continue
            prepared = None
            for method, detector in detectors.items():
                cell = results.setdefault(name, {}).setdefault(method, {})
                if str(seed) in cell or method in absent or (request.methods and method not in request.methods):
                    continue
                if prepared is None:
                    prepared = (split if names is None else whole)(file, seed, request.rows)
                try:
                    cell[str(seed)] = measure(detector, *prepared, seed)
                except ImportError as error:
                    # No result: the cell stays free for a run that has the package.
                    absent.add(method)
                    print(f"{method} is left out, because a package is missing ({error}).", flush=True)
                    continue
                except (ValueError, RuntimeError, MemoryError) as error:
                    cell[str(seed)] = {"failed": f"{type(error).__name__}: {error}"}
                write_whole(out, json.dumps(results, indent=1).encode())
                print(name, method, seed, cell[str(seed)], flush=True)
    return results


def mean_of(cells: dict[str, dict[str, object]], what: str, at: int | None = None) -> float:
    """The mean over seeds, NaN where nothing was measured."""
    values = [cell[what] for cell in cells.values() if what in cell]
    return float(np.mean([v if at is None else v[at] for v in values])) if values else float("nan")  # type: ignore[index]


def deviation_over_seeds(rows: list[dict[str, dict[str, dict[str, object]]]], method: str) -> float:
    """How far the mean AUROC of all tables differs from seed to seed; NaN for one seed."""
    seeds = set.intersection(*(set(row[method]) for row in rows))
    means = [np.mean([row[method][seed]["auroc"] for row in rows]) for seed in seeds]  # type: ignore[misc]
    return float(np.std(means, ddof=1)) if len(means) > 1 else float("nan")


def joined(parts: list[Results]) -> Results:
    """Results of several files as one."""
    found: Results = {}
    for part in parts:
        for table, row in part.items():
            for method, cells in row.items():
                found.setdefault(table, {}).setdefault(method, {}).update(cells)
    return found


def print_tables(results: Results) -> None:
    """AUROC of each table, then the means, certified means, mean ranks and seconds over the complete tables."""
    known = {m: 0 for row in results.values() for m in row}
    methods = [m for m in known if any("auroc" in cell for row in results.values() for cell in row.get(m, {}).values())]
    print("table".ljust(18), *(m.rjust(9) for m in methods))
    for table, row in results.items():
        print(table.ljust(18), *(f"{mean_of(row.get(m, {}), 'auroc'):9.1f}" for m in methods))
    values = np.array([[mean_of(row.get(m, {}), "auroc") for m in methods] for row in results.values()])
    complete = np.array([not bool(np.isnan(row).any()) for row in values])
    if not complete.any():
        return
    ranks = np.array([rankdata(-row) for row in values[complete]])
    print(f"{int(complete.sum())} of {len(values)} tables have every number; means and ranks are over them")
    print("mean".ljust(18), *(f"{v:9.2f}" for v in values[complete].mean(0)))
    rows = [row for row, fine in zip(results.values(), complete.tolist(), strict=True) if fine]
    print("std over seeds".ljust(18), *(f"{deviation_over_seeds(rows, m):9.2f}" for m in methods))
    fresh = complete & np.array([table not in CHOSEN_ON for table in results])
    if fresh.any():
        print("not tuned on".ljust(18), *(f"{v:9.2f}" for v in values[fresh].mean(0)))
    print("mean rank".ljust(18), *(f"{v:9.2f}" for v in ranks.mean(0)))
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


def print_speed(queries: int) -> None:
    """Processor seconds to fit 10,000 rows of 30 columns, and to score 100,000, measured on some of them and scaled."""
    random = np.random.default_rng(0)
    train, many = random.normal(size=(10_000, 30)), random.normal(size=(100_000, 30))
    scale = len(many) / queries
    print(f"scores of 100,000 rows take {scale:g} times as long as those of {queries}, which were measured")
    for name in ("ours", "KNN", "LOF", "IForest", "OCSVM", "ECOD", "DeepSVDD"):
        start = time.process_time()
        if name == "ours":
            model = OneClassSDF(random_state=0).fit(train)
        else:
            try:
                kind = pyod_class(name)
            except ImportError as error:
                print(f"{name} is left out, because a package is missing ({error}).", flush=True)
                continue
            model = kind(n_features=30, verbose=0) if name == "DeepSVDD" else kind()
            model.fit(train)
        fitted = time.process_time()
        model.decision_function(many[:queries])
        took = scale * (time.process_time() - fitted)
        print(f"{name}: fit {fitted - start:.1f} s, 100,000 rows in {took:.1f} s", flush=True)
    # PyOD's KNN also scores its own rows when it is fitted; its search of new ones is this.
    search = NearestNeighbors(n_neighbors=5).fit(many)
    start = time.process_time()
    search.kneighbors(train[:queries])
    print(f"KNN fitted on 100,000: 100,000 rows in {scale * (time.process_time() - start):.1f} s")


def main() -> None:
    """Run what is asked for, and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("one-class", "unlabelled", "alarms", "speed", "table"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, nargs="+", help="a file of results; table joins several, of other seeds")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--methods", nargs="+")
    parser.add_argument("--queries", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=1)
    request = parser.parse_args()
    known = {*ONE_CLASS, *IN_RANKS}
    if unknown := [one for one in request.methods or () if one not in known]:
        parser.error(f"--methods are among {', '.join(sorted(known))}, got {', '.join(unknown)}")
    warnings.simplefilter("ignore")
    torch.set_num_threads(request.threads)
    if request.what == "alarms":
        print_alarms()
    elif request.what == "speed":
        print_speed(request.queries)
    elif request.what == "table":
        print_tables(joined([json.loads(file.read_text()) for file in request.out]))
    elif request.what == "one-class":
        print_tables(run_tables(request, ONE_CLASS, None))
    else:
        print_tables(run_tables(request, IN_RANKS, UNLABELLED))


if __name__ == "__main__":
    main()
