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


def machine_of() -> dict[str, object]:
    """Return what the speed of an encoder depends on: instructions, load, the versions of what runs it."""
    import onnxruntime
    import sentence_transformers
    import torch

    model, flags = platform.processor(), ""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
            if line.startswith("flags"):
                flags = line
    except OSError:
        pass
    wanted = ("avx2", "avx512f", "avx_vnni", "avx512_vnni")
    return {
        "cpu": model,
        "cpus": os.cpu_count(),
        "instructions": [name for name in wanted if f" {name} " in f"{flags} "],
        "load_average_before": [round(load, 2) for load in os.getloadavg()] if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "onnxruntime": onnxruntime.__version__,
        "torch": torch.__version__,
        "sentence_transformers": sentence_transformers.__version__,
    }


def write_result(name: str, result: dict[str, object]) -> None:
    """Write benchmarks/results/NAME.json."""
    save(RESULTS / f"{name}.json", result)


def save(path: Path, result: dict[str, object]) -> None:
    """Write a result; its folder is made when absent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
