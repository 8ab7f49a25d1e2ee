"""Questions to a knowledge base: a JSONL file whose lines name the documents that answer.

    {"query": "VPN says error 809", "positive": "guides/vpn.md"}
    {"query": "多久必须交发票？", "positive": ["docs/zh/报销.md", "docs/en/expenses.md"], "answer": "三十天内"}

    data = read_questions("questions.jsonl", "kb")      # or read_dataset("questions.jsonl", kb="kb")

`positive` is a document of the knowledge base or a list of them, each by its source, by the end of its source, by a
pattern such as ``*/vpn.md`` that fits one document, or as ``{"source": ..., "grade": 2}``. `negative` names documents
that are no evidence, `answer` (or a list, `answers`) words that answer, which stand in a passage of a positive
document: one of them is enough. `id`, `now`, `category`, `group` are optional. Lines without an id that ask the same
are one question, with the documents of all of them.

The candidates of an experiment are the passages of the knowledge base, found by its own search; nothing is written to
it. Without `now` a question is asked at the time of the newest document, so that a result is the same tomorrow.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from ctx_vector.errors import InputError
from ctx_vector.experiments.dataset import Dataset, Document
from ctx_vector.experiments.lines import objects, text_of
from ctx_vector.experiments.metrics import comparable, stands_in
from ctx_vector.experiments.reading import QUERY_KEYS, Asked
from ctx_vector.knowledge import KnowledgeBase
from ctx_vector.values import as_utc

_POSITIVE_KEYS: Final = ("positive", "positives", "source", "sources", "document", "documents")
_NEGATIVE_KEYS: Final = ("negative", "negatives")
_ANSWER_KEYS: Final = ("answer", "answers")
_TOLD: Final = 5  # problems that an error names; it counts the others
_EXAMPLE: Final = '{"query": "How ...?", "positive": "guides/vpn.md"}'


def read_questions(path: str | Path, kb: str | Path) -> Dataset:
    """Return the questions of a file with the documents of the knowledge base in the folder `kb`.

    Raises InputError that names every name which is not that of one document, with its line and the nearest ones;
    StoreError when there is no knowledge base in the folder.
    """
    path, kb = Path(path), Path(kb)
    if not path.exists():
        raise InputError(f"{path}: there is no such file; a file of questions has lines like {_EXAMPLE}")
    passages = _passages(kb)
    names = _Names([document.id for document, _ in passages])
    asked = Asked()
    answers: list[tuple[str, str, tuple[str, ...]]] = []  # place, id of the question, texts
    for number, (place, item) in enumerate(objects(path), 1):
        said = next((key for key in QUERY_KEYS if item.get(key) is not None), None)
        if said is None:
            raise InputError(f"{place}: query: it is missing; a line is like {_EXAMPLE}")
        id_ = asked.add(place, number, item, text_of(place, item, said))
        if not any(item.get(key) is not None for key in _POSITIVE_KEYS):
            raise InputError(f"{place}: positive: it is missing; name the document that answers: {_EXAMPLE}")
        for keys, least in ((_POSITIVE_KEYS, 1), (_NEGATIVE_KEYS, 0)):
            for name, grade in _graded(place, item, keys, least):
                if (source := names.find(place, name)) is not None:
                    asked.judge(id_, source, grade)
        answers.append((place, id_, tuple(_answers(place, item))))
    names.check(path, kb)
    texts = {document.id: texts for document, texts in passages}
    kept = asked.answered()
    wanted = {query.id: [source for source, grade in asked.qrels[query.id].items() if grade > 0] for query in kept}
    told: dict[str, tuple[str, ...]] = {}
    for place, id_, own in answers:
        if own and id_ in wanted:
            _check_answers(place, own, wanted[id_], texts)
            told[id_] = (*told.get(id_, ()), *own)
    return Dataset(
        name=path.stem,
        documents=tuple(document for document, _ in passages),
        queries=tuple(kept),
        qrels={query.id: asked.qrels[query.id] for query in kept},
        skipped=len(asked.queries) - len(kept),
        answers=told,
        knowledge=kb,
        merged=asked.merged,
    )


def _passages(kb: Path) -> list[tuple[Document, list[str]]]:
    """Return the documents of a knowledge base, each with the texts of its passages."""
    found: list[tuple[Document, list[str]]] = []
    rows: list[tuple[Mapping[str, Any], list[str]]] = []
    with KnowledgeBase(kb, create=False) as base:
        for row in base.export():
            if row["type"] == "document":
                rows.append((row, []))
            else:
                rows[-1][1].append(row["content"])
    for document, texts in rows:
        stamp = as_utc(document["timestamp"])
        found.append((Document(document["source"], "\n\n".join(texts), document["title"] or "", stamp), texts))
    if not found:
        raise InputError(f"the knowledge base {kb} is empty; fill it with: ctx-vector index PATH --kb {kb}")
    return found


def _values(item: Mapping[str, Any], keys: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield (key, value) of what stands under these keys, the members of a list one by one."""
    for key in keys:
        value = item.get(key)
        for one in () if value is None else value if isinstance(value, list) else [value]:
            yield key, one


def _graded(place: str, item: Mapping[str, Any], keys: Sequence[str], least: int) -> Iterator[tuple[str, int]]:
    for key, value in _values(item, keys):
        name, grade = value, least
        if isinstance(value, Mapping):
            name, grade = value.get("source"), value.get("grade", least)
        if not isinstance(name, str) or not name.strip():
            raise InputError(f"{place}: {key}: expected the name of a document, got {value!r:.60}")
        if isinstance(grade, bool) or not isinstance(grade, int):
            raise InputError(f"{place}: {key}: grade: expected a whole number, got {grade!r:.40}")
        yield name, grade


def _answers(place: str, item: Mapping[str, Any]) -> Iterator[str]:
    for key, value in _values(item, _ANSWER_KEYS):
        yield text_of(place, {key: value}, key)


def _check_answers(
    place: str, answers: Sequence[str], wanted: Sequence[str], texts: Mapping[str, Sequence[str]]
) -> None:
    """Raise InputError for an answer that stands in no passage of the documents that are wanted."""
    for answer in answers:
        words = comparable(answer)
        if not any(stands_in(words, comparable(text)) for source in wanted for text in texts[source]):
            across = any(stands_in(words, comparable(" ".join(texts[source]))) for source in wanted)
            why = "stands across two passages of" if across else "does not stand in"
            raise InputError(f"{place}: answer: {answer!r:.80} {why} {', '.join(wanted)}; copy some words from there")


class _Names:
    """The names of documents, and what was named that is none of them."""

    def __init__(self, sources: Sequence[str]) -> None:
        self._sources = {_plain(source): source for source in sources}
        self._known: dict[str, str | None] = {}
        self._problems: list[str] = []
        self._asked = 0
        self._wrong = 0

    def find(self, place: str, name: str) -> str | None:
        """Return the one document that is named; None, to be told by `check`, when there is none or are several."""
        self._asked += 1
        found = self._matches(_plain(name))
        if len(found) == 1:
            return self._sources[found[0]]
        self._wrong += 1
        line = place.rpartition(", ")[2]
        if found:
            several = ", ".join(self._sources[one] for one in found[:3]) + (" ..." if len(found) > 3 else "")
            self._problems.append(f"{line}: {name!r:.80} fits {len(found)} documents ({several})")
        else:
            near = get_close_matches(_plain(name), self._sources, 2, 0.6) or self._by_last_part(_plain(name))
            hint = f" (did you mean {', '.join(self._sources[one] for one in near)}?)" if near else ""
            self._problems.append(f"{line}: {name!r:.80}{hint}")
        return None

    def _matches(self, name: str) -> list[str]:
        if name in self._sources:
            return [name]
        ends = [source for source in self._sources if source.endswith(f"/{name}")]
        if not ends and any(sign in name for sign in "*?["):
            ends = [source for source in self._sources if fnmatchcase(source, name)]
        if not ends:  # a path from elsewhere that ends in a source: /home/ada/docs/vpn.md
            longest = max((len(source) for source in self._sources if name.endswith(f"/{source}")), default=0)
            ends = [source for source in self._sources if name.endswith(f"/{source}") and len(source) == longest]
        return ends

    def _by_last_part(self, name: str) -> list[str]:
        last = {source.rpartition("/")[2]: source for source in self._sources}
        return [last[part] for part in get_close_matches(name.rpartition("/")[2], last, 2, 0.6)]

    def check(self, path: Path, kb: Path) -> None:
        """Raise InputError when a name was that of no document, or of several."""
        if not self._problems:
            return
        more = len(self._problems) - _TOLD
        told = "; ".join(self._problems[:_TOLD]) + (f"; and {more} more" if more > 0 else "")
        hint = f"its {len(self._sources)} documents have names like {next(iter(self._sources.values()))}"
        if self._wrong == self._asked:
            hint += "; if the positives are texts and no names, leave out the knowledge base"
        raise InputError(
            f"{path}: {self._wrong} of {self._asked} names are not those of one document in {kb}: {told}; {hint}"
        )


def _plain(name: str) -> str:
    r"""Return a name as it is compared: composed characters, slashes, no ``./`` at the beginning.

    >>> _plain(".\\docs\\vpn.md")
    'docs/vpn.md'
    """
    name = unicodedata.normalize("NFC", name.strip()).replace("\\", "/")
    while name.startswith("./"):
        name = name[2:]
    return name
