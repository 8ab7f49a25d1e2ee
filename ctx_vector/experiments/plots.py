"""The plots of a report as SVG texts that stand in a page: no fonts, no scripts, colours from the page's style.

Matplotlib draws in colours that stand for names (`_SHADES`); they are replaced by CSS variables, so that one drawing
serves a light and a dark page. Widths are those of a phone: a wide page sets plots side by side.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from ctx_vector.errors import OptionalDependencyError
from ctx_vector.experiments.result import BINS, Scores

if TYPE_CHECKING:
    Floats = NDArray[np.float64]

ARM_COLOURS: Final = 10
_SHADES: Final = {f"#a1b2c{n}": f"var(--arm{n})" for n in range(ARM_COLOURS)} | {
    "#d1e2f0": "var(--ink)",
    "#d1e2f1": "var(--faint)",
    "#d1e2f2": "var(--good)",
    "#d1e2f3": "var(--bad)",
    "#d1e2f4": "var(--soft)",
}
_INK, _FAINT, _GOOD, _BAD, _SOFT = "#d1e2f0", "#d1e2f1", "#d1e2f2", "#d1e2f3", "#d1e2f4"
_MARKS: Final = ("o", "s", "^", "D", "v", "P", "X", "*", "p", "h")
_LINES: Final = ("-", "--", "-.", ":", "-", "--", "-.", ":", "--", "-.")
_WIDTH: Final = 4.1  # inches


def _matplotlib() -> Any:
    try:
        import matplotlib
        import matplotlib.figure
    except ImportError:
        raise OptionalDependencyError("a report with plots", "lab") from None
    return matplotlib


def check_extra() -> None:
    """Raise OptionalDependencyError when matplotlib is not installed."""
    _matplotlib()


class _Canvas:
    """One drawing: `with _Canvas(height, "what it shows") as axes`, then `.svg`."""

    def __init__(self, height: float, label: str, name: str) -> None:
        self._matplotlib = _matplotlib()
        self._label, self._name = label, name
        self.figure = self._matplotlib.figure.Figure(figsize=(_WIDTH, height), layout="constrained")
        self.axes = self.figure.add_subplot()
        for side in ("top", "right"):
            self.axes.spines[side].set_visible(False)
        for side in ("left", "bottom"):
            self.axes.spines[side].set_color(_FAINT)
        self.axes.tick_params(colors=_INK, labelsize=9, color=_FAINT)
        self.axes.grid(axis="y", color=_FAINT, linewidth=0.5, alpha=0.5)
        self.axes.set_axisbelow(True)

    def titled(self, across: str, up: str) -> None:
        """Name the axes."""
        self.axes.set_xlabel(across, color=_INK, fontsize=9.5)
        self.axes.set_ylabel(up, color=_INK, fontsize=9.5)

    def svg(self) -> str:
        """Return the drawing."""
        text = io.StringIO()
        settings = {"svg.fonttype": "none", "svg.hashsalt": self._name}
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        with self._matplotlib.rc_context(settings), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*missing from font.*")  # the reader's browser has it
            self.figure.savefig(text, format="svg", transparent=True, metadata=nothing)
        return _inlined(text.getvalue(), self._label, self._name)


def _inlined(svg: str, label: str, name: str) -> str:
    """Return a whole SVG file as an element of a page: as wide as its place, ids of its own, colours by name."""
    svg = svg[svg.index("<svg") :]
    head, rest = svg.split(">", 1)
    box = re.search(r'viewBox="[^"]+"', head)
    title = label.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    head = f'<svg {box[0] if box else ""} xmlns:xlink="http://www.w3.org/1999/xlink" role="img" aria-label="{title}"'
    rest = re.sub(r"<metadata>.*?</metadata>", "", rest, flags=re.S)
    rest = re.sub(r'\bid="', f'id="{name}-', rest)
    rest = re.sub(r'href="#', f'href="#{name}-', rest)
    rest = re.sub(r"url\(#", f"url(#{name}-", rest)
    for shade, variable in _SHADES.items():
        rest = rest.replace(shade, variable)
    return f"{head}>{rest}"


def _arm(number: int) -> str:
    return f"#a1b2c{number % ARM_COLOURS}"


def recall_curve(
    budgets: Sequence[int], arms: Sequence[str], points: Mapping[str, Sequence[tuple[float, float, float]]], title: str
) -> str:
    """Draw mean and interval of each arm at each budget; `points[arm]` holds (mean, low, high)."""
    canvas = _Canvas(2.9, title, title.replace(" ", "-"))
    axes = canvas.axes
    places = np.arange(len(budgets), dtype=float)
    for number, arm in enumerate(arms):
        mean, low, high = (np.asarray(part) for part in zip(*points[arm], strict=True))
        shift = (number - (len(arms) - 1) / 2) * 0.07  # so that intervals do not hide each other
        axes.errorbar(
            places + shift, mean, yerr=[mean - low, high - mean], color=_arm(number), linewidth=1.4, elinewidth=1,
            capsize=2, marker=_MARKS[number % len(_MARKS)], markersize=4, linestyle=_LINES[number % len(_LINES)],
        )  # fmt: skip
    axes.set_xticks(places, [f"{size:,}" for size in budgets])
    axes.set_ylim(0, 1.02)
    canvas.titled("tokens for candidates", title)
    return canvas.svg()


def differences(values: Floats, number: int, title: str) -> str:
    """Draw the difference of each query to the baseline, sorted, largest gain first."""
    canvas = _Canvas(2.2, title, f"diff{number}")
    axes = canvas.axes
    ordered = np.sort(values[~np.isnan(values)])[::-1]
    edges = np.arange(len(ordered) + 1)
    axes.stairs(np.maximum(ordered, 0), edges, fill=True, color=_GOOD, linewidth=0)
    axes.stairs(np.minimum(ordered, 0), edges, fill=True, color=_BAD, linewidth=0)
    axes.axhline(0, color=_INK, linewidth=0.8)
    axes.axhline(float(ordered.mean()), color=_INK, linewidth=0.8, linestyle="--")
    most = max(0.05, float(np.abs(ordered).max())) * 1.05
    axes.set_ylim(-most, most)
    axes.set_xlim(0, max(1, len(ordered)))
    canvas.titled("queries, sorted", "difference")
    return canvas.svg()


def score_distribution(scores: Scores, number: int, title: str) -> str:
    """Draw which share of evidence, and of all other candidates, has at least a relevance: what a floor would keep."""
    canvas = _Canvas(2.2, title, f"scores{number}")
    axes = canvas.axes
    edges = np.linspace(0, 1, BINS + 1)
    for counts, colour, line in ((scores.relevant, _arm(number), "-"), (scores.irrelevant, _SOFT, "--")):
        kept = np.cumsum(np.asarray(counts, float)[::-1])[::-1] / max(1, sum(counts))
        axes.fill_between(edges, np.append(kept, 0.0), color=colour, alpha=0.25, linewidth=0)
        axes.plot(edges, np.append(kept, 0.0), color=colour, linewidth=1.5, linestyle=line)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.02)
    canvas.titled("relevance", "share with at least this")
    return canvas.svg()


def latency(arms: Sequence[str], figures: Mapping[str, Mapping[str, float]], title: str) -> str:
    """Draw p50, p95 and p99 of each arm's builds in milliseconds, one row an arm."""
    canvas = _Canvas(0.9 + 0.28 * len(arms), title, "latency")
    axes = canvas.axes
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color=_FAINT, linewidth=0.5, alpha=0.5)
    for number, arm in enumerate(arms):
        found = figures[arm]
        axes.barh(number, found["p50"], height=0.5, color=_arm(number), alpha=0.8)
        axes.plot([found["p50"], found["p95"]], [number, number], color=_arm(number), linewidth=2)
        axes.plot(found["p95"], number, marker="|", color=_arm(number), markersize=9)
        axes.plot(found["p99"], number, marker=".", color=_arm(number), markersize=5)
    axes.set_yticks(range(len(arms)), [_short(arm) for arm in arms])
    for tick in axes.get_yticklabels():
        tick.set_parse_math(False)  # a dollar is a dollar
    axes.set_ylim(len(arms) - 0.4, -0.6)
    axes.set_xlim(0, None)
    canvas.titled("ms: bar p50, line to p95, dot p99", "")
    return canvas.svg()


def _short(name: str) -> str:
    return name if len(name) <= 18 else name[:17] + "…"
