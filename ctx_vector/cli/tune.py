"""`ctx-vector tune`: settings found on one part of the queries, and judged on the other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ctx_vector.cli.ab import (
    AskedKb,
    Cache,
    ConfigFile,
    DatasetPaths,
    EncoderName,
    Kind,
    Limit,
    Seed,
    Set,
    Split,
    default_cache,
    lab_encoder,
    open_data,
    quiet_builds,
    read_budgets,
    read_given,
    show_comparisons,
    write_page,
)
from ctx_vector.cli.common import check_files, count, note, out, print_json
from ctx_vector.cli.options import Json, guarded
from ctx_vector.cli.progress import stage_bar

if TYPE_CHECKING:
    from ctx_vector.experiments.tuning import Tuned


@guarded
def tune(
    dataset: DatasetPaths,
    kb: AskedKb = None,
    knobs: Annotated[
        str | None,
        typer.Option("--knobs", metavar="NAME,NAME", help="What to tune.  [default: recency, floors and limits]"),
    ] = None,
    budgets: Annotated[
        str, typer.Option("--budgets", metavar="N,N", help="Tokens for candidates; fixed sections come on top.")
    ] = "1000",
    metric: Annotated[
        str, typer.Option("--metric", metavar="NAME", help="What to raise: evidence_recall, freshness, precision, ...")
    ] = "evidence_recall",
    trials: Annotated[int, typer.Option("--trials", metavar="N", help="About how many settings to try.")] = 60,
    share: Annotated[
        float, typer.Option("--share", metavar="X", help="Share of the queries to search with; the rest is held out.")
    ] = 0.4,
    effect: Annotated[
        float, typer.Option("--effect", metavar="D", help="Smallest effect (d_z) that must be detectable held out.")
    ] = 0.3,
    set_: Set = None,
    config: ConfigFile = None,
    limit: Limit = None,
    split: Split = None,
    documents_as: Kind = "auto",
    seed: Seed = 0,
    report: Annotated[
        str | None,
        typer.Option("--report", metavar="FILE", help="Write a page with plots (HTML) of the held-out part."),
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", metavar="FILE", help="Write the settings as YAML, for --config.")
    ] = None,
    cache: Cache = None,
    model: EncoderName = None,
    json: Json = False,
) -> None:
    """Tune settings on your own data, and say whether they are better than the default on queries not tuned on.

    It takes about 150 queries; with fewer it says how many are missing. Knobs: recency_weight, recency_decay,
    recency_floor, min_relevance, knowledge_min_score, knowledge_limit, memory_limit, mmr_lambda, fill, strategy,
    rerank, rerank_depth, rerank_weight, chunk_tokens.

    For example:
      ctx-vector tune questions.jsonl --kb kb --output tuned.yaml
      ctx-vector tune data/datasets/bilingual_knowledge --output tuned.yaml
      ctx-vector tune chats/a chats/b --knobs recency_weight,recency_decay --budgets 500,1000 --report tuned.html
    """
    from ctx_vector.config import ContextConfig
    from ctx_vector.experiments.runner import Arm
    from ctx_vector.experiments.tuning import tune as run

    names = None if knobs is None else [name.strip() for name in knobs.split(",") if name.strip()]
    base = Arm("base", read_given(config, set_ or ())).config(ContextConfig())
    sizes = read_budgets(budgets)
    check_files(report, output)
    data = open_data(dataset, split, limit, seed, kb)
    if report is not None:
        from ctx_vector.experiments.report import check_extra

        check_extra()
    with quiet_builds(), stage_bar() as tell:
        found = run(
            data,
            names,
            sizes,
            metric=metric,
            trials=trials,
            share=share,
            effect=effect,
            base=base,
            encoder=lab_encoder(model, kb),
            cache=cache or default_cache(),
            kind=documents_as,
            seed=seed,
            progress=tell,
        )
    if output is not None:
        Path(output).parent.mkdir(parents=True, exist_ok=True)
        Path(output).write_text(found.yaml(), encoding="utf-8")
    if report is not None:
        write_page(found.report, report)
    if json:
        print_json(found.to_dict())
        return
    show(found)
    for path in filter(None, (output, report)):
        note(f"wrote {path}")


def show(found: Tuned) -> None:
    """Print what was found for people."""
    queries = count(found.train_queries, "query")
    out(f"{found.name}: {count(len(found.trials), 'setting')} tried on {queries}\n")
    for name, value in found.changes.items():
        out(f"  {name}: {value}")
    if found.chunk_tokens is not None:
        out(f"  chunk_tokens: {found.chunk_tokens} (ctx-vector index ... --chunk-tokens {found.chunk_tokens})")
    if not found.is_default:
        before, after = found.train
        out(f"\n{found.metric} on the queries searched with: {before:.3f}, then {after:.3f}")
        out("on queries held out:\n")
        show_comparisons(found.report.comparisons, found.report.baseline)
        out()
    for text in found.words():
        out(text)
    for text in found.report.notes:
        note(f"note: {text}")
