"""The figures that the guides quote are those of benchmarks/results, rounded."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
GUIDES = ROOT / "docs" / "how-to"
RESULTS = ROOT / "benchmarks" / "results"


def _table(page: Path, first_heading: str) -> list[dict[str, str]]:
    """Return the rows of the table of ``page`` whose header begins with ``first_heading``, without bold and code marks."""
    for block in re.findall(r"(?:^\|.*\n)+", page.read_text(), re.M):
        lines = [[re.sub(r"[*`]", "", cell).strip() for cell in row.split("|")[1:-1]] for row in block.splitlines()]
        if ", ".join(lines[0]).startswith(first_heading):
            return [dict(zip(lines[0], row, strict=True)) for row in lines[2:]]
    raise AssertionError(f"{page.name} has no table {first_heading!r}")


def _measured(name: str) -> Any:
    return json.loads((RESULTS / name).read_text())


def test_bytes_of_compressed_gradients() -> None:
    compressor = {"QSGD()": "QSGD(bits=8)"}
    measured = {
        (compressor.get(row["compressor"], row["compressor"]), re.sub(r"master=.*", "master=…)", row["feedback"])): row
        for row in _measured("aggregation.json")["bytes"]
    }
    rows = _table(GUIDES / "compress.md", "compressor, feedback, 4 workers")
    assert len(rows) == len(measured)
    for row in rows:
        found = measured[tuple(row["compressor, feedback"].split(", "))]
        for size in (4, 16, 64):
            expected = " → ".join(f"{found[f'{form} {size}'] / 1000:,.0f}" for form in ("gather", "scatter"))
            assert row[f"{size} workers"] == expected, row


def test_updates_per_second_of_servers() -> None:
    measured = {row["strategy"]: row for row in _measured("server_pace.json")["kinds"].values()}
    rows = _table(GUIDES / "servers-and-stragglers.md", "strategy, measured")
    assert {row["strategy"] for row in rows} == measured.keys()
    for row in rows:
        found = measured[row["strategy"]]
        assert row["measured"] == f"{found['updates per second']:.1f}"
        for source in ("theory", "simulator"):
            predicted = found["predicted updates per second"][source]
            parts = predicted if isinstance(predicted, list) else [predicted]
            assert row[source] == "–".join(f"{part:.1f}" for part in parts)


NAMES = {
    "Every(1)": "tau=1",
    "Every(91)": "tau=91",
    "LinearPeriod(initial=91, rounds=10)": "linear E=10",
    "ten rounds, all growth in the last period": "growth in the last round",
    "OneShot()": "one-shot",
}


def test_losses_of_periods() -> None:
    part = (RESULTS / "local_sgd.md").read_text().partition("\nPart 3")[2].partition("\nPart 4")[0]
    measured = {
        name: (rounds, loss) for name, rounds, loss in re.findall(r"^\| (.+) \| (\d+) \| ([\d.]+) \|$", part, re.M)
    }
    rows = _table(GUIDES / "choose-a-period.md", "period, rounds, final loss")[:5]
    assert [row["period"] for row in rows] == list(NAMES)
    for row in rows:
        rounds, loss = measured[NAMES[row["period"]]]
        assert (row["rounds"], row["final loss"]) == (rounds, loss)


@pytest.mark.parametrize("method", ["AllReduce", "SwarmSGD", "SwarmSGD, blocking"])
def test_step_times_of_gossip(method: str) -> None:
    measured = re.findall(
        rf"^\| ([\d]+ [GM]bit/s) \| {method} \| (.*) \|$", (RESULTS / "gossip_links.md").read_text(), re.M
    )
    times = {network: [cell.split()[0] for cell in cells.split(" | ")[:3]] for network, cells in measured[:2]}
    rows = [row for row in _table(GUIDES / "gossip.md", "network, method") if row["method"] == method]
    assert rows
    for row in rows:
        assert [row[f"{peers} peers"] for peers in (2, 4, 8)] == times[row["network"]]
