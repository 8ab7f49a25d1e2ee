"""How much a packet's age takes from its score: a pure function of two times.

Which of two statements on one thing holds is not told by their ages alone: see newer.py.
"""

from __future__ import annotations

import math
from datetime import datetime
from typing import Final

SECONDS_PER_DAY: Final = 86_400.0


def recency(timestamp: datetime | None, now: datetime, decay: float, floor: float) -> float:
    """Return clamp(exp(-decay * age), floor, 1) with the age in days and `decay` per day.

    Both times are aware. A missing or future timestamp gives 1.

    >>> from datetime import timedelta, timezone
    >>> now = datetime(2025, 1, 8, tzinfo=timezone.utc)
    >>> round(recency(now - timedelta(days=7), now, 0.1, 0.1), 4)  # exp(-0.7)
    0.4966
    >>> recency(now - timedelta(days=700), now, 0.1, 0.1)
    0.1
    """
    if timestamp is None:
        return 1.0
    age = (now - timestamp).total_seconds() / SECONDS_PER_DAY
    if age <= 0:
        return 1.0
    return max(floor, math.exp(-decay * age))
