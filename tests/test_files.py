"""Files are replaced as a whole or not at all; TOML is readable and read back."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tacit.record.files import replacing, replacing_folder, toml_text, write_text


def test_a_file_is_replaced_only_if_it_was_written_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "numbers.json"
    write_text(path, "old")
    with pytest.raises(RuntimeError, match="half way"), replacing(path, sync=True) as part:
        part.write_text("ne")
        raise RuntimeError("half way")
    assert (path.read_text(), list(tmp_path.iterdir())) == ("old", [path])
    with replacing(path, sync=True) as part:
        part.write_text("new")
    assert (path.read_text(), list(tmp_path.iterdir())) == ("new", [path])


def test_a_folder_keeps_other_files_and_is_complete_if_it_has_its_last_file(tmp_path: Path) -> None:
    target = tmp_path / "run"
    with replacing_folder(target, last="run.json") as part:
        (part / "run.json").write_text("1")
        (part / "a").write_text("1")
    (target / "notes").write_text("of the user")
    with pytest.raises(OSError, match="disk"), replacing_folder(target, last="run.json") as part:
        (part / "a").write_text("2")
        raise OSError("disk is full")
    assert {file.name: file.read_text() for file in target.iterdir()} == {
        "run.json": "1",
        "a": "1",
        "notes": "of the user",
    }
    with replacing_folder(target, last="run.json") as part:
        (part / "run.json").write_text("3")
        (part / "a").write_text("3")
    assert {file.name: file.read_text() for file in target.iterdir()} == {
        "run.json": "3",
        "a": "3",
        "notes": "of the user",
    }
    assert list(tmp_path.iterdir()) == [target]


def test_toml_writes_calls_in_single_quotes_and_leaves_out_none() -> None:
    table = {
        "strategy": 'KofP(k=2, mode="async")',
        "both": "a \"b\" 'c'",
        "path": "a\\b",
        "lr": None,
        "cluster": {"x": 1},
    }
    text = toml_text(table, comment="first\nsecond")
    assert text.startswith("# first\n# second\nstrategy = 'KofP(k=2, mode=\"async\")'\n")
    assert tomllib.loads(text) == {key: value for key, value in table.items() if value is not None}
