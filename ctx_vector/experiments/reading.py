"""Reading data sets: BEIR folders and files of pairs. Errors name file and line.

    read_dataset("data/x")              a BEIR folder: corpus.jsonl, queries.jsonl, qrels/test.tsv
    read_dataset("q.jsonl", kb="kb")    a query and the document of a knowledge base that answers it (questions.py)
    read_dataset("pairs.jsonl")         a query and the text that answers it, one pair a line
    read_dataset("audit.sqlite3")       builds with feedback, from an audit (audited.py)
    read_dataset("c1", "c2", ...)       several folders, each a collection of its own

BEIR fields may be joined by more. Documents: `timestamp`, `session` and `role` (turns of a conversation, in order of
speaking), `memory_type` (a memory; see corpus.py), `collection`. Queries: `now` (when it is asked), `category` (or
`kind`, and `lang`), `group`, `collection`. Whatever else a line has stays in `metadata`. Times without a zone are UTC,
so that a data set means the same on every machine. A title without a text is the text.

A BEIR folder may hold `answers.jsonl` besides: `query-id`, `corpus-id` and `answer`, words that stand in that document
and answer the query. White space does not count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from ctx_vector.errors import InputError
from ctx_vector.experiments.dataset import Dataset, Document, Query, twice
from ctx_vector.experiments.lines import lines, objects, text_of, time_of
from ctx_vector.experiments.metrics import comparable, one_spaced, stands_in

SPLITS: Final = ("test", "dev", "train")
QUERY_KEYS: Final = ("query", "question")
_POSITIVE_KEYS: Final = ("positives", "positive", "passages", "passage", "answers", "answer")
_NEGATIVE_KEYS: Final = ("negatives", "negative")
_FILE_NAME: Final = re.compile(r"(?:[^\n?!。？！]{0,250}[/\\])?[^\s/\\?!。？！，,]{1,100}\.[A-Za-z][A-Za-z0-9]{0,4}")


def read_dataset(
    *paths: str | Path, split: str | None = None, name: str | None = None, kb: str | Path | None = None
) -> Dataset:
    """Read one data set, or several as one, each a collection of its own.

    A folder is read as BEIR, an SQLite file as an audit, any other file as pairs; with `kb`, the folder of a knowledge
    base, one file as questions to it. `split` names the qrels file, by default the first there is of test, dev, train.
    Raises InputError naming file and line, OSError when a file cannot be read.
    """
    if not paths:
        raise InputError("expected at least one data set")
    if kb is not None:
        from ctx_vector.experiments.questions import read_questions

        if len(paths) > 1 or Path(paths[0]).is_dir():
            raise InputError(
                f"with a knowledge base: expected one JSONL file of questions, got {', '.join(map(str, paths))}"
            )
        asked = read_questions(paths[0], kb)
        return replace(asked, name=name or asked.name)
    read = [_read(Path(path), split) for path in paths]
    if len(read) == 1:
        return replace(read[0], name=name or read[0].name)
    return _joined(read, name)


def _read(path: Path, split: str | None) -> Dataset:
    if path.is_dir():
        return read_beir(path, split)
    if not path.exists():
        raise InputError(f"{path}: there is no such folder or file; a data set is a BEIR folder or a file of pairs")
    if path.suffix in (".sqlite3", ".sqlite", ".db"):
        from ctx_vector.experiments.audited import read_audit

        return read_audit(path)
    return read_pairs(path)


def _joined(parts: Sequence[Dataset], name: str | None) -> Dataset:
    names = [part.name for part in parts]
    if len(set(names)) < len(names):
        raise InputError(f"two data sets are named {twice(names)!r}; give each folder a name of its own")
    documents: list[Document] = []
    queries: list[Query] = []
    qrels: dict[str, Mapping[str, int]] = {}
    answers: dict[str, tuple[str, ...]] = {}
    for part in parts:

        def own(id_: str, part: Dataset = part) -> str:
            return f"{part.name}/{id_}"

        def world(old: str, part: Dataset = part) -> str:
            return own(old) if old else part.name

        documents += [replace(item, id=own(item.id), collection=world(item.collection)) for item in part.documents]
        queries += [
            replace(item, id=own(item.id), group=world(item.group), collection=world(item.collection))
            for item in part.queries
        ]
        qrels |= {own(id_): {own(key): value for key, value in grades.items()} for id_, grades in part.qrels.items()}
        answers |= {own(id_): texts for id_, texts in part.answers.items()}
    skipped, merged = sum(part.skipped for part in parts), sum(part.merged for part in parts)
    return Dataset(name or " + ".join(names), tuple(documents), tuple(queries), qrels, skipped, answers, merged=merged)


_DOCUMENT_KEYS: Final = frozenset({"_id", "text", "title", "timestamp", "session", "role", "collection"})
_QUERY_FIELDS: Final = frozenset({"_id", "text", "now", "category", "group", "collection"})
_T = TypeVar("_T", Document, Query)


def _document(place: str, item: Mapping[str, Any]) -> Document:
    session, role = text_of(place, item, "session", ""), text_of(place, item, "role", "")
    title = text_of(place, item, "title", "")
    if title.strip() and not text_of(place, item, "text", "").strip():  # an article without its abstract
        item, title = {**item, "text": title}, ""
    return Document(
        id=text_of(place, item, "_id"),
        text=text_of(place, item, "text"),
        title=title,
        timestamp=time_of(place, item, "timestamp"),
        session=session or None,
        role=role or None,
        collection=text_of(place, item, "collection", ""),
        metadata={key: value for key, value in item.items() if key not in _DOCUMENT_KEYS},
    )


def _category(place: str, item: Mapping[str, Any]) -> str:
    parts = [text_of(place, item, "category", "") or text_of(place, item, "kind", ""), text_of(place, item, "lang", "")]
    return ", ".join(filter(None, parts))


def query_of(place: str, item: Mapping[str, Any]) -> Query:
    """Return the query that a line says."""
    return Query(
        id=text_of(place, item, "_id"),
        text=text_of(place, item, "text"),
        now=time_of(place, item, "now"),
        category=_category(place, item),
        group=text_of(place, item, "group", ""),
        collection=text_of(place, item, "collection", ""),
        metadata={key: value for key, value in item.items() if key not in _QUERY_FIELDS},
    )


class Asked:
    """The questions of a file, line by line. Lines without an `id` that ask the same, at the same time, are one
    question: asked twice it is no further witness, and what answers it in one line answers it in the other.

    `queries` and `qrels` are by id, `merged` counts the lines that were put together with an earlier one.
    """

    def __init__(self) -> None:
        self.queries: dict[str, Query] = {}
        self.qrels: dict[str, dict[str, int]] = {}
        self.merged = 0
        self._known: dict[tuple[str, str, Any], str] = {}

    def add(self, place: str, number: int, item: Mapping[str, Any], text: str) -> str:
        """Return the id of what a line asks, in the words `text`. Raises InputError for an id that is there already."""
        own = item.get("id") not in (None, "")
        query = query_of(place, {**item, "_id": item["id"] if own else f"q{number}", "text": text})
        key = query.collection, one_spaced(query.text), query.now
        if not own and key in self._known:
            self.merged += 1
            return self._known[key]
        if query.id in self.queries:
            raise InputError(f"{place}: the id {query.id!r} is there already; give every one its own")
        self.queries[query.id] = query
        self.qrels[query.id] = {}
        self._known.setdefault(key, query.id)
        return query.id

    def judge(self, id_: str, document: str, grade: int) -> None:
        """Note the grade of a document; of several the best."""
        grades = self.qrels[id_]
        grades[document] = max(grade, grades.get(document, grade))

    def answered(self) -> list[Query]:
        """Return the questions that have evidence, in order."""
        return [query for id_, query in self.queries.items() if any(grade > 0 for grade in self.qrels[id_].values())]


def _by_id(path: Path, make: Callable[[str, Mapping[str, Any]], _T]) -> dict[str, _T]:
    found: dict[str, _T] = {}
    for place, item in objects(path):
        made = make(place, item)
        if made.id in found:
            raise InputError(f"{place}: the id {made.id!r} is there already; give every one its own")
        found[made.id] = made
    return found


def read_beir(folder: str | Path, split: str | None = None) -> Dataset:
    """Read a BEIR folder: corpus.jsonl, queries.jsonl and qrels/NAME.tsv (query-id, corpus-id, score).

    There may be answers.jsonl. Queries without evidence in this split are left out. Raises InputError naming file and
    line.
    """
    folder = Path(folder)
    documents = _by_id(folder / "corpus.jsonl", _document)
    queries = _by_id(folder / "queries.jsonl", query_of)
    path = _qrels_path(folder, split)
    qrels: dict[str, dict[str, int]] = {}
    for number, line in lines(path):
        place = f"{path}, line {number}"
        parts = line.split("\t")
        if number == 1 and parts[-1].strip().lower() in ("score", "relevance"):
            continue
        if len(parts) == 4:  # as trec_eval has it: query, iteration, document, grade
            del parts[1]
        if len(parts) != 3:
            raise InputError(f"{place}: expected query-id, corpus-id and score with tabs between, got {line!r:.80}")
        query, document, grade = (part.strip() for part in parts)
        if query not in queries:
            raise InputError(f"{place}: there is no query {query!r} in queries.jsonl")
        if document not in documents:
            raise InputError(f"{place}: there is no document {document!r} in corpus.jsonl")
        try:
            given = int(grade)
        except ValueError:
            raise InputError(f"{place}: score: expected a whole number, got {grade!r:.40}") from None
        if qrels.setdefault(query, {}).setdefault(document, given) != given:
            raise InputError(f"{place}: {document!r} has another score for {query!r} further up")
        asked_in, found_in = queries[query].collection, documents[document].collection
        if asked_in != found_in:
            raise InputError(f"{place}: the query is of collection {asked_in!r}, the document of {found_in!r}")
    asked = tuple(query for id_, query in queries.items() if any(grade > 0 for grade in qrels.get(id_, {}).values()))
    kept = {query.id: qrels[query.id] for query in asked}
    answers = _answers(folder / "answers.jsonl", queries, documents)
    own = {query.id: answers[query.id] for query in asked if query.id in answers}
    return Dataset(folder.resolve().name, tuple(documents.values()), asked, kept, len(queries) - len(asked), own)


def _answers(path: Path, queries: Mapping[str, Query], documents: Mapping[str, Document]) -> dict[str, tuple[str, ...]]:
    """Return the answers of each query; none when there is no such file."""
    found: dict[str, tuple[str, ...]] = {}
    for place, item in objects(path) if path.exists() else ():
        query, document, answer = (text_of(place, item, key) for key in ("query-id", "corpus-id", "answer"))
        if query not in queries:
            raise InputError(f"{place}: there is no query {query!r} in queries.jsonl")
        if document not in documents:
            raise InputError(f"{place}: there is no document {document!r} in corpus.jsonl")
        if not stands_in(comparable(answer), comparable(documents[document].text)):
            raise InputError(f"{place}: {answer!r:.80} does not stand in the document {document!r}; copy it from there")
        found[query] = (*found.get(query, ()), answer)
    return found


def _qrels_path(folder: Path, split: str | None) -> Path:
    if split is not None:
        return folder / "qrels" / f"{split}.tsv"
    for known in SPLITS:
        if (folder / "qrels" / f"{known}.tsv").is_file():
            return folder / "qrels" / f"{known}.tsv"
    others = sorted((folder / "qrels").glob("*.tsv"))
    return others[0] if others else folder / "qrels" / f"{SPLITS[0]}.tsv"


def read_pairs(path: str | Path) -> Dataset:
    """Read a JSONL file of queries with the texts that answer them.

    A line has `query` (or question) and `positive` (or positives, passage(s), answer(s)): a text, or a list of texts or
    of objects with `text` and maybe `grade`, `title`, `timestamp`. Texts under `negative` or `negatives` are documents
    too. `id`, `now`, `category`, `group` and `collection` are optional; lines without an id that ask the same are one
    question (`Asked`). All texts together are the documents, and there are no other candidates; equal ones are one.

    Raises InputError naming file and line, and when most positives are names of files (see questions.py for those).
    """
    path = Path(path)
    documents: dict[tuple[str, str, str], Document] = {}
    asked = Asked()
    positives: list[str] = []
    for number, (place, item) in enumerate(objects(path), 1):
        said = next((key for key in QUERY_KEYS if item.get(key) is not None), None)
        if said is None:
            raise InputError(f'{place}: query: it is missing; a line is like {{"query": ..., "positive": ...}}')
        id_ = asked.add(place, number, item, text_of(place, item, said))
        world = asked.queries[id_].collection
        key = next((key for key in _POSITIVE_KEYS if item.get(key) is not None), None)
        if key is None:
            raise InputError(f"{place}: positive: it is missing; give the text, or texts, that answer the query")
        for name, least in ((key, 1), *((name, 0) for name in _NEGATIVE_KEYS)):
            for passage, grade in _passages(place, name, item.get(name), least):
                found = _document(place, {**passage, "_id": f"d{len(documents) + 1}", "collection": world})
                known = documents.setdefault((world, found.title, found.text), found)
                asked.judge(id_, known.id, grade)
                positives += [found.text] if name == key else []
    _refuse_names(path, positives)
    queries = asked.answered()
    qrels = {query.id: asked.qrels[query.id] for query in queries}
    skipped = len(asked.queries) - len(queries)
    return Dataset(path.stem, tuple(documents.values()), tuple(queries), qrels, skipped, merged=asked.merged)


def _refuse_names(path: Path, positives: Sequence[str]) -> None:
    """Raise InputError when what should be texts are names of files: comparing those would teach nothing."""
    names = [text for text in positives if _FILE_NAME.fullmatch(text.strip())]
    if len(names) * 2 > len(positives):
        raise InputError(
            f"{path}: {len(names)} of {len(positives)} positives look like names of files ({names[0]!r:.80}), but a "
            "file of pairs has the texts themselves; with a knowledge base of the files names will do: "
            f"ctx-vector ab {path} --kb DIR"
        )


def _passages(place: str, name: str, value: Any, least: int) -> Iterator[tuple[Mapping[str, Any], int]]:
    """Yield (fields of a document, grade) of a text, an object, or a list of them."""
    for passage in () if value is None else value if isinstance(value, list) else [value]:
        fields = {"text": passage} if isinstance(passage, str) else passage
        if not isinstance(fields, Mapping):
            raise InputError(f"{place}: {name}: expected a text or an object with 'text', got {passage!r:.60}")
        grade = fields.get("grade", least)
        if isinstance(grade, bool) or not isinstance(grade, int):
            raise InputError(f"{place}: {name}: grade: expected a whole number, got {grade!r:.40}")
        yield {key: fields.get(key) for key in ("text", "title", "timestamp", "session", "role")}, grade
