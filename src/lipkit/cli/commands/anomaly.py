"""`lipkit anomaly`: a detector of anomalies with a proven constant, its scores, and what no attacker can change."""

from functools import partial
from pathlib import Path

from lipkit.cli.commands.anomaly_request import AnomalyRequest
from lipkit.cli.console import terminal
from lipkit.cli.inputs import option_words
from lipkit.cli.inputs.rows_file import LabelledRows
from lipkit.cli.runs.anomaly_files import (
    MODEL,
    SCORES,
    RowScores,
    gather_anomalies,
    plain_anomalies,
    publish_anomalies,
    read_detector,
    store_detector,
)
from lipkit.cli.runs.folder_identity import Identity
from lipkit.cli.runs.folder_lock import lock_folder
from lipkit.cli.runs.kept_training import kept_training
from lipkit.cli.runs.result_files import write_json
from lipkit.sdf._base import constant_of


def detect_anomalies(request: AnomalyRequest) -> None:
    """Train a detector, score all rows, certify, print the result, and write it with a page.

    The folder of `--out` then holds: run.json, model.safetensors, scores.json, anomaly.json and anomaly.html. A model
    or scores that are there already are used again, and a training that was stopped goes on from its checkpoint.
    Cost: `estimators.OneClassSDF`.
    """
    option_words.check_json(request.json)
    request.check()
    data = LabelledRows.read(Path(request.data), request.label)
    if (column := data.find_label()) is not None:
        _ask_about(Path(request.data), column)
    chosen = data.choose_training(request.train, request.seed)
    identity = Identity("", "", {**request.options, **data.hashes}, request.command)
    identity.check(request.out)
    with lock_folder(request.out, leads=True):
        if not (request.out / MODEL).is_file():
            # Settings that fail leave the folder free.
            settle = partial(identity.settle, request.out, writes=True)
            with kept_training(f"learning from {len(chosen)} rows", request.out, settle) as kept:
                detector = request.detector().fit(data.rows[chosen], checkpoints=kept)
                settle()
                store_detector(detector, request.out)
        # What is scored is what is stored.
        detector = read_detector(request.out)
        if (request.out / SCORES).is_file():
            scores = RowScores.read(request.out / SCORES, len(data.rows))
        else:
            scores = RowScores.measure(detector, data.rows, "scoring")
            scores.write(request.out / SCORES)
        contents = gather_anomalies(request, data, detector, scores, constant_of(detector.field_))
        page = publish_anomalies(request.out, contents)
    write_json(request.json, plain_anomalies(contents))
    say = terminal().print
    for line in (*contents.lines(), f"page in {page}"):
        say(line, soft_wrap=True, markup=False, highlight=False)


def _ask_about(path: Path, column: int) -> None:
    """Say that a column which looks like labels is learned from."""
    remedy = f"give --label {column} and another --out" if path.suffix == ".csv" else "save it as y, not in X"
    terminal(stderr=True).print(
        f"Column {column} of {path} (the first is 0) holds only 0 and 1 and is learned from like the others; if it "
        f"says which rows are anomalies, {remedy}.",
        soft_wrap=True, markup=False, highlight=False,
    )  # fmt: skip
