"""What indexing costs: the first run, its share outside the encoder, and a second run over the same files.

    python benchmarks/index.py [FOLDER]

The default folder is the FastAPI documentation in English and Chinese beside this checkout (../shared/corpora), else
this project's own `data`. Writes benchmarks/results/index.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from common import hardware, write_result

from ctx_vector.encoders import load_encoder
from ctx_vector.knowledge import KnowledgeBase

ROOT = Path(__file__).resolve().parent.parent
CORPUS = ROOT.parent / "shared" / "corpora" / "fastapi-docs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=CORPUS if CORPUS.is_dir() else ROOT / "data")
    folder = parser.parse_args().folder
    encoder = load_encoder()
    encoder.encode_documents(["The model is loaded before the clock starts."])
    with tempfile.TemporaryDirectory() as place, KnowledgeBase(place, encoder) as kb:
        first = kb.sync(folder)
        second = kb.sync(folder)
        size = kb.stats()["bytes"]
    result = {
        "what": "indexing a folder for the first time, and again",
        "hardware": hardware(),
        "folder": folder.name,
        "documents": len(first.added),
        "failed": len(first.failed),
        "chunks": first.chunks,
        "encoded": first.encoded,
        "seconds": round(first.seconds, 2),
        "chunks_per_second": round(first.encoded / first.seconds, 1),
        "share_outside_encoder": round(1 - first.encoder_seconds / first.seconds, 4),
        "second_seconds": round(second.seconds, 4),
        "second_encoded": second.encoded,
        "second_share_of_first": round(second.seconds / first.seconds, 5),
        "bytes_on_disk": size,
    }
    write_result("index", result)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
