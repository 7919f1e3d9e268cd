"""Tables with anomalies, in the format of ADBench."""

import struct
import zlib
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile

import numpy as np
import torch

from lipkit.data._npy_bytes import parse_npy
from lipkit.data.examples import Examples
from lipkit.errors import ArgumentError, RecordError


def adbench(path: str | Path) -> Examples:
    """One table of ADBench: (count, features) as float32, class 0 `normal`, class 1 `anomaly`.

    The file is an .npz with `X` (count x features, numbers) and `y` (count, 0 or 1); nothing in it is executed, every
    byte of both is under the CRC of the archive. Values are as stored, not scaled; those that float32 cannot hold are
    refused. Reference: Han et al., ADBench, NeurIPS 2022.
    """
    path = Path(path)
    table, labels = (parse_npy(f"{path}: {name}", data) for name, data in _members(path, ("X.npy", "y.npy")).items())
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
    return Examples(torch.from_numpy(inputs), torch.from_numpy(labels.astype(np.int64)), ("normal", "anomaly"))


def _members(path: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    try:
        with ZipFile(path) as archive:
            if missing := set(names) - set(archive.namelist()):
                raise RecordError(f"{path} has no {', '.join(sorted(missing))}, only {archive.namelist()[:5]}.")
            if odd := [name for name in names if archive.getinfo(name).compress_type not in (ZIP_STORED, ZIP_DEFLATED)]:
                raise RecordError(f"{path} has {', '.join(odd)} packed in a way that NumPy does not write.")
            return {name: archive.read(name) for name in names}
    except RecordError:
        raise
    # A changed flag is reported by RuntimeError (encrypted) or its kin NotImplementedError.
    except (BadZipFile, EOFError, zlib.error, struct.error, RuntimeError, ValueError) as error:
        raise RecordError(f"{path} is no intact .npz file ({error}); get it again from its source.") from error
    except OSError as error:
        # zipfile seeks where a damaged directory points to, which may be no place at all.
        raise ArgumentError(f"{path} cannot be read ({error.strerror}); check the path and the file.") from error
