"""An index of a code repository: ask where something is done, in any language, and get files and lines.

    python examples/code_index.py                                       # this repository's package
    python examples/code_index.py ~/src/project "Where are sessions closed?" --kb ~/.cache/project-kb

What .gitignore excludes is left out. The second run encodes only what changed since the first.
"""

import argparse

from ctx_vector import ContextBuilder, ContextConfig, KnowledgeBase, RAGTool

options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
options.add_argument("folder", nargs="?", default="ctx_vector")
options.add_argument("question", nargs="?", default="Where is a text kept from forging the structure of a context?")
options.add_argument("--kb", default=".demo/code")
given = options.parse_args()

with KnowledgeBase(given.kb) as kb:
    report = kb.sync(given.folder)
    print(f"{len(report.added)} files added, {len(report.updated)} updated, {len(report.unchanged)} as before")
    print(f"{report.chunks} passages, {report.encoded} encoded in {report.seconds:.1f} s\n")
    for hit in kb.search(given.question, limit=5, filter={"source": "*.py"}):
        print(f"{hit.score:.2f}  {hit.cite}  {' › '.join(hit.heading)}")

    # the same as a context for a model, code first and whole
    config = ContextConfig(max_tokens=1500, citations=True, knowledge_min_score=0.1)
    built = ContextBuilder(rag_tool=RAGTool(knowledge=kb), config=config).assemble(given.question)
    print(f"\n{built.text}\n{built.budget.total_used} of {built.budget.total_limit} tokens")
