"""Downloads from a server on this machine: whole and right, or not at all."""

import hashlib
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from lipkit.data import Remote, fetch
from lipkit.data.download import CIFAR10, CIFAR100, FASHION_MNIST, MNIST
from lipkit.errors import ArgumentError, RecordError

CONTENT = bytes(range(256)) * 100
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Serves the content from /good/, less of it or another from the rest."""

    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        if self.path.startswith("/missing/"):
            self.send_error(404)
            return
        body = {"good": CONTENT, "changed": b"x" + CONTENT[1:], "cut": CONTENT[:999], "short": CONTENT[:999]}
        sent = body[self.path.split("/")[1]]
        self.send_response(200)
        # A server may break off in the middle of what it promised, or promise less from the start.
        self.send_header("Content-Length", str(len(CONTENT if self.path.startswith("/cut/") else sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is printed."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    pytest.importorskip("pooch", reason="downloads need pooch")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()
        thread.join()


def test_a_file_is_brought_and_then_kept(server: str, tmp_path: Path):
    folder = tmp_path / "new" / "folder"
    (path,) = fetch([Remote("data.bin", SHA256, (f"{server}/good/",))], folder)
    assert path == folder / "data.bin"
    assert path.read_bytes() == CONTENT
    assert list(folder.iterdir()) == [path]
    # The second time nobody is asked.
    assert fetch([Remote("data.bin", SHA256, ())], str(folder)) == (path,)


@pytest.mark.parametrize("fault", ["changed", "cut", "short", "missing"])
def test_a_wrong_answer_is_refused_and_leaves_nothing(server: str, tmp_path: Path, fault: str):
    with pytest.raises(
        RecordError, match=rf"{tmp_path / 'data.bin'} could not be downloaded whole; tried {server}/{fault}/"
    ):
        fetch([Remote("data.bin", SHA256, (f"{server}/{fault}/",))], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_next_address_is_tried(server: str, tmp_path: Path):
    sources = tuple(f"{server}/{name}/" for name in ("missing", "changed", "good"))
    (path,) = fetch([Remote("data.bin", SHA256, sources)], tmp_path)
    assert path.read_bytes() == CONTENT
    assert list(tmp_path.iterdir()) == [path]


def test_nobody_answers(tmp_path: Path):
    pytest.importorskip("pooch", reason="downloads need pooch")
    # Port 9 discards what it gets; nothing listens there on a machine of today.
    with pytest.raises(RecordError, match=r"could not be downloaded whole; tried http://127.0.0.1:9/: "):
        fetch([Remote("data.bin", SHA256, ("http://127.0.0.1:9/",))], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_another_content_is_neither_used_nor_replaced(tmp_path: Path):
    (tmp_path / "data.bin").write_bytes(b"mine")
    with pytest.raises(RecordError, match=f"data.bin is there with SHA-256 .*, expected {SHA256}; remove it"):
        fetch([Remote("data.bin", SHA256, ())], tmp_path)
    assert (tmp_path / "data.bin").read_bytes() == b"mine"
    (tmp_path / "folder.bin").mkdir()
    with pytest.raises(ArgumentError, match=r"folder.bin cannot be read"):
        fetch([Remote("folder.bin", SHA256, ())], tmp_path)


def test_a_full_disk_leaves_nothing(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lipkit._files.os.fsync", full)
    with pytest.raises(ArgumentError, match=r"data.bin cannot be written .No space left on device."):
        fetch([Remote("data.bin", SHA256, (f"{server}/good/",))], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ArgumentError, match=f"{tmp_path / 'file' / 'folder'} cannot be made"):
        fetch(MNIST, tmp_path / "file" / "folder")


def test_without_pooch_the_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ArgumentError, match=r"needs pooch; pip install 'lipkit\[download\]'"):
        fetch(MNIST[:1], tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("files", [MNIST, FASHION_MNIST, CIFAR10, CIFAR100])
def test_the_tables_are_well_formed(files: tuple[Remote, ...]):
    assert len({file.name for file in files}) == len({file.sha256 for file in files}) == len(files)
    for file in files:
        assert len(bytes.fromhex(file.sha256)) == 32
        assert file.sources
        # The name is appended to the address.
        assert all(source.startswith("http") and source.endswith("/") for source in file.sources)
