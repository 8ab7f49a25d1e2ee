"""Which form of late interaction: R@1 with each, after a first pass by hybrid.

    python benchmarks/late_forms.py [--every N]

On data/datasets/bilingual_knowledge, and on XQuAD (every Nth question) where ../shared/datasets has it, English and
Chinese questions on English and on Chinese text. Every form is measured on a third of the background and used as
late.py does: a relevance calibrated for each pair of languages, `0.4 * first + 0.6 * second` over the best 30. Forms:

    plain           cosines of the tokens as they are, the special tokens and the prompt among them
    words           the same without special tokens and prompt
    centred         words, from each the mean of its kind and language removed
    by length       centred, less what is usual for the length of the text: the default
    no stops        by length, tokens without a letter or digit left out of both
    rare words      by length, the query's tokens weighted by how rare they are in the background
    1, 3 directions by length, the first principal directions of the background's tokens removed
    whitened        by length, all directions brought half of the way to equal size
    128, 64 numbers by length, only so many principal directions kept: a third, a sixth of the memory

and for the default weights of the second pass from 0.3 to 1, and depths of 10, 20 and 50. Writes
benchmarks/results/late_forms.json.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from bilingual import SHARED, Task, own, xquad
from common import hardware, write_result

from ctx_vector import KnowledgeBase, load_encoder
from ctx_vector.calibration_measure import points_of
from ctx_vector.encoders import CachedEncoder
from ctx_vector.hits import embedded_texts
from ctx_vector.languages import LANGUAGES, cohort, language_of
from ctx_vector.measurements import background
from ctx_vector.relevance_map import OTHER_LANGUAGE, seen_from
from ctx_vector.rerank import WEIGHT, fuse

DEPTH = 50
Rows = np.ndarray


@dataclass(frozen=True)
class Form:
    """How token vectors are prepared, and how much the length of a text counts."""

    special: bool = False
    centre: bool = True
    length: bool = True
    stops: bool = True
    rare: bool = False
    directions: int = 0
    white: float = 0.0
    kept: int | None = None


FORMS = {
    "plain": Form(special=True, centre=False, length=False),
    "words": Form(centre=False, length=False),
    "centred": Form(length=False),
    "by length": Form(),
    "no stops": Form(stops=False),
    "rare words": Form(rare=True),
    "1 direction": Form(directions=1),
    "3 directions": Form(directions=3),
    "whitened": Form(white=0.5),
    "128 numbers": Form(kept=128),
    "64 numbers": Form(kept=64),
}
DEFAULT = "by length"


@dataclass(frozen=True)
class Said:
    """The tokens of a text: unit rows of all of them, their ids, and which are its own."""

    rows: Rows
    ids: np.ndarray
    own: slice


class Tokens:
    """Encodes texts to tokens, once each."""

    def __init__(self) -> None:
        self.encoder = load_encoder()
        self._known: dict[tuple[str, str], Said] = {}
        self._before = {
            kind: len(self.encoder.token_ids("word", kind)) - 1 - len(self.encoder.encode_tokens(["word"], kind)[0])
            for kind in ("query", "passage")
        }
        library = self.encoder._load_library()
        pieces = [library.id_to_token(number) for number in range(library.get_vocab_size())]
        self.is_word = np.array([any(char.isalnum() for char in piece or "") for piece in pieces])

    def of(self, text: str, kind: str) -> Said:
        """Return the tokens of a text."""
        key = kind, text
        if key not in self._known:
            ids = np.array(self.encoder.token_ids(text, kind))
            rows = self.encoder._run(self.encoder._with_prompt([text], kind)[0], "token_vectors")[0][0]
            rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
            self._known[key] = Said(rows.astype(np.float32), ids, slice(self._before[kind], len(ids) - 1))
        return self._known[key]


class Late:
    """Late interaction in one form, measured on background rows."""

    def __init__(self, form: Form, tokens: Tokens, rows: list[dict[str, str]]) -> None:
        self._form, self._tokens = form, tokens
        self._means = {(kind, name): np.zeros(384, np.float32) for kind in ("query", "passage") for name in LANGUAGES}
        said = {
            (kind, name): [tokens.of(row[f"{prefix}{name}"], kind) for row in rows]
            for kind, prefix in (("query", "q_"), ("passage", ""))
            for name in LANGUAGES
        }
        if form.centre:
            self._means = {
                key: np.concatenate([one.rows[one.own] for one in items]).mean(0) for key, items in said.items()
            }
        spread = np.concatenate(
            [one.rows[one.own] - self._means["passage", name] for name in LANGUAGES for one in said["passage", name]]
        )
        values, vectors = np.linalg.eigh(spread.T @ spread / len(spread))
        self._values, self._vectors = values[::-1].copy(), np.ascontiguousarray(vectors[:, ::-1])
        seen = np.zeros(len(tokens.is_word))
        for name in LANGUAGES:
            for one in said["passage", name]:
                seen[np.unique(one.ids)] += 1
        self._rare = np.log((2 * len(rows) + 1) / (seen + 0.5))
        self.pairs = {}
        for asked in LANGUAGES:
            queries = [self.prepared(one, "query", asked) for one in said["query", asked]]
            for about in LANGUAGES:
                texts = [self.prepared(one, "passage", about) for one in said["passage", about]]
                raw = np.array([self.raw(query, texts) for query in queries])
                apart = ~np.eye(len(rows), dtype=bool)
                growth, lengths = 0.0, np.log(np.array([len(text) for text, _ in texts]) / 100)
                if form.length:
                    x, y = np.broadcast_to(lengths, raw.shape)[apart], raw[apart]
                    growth = float(np.cov(x, y, bias=True)[0, 1] / x.var())
                rest = raw - growth * lengths
                mean = float(rest[apart].mean())
                points, _ = points_of(mean, rest[apart] - mean, np.diag(rest) - mean)
                self.pairs[asked, about] = growth, points

    def prepared(self, said: Said, kind: str, language: str) -> tuple[Rows, np.ndarray]:
        """Return the unit rows to compare, and their weights."""
        form = self._form
        rows, ids = (said.rows, said.ids) if form.special else (said.rows[said.own], said.ids[said.own])
        if not form.stops and self._tokens.is_word[ids].any():
            rows, ids = rows[self._tokens.is_word[ids]], ids[self._tokens.is_word[ids]]
        rows = rows - self._means[kind, language]
        if form.directions:
            rows = rows - rows @ self._vectors[:, : form.directions] @ self._vectors[:, : form.directions].T
        if form.white or form.kept:
            rows = rows @ self._vectors[:, : form.kept] / self._values[: form.kept] ** (form.white / 2)
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
        return rows.astype(np.float32), self._rare[ids] if form.rare else np.ones(len(ids))

    @staticmethod
    def raw(query: tuple[Rows, np.ndarray], texts: list[tuple[Rows, np.ndarray]]) -> np.ndarray:
        """Return the scores of texts."""
        rows, weights = query
        sizes = np.array([len(text) for text, _ in texts])
        products = rows @ np.concatenate([text for text, _ in texts]).T
        best = np.maximum.reduceat(products, np.cumsum(sizes) - sizes, axis=1)
        return np.average(best, axis=0, weights=weights)

    def relevance(self, query: tuple[Rows, np.ndarray], asked: str, texts: list, languages: list[str]) -> np.ndarray:
        """Return the relevance of prepared texts in these languages."""
        found = np.zeros(len(texts))
        for place, (raw, (rows, _), said) in enumerate(zip(self.raw(query, texts), texts, languages, strict=True)):
            growth, points = self.pairs[asked, said]
            excess = np.array([raw - growth * np.log(len(rows) / 100) - points.unrelated])
            found[place] = seen_from(points.relevance(excess), 1.0 if asked == said else OTHER_LANGUAGE)[0]
        return found


@dataclass(frozen=True)
class Asked:
    """A question, and what the first pass found for it: keys of passages, their relevance, whether they answer."""

    case: str
    question: str
    keys: list[str]
    scores: np.ndarray
    right: list[bool]


def tasks(every: int) -> dict[str, Task]:
    """Return the collections to search: the bilingual set of this project, and XQuAD in one language and across."""
    found = {"own": own()}
    if SHARED.is_dir():
        found["xquad"] = xquad(every, lambda language, number: language == "en")
        found["xquad zh"] = xquad(every, lambda language, number: language == "zh")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=4)
    options = parser.parse_args()
    tokens = Tokens()
    encoder = CachedEncoder(tokens.encoder)
    rows = background()[::3]
    asked: list[Asked] = []
    texts: dict[str, tuple[str, str]] = {}  # key -> (language, text as it is encoded)
    with tempfile.TemporaryDirectory() as temporary:
        for name, task in tasks(options.every).items():
            with KnowledgeBase(Path(temporary) / name, encoder) as kb:
                kb.add_texts({"text": text, "source": id_} for id_, text in task.texts.items())
                for question, good in task.asked:
                    hits = kb.search(question, DEPTH, strategy="hybrid")
                    with kb._store.read() as conn:
                        said = embedded_texts(conn, [hit.id for hit in hits])
                    keys = [f"{name}/{hit.id}" for hit in hits]
                    texts |= {key: (cohort(language_of(text)), text) for key, text in zip(keys, said, strict=True)}
                    right, scores = [hit.source in good for hit in hits], np.array([hit.score for hit in hits])
                    asked.append(Asked(f"{name}: {task.case(question, good)}", question, keys, scores, right))

    def first(judge: Callable[..., np.ndarray], depth: int, weight: float) -> dict[str, float]:
        right: dict[str, list[bool]] = {}
        for number, one in enumerate(asked):
            fused = fuse(one.scores, judge(number)[:depth], weight)
            for case in (one.case, f"{one.case.split(':')[0]}: all"):
                right.setdefault(case, []).append(bool(one.right) and one.right[int(np.argmax(fused))])
        return {case: round(float(np.mean(found)), 4) for case, found in sorted(right.items())}

    result: dict[str, object] = {
        "what": "R@1 by forms of late interaction, after hybrid",
        "hardware": hardware(),
        "questions": dict(Counter(one.case for one in asked)),
        "weight": WEIGHT,
        "first pass alone": first(lambda number: np.empty(0), 0, 0.0),
    }
    print("first pass alone", result["first pass alone"], flush=True)
    for name, form in FORMS.items():
        began = time.perf_counter()
        late = Late(form, tokens, rows)
        prepared = {
            key: late.prepared(tokens.of(text, "passage"), "passage", language)
            for key, (language, text) in texts.items()
        }
        judged = []
        for one in asked:
            language = cohort(language_of(one.question))
            question = late.prepared(tokens.of(one.question, "query"), "query", language)
            best = [prepared[key] for key in one.keys]
            judged.append(late.relevance(question, language, best, [texts[key][0] for key in one.keys]))
        result[name] = first(judged.__getitem__, 30, WEIGHT)
        print(f"{name:14}", result[name], f"{time.perf_counter() - began:.0f} s", flush=True)
        if name == DEFAULT:
            for weight in (0.3, 0.4, 0.5, 0.7, 0.8, 1.0):
                result[f"weight {weight}"] = first(judged.__getitem__, 30, weight)
                print(f"weight {weight:7}", result[f"weight {weight}"], flush=True)
            for depth in (10, 20, 50):
                result[f"depth {depth}"] = first(judged.__getitem__, depth, WEIGHT)
                print(f"depth {depth:8}", result[f"depth {depth}"], flush=True)
    write_result("late_forms", result)


if __name__ == "__main__":
    main()
