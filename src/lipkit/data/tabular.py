"""Tables with anomalies, in the format of ADBench."""

from pathlib import Path

import numpy as np
import torch

from lipkit.data._numpy_files import read_npz
from lipkit.data.examples import Examples
from lipkit.errors import RecordError


def adbench(path: str | Path) -> Examples:
    """One table of ADBench: (count, features) as float32, class 0 `normal`, class 1 `anomaly`.

    The file is an .npz with `X` (count x features, numbers) and `y` (count, 0 or 1); nothing in it is executed, every
    byte of both is under the CRC of the archive. Values are as stored, not scaled; those that float32 cannot hold are
    refused. Reference: Han et al., ADBench, NeurIPS 2022.

    Args:
        path: An .npz file of ADBench.
    """
    path = Path(path)
    table, labels = read_npz(path, ("X", "y"))
    if table.ndim != 2 or labels.shape != table.shape[:1] or not table.size:
        raise RecordError(
            f"{path} has X of shape {table.shape} and y of shape {labels.shape}, expected (count, features) and "
            "(count,), with at least one value."
        )
    if not np.isin(labels, (0, 1)).all():
        raise RecordError(f"{path} has the labels {np.unique(labels)[:5].tolist()} in y, expected 0 and 1.")
    # Values that are too large become infinite, and the next line finds them.
    with np.errstate(over="ignore"):
        inputs = table.astype(np.float32, order="C")
    if not (finite := np.isfinite(inputs)).all():
        row, column = (int(i) for i in np.argwhere(~finite)[0])
        raise RecordError(
            f"{path} has {table[row, column]} in row {row}, column {column} of X, expected finite numbers of float32; "
            "clean or rescale the table first."
        )
    targets = torch.from_numpy(labels.astype(np.int64))
    return Examples(torch.from_numpy(inputs), targets, ("normal", "anomaly"), path.stem)
