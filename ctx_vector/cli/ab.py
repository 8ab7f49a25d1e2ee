"""`ctx-vector ab`: arms compared on a data set, as tables, as JSON, as a page with plots."""

from __future__ import annotations

import logging
import re
import shlex
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ctx_vector.cli.common import UsageError, check_files, count, note, out, print_json, seconds
from ctx_vector.cli.opening import open_encoder, own_model
from ctx_vector.cli.options import Json, guarded
from ctx_vector.cli.progress import stage_bar

if TYPE_CHECKING:
    from ctx_vector.config import ContextConfig
    from ctx_vector.experiments import Arm, Dataset, Report
    from ctx_vector.stages import Encoder

_ARM: Final = re.compile(r"\s*([^:=]+?)\s*:(.*)", re.S)
_KEY: Final = re.compile(r"(?:^|(?<=,))\s*(\w+)\s*=\s*")
_COMPARED: Final = ("metric", "arm", ">value", ">difference", ">95 % interval", ">p alone", ">p of all", "verdict")

DatasetPaths = Annotated[
    list[str],
    typer.Argument(
        metavar="DATASET...",
        help="With --kb a JSONL file of questions; else a BEIR folder, a JSONL file of pairs of texts, or an audit; "
        "several: each by itself.",
    ),
]
AskedKb = Annotated[
    str | None,
    typer.Option(
        "--kb", metavar="DIR", help="The knowledge base that is asked; `positive` of a question names its document."
    ),
]
Budgets = Annotated[
    str, typer.Option("--budgets", metavar="N,N", help="Tokens for candidates; fixed sections come on top.")
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A field of ContextConfig for all arms; may be repeated."),
]
ConfigFile = Annotated[
    str | None,
    typer.Option("--config", metavar="FILE", help="What all arms start from: what differs from the defaults in it."),
]
Limit = Annotated[int | None, typer.Option("--limit", metavar="N", help="Ask at most so many of the queries.")]
Split = Annotated[
    str | None, typer.Option("--split", metavar="NAME", help="The qrels file to use.  [default: test, dev or train]")
]
Kind = Annotated[
    str,
    typer.Option(
        "--documents-as", metavar="auto|knowledge|memories", help="What documents become; auto: turns are memories."
    ),
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Seed of everything random.")]
Cache = Annotated[
    str | None,
    typer.Option("--cache", metavar="DIR", help="Where vectors are kept.  [default: the platform's cache folder]"),
]
ByGroup = Annotated[
    bool, typer.Option("--by-group", help="Groups of queries (conversations) are the unit of chance, not queries.")
]
EncoderName = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="Encoder: a known model, a folder, or owner/name.")
]


@guarded
def ab(
    dataset: DatasetPaths,
    kb: AskedKb = None,
    strategies: Annotated[
        str | None,
        typer.Option(
            "--strategies",
            metavar="NAME,NAME",
            help="One arm each; others are compared with the first.  [default: all]",
        ),
    ] = None,
    arm: Annotated[
        list[str] | None,
        typer.Option(
            "--arm", metavar="NAME:KEY=VALUE,...", help="An arm by its changes to the config; may be repeated."
        ),
    ] = None,
    budgets: Budgets = "500,1000,2000",
    set_: Set = None,
    config: ConfigFile = None,
    limit: Limit = None,
    split: Split = None,
    documents_as: Kind = "auto",
    by_group: ByGroup = False,
    seed: Seed = 0,
    report: Annotated[
        str | None, typer.Option("--report", metavar="FILE", help="Write a page with plots (HTML).")
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", metavar="FILE", help="Write everything as JSON, each query's values too.")
    ] = None,
    cache: Cache = None,
    model: EncoderName = None,
    json: Json = False,
) -> None:
    """Compare ways of scoring on your own data: what is in the context, and whether the difference is chance.

    With --kb, lines are like {"query": "VPN says error 809", "positive": "guides/vpn.md"}: the document of the
    knowledge base that answers, or a list of them, and maybe "answer": words that stand in it. In a file of pairs
    `positive` is the text itself, and these texts are all the candidates there are.

    Floors of relevance and limits of hits are lifted unless you set them, so that the order of the candidates and the
    budget decide.

    For example:
      ctx-vector ab questions.jsonl --kb kb --strategies cosine,bm25,hybrid --report out.html
      ctx-vector ab data/datasets/bilingual_knowledge --strategies cosine,jaccard --report out.html
      ctx-vector ab pairs.jsonl --strategies cosine,cosine_raw --budgets 500,1000 --json
      ctx-vector ab chats/a chats/b --arm skip:fill=skip --arm stop:fill=stop --set recency_weight=0 --by-group
    """
    from ctx_vector.experiments import run_experiment

    arms = read_arms(strategies, arm or ())
    sizes = read_budgets(budgets)
    base = read_base(config, set_ or ())
    for one in arms:
        one.config(base)  # refuses what cannot be before anything is read or loaded
    check_files(report, output)
    data = open_data(dataset, split, limit, seed, kb)
    if report is not None:
        from ctx_vector.experiments.report import check_extra

        check_extra()
    with quiet_builds(), stage_bar() as tell:
        found = run_experiment(
            data,
            arms,
            sizes,
            base=base,
            encoder=lab_encoder(model, kb),
            cache=cache or default_cache(),
            kind=documents_as,
            resample="groups" if by_group else "queries",
            seed=seed,
            progress=tell,
        )
    if output is not None:
        write_json(output, found.to_dict(rows=True))
    if report is not None:
        write_page(found, report)
    if json:
        print_json(found.to_dict())
        return
    show(found)
    for path in filter(None, (report, output)):
        note(f"wrote {path}")


# -- arguments ------------------------------------------------------------------------------------------------------


def read_arms(strategies: str | None, given: Sequence[str]) -> list[Arm]:
    """Return the arms of --strategies and --arm, by default every strategy there is."""
    from ctx_vector.experiments import Arm
    from ctx_vector.experiments import strategies as named
    from ctx_vector.scoring import SCORERS

    names = [name.strip() for name in (strategies or "").split(",") if name.strip()]
    if not names and not given:
        names = list(SCORERS)
    arms = named(names)
    for text in given:
        found = _ARM.fullmatch(text)
        if not found:
            raise UsageError(f"--arm: expected NAME:KEY=VALUE,..., got {text!r}; for example: --arm stop:fill=stop")
        changes = read_changes(found[2], "--arm")
        arms.append(Arm(found[1], changes, chunk_tokens=changes.pop("chunk_tokens", None)))
    return arms


def read_changes(text: str, option: str) -> dict[str, Any]:
    """Return fields from ``key=value, key=value``; values as YAML has them.

    >>> read_changes("fill=stop, recency_decay_by_type={episodic: 0.05}", "--set")
    {'fill': 'stop', 'recency_decay_by_type': {'episodic': 0.05}}
    """
    import yaml

    if not text.strip():
        return {}
    try:
        found = yaml.safe_load("{" + _KEY.sub(r" \1: ", text) + "}")
    except yaml.YAMLError:
        found = None
    if not isinstance(found, dict) or not _KEY.match(text):
        raise UsageError(f"{option}: expected KEY=VALUE, got {text!r}; for example: {option} recency_weight=0")
    return {str(key): value for key, value in found.items()}


def read_budgets(text: str) -> list[int]:
    """Return the numbers of ``500,1000``."""
    try:
        return [int(part.strip().replace("_", "")) for part in text.split(",") if part.strip()]
    except ValueError:
        raise UsageError(f"--budgets: expected whole numbers of tokens like 500,1000,2000, got {text!r}") from None


def read_base(path: str | None, given: Sequence[str]) -> ContextConfig:
    """Return the config that arms of `ab` start from: what is given, with floors and limits lifted where it is not."""
    from ctx_vector.experiments import base_config

    return base_config(read_given(path, given))


def read_given(path: str | None, given: Sequence[str]) -> dict[str, Any]:
    """Return the fields that were given: those of a file that differ from the defaults, then --set."""
    from ctx_vector.cli.inputs import read_config

    changes = {} if path is None else read_config(path, {}).changes()
    for text in given:
        changes |= read_changes(text, "--set")
    return changes


def open_data(paths: Sequence[str], split: str | None, limit: int | None, seed: int, kb: str | None) -> Dataset:
    """Read the data sets, and take a sample of their queries."""
    from ctx_vector.experiments import read_dataset

    data = read_dataset(*paths, split=split, kb=kb)
    return data if limit is None else data.sample(limit, seed)


def lab_encoder(model: str | None, kb: str | None) -> Encoder:
    """Open the encoder of an experiment: the one named, else that of the knowledge base."""
    if model is None and kb is not None:
        from ctx_vector.knowledge import KnowledgeBase

        with KnowledgeBase(kb, create=False) as base:
            model = own_model(base)
    return open_encoder(model)


def default_cache() -> Path:
    """Return the folder that keeps vectors for the next run: digests and numbers, no texts."""
    from platformdirs import user_cache_path

    return Path(user_cache_path("ctx_vector")) / "lab"


# -- progress and output ----------------------------------------------------------------------------------------------


@contextmanager
def quiet_builds() -> Generator[None]:
    """Keep the warnings of thousands of builds off the screen: small budgets leave things out, as they should."""
    log = logging.getLogger("ctx_vector.builder")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def write_json(path: str, value: Mapping[str, Any]) -> None:
    """Write a result to a file; its folder is made when absent."""
    import json

    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def write_page(report: Report, path: str) -> None:
    """Write the page with plots."""
    from datetime import UTC, datetime

    from ctx_vector.experiments.report import write_report

    command = shlex.join(["ctx-vector", *sys.argv[1:]])
    write_report(report, path, command=command, made_at=datetime.now(UTC))


def show(report: Report) -> None:
    """Print a report for people: the means, the comparisons, and what to think of them."""
    from ctx_vector.cli.tables import show_table

    arms = [arm.name for arm in report.arms]
    out(
        f"{report.data.name}: {count(report.data.queries, 'query')}, "
        f"{count(report.data.documents, 'document')} as {report.data.kind}; {report.made['model']}; "
        f"{seconds(report.seconds['building'])}\n"
    )
    rows = []
    for metric in report.told:
        digits = 0 if metric.startswith("tokens") else 3
        values = [report.means[arm].get(metric) for arm in arms]
        part = report.of_part(metric)
        name = metric if part is None else f"{metric} (of {count(part, 'query')})"
        rows.append([name, *("–" if value is None else f"{value:,.{digits}f}" for value in values)])
    middle = str(report.budgets[len(report.budgets) // 2])
    latency = report.latency()
    rows.append([f"ms@{middle} (p50)", *(f"{latency[arm][middle]['p50']:.1f}" for arm in arms)])
    rows.append([f"ms@{middle} (p95)", *(f"{latency[arm][middle]['p95']:.1f}" for arm in arms)])
    show_table(["mean of all queries", *(f">{arm}" for arm in arms)], rows)
    if report.comparisons:
        out()
        show_comparisons(report.comparisons, report.baseline)
        out(f"\nIn short, by {report.main_metric} (which was fixed beforehand) and whatever else shows a difference:")
        for one in report.headlines():
            out(f"\n{one.arm}: {one.words(report.main_metric)}")
            if one.main is not None:
                out(f"  {one.main.words}")
    for text in report.notes:
        note(f"note: {text}")


def show_comparisons(comparisons: Sequence[Any], baseline: str) -> None:
    """Print a table of comparisons."""
    from ctx_vector.cli.tables import show_table

    rows = [
        [
            one.metric,
            one.arm,
            f"{one.found.mean:.3f}",
            f"{one.found.difference:+.3f}",
            one.bounds,
            f"{one.found.p:.2g}",
            f"{one.p_holm:.2g}",
            one.verdict,
        ]
        for one in comparisons
    ]
    styles = {"better": "green", "worse": "red"}
    show_table(_COMPARED, rows, title=f"against {baseline}", styles=styles)
    if len(rows) > 1:
        out(
            f"\nInterval and p alone are of one comparison by itself; of {len(rows)}, some may show one by chance.\n"
            f"The verdict goes by p of all, corrected for {count(len(rows), 'comparison')} (Holm)."
        )
