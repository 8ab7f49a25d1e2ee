"""Are the hybrid's settings for memories fitted to the conversations they are measured on? LoCoMo, one left out.

    python benchmarks/locomo_settings.py [--folder DIR]

Four settings of keywords in memories were chosen while these five conversations were looked at. Here each is chosen
again without the conversation it is then measured on: out of GRID, all combinations, the best on the other four by the
mean of evidence recall at 500, 1,000 and 2,000 tokens over their questions, the first in the grid of those that tie.
The left-out conversation is then built with what was chosen, by ContextBuilder, as in locomo.py.

    weight   what keywords weigh against cosines (calibration.KEYWORD_WEIGHT; 0: cosine alone)
    near     what a word of the next turn counts, of the one after it, ... (memory_words.WordRules)
    dated    whether the date is among a turn's words
    stems    whether words are stemmed (terms.py)

Four folds choose a weight of 130, one a weight of 60 with neighbours that count as much as the turn itself; dates and
stems always. On the conversations left out they find on average what the defaults find, to within 0.005. The mean of
the three budgets is flat around the defaults: weights from 40 to 200 are within 0.011 of the best, near shares within
0.010, but for none at all (0.029 less). The default weight stays 60, which serves XQuAD and knowledge bases too.

Only within the grid, contexts are not built: the order is that of a search, the selection the builder's greedy one,
over the best 200. Everything else of the hybrid was not varied: BM25's constants are the usual ones, and what is
encoded of a turn (dialogue.py) and the means removed (memory_view.py) are those of `cosine`.

`--folder` are memories that locomo.py kept, or will keep. Writes `held_out` in benchmarks/results/locomo.json: the
settings chosen and recall on the conversation left out, beside that of the defaults; and `flatness`: recall on all five
with one setting after the other changed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import RESULTS, write_result
from locomo import BUDGETS, MODES, SETS, named, read, recall, remember

from ctx_vector import ContextBuilder, ContextConfig, MemoryTool, TokenCounter, load_encoder
from ctx_vector.calibration import KEYWORD_WEIGHT, Calibration
from ctx_vector.calibration_measure import common_terms, measure
from ctx_vector.encoders import CachedEncoder
from ctx_vector.encoding_cache import check_model
from ctx_vector.measurements import background
from ctx_vector.memory import FILE_NAME, Memory
from ctx_vector.memory_rows import MIGRATIONS
from ctx_vector.memory_view import MemoryView, load_view
from ctx_vector.memory_words import WordRules, load_words
from ctx_vector.store import Store
from ctx_vector.terms import stem_key, words

HYBRID = MODES["hybrid only"]
BEST = 200


@dataclass(frozen=True)
class Settings:
    weight: float = KEYWORD_WEIGHT
    near: tuple[float, ...] = WordRules().near
    dated: bool = True
    stems: bool = True


GRID = {
    "weight": (20.0, 40.0, 60.0, 90.0, 130.0, 200.0),
    "near": ((), (0.5,), (0.25, 0.25), (0.5, 0.5), (0.75, 0.75), (1.0, 1.0)),
    "dated": (False, True),
    "stems": (False, True),
}
POINTS = [Settings(0.0), *(Settings(*values) for values in itertools.product(*GRID.values()))]


def unstemmed(text: str) -> list[int]:
    return [stem_key(word) for word in words(text)]


class Maker:
    """Opens the memories of a conversation with settings; calibrations are measured once a weight."""

    def __init__(self, folder: Path) -> None:
        self.encoder = CachedEncoder(load_encoder())
        self._folder = folder
        self._background = background()
        self._common = {stem_key(word): share for word, share in common_terms(self._background, words).items()}
        self._calibrations: dict[float, Calibration] = {}

    def memory(self, name: str, settings: Settings) -> Memory:
        calibration = self._calibration(settings)
        return Memory(self._folder, name, self.encoder, words=self._rules(settings), calibration=calibration)

    def _calibration(self, settings: Settings) -> Calibration:
        if settings.weight not in self._calibrations:
            self._calibrations[settings.weight] = measure(self.encoder, self._background, settings.weight)
        return self._calibrations[settings.weight]

    def _rules(self, settings: Settings) -> WordRules:
        if settings.stems:
            return WordRules(settings.near, settings.dated)
        return WordRules(settings.near, settings.dated, unstemmed, self._common)

    def built(self, name: str, settings: Settings, queries: list[dict], evidence: dict[str, list[str]]) -> list[float]:
        """Return evidence recall at each budget, of real contexts."""
        with self.memory(name, settings) as memory:
            builder = ContextBuilder(
                memory_tool=MemoryTool(memory=memory), encoder=self.encoder, config=ContextConfig(**HYBRID)
            )
            return np.mean(recall(builder, queries, evidence), 0).tolist()

    def searched(
        self, name: str, queries: list[dict], evidence: dict[str, list[str]], sizes: dict[str, int]
    ) -> np.ndarray:
        """Return the same by searches, (points, budgets); `sizes` are the tokens of each turn in a context."""
        vectors = self.encoder.encode_queries([query["text"] for query in queries])
        with self.memory(name, Settings()) as memory:
            turns = [row.metadata["turn"] for row in memory.all()]
        store = Store(self._folder / FILE_NAME, MIGRATIONS, kind="memory")
        with closing(store), store.read() as conn:
            model = check_model(conn, store, self.encoder)
            view = load_view(conn, name, self._calibration(Settings()), None, model)
            cosines = cosines_of(view, vectors)
            everything = np.ones(len(view), np.bool_)
            rules = {(settings.near, settings.dated, settings.stems): self._rules(settings) for settings in POINTS}
            words_of = {key: load_words(conn, name, 0, view.facts.ids, None, rule) for key, rule in rules.items()}
        shares = {
            key: np.stack([known.shares(query["text"], 0, everything) for query in queries])
            for key, known in words_of.items()
        }
        found = np.empty((len(POINTS), len(BUDGETS)))
        for place, settings in enumerate(POINTS):
            of_words = shares[settings.near, settings.dated, settings.stems]
            scores = self._calibration(settings).centred_relevance("en", "en", cosines, of_words)
            best = np.argsort(-scores, axis=1, kind="stable")[:, :BEST]
            recalls = [
                [share([turns[at] for at in row], evidence[query["_id"]], sizes, budget) for budget in BUDGETS]
                for query, row in zip(queries, best.tolist(), strict=True)
            ]
            found[place] = np.mean(recalls, 0)
        return found


def cosines_of(view: MemoryView, queries: np.ndarray) -> np.ndarray:
    """Return the cosines (queries, memories) that relevance is made of, where all is English."""
    index = view._index(0)
    return np.stack([view._cosines(index, index.rows, view._centred("en", "en", index, row)) for row in queries])


def share(turns: list[str], wanted: list[str], sizes: dict[str, int], budget: int) -> float:
    """Return the share of the wanted turns that a greedy selection within a budget has."""
    chosen = set()
    for turn in turns:
        if sizes[turn] <= budget:
            budget -= sizes[turn]
            chosen.add(turn)
    return sum(turn in chosen for turn in wanted) / len(wanted)


def flatness(table: np.ndarray, weights: np.ndarray) -> dict[str, dict[str, dict[str, float]]]:
    """Return recall over all questions, of the defaults with one setting changed."""
    usual = asdict(Settings())
    found: dict[str, dict[str, dict[str, float]]] = {}
    for setting, values in GRID.items():
        for value in (0.0, *values) if setting == "weight" else values:
            place = POINTS.index(Settings(**{**usual, setting: value}))
            found.setdefault(setting, {})[str(value)] = named([weights @ table[place]])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    counter = TokenCounter()
    data = {folder.name: read(folder) for folder in SETS}
    with tempfile.TemporaryDirectory() as temporary:
        maker = Maker(options.folder or Path(temporary))
        for name, (corpus, _, _) in data.items():
            with maker.memory(name, Settings()) as memory:
                remember(MemoryTool(memory=memory), corpus)
        sizes = {
            name: {turn["_id"]: counter.count(f"Memory: {turn['text']}\n") for turn in corpus}
            for name, (corpus, _, _) in data.items()
        }
        table = np.empty((len(POINTS), len(data), len(BUDGETS)))  # recall
        for number, (name, (_, queries, evidence)) in enumerate(data.items()):
            table[:, number] = maker.searched(name, queries, evidence, sizes[name])
            print(name, "searched", table[POINTS.index(Settings()), number].round(4), flush=True)
        counts = np.array([len(queries) for _, queries, _ in data.values()], float)
        folds: dict[str, dict[str, Any]] = {}
        chosen_recalls, usual_recalls = [], []
        for number, (name, (_, queries, evidence)) in enumerate(data.items()):
            others = np.where(np.arange(len(counts)) == number, 0.0, counts)
            scores = np.einsum("pcb,c->p", table, others / others.sum()) / len(BUDGETS)
            chosen = POINTS[int(scores.argmax())]
            chosen_recalls.append(maker.built(name, chosen, queries, evidence))
            usual_recalls.append(table[POINTS.index(Settings()), number])
            folds[name] = {
                "chosen on the others": asdict(chosen),
                "held out": named([chosen_recalls[-1]]),
                "held out, by searches": named([table[POINTS.index(chosen), number]]),
                "with the defaults, by searches": named([usual_recalls[-1]]),
            }
            print(name, folds[name], flush=True)
    weights = counts / counts.sum()
    result = json.loads((RESULTS / "locomo.json").read_text(encoding="utf-8"))
    result["held_out"] = {
        "what": "settings chosen on four conversations out of the grid, recall on the fifth, in built contexts",
        "grid": GRID,
        "held out": named([weights @ np.array(chosen_recalls)]),
        "with the defaults, by searches": named([weights @ np.array(usual_recalls)]),
        "by conversation": folds,
    }
    result["flatness"] = flatness(table, weights)
    write_result("locomo", result)
    print("held out", result["held_out"]["held out"], "defaults", result["held_out"]["with the defaults, by searches"])


if __name__ == "__main__":
    main()
