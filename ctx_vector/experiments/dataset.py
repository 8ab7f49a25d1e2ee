"""What an experiment is run on: documents, queries, and which documents answer which query.

Queries of one collection see its documents and no others. Queries of one group are alike (of one conversation, of one
fact): statistics may take the group for the unit.

A grade over 0 says that a document is evidence. What the judgements name with grade 0 and an older time than the newest
evidence is a former version of it: freshness wants the new one, above those (metrics.py).

A query may have answers: words that stand in its evidence, one of which is enough.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from ctx_vector.errors import InputError

#: The present where neither a query nor a document has a time: any would do, so that none is read from a clock.
NO_TIME: Final = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Document:
    """A text that can be evidence; `session` and `role` are set for a turn of a conversation."""

    id: str
    text: str
    title: str = ""
    timestamp: datetime | None = None
    session: str | None = None
    role: str | None = None
    collection: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Query:
    """A question; `now` is when it is asked."""

    id: str
    text: str
    now: datetime | None = None
    category: str = ""
    group: str = ""
    collection: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def unit(self) -> str:
        """What is the unit of chance by group: the group, or the query itself when it is in none."""
        return self.group or f"\0{self.id}"


@dataclass(frozen=True)
class Dataset:
    """Documents, queries and graded judgements: `qrels[query id][document id]` is a grade, over 0 for evidence.

    `answers[query id]` are texts any of which answers the query; it may be empty, or lack some queries.

    `knowledge` is the folder of the knowledge base that the documents are of, by their sources: its own passages are
    then the candidates. Without one the documents are indexed for the experiment.

    Every query has evidence: those without any are left out by the readers and counted in `skipped`. `merged` is how
    many lines of a file asked what another one asks, and were put together with that.

    Raises InputError for a judgement of something that is not there, or of another collection.
    """

    name: str
    documents: tuple[Document, ...]
    queries: tuple[Query, ...]
    qrels: Mapping[str, Mapping[str, int]]
    skipped: int = 0
    answers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    knowledge: Path | None = None
    merged: int = 0

    def __post_init__(self) -> None:
        if not self.documents or not self.queries:
            what = "documents" if not self.documents else "queries with evidence"
            raise InputError(f"{self.name}: there are no {what}")
        collections = {document.id: document.collection for document in self.documents}
        if len(collections) < len(self.documents):
            raise InputError(f"{self.name}: two documents have the id {twice(d.id for d in self.documents)!r}")
        if len({query.id for query in self.queries}) < len(self.queries):
            raise InputError(f"{self.name}: two queries have the id {twice(q.id for q in self.queries)!r}")
        for query in self.queries:
            grades = self.qrels.get(query.id, {})
            if not any(grade > 0 for grade in grades.values()):
                raise InputError(f"{self.name}: the query {query.id!r} has no evidence")
            for document in grades:
                if document not in collections:
                    raise InputError(f"{self.name}: the query {query.id!r} names the document {document!r}, not there")
                if collections[document] != query.collection:
                    raise InputError(
                        f"{self.name}: the query {query.id!r} of collection {query.collection!r} names the document "
                        f"{document!r} of collection {collections[document]!r}"
                    )

    @property
    def is_conversation(self) -> bool:
        """Whether the documents are turns of conversations."""
        return any(document.session is not None for document in self.documents)

    @cached_property
    def groups(self) -> tuple[str, ...]:
        """The groups of queries, in order."""
        return tuple(dict.fromkeys(query.group for query in self.queries))

    @cached_property
    def collections(self) -> tuple[str, ...]:
        """The collections that have queries, in order."""
        return tuple(dict.fromkeys(query.collection for query in self.queries))

    def documents_of(self, collection: str) -> list[Document]:
        """Return the documents of one collection, in order."""
        return [document for document in self.documents if document.collection == collection]

    @cached_property
    def digest(self) -> str:
        """16 hex digits over documents, queries, grades and answers; the name does not count."""
        state = hashlib.blake2b(digest_size=8)
        for kind, items in ((Document, self.documents), (Query, self.queries)):
            names = [entry.name for entry in fields(kind) if entry.name != "metadata"]
            for item in items:
                values = [getattr(item, name) for name in names]
                state.update(json.dumps(values, default=str).encode() + b"\n")
        state.update(json.dumps({key: dict(self.qrels[key]) for key in sorted(self.qrels)}, sort_keys=True).encode())
        if self.answers:
            state.update(json.dumps({key: self.answers[key] for key in sorted(self.answers)}).encode())
        return state.hexdigest()

    def grades(self, query: Query) -> Mapping[str, int]:
        """Return the grade of each judged document."""
        return self.qrels[query.id]

    @cached_property
    def _times(self) -> dict[str, datetime | None]:
        return {document.id: document.timestamp for document in self.documents}

    def versions(self, query: Query) -> tuple[str, frozenset[str]] | None:
        """Return (newest evidence, its former versions), or None when the judgements name no former version."""
        grades = self.qrels[query.id]
        dated = [(stamp, id_) for id_, grade in grades.items() if grade > 0 and (stamp := self._times[id_]) is not None]
        if not dated:
            return None
        stamp, newest = max(dated)
        former = {id_ for id_, grade in grades.items() if grade <= 0 and (old := self._times[id_]) and old < stamp}
        return (newest, frozenset(former)) if former else None

    def expected(self, query: Query) -> tuple[tuple[str, frozenset[str]] | None, tuple[str, ...]]:
        """Return what a context is measured by besides the grades: versions, and answers."""
        return self.versions(query), self.answers.get(query.id, ())

    # -- parts -------------------------------------------------------------------------------------------------------

    def only(self, wanted: Iterable[str], name: str | None = None) -> Dataset:
        """Return the data set with only these queries, by id; the documents stay."""
        chosen = set(wanted)
        queries = tuple(query for query in self.queries if query.id in chosen)
        return replace(
            self,
            name=name or self.name,
            queries=queries,
            qrels={query.id: self.qrels[query.id] for query in queries},
            answers={query.id: self.answers[query.id] for query in queries if query.id in self.answers},
        )

    def sample(self, count: int, seed: int = 0) -> Dataset:
        """Return at most `count` of the queries, chosen by a hash of their ids, in their order."""
        if count < 1:
            raise InputError(f"number of queries: expected >= 1, got {count}")
        order = sorted(self.queries, key=lambda query: _hash(seed, query.id))
        return self.only(query.id for query in order[:count])

    def clusters(self) -> dict[str, str]:
        """Return {query id: cluster}.

        Queries that share evidence, a group or (if there are several) a collection are in one: what is learnt from one
        of them is known of the others.
        """
        parent: dict[str, str] = {}

        def root(name: str) -> str:
            while parent.setdefault(name, name) != name:
                parent[name] = parent[parent[name]]
                name = parent[name]
            return name

        for query in self.queries:
            shared = [f"d {document}" for document, grade in self.qrels[query.id].items() if grade > 0]
            shared += [f"g {query.collection} {query.group}"] if query.group else []
            shared += [f"c {query.collection}"] if len(self.collections) > 1 else []
            for name in shared:
                parent[root(name)] = root(f"q {query.id}")
        return {query.id: root(f"q {query.id}") for query in self.queries}

    def split(self, share: float = 0.5, seed: int = 0) -> tuple[Dataset, Dataset]:
        """Divide the queries into two data sets, the first with about `share` of them; clusters stay together.

        Raises InputError when there is only one cluster.
        """
        if not 0 < share < 1:
            raise InputError(f"share: expected a number between 0 and 1, got {share!r}")
        clusters = self.clusters()
        names: dict[str, list[str]] = {}
        for id_, cluster in clusters.items():
            names.setdefault(cluster, []).append(id_)
        if len(names) < 2:
            raise InputError(
                f"{self.name}: all queries share evidence, a group or a collection, so they cannot be divided"
            )
        order = sorted(names.values(), key=lambda ids: _hash(seed, min(ids)))
        first: list[str] = []
        for place, ids in enumerate(order):
            wanted = share * len(self.queries)
            nearer = abs(len(first) + len(ids) - wanted) <= abs(len(first) - wanted)
            if (nearer or not first) and place < len(order) - 1:
                first += ids
        rest = set(clusters) - set(first)
        return self.only(first, f"{self.name} (first part)"), self.only(rest, f"{self.name} (held out)")


def twice(ids: Iterable[str]) -> str:
    """Return the first id that occurs twice; there has to be one."""
    return next(id_ for id_, times in Counter(ids).items() if times > 1)


def _hash(seed: int, text: str) -> bytes:
    return hashlib.blake2b(f"{seed}\0{text}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
