"""Figures and table on server strategies: staleness, waiting, cancelled gradients, K, and updates against theory."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Final

import numpy as np
import plotly.graph_objects as go

from tacit.cluster import delays
from tacit.cluster.delays import Delay
from tacit.record.run import Run
from tacit.record.trace import NOTE
from tacit.report import units
from tacit.report.comparison import Comparison
from tacit.report.figures import Figure, colours, plain
from tacit.report.strategy_texts import call_in, made, plain_arguments
from tacit.report.timeline import first_run
from tacit.theory import TimeBounds, update_time_bounds

HEADINGS: Final = (
    "updates",
    "seconds per update",
    "by theory",
    "mean staleness",
    "oldest",
    "fresh gradients",
    "idle",
    "cancelled",
)
_KINDS: Final = {"KSync": "k-sync", "KBatchSync": "k-batch-sync", "KAsync": "k-async", "KBatchAsync": "k-batch-async"}
_MOST_LEARNERS: Final = 40
_MOST_AGES: Final = 60
_POINTS: Final = 300


@dataclass(frozen=True)
class Served:
    """The server's numbers of one strategy's run with the lowest seed."""

    label: str
    run: Run
    ages: np.ndarray  # staleness of every gradient that was used
    learners: np.ndarray  # whose it was
    update_times_s: np.ndarray
    predicted: TimeBounds | None  # seconds per update, where theory knows the strategy and the cluster

    @property
    def line(self) -> list[str]:
        """The row of the table."""
        summary, made = self.run.summary(), len(self.update_times_s)
        per_update_s = float(self.update_times_s[-1]) / made
        cells = [
            units.count(made),
            units.seconds(per_update_s),
            "" if self.predicted is None else _between(self.predicted),
            f"{self.ages.mean():.2f}",
            f"{int(self.ages.max())}",
            units.share(float((self.ages == 0).mean())),
            units.share(summary["idle"]),
            units.share(summary["cancelled"]),
        ]
        return [cell.replace(" ", "\u00a0") for cell in cells]  # a number stays with its unit


def served(comparison: Comparison) -> list[Served]:
    """Return the strategies whose trace has updates of a server."""
    found = []
    for entry in comparison.entries:
        run = first_run(entry.runs)
        _, ages, learners = _notes(run, "staleness")
        updates_s = _notes(run, "update")[0]
        if len(ages) and len(updates_s):  # gossip has ages without updates
            found.append(Served(entry.label, run, ages, learners, updates_s, predicted_time(run)))
    return found


def predicted_time(run: Run) -> TimeBounds | None:
    """Return the seconds per update by theory, for messages without cost; None where theory has no result."""
    call, cluster = call_in(run.strategy), run.config.get("cluster")
    if call is None or call.name not in _KINDS or not isinstance(cluster, dict) or "cores" in cluster:
        return None
    arguments, delay = plain_arguments(call), call_in(str(cluster.get("compute", "")))
    compute = None if delay is None else made(delay, delays, Delay)  # type: ignore[type-abstract]
    has_theory = all(arguments.get(name) is None for name in ("maximum_staleness", "drop_staleness", "outer"))
    if compute is None or "k" not in arguments or not has_theory or arguments.get("local_steps", 1) > 1:
        return None
    speed = {int(rank): float(factor) for rank, factor in cluster.get("speed", {}).items()}
    try:
        return update_time_bounds(
            _KINDS[call.name], k=arguments["k"], workers=run.workers, compute=compute, speed=speed
        )
    except (TypeError, ValueError):
        return None


def staleness_figure(one: Served) -> Figure:
    """Return a heat map of staleness: for each learner, the share of its gradients by age in updates."""
    oldest = min(int(one.ages.max()), _MOST_AGES)
    learners = list(range(min(one.run.workers, _MOST_LEARNERS)))
    shares = np.zeros((len(learners), oldest + 1))
    for learner in learners:
        own = one.ages[one.learners == learner].astype(int)
        if len(own):
            shares[learner] = np.bincount(np.minimum(own, oldest), minlength=oldest + 1) / len(own)
    names = [f"learner {learner}" for learner in learners]
    figure = go.Figure(go.Heatmap(z=shares.round(4).tolist(), x=list(range(oldest + 1)), y=names))
    figure.update_traces(
        colorscale=[[0.0, "rgba(0,114,178,0)"], [1.0, "rgba(0,114,178,1)"]],
        zmin=0,
        zmax=float(shares.max()),
        xgap=1,
        ygap=1,
        showscale=False,
        hovertemplate="%{y}: %{z:.1%} of its gradients %{x} updates old<extra></extra>",
    )
    figure.update_layout(height=76 + 15 * len(names), margin={"l": 76, "r": 22, "t": 8, "b": 52})
    figure.update_xaxes(
        title_text="updates between model and use",
        title_standoff=8,
        ticklabelstandoff=4,
        zeroline=False,
        showgrid=False,
        fixedrange=True,
    )
    figure.update_yaxes(autorange="reversed", showgrid=False, fixedrange=True, tickfont_size=10, dtick=1)
    return plain(figure)


def pace_figure(comparison: Comparison, found: list[Served]) -> Figure | None:
    """Return updates against time; dashed lines show theory for messages without cost."""
    if not found:
        return None
    styles, figure = colours(comparison), go.Figure()
    for one in found:
        colour, name = styles[one.label][0], html.escape(one.label)
        times_s = one.update_times_s
        at = np.unique(np.linspace(0, len(times_s) - 1, _POINTS).astype(int))
        hover = f"<b>{name}</b><br>%{{y}} updates at %{{x:.4~g}} s<extra></extra>"
        figure.add_scatter(
            x=_short(times_s[at]),
            y=(at + 1).tolist(),
            mode="lines",
            line={"color": colour, "width": 2.4},
            hovertemplate=hover,
        )
        for bound in sorted(set(one.predicted or ())):
            end_s = float(times_s[-1])
            figure.add_scatter(
                x=[0, end_s],
                y=[0, end_s / bound],
                mode="lines",
                line={"color": colour, "width": 1.2, "dash": "dash"},
                hovertemplate=f"<b>{name}</b><br>{units.seconds(bound)} an update, by theory<extra></extra>",
            )
    return _against_time(figure, "updates of the server’s model")


def k_figure(comparison: Comparison, found: list[Served]) -> Figure | None:
    """Return K over time, where it changes."""
    styles, figure = colours(comparison), go.Figure()
    for one in found:
        times_s, ks, _ = _notes(one.run, "k")
        if len(ks) < 2:
            continue
        x, y = [*_short(times_s), float(one.update_times_s[-1])], [*ks.tolist(), float(ks[-1])]
        line = {"color": styles[one.label][0], "width": 2.4, "shape": "hv"}
        hover = f"<b>{html.escape(one.label)}</b><br>K = %{{y}} from %{{x:.4~g}} s<extra></extra>"
        figure.add_scatter(x=x, y=y, mode="lines", line=line, hovertemplate=hover)
    if not figure.data:
        return None
    drawn = _against_time(figure, "K")
    drawn["layout"]["yaxis"]["dtick"] = max(1, round(max(max(line.y) for line in figure.data) / 10))
    return drawn


def _against_time(figure: go.Figure, title: str) -> Figure:
    figure.update_layout(height=300, margin={"l": 60, "r": 22, "t": 8, "b": 46}, hovermode="closest")
    figure.update_xaxes(title_text="time (s)", zeroline=False, rangemode="tozero")
    figure.update_yaxes(title_text=title, zeroline=False, rangemode="tozero", automargin=True)
    return plain(figure)


def _notes(run: Run, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return times, values and peers of the notes called ``name``."""
    times_s, values, peers = run.trace.unordered(("time_s", "value", "peer"), NOTE, name)
    in_order = np.lexsort((peers, values, times_s))
    return times_s[in_order], values[in_order], peers[in_order]


def _between(bounds: TimeBounds) -> str:
    same = bounds.lower_s == bounds.upper_s
    return units.seconds(bounds.lower_s) if same else units.between(bounds.lower_s, bounds.upper_s, units.seconds)


def _short(values: np.ndarray) -> list[float]:
    return [float(f"{value:.6g}") for value in values]
