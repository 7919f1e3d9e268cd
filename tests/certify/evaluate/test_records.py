"""Results on disk: appended, mended, never mixed, never lost."""

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lipkit.certify import Records, SampleResult
from lipkit.errors import RecordError
from support.sealed_files import write_lines

SETTINGS = {"eps": [0.5], "model": {"weight": "abc"}}


def sample(index: int) -> SampleResult:
    return SampleResult(index, index % 3, 1, 0.1 * index + 1e-17, (True, False), digest=f"{index:016x}")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    Records(tmp_path / "a", SETTINGS, 0).append([sample(0), sample(2)])
    second = Records(tmp_path / "a", SETTINGS, 1)
    second.append([SampleResult(1, 0, 0, float("inf"))])
    assert second.read() == {0: sample(0), 2: sample(2), 1: SampleResult(1, 0, 0, float("inf"))}


def test_a_torn_line_is_cut_off(tmp_path: Path) -> None:
    Records(tmp_path, SETTINGS).append([sample(0), sample(1)])
    path = tmp_path / "samples-0000.jsonl"
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        again = Records(tmp_path, SETTINGS)
        kept = again.read()
        assert kept == {i: sample(i) for i in range(whole[:cut].count(b"\n"))}
        again.append([sample(i) for i in range(2) if i not in kept])
        assert again.read() == {0: sample(0), 1: sample(1)}


def test_other_settings_are_refused(tmp_path: Path) -> None:
    Records(tmp_path, SETTINGS)
    with pytest.raises(RecordError, match=r"other settings \(eps; eps was \[0.5\], now \[0.6\]\)"):
        Records(tmp_path, {**SETTINGS, "eps": [0.6]})
    with pytest.raises(RecordError, match=r"other settings \(model; model bias was None, now b\)"):
        Records(tmp_path, {**SETTINGS, "model": {"weight": "abc", "bias": "b"}})


def test_damage_is_named(tmp_path: Path) -> None:
    records = Records(tmp_path, SETTINGS)
    path = tmp_path / "samples-0000.jsonl"
    write_lines(path, [{"index": 0}])
    with pytest.raises(RecordError, match="line 1 is no result of a sample"):
        records.read()
    path.unlink()
    records.append([sample(0)])
    records.append([sample(0)])
    # The same again is what another run at the same time would have found.
    assert list(records.read()) == [0]
    records.append([replace(sample(0), label=7)])
    with pytest.raises(RecordError, match="sample 0 is there twice, with different results"):
        records.read()


def test_a_full_disk_loses_nothing_that_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = Records(tmp_path, SETTINGS)
    records.append([sample(0)])

    def full(_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RecordError, match="No space left on device"):
        records.append([sample(1)])
    monkeypatch.undo()
    assert Records(tmp_path, SETTINGS).read()[0] == sample(0)


@pytest.mark.parametrize("damaged", [b"{", b"\xff", b"[1]", b"null"])
def test_damaged_settings_are_named(tmp_path: Path, damaged: bytes) -> None:
    Records(tmp_path, SETTINGS)
    (tmp_path / "settings.json").write_bytes(damaged)
    with pytest.raises(RecordError, match=r"settings\.json has no checksum"):
        Records(tmp_path, SETTINGS)


@pytest.mark.parametrize(
    "change",
    [
        *({"index": -1}, {"index": "0"}, {"index": True}, {"label": 1.5}, {"radius": float("nan")}, {"radius": -1}),
        *({"broken": [1]}, {"failure": 2}, {"broken": None}, {"unproven": 0}, {"digest": 1}),
        *({"ball": 1.0}, {"proof": "margins"}, {"proof": None}),
    ],
    ids=str,
)
def test_a_line_with_a_number_out_of_range_is_named(tmp_path: Path, change: dict[str, Any]) -> None:
    records = Records(tmp_path, SETTINGS)
    line = {"index": 0, "label": 0, "predicted": 0, "radius": 0.5, "broken": [], "failure": 0.0, "unproven": False,
            "digest": "a", "stated": False, "otherwise": False, "ball": 0.0, "proof": ""}  # fmt: skip
    path = tmp_path / "samples-0000.jsonl"
    write_lines(path, [line])
    assert records.read() == {0: SampleResult(0, 0, 0, 0.5, digest="a")}
    write_lines(path, [{**line, **change}])
    with pytest.raises(RecordError, match="line 1 is no result of a sample"):
        records.read()


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    records = Records(tmp_path, SETTINGS)
    records.append([sample(0)])
    with (tmp_path / "samples-0000.jsonl").open("ab") as file:
        file.write(b"\xff\xfe\n")
    with pytest.raises(RecordError, match="line 2 has no checksum"):
        records.read()
