"""LIBSVM text is read exactly, and a broken file is told by its line."""

import bz2
import gzip
import lzma
from pathlib import Path

import numpy as np
import pytest

from tacit.errors import BadData
from tacit.workloads.data.libsvm import read_libsvm

GOOD = """# a comment
+1 1:0.5 3:-2e-1
-1 qid:7 2:1   # the rest is a comment

-1
"""


@pytest.mark.parametrize(
    ("ending", "compress"), [("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_reads_plain_and_compressed_text(tmp_path: Path, ending: str, compress: type[bytes]) -> None:
    path = tmp_path / f"small{ending}"
    path.write_bytes(compress(GOOD.encode()))
    x, y = read_libsvm(path)
    assert np.array_equal(x, [[0.5, 0, -0.2], [0, 1, 0], [0, 0, 0]])
    assert np.array_equal(y, [1, -1, -1])
    assert read_libsvm(path, np.float32)[0].dtype == np.float32


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("1 3", "'3' is not an index:value pair"),
        ("1 3:", "'3:' is not an index:value pair"),
        ("1 :2", "':2' is not an index:value pair"),
        ("1 3:2:1", "value '2:1' in '3:2:1' is not a number"),
        ("1 a:2", "index 'a' in 'a:2' is not a whole number"),
        ("1 1.5:2", "index '1.5' in '1.5:2' is not a whole number"),
        ("1 1:two", "value 'two' in '1:two' is not a number"),
        ("one 1:2", "label 'one' is not a number"),
        ("nan 1:2", "label 'nan' is not finite"),
        ("1 0:2", "index 0 must be at least 1"),
        ("1 2:1 2:1", "index 2 occurs twice"),
        ("1 3:1 2:1", "index 2 follows index 3; indices must increase"),
        ("1 1:inf", "value 'inf' of feature 1 is not finite"),
        ("1 1:nan", "value 'nan' of feature 1 is not finite"),
    ],
)
def test_a_broken_line_is_named_with_its_number(tmp_path: Path, line: str, complaint: str) -> None:
    path = tmp_path / "broken"
    path.write_text(f"1 1:1\n\n# fine so far\n{line}\n1 1:1\n")
    with pytest.raises(BadData, match=f"broken, line 4: ({complaint})"):
        read_libsvm(path)


@pytest.mark.parametrize(
    ("ending", "compress"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_a_truncated_compressed_file_is_bad_data(tmp_path: Path, ending: str, compress: type[bytes]) -> None:
    path = tmp_path / f"cut{ending}"
    rng = np.random.default_rng(0)
    whole = "".join(f"1 1:{number}\n" for number in rng.standard_normal(20_000))
    content = compress(whole.encode())
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(BadData, match=rf"cut{ending}, line \d+: cannot be read further .*truncated or damaged"):
        read_libsvm(path)


def test_what_is_not_compressed_text_is_bad_data(tmp_path: Path) -> None:
    (tmp_path / "plain.gz").write_text("1 1:1\n")
    with pytest.raises(BadData, match=r"plain\.gz, line 1: cannot be read further"):
        read_libsvm(tmp_path / "plain.gz")
    (tmp_path / "binary").write_bytes(b"1 1:1\n\xff\xfe\n")
    with pytest.raises(BadData, match="binary, line 2: byte 0xff is not text"):
        read_libsvm(tmp_path / "binary")


def test_missing_and_empty_files_explain_themselves(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="nowhere: there is no such file"):
        read_libsvm(tmp_path / "nowhere")
    with pytest.raises(BadData, match="is a folder"):
        read_libsvm(tmp_path)
    (tmp_path / "empty").write_text("# nothing\n")
    with pytest.raises(BadData, match="empty: holds no samples"):
        read_libsvm(tmp_path / "empty")
    (tmp_path / "labels").write_text("1\n-1\n")
    with pytest.raises(BadData, match="labels: holds 2 labels but not one index:value pair"):
        read_libsvm(tmp_path / "labels")


def test_a_matrix_that_would_not_fit_is_refused_before_it_is_made(tmp_path: Path) -> None:
    path = tmp_path / "wide"
    path.write_text("1 1:1 9000000000:1\n")
    with pytest.raises(BadData, match=r"1 samples of 9000000000 features would fill 67\.1 GiB .* limit is 4 GiB"):
        read_libsvm(path)
