"""Data files are read once while they stay the same."""

from pathlib import Path

import pytest

from tacit.errors import BadData
from tacit.workloads import least_squares
from tacit.workloads.data.files import read_bytes, remembered


def test_a_file_is_read_again_only_when_it_changes(tmp_path: Path) -> None:
    made: list[str] = []

    @remembered
    def read(path: str | Path) -> str:
        made.append(read_bytes(Path(path)).decode())
        return made[-1]

    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("one")
    second.write_text("two")
    assert [read(first), read(str(first)), read(first)] == ["one"] * 3
    first.write_text("three")
    assert read(first) == "three"
    assert [read(second), read(first)] == ["two", "three"]  # only the last one is kept
    assert made == ["one", "three", "two", "three"]


def test_a_folder_changes_with_its_files(tmp_path: Path) -> None:
    read = remembered(lambda folder: sorted(path.name for path in Path(folder).glob("*/*")))
    (tmp_path / "inner").mkdir()
    assert read(tmp_path) == []
    (tmp_path / "inner" / "new").write_text("")
    assert read(tmp_path) == ["new"]


def test_a_file_that_fails_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "data.svm"
    path.write_text("1 1:2 2:x\n")
    workload = least_squares(str(path))
    with pytest.raises(BadData, match="line 1"):
        workload.load()
    path.write_text("1 1:2 2:3\n")
    assert workload.load()[0].tolist() == [[2.0, 3.0]]
