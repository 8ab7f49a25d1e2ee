"""What a report says first of each arm: a verdict by one metric that is fixed beforehand, and all else that was shown.

The metric is the first of those compared, evidence recall unless said otherwise, at the middle budget (of two the
smaller one, for where everything fits nothing differs). A difference in another metric is named beside it, so that "no
difference shown" never hides one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ctx_vector.experiments.comparison import BETTER, UNSHOWN, WORSE, Comparison


@dataclass(frozen=True, slots=True)
class Headline:
    """One arm: the comparison in the main metric, None if it was not compared in that, and every other one that shows a
    difference.
    """

    arm: str
    main: Comparison | None
    others: tuple[Comparison, ...]

    @property
    def verdict(self) -> str:
        """The verdict by the main metric; where that shows nothing, what all others that show anything agree on."""
        if self.main is not None and self.main.verdict != UNSHOWN:
            return self.main.verdict
        shown = {one.verdict for one in self.others}
        return shown.pop() if len(shown) == 1 else UNSHOWN

    def words(self, main: str, named: Callable[[str], str] = str) -> str:
        """Return the verdict in words; `main` is the main metric, `named` gives a metric's name for people.

        "worse in nDCG@10, no difference shown in evidence recall at 150 tokens"
        """
        by: dict[str, list[str]] = {BETTER: [], WORSE: []}
        if self.main is not None and self.main.verdict != UNSHOWN:
            by[self.main.verdict].append(main)
        for one in self.others:
            by[one.verdict].append(one.metric)
        parts = [f"{verdict} in {listed(metrics, named)}" for verdict, metrics in by.items() if metrics]
        if not parts:
            return UNSHOWN
        if self.main is None or self.main.verdict == UNSHOWN:
            parts.append(f"{UNSHOWN} in {named(main)}")
        return "; ".join(parts)


def listed(metrics: Sequence[str], named: Callable[[str], str]) -> str:
    """Return the names of metrics, those that differ in the budget alone as one: "recall at 500 / 1,000 tokens"."""
    groups: dict[str, list[str]] = {}
    for metric in metrics:
        groups.setdefault(metric.partition("@")[0], []).append(metric)
    parts: list[str] = []
    for group in groups.values():
        names = [named(metric) for metric in group]
        stem = names[0].partition(" at ")[0] + " at "
        if len(names) > 1 and all(name.startswith(stem) and name.endswith(" tokens") for name in names):
            sizes = [named(metric).removeprefix(stem).removesuffix(" tokens") for metric in sorted(group, key=_budget)]
            names = [f"{stem}{' / '.join(sizes)} tokens"]
        parts += names
    return ", ".join(parts)


def _budget(metric: str) -> int:
    return int(metric.partition("@")[2] or 0)


def headlines(comparisons: Sequence[Comparison], main: str) -> list[Headline]:
    """Return a headline for each arm, in the order of the comparisons."""
    found = []
    for arm in dict.fromkeys(one.arm for one in comparisons):
        own = [one for one in comparisons if one.arm == arm]
        first = next((one for one in own if one.metric == main), None)
        others = tuple(one for one in own if one is not first and one.verdict != UNSHOWN)
        found.append(Headline(arm, first, others))
    return found
