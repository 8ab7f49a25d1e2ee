"""A customer service agent's context from five sources, configured in YAML: profile, rules, FAQ, policies, orders.

    python examples/customer_service.py                     # 中文 and English questions, before and after a new policy
    python examples/customer_service.py --text              # with the whole contexts

The settings are in `examples/customer_service/context.yaml`: a model of 128,000 tokens, of which the layers system,
static, dynamic and tool share 102,400 at 0.1 / 0.2 / 0.5 / 0.15, and 0.05 are never filled. The second half of the run
publishes version 2 of the return policy: from then on nothing of version 1 is in a context.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from ctx_vector import BuiltContext, ContextBuilder, CtxVectorError, KnowledgeBase

FOLDER = Path(__file__).resolve().parent / "customer_service"
QUESTIONS = (
    "订单A1001的餐椅坐着不舒服，还能退吗？运费谁出？",
    "Can I still return the chairs of order A1001, and who pays?",
)
NOW = "2024-11-22T10:00:00+08:00"


def prepare(folder: Path) -> Path:
    """Copy the settings and data to a folder and index the policies there; return the settings file."""
    shutil.copytree(FOLDER, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    with KnowledgeBase(folder / "kb") as kb:
        kb.sync(folder / "policies")
    return folder / "context.yaml"


def publish(folder: Path) -> None:
    """Add the new version of the return policy; the old one stays where it is."""
    with KnowledgeBase(folder / "kb") as kb:
        kb.sync(folder / "updates")


def show(built: BuiltContext, question: str, *, text: bool) -> None:
    """Print where the context came from, and on request all of it."""
    print(f"> {question}")
    if text:
        print(built.text)
    for name, use in built.sources.items():
        print(f"  {name:10} {use.tokens:5} tokens, {use.kept} kept, {use.dropped_items} dropped {use.fault}".rstrip())
    for item in built.dropped:
        print(f"  left out: {item.source} ({item.reason}{f': {item.detail}' if item.detail else ''})")
    budget = built.budget
    print(f"  {budget.total_used} of {budget.total_limit} tokens\n")


def main() -> None:
    """Ask the same questions before and after the new policy."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--text", action="store_true", help="print the whole contexts")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        settings = prepare(Path(name))
        builder = ContextBuilder.from_config(settings, scope="service", allow_python=True)
        for question in QUESTIONS:
            show(builder.assemble(question, now=NOW), question, text=given.text)
        print("--- version 2 of the return policy is published ---\n")
        publish(settings.parent)
        for question in QUESTIONS:
            show(builder.assemble(question, now=NOW), question, text=given.text)
        if builder.audit is not None:
            builder.audit.close()  # its file is in the folder, which goes away now


if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8")
    try:
        main()
    except CtxVectorError as error:
        sys.exit(f"error: {error}")
