"""The order query of the example: a stand-in for a call to an order system, as a source of the layer tool."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ctx_vector.stages import Request

ORDERS = Path(__file__).with_name("orders.json")


def find_order(request: Request) -> dict[str, Any] | None:
    """Return the order that the question names, as one line of JSON; None when it names none that there is."""
    found = re.search(r"\bA\d{4}\b", request.user_query, re.ASCII)
    orders = json.loads(ORDERS.read_text(encoding="utf-8"))
    if found is None or found[0] not in orders:
        return None
    order = {"order": found[0], **orders[found[0]]}
    return {"content": json.dumps(order, ensure_ascii=False), "id": found[0]}
