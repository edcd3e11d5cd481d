"""The page: whole, offline, harmless, and the same story as the terminal's table."""

from __future__ import annotations

import io
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from plotly.offline import get_plotlyjs
from rich.console import Console

import tacit
from tacit.errors import TacitError
from tacit.record.run import Run
from tacit.record.trace import COMPUTE, HOOK, WAIT, Trace
from tacit.report import Comparison, Entry, figures, print_table, render, units, verdict, write_report
from tacit.report.verdict import remarks
from tests.report.synthetic_runs import four_strategies, local_run, tiny_run
from tests.report.synthetic_runs import row as history_row


class Reader(HTMLParser):
    """Collects what a browser would fetch, run and show."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.scripts = 0
        self.handlers: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.loads += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data: str) -> None:
        self.text += data


def embedded(page: str) -> dict[str, dict]:  # type: ignore[type-arg]
    """Return the figures of a page."""
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, re.DOTALL)
    assert found
    figures: dict[str, dict] = json.loads(found[1])  # type: ignore[type-arg]
    return figures


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return four_strategies(steps=60, workers=10)


@pytest.fixture(scope="module")
def page(comparison: Comparison) -> str:
    return render(comparison)


def test_the_page_names_every_strategy_and_tells_the_verdict(comparison: Comparison, page: str) -> None:
    text = Reader(page.replace("<wbr>", "")).text
    for entry in comparison.entries:
        assert entry.label in text
    assert verdict(comparison) in text
    assert "lr=0.2" in text
    assert "tacit compare --workload" in text
    assert "engine vmap" in text


def test_the_page_loads_nothing(page: str) -> None:
    read = Reader(page)
    assert read.loads == ["data:,"]
    assert read.scripts == 3
    ours = page.replace(get_plotlyjs(), "")
    assert len(ours) < len(page)
    assert not re.search(r"https?:|//\w+\.|@import|url\(", ours.replace("http://www.w3.org", ""))


def test_figures_have_a_band_and_a_line_per_strategy_on_every_axis(comparison: Comparison, page: str) -> None:
    figures = embedded(page)
    assert {"loss", "metric", "period", "spread"} <= set(figures)
    loss = figures["loss"]
    assert set(loss["axes"]) == {"time_s", "bytes_sent", "round", "gradients", "step"}
    assert [trace["legendgroup"] for trace in loss["data"]] == [e.label for e in comparison.entries for _ in range(2)]
    for name, axis in loss["axes"].items():
        assert len(axis["x"]) == len(axis["y"]) == 2 * len(comparison.entries)
        lengths = [len(x) for x in axis["x"]]
        assert lengths == [len(y) for y in axis["y"]]
        assert [length > 0 for length in lengths] == [True] * 6 + [name != "round"] * 2  # a server has no rounds
    strips = [name for name in figures if name.startswith("strip-")]
    assert strips == [f"strip-{entry.label}" for entry in comparison.entries]


def test_a_label_with_markup_is_harmless() -> None:
    evil = '</script><script>alert("x")</script><img src=x onerror=alert(1)>'
    clean = render(Comparison([Entry("b", [local_run(steps=20)])], "w", "c"))
    entries = [Entry(evil, [local_run(steps=20)], note=evil), Entry("b", [local_run(period=4, steps=20)])]
    page = render(Comparison(entries, evil, evil, evil, reproduce=evil))
    read = Reader(page)
    assert read.scripts == Reader(clean).scripts
    assert read.loads == ["data:,"]
    assert read.handlers == []
    for trace in embedded(page)["loss"]["data"]:
        assert "<script" not in trace["name"]


def test_one_run_has_a_page_without_rivals() -> None:
    single = Comparison([Entry("LocalSGD(period=Every(8))", [local_run(period=8, steps=30)])], "digits", "Cluster()")
    text = Reader(render(single).replace(get_plotlyjs(), "")).text
    assert "speed-up" not in text.lower()
    assert "baseline" not in text
    assert "Means over seeds" not in text
    assert "took" in verdict(single) and "for 30 steps" in verdict(single)


def test_runs_with_nothing_to_draw_still_have_a_page() -> None:
    empty = tiny_run([(0.0, None)])
    empty.status = "failed: worker 1 was lost"
    bare = Comparison([Entry("a", [empty]), Entry("b", [tiny_run([(0, math.nan), (1, math.inf)])])], "w", "c", "a")
    text = Reader(render(bare)).text
    assert "seed 0 failed: worker 1 was lost" in text
    assert "No run measured a loss" in text


def test_writing_leaves_the_page_alone_in_its_folder(comparison: Comparison, page: str, tmp_path: Path) -> None:
    path = write_report(comparison, tmp_path / "report.html")
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
    assert path.read_text(encoding="utf-8") == page  # and rendering is deterministic
    assert path.stat().st_size < 8e6


def test_a_place_that_cannot_be_written_is_named(comparison: Comparison, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(TacitError, match=r"could not write the report to .*report\.html: .*choose another place"):
        write_report(comparison, tmp_path / "file" / "report.html")
    (tmp_path / "report.html").mkdir()
    with pytest.raises(TacitError, match="choose another place"):
        write_report(comparison, tmp_path / "report.html")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "report.html"]  # no half-written page


@pytest.mark.parametrize("width", [80, 100, 170])
def test_the_terminal_table_fits(comparison: Comparison, width: int) -> None:
    out = io.StringIO()
    print_table(comparison, Console(file=out, width=width))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    text = out.getvalue()
    for expected in ("AllReduce()", "KSync(k=8)", "initial=4", "speed-up", "final", "lr=0.2"):
        assert expected in text
    assert "…" not in text  # nothing cut off
    assert ("total" in text) == (width == 170)
    assert ("gradients to" in text) == (width > 80)
    assert "waiting" in text


def against(*times_s: float, bytes_per_row: int = 100) -> Comparison:
    """Return a baseline that needs 10 s and rivals that need ``times_s``."""
    base = Entry("Base()", [tiny_run([(0, 9.0), (10, 1.0)])])
    rivals = [
        Entry(f"R{i}()", [tiny_run([(0, 9.0), (t, 1.0)], bytes_per_row=bytes_per_row)]) for i, t in enumerate(times_s)
    ]
    return Comparison([base, *rivals], "w", "c", "Base()", 1.0)


def test_verdicts() -> None:
    assert verdict(against(5, 2)) == "R1() was 5.0× as fast as Base() to loss 1."
    assert verdict(against(2, bytes_per_row=10)).endswith(
        "5.0× as fast as Base() to loss 1 and sent 10.0× fewer bytes."
    )
    assert verdict(against(2, bytes_per_row=200)).endswith(
        "5.0× as fast as Base() to loss 1 but sent 2.0× as many bytes."
    )
    assert verdict(against(10.2)) == "R0() reached loss 1 about as soon as Base()."
    assert verdict(against(20)) == "No strategy beat Base() to loss 1; R0() came closest, 2.0× later."
    lost = Comparison([*against().entries, Entry("R()", [tiny_run([(0, 9.0), (1, 8.0)])])], "w", "c", "Base()", 1.0)
    assert verdict(lost) == "Only Base() reached loss 1, after 10.0 s."
    assert remarks(lost) == ["Not every seed of R() reached the target."]
    turned = Comparison(lost.entries, "w", "c", "R()", 1.0)
    assert verdict(turned).endswith("first, after 10.0 s and 100 B sent; R() did not reach it with every seed.")
    assert verdict(Comparison(lost.entries, "w", "c", None, 0.1)) == "No strategy reached loss 0.1 with every seed."


def test_runs_alone_make_a_page(tmp_path: Path) -> None:
    strategies = [tacit.AllReduce(), tacit.LocalSGD(period=tacit.Every(4))]
    workload = tacit.workloads.quadratic(dimension=4)
    runs = [tacit.simulate(workload, strategy, steps=20, seed=seed) for strategy in strategies for seed in (0, 1)]
    shown = Reader(write_report(runs, tmp_path / "page.html").read_text()).text
    assert "AllReduce()" in shown and "LocalSGD(period=Every(4))" in shown and "0, 1" in shown
    with pytest.raises(ValueError, match="runs=\\[\\] is empty"):
        write_report([], tmp_path / "none.html")


def test_the_bars_of_the_whole_run_show_every_strategy_with_its_shares(comparison: Comparison, page: str) -> None:
    bars = re.findall(r'class="bar" role="img" aria-label="([^"]*)"', page)
    assert len(bars) == len(comparison.entries)
    for row, said in zip(comparison.rows, bars, strict=True):
        assert f"computing {units.share(row.shares['computing'])}" in said and "waiting" in said
    widths = [float(width) for width in re.findall(r'<span style="width:([\d.]+)%;background', page)]
    assert sum(widths) == pytest.approx(100 * len(bars), abs=0.2)


def test_on_a_phone_the_switches_do_not_stay_on_the_screen(page: str) -> None:
    narrow = re.search(r"@media \(max-width: \d+px\) \{(.*?)\n\}", page, re.DOTALL)
    assert narrow and re.search(r"\.controls \{ position: static;", narrow[1])


def test_the_legend_names_an_activity_that_only_the_beginning_of_the_run_has() -> None:
    trace, end_s = Trace(), 0.0
    for step in range(1, 2001):
        for rank in (0, 1):
            trace.record(COMPUTE, rank, end_s, end_s + 0.1, step=step)
        end_s += 0.1
        if step == 1:
            trace.record(WAIT, 1, end_s, end_s + 0.05, step=1, round=1)
            trace.record(HOOK, 0, end_s, end_s + 0.05, step=1)
            end_s += 0.05
    run = Run("tiny", "Tiny()", 2, 2000, 0, [history_row(0.0, 2.0), history_row(end_s, 1.0)], torch.zeros(1), trace)
    page = render(Comparison.of([run]))
    shares = Comparison.of([run]).rows[0].shares
    assert 0 < shares["waiting"] < figures.VISIBLE, "as a share of the whole run it is not drawn"
    legend = re.search(r'<ul class="key">(.*?)</ul>', page, re.DOTALL)
    assert legend is not None
    assert re.findall(r"</span>([a-z]+)</li>", legend[1]) == ["computing", "waiting", "hooks"]
