"""The report of an experiment as one HTML file: tables, plots, verdicts, what to read, and how it was made.

The file needs nothing else: no scripts, no fonts, no network. It follows the reader's choice of light or dark, and is
readable on a phone. Everything that comes from the data is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from ctx_vector.errors import OptionalDependencyError
from ctx_vector.experiments import plots
from ctx_vector.experiments.comparison import UNSHOWN, Comparison
from ctx_vector.experiments.metrics import TITLES
from ctx_vector.experiments.result import Report
from ctx_vector.experiments.significance import mean_interval

_TEMPLATE: Final = "report.html.j2"


def _environment() -> Any:
    try:
        import jinja2
    except ImportError:
        raise OptionalDependencyError("a report as HTML", "lab") from None
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["signed"] = lambda value: f"{value:+.3f}".replace("-", "\u2212")
    environment.filters["three"] = lambda value: "–" if value is None else f"{value:.3f}"
    return environment


def check_extra() -> None:
    """Raise OptionalDependencyError when what a page needs is not installed, before anything is measured for it."""
    _environment()
    plots.check_extra()


def render(report: Report, *, command: str = "", made_at: datetime | None = None) -> str:
    """Return the report as one HTML page. `command` and `made_at` are shown if given.

    Without `made_at` the page of a report is the same every time.
    """
    from markupsafe import Markup

    arms = [arm.name for arm in report.arms]
    main = report.main_metric
    context = {
        "report": report,
        "arms": arms,
        "colours": {arm: number % plots.ARM_COLOURS for number, arm in enumerate(arms)},
        "means": _means_table(report),
        "curves": {name: Markup(svg) for name, svg in _curves(report, arms).items()},
        "headlines": report.headlines(),
        "comparisons": report.comparisons,
        "matrix": _matrix(report),
        "differences": {
            arm: Markup(plots.differences(_difference(report, arm, main), number, f"difference in {metric_name(main)}"))
            for number, arm in enumerate(arms)
            if number
        },
        "changed": {arm: report.changed(arm) for arm in arms[1:]},
        "scores": {
            arm: Markup(plots.score_distribution(report.scores[arm], number, f"relevance given by {arm}"))
            for number, arm in enumerate(arms)
        },
        "latency": Markup(_latency(report, arms)),
        "latency_figures": report.latency(),
        "categories": report.by_category(main),
        "main": main,
        "named": metric_name,
        "title_of": _title,
        "said": _said,
        "bounds": lambda one: _minus(one.bounds),
        "level": f"{100 * (1 - report.made['alpha']):g} %",
        "unshown": UNSHOWN,
        "units": "queries" if report.made["unit"] == "query" else "groups",
        "command": command,
        "made_at": made_at,
        "text_of": str,
    }
    return str(_environment().get_template(_TEMPLATE).render(**context))


def write_report(report: Report, path: str | Path, *, command: str = "", made_at: datetime | None = None) -> None:
    """Write the page; its folder is made when absent."""
    text = render(report, command=command, made_at=made_at)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def metric_name(metric: str) -> str:
    """Return a metric's name for people.

    >>> metric_name("evidence_recall@500"), metric_name("ndcg@10")
    ('evidence recall at 500 tokens', 'nDCG@10')
    """
    name, _, at = metric.partition("@")
    if name in ("ndcg", "mrr", "r"):
        return {"ndcg": "nDCG", "mrr": "MRR", "r": "R"}[name] + f"@{at}"
    return f"{name.replace('_', ' ')} at {int(at):,} tokens"


def _said(one: Comparison) -> str:
    """Return a comparison's sentence with the metric's name and true minus signs."""
    return _minus(one.words.replace(one.metric, metric_name(one.metric)))


def _minus(text: str) -> str:
    return re.sub(r"(?<![\w.])-(?=\d)", "\u2212", text)


def _title(metric: str) -> str:
    return TITLES[metric.partition("@")[0]]


def _difference(report: Report, arm: str, metric: str) -> Any:
    return report.values[arm][metric] - report.values[report.baseline][metric]


def _means_table(report: Report) -> list[dict[str, Any]]:
    """Return the rows of the table of means: a metric, of how many queries it is if not of all, the value of each arm,
    and the best.
    """
    rows = []
    for metric in report.told:
        values = {arm: report.means[arm].get(metric) for arm in report.means}
        known = [value for value in values.values() if value is not None]
        counted = not metric.startswith("tokens")
        best = max(known) if known and counted and max(known) > min(known) else None
        part = report.of_part(metric)
        rows.append({"metric": metric, "values": values, "best": best, "whole": not counted, "part": part})
    return rows


def _matrix(report: Report) -> dict[str, dict[str, Any]]:
    """Return {metric: {arm: comparison}}, metrics in the order of the table of means."""
    found: dict[str, dict[str, Any]] = {}
    for metric in report.metrics:
        row = {one.arm: one for one in report.comparisons if one.metric == metric}
        if row:
            found[metric] = row
    return found


def _curves(report: Report, arms: Sequence[str]) -> Mapping[str, str]:
    found = {}
    for name in ("evidence_recall", "all_evidence", "freshness", "answer_recall"):
        if f"{name}@{report.budgets[0]}" not in report.told:
            continue
        points = {
            arm: [_point(report, arm, f"{name}@{budget}") for budget in report.budgets] for arm in arms
        }  # fmt: skip
        found[name] = plots.recall_curve(report.budgets, arms, points, name.replace("_", " "))
    return found


def _point(report: Report, arm: str, metric: str) -> tuple[float, float, float]:
    """Return (mean, low, high), for drawing within [0, 1]; the unit of chance is that of the comparisons."""
    values = report.values[arm][metric]
    known = ~np.isnan(values)
    groups = [query.unit for query, fine in zip(report.queries, known, strict=True) if fine]
    values = values[known]
    low, high = mean_interval(
        values,
        groups=groups if report.made["unit"] == "group" else None,
        seed=int(report.made["seed"]),
        alpha=report.made["alpha"],
    )
    mean = float(values.mean())
    return mean, min(mean, max(0.0, low)), max(mean, min(1.0, high))


def _latency(report: Report, arms: Sequence[str]) -> str:
    middle = str(report.budgets[len(report.budgets) // 2])
    figures = {arm: found[middle] for arm, found in report.latency().items()}
    return plots.latency(arms, figures, f"milliseconds to build at {int(middle):,} tokens")
