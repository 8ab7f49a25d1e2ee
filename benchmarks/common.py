"""What the runners share: a note on the hardware, and where results go."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def hardware() -> dict[str, object]:
    """Return what a reader needs to place the figures."""
    model = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "system": platform.system(),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }


def write_result(name: str, result: dict[str, object]) -> None:
    """Write benchmarks/results/NAME.json."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
