"""Published files fetched from the network into a folder, known by their hashes."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import final

from lipkit._files import write_whole
from lipkit.data._file_bytes import read_bytes
from lipkit.errors import ArgumentError, RecordError


@final
@dataclass(frozen=True)
class Remote:
    """A file, the SHA-256 of its bytes, and the addresses of folders that have it, the preferred one first."""

    name: str
    sha256: str
    sources: tuple[str, ...]


_MNIST = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
_FASHION = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
)
_CIFAR = ("https://www.cs.toronto.edu/~kriz/",)

MNIST = (
    Remote("train-images-idx3-ubyte.gz", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", _MNIST),
    Remote("train-labels-idx1-ubyte.gz", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", _MNIST),
    Remote("t10k-images-idx3-ubyte.gz", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", _MNIST),
    Remote("t10k-labels-idx1-ubyte.gz", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", _MNIST),
)
FASHION_MNIST = (
    Remote("train-images-idx3-ubyte.gz", "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84", _FASHION),
    Remote("train-labels-idx1-ubyte.gz", "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845", _FASHION),
    Remote("t10k-images-idx3-ubyte.gz", "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073", _FASHION),
    Remote("t10k-labels-idx1-ubyte.gz", "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5", _FASHION),
)
CIFAR10 = (
    Remote("cifar-10-binary.tar.gz", "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd", _CIFAR),
)
CIFAR100 = (
    Remote("cifar-100-binary.tar.gz", "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec", _CIFAR),
)


def fetch(files: Sequence[Remote], folder: str | Path) -> tuple[Path, ...]:
    """Bring published files into a folder (`fetch(lipkit.data.download.MNIST, folder)`) and say where they are.

    A file that is there with the right hash is kept, one with another hash is an error and stays as it is. A download
    takes its name only when it is complete and has its hash; otherwise the next address is tried, and after the last an
    error tells what each of them gave. Needs the extra `download` (pooch). Sets of several files share names (MNIST and
    Fashion-MNIST do): give each set its own folder.

    Args:
        files: Files to bring, such as `lipkit.data.download.MNIST`.
        folder: Where they go; made if missing.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(f"{folder} cannot be made ({error.strerror}); name another folder.") from error
    return tuple(_fetch(file, folder / file.name) for file in files)


def _fetch(file: Remote, path: Path) -> Path:
    if path.exists():
        found = hashlib.sha256(read_bytes(path)).hexdigest()
        if found != file.sha256:
            raise RecordError(
                f"{path} is there with SHA-256 {found}, expected {file.sha256}; remove it to download it again, or "
                "name another folder."
            )
        return path
    failures: list[str] = []
    for source in file.sources:
        try:
            write_whole(path, _download(source + file.name, file.sha256, path.parent))
            return path
        # pooch reports a wrong hash by ValueError; every failure of the connection is an OSError.
        except (ValueError, OSError) as error:
            if isinstance(error, ArgumentError):
                raise
            failures.append(f"{source}: {error}")
    raise RecordError(f"{path} could not be downloaded whole; tried {'; '.join(failures) or 'no address'}.")


def _download(address: str, sha256: str, near: Path) -> bytes:
    try:
        import pooch  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as missing:
        raise ArgumentError(
            f"Downloading {address} needs pooch; pip install 'lipkit[download]' brings it, or put the file into {near}."
        ) from missing
    # Beside the target, where there is room for the file if there is room at all.
    with TemporaryDirectory(dir=near, prefix=".download-") as scratch:
        return Path(pooch.retrieve(address, f"sha256:{sha256}", "file", scratch)).read_bytes()
