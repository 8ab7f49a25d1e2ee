"""Every bound of ContextConfig, its messages, and that it cannot change."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from ctx_vector.config import PARTS, ContextConfig
from ctx_vector.errors import ConfigError

UNIT = {"good": [0, 1, 0.0, 1.0, 0.5], "bad": [-1e-9, 1.0000001, True, False, "0.5", None, float("nan"), float("inf")]}
UNIT_OR_NONE = {"good": [*UNIT["good"], None], "bad": [value for value in UNIT["bad"] if value is not None]}
COUNT = {"good": [0, 1, 100_000_000], "bad": [-1, 1.0, 2.5, True, "5", None, 100_000_001]}
SWITCH = {"good": [True, False], "bad": [0, 1, None, "yes"]}
TEXT = {"good": [None, "", "Answer in French."], "bad": [5, True, ["x"]]}


def choice(*names: str) -> dict[str, list]:
    return {"good": list(names), "bad": ["", names[0].upper(), names[0] + "x", None, 5, [names[0]]]}


class Scores:
    name = "mine"

    def score(self, query, candidates):
        return []


BOUNDS = {
    "max_tokens": {"good": [1, 3000, 100_000_000], "bad": [0, -1, 2.0, True, "3000", None, 100_000_001]},
    "reserve_ratio": UNIT,
    "min_relevance": UNIT,
    "enable_compression": SWITCH,
    "strategy": {"good": ["cosine", "jaccard", Scores()], "bad": ["", " ", None, 5, object()]},
    "rerank": {"good": [None, "late", "./a", Path("a"), Scores()], "bad": ["", " ", 5, True, object()]},
    "rerank_depth": {"good": [1, 30, 10_000], "bad": [0, -1, 1.5, True, "30", None, 10_001]},
    "rerank_weight": UNIT,
    "fill": choice("skip", "stop"),
    "mmr_lambda": UNIT_OR_NONE,
    "alike_limit": {"good": [1, 3, 1000, None], "bad": [0, -1, 1.5, True, "3"]},
    "history_limit": COUNT,
    "history_relevance": UNIT_OR_NONE,
    "history_strategy": choice("window", "head_tail", "importance", "summary", "budget"),
    "history_head_keep": COUNT,
    "history_tail_keep": COUNT,
    "summary_keep_turns": COUNT,
    "recency_decay": {"good": [0, 0.1, 100], "bad": [-0.1, True, None, float("nan"), float("inf")]},
    "recency_floor": UNIT,
    "supersede_line": {"good": [None, 0, 0.5, 2], "bad": [-0.1, 2.1, True, "0.5", float("nan")]},
    "recency_decay_by_type": {"good": [{}, {"episodic": 0}], "bad": [{"a": -1}, {"a": True}, {"a": None}, {5: 1}, [1]]},
    "recency_floor_by_type": {"good": [{}, {"a": 0, "b": 1}], "bad": [{"a": 1.1}, {"a": "x"}, {5: 0}, "a"]},
    "memory_limit": {"good": [*COUNT["good"], None], "bad": [value for value in COUNT["bad"] if value is not None]},
    "memory_min_importance": UNIT,
    "knowledge_limit": COUNT,
    "knowledge_min_score": UNIT,
    "budgets": {
        "good": [{}, {part: 5 for part in PARTS}, {"system": None, "history": 0}],
        "bad": [{"histroy": 5}, {"history": -1}, {"history": 1.5}, {"history": True}, {5: 5}, None, []],
    },
    "include": {
        "good": [{}, {"history": False}, {"system": True}],
        "bad": [{"system": False}, {"history": 0}, {"histroy": True}, None],
    },
    "shrink_order": {"good": [(), ("history",), ["tools", "state"]], "bad": [("x",), "x", None, (5,), ("system",)]},
    "evidence_style": choice("plain", "numbered"),
    "messages_style": choice("single", "split"),
    "citations": SWITCH,
    "versions": SWITCH,
    "tools_in": choice("text", "api"),
    "compress_encode": SWITCH,
    "reminder": TEXT,
    "locale": choice("auto", "en", "zh"),
    "output_instructions": TEXT,
    "tokenizer": {
        "good": ["cl100k_base", "estimate", "hf:x.json", "toktok:o200k_base", len],
        "bad": ["cl100k", "", None, 5, "hf:"],
    },
    "source_timeout": {"good": [None, 0.001, 10, 1e6], "bad": [0, -1, True, "10", 1e7]},
}  # fmt: skip
CASES = [(name, kind, value) for name, bounds in BOUNDS.items() for kind in ("good", "bad") for value in bounds[kind]]


def test_what_is_over_a_bound_is_told_it() -> None:
    with pytest.raises(ConfigError, match=r"max_tokens: expected an integer >= 1 and <= 100000000, got 100000001"):
        ContextConfig(max_tokens=100_000_001)


def test_every_field_has_its_bounds_here() -> None:
    names = {item.name for item in fields(ContextConfig)}
    assert names - set(BOUNDS) == {"recency_weight", "relevance_weight"}
    assert not set(BOUNDS) - names


def shown(value: object) -> str:
    text = repr(value)
    return type(value).__name__ if " at 0x" in text else text[:30]  # the same in every process


@pytest.mark.parametrize(("name", "kind", "value"), CASES, ids=shown)
def test_bounds(name: str, kind: str, value: object) -> None:
    if kind == "good":
        ContextConfig(**{name: value})
        return
    with pytest.raises(ConfigError) as caught:
        ContextConfig(**{name: value})
    (problem,) = caught.value.problems
    assert problem.startswith(name)
    assert "expected" in problem and "got" in problem


@pytest.mark.parametrize("value", UNIT["bad"])
@pytest.mark.parametrize("name", ["recency_weight", "relevance_weight"])
def test_a_weight_out_of_bounds_is_named_alone(name: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        ContextConfig(**{name: value})
    assert [problem.split(":")[0] for problem in caught.value.problems] == [name]


@pytest.mark.parametrize(("one", "other", "fits"), [
    (0, 1, True), (1, 0, True), (0.3, 0.7, True), (0.1 + 0.2, 0.7, True), (0.3, 0.7000009, True),
    (0.3, 0.7000011, False), (0.5, 0.6, False), (0, 0, False), (1, 1, False),
])  # fmt: skip
def test_weights_sum_to_one(one: float, other: float, fits: bool) -> None:
    if fits:
        ContextConfig(recency_weight=one, relevance_weight=other)
    else:
        with pytest.raises(ConfigError, match=r"recency_weight \+ relevance_weight: expected a sum of 1"):
            ContextConfig(recency_weight=one, relevance_weight=other)


def test_all_problems_are_told_at_once_by_dotted_path() -> None:
    with pytest.raises(ConfigError) as caught:
        ContextConfig.from_dict(
            {
                "max_tokens": 0,
                "fill": "skp",
                "recency_weight": 0.9,
                "budgets": {"history": -1, "evidense": 5},
                "include": {"system": False},
                "recency_floor_by_type": {"episodic": 2},
                "min_relevanse": 0.1,
            }
        )
    assert {problem.split(":")[0] for problem in caught.value.problems} == {
        "max_tokens", "fill", "recency_weight + relevance_weight", "budgets.history", "budgets.evidense",
        "include.system", "recency_floor_by_type.episodic", "min_relevanse",
    }  # fmt: skip
    text = str(caught.value)
    for part in ("8 configuration problems", "'evidence'", "'skip'", "'min_relevance'", "got 0", "got -1", ">= 1"):
        assert part in text


@pytest.mark.parametrize(
    ("wrong", "right"), [("max_token", "max_tokens"), ("recency_decy", "recency_decay"), ("strateg", "strategy")]
)
def test_unknown_names_suggest_the_nearest(wrong: str, right: str) -> None:
    for make in (lambda: ContextConfig.from_dict({wrong: 1}), lambda: ContextConfig().with_(**{wrong: 1})):
        with pytest.raises(ConfigError, match=f"{wrong}: unknown field; did you mean '{right}'"):
            make()


@pytest.mark.parametrize("values", [None, [], "max_tokens", 5])
def test_from_dict_wants_a_mapping(values: object) -> None:
    with pytest.raises(ConfigError, match="expected a mapping"):
        ContextConfig.from_dict(values)


def test_nothing_can_be_changed() -> None:
    mine = {"history": 5}
    config = ContextConfig(budgets=mine, shrink_order=["history"])
    mine["history"] = 7
    assert config.budgets == {"history": 5} and config.shrink_order == ("history",)
    with pytest.raises(FrozenInstanceError):
        config.max_tokens = 5
    for mapping in (config.budgets, config.include, config.recency_decay_by_type, config.recency_floor_by_type):
        with pytest.raises(TypeError):
            mapping["x"] = 1
    assert ContextConfig().recency_decay_by_type == {"episodic": 0.01, "semantic": 0, "profile": 0}


def test_with_changes_only_what_is_named() -> None:
    config = ContextConfig(budgets={"history": 5})
    other = config.with_(max_tokens=5000)
    assert (config.max_tokens, other.max_tokens) == (3000, 5000)
    assert other.with_(max_tokens=3000) == config
    with pytest.raises(ConfigError, match="max_tokens"):
        config.with_(max_tokens=0)


def test_configs_survive_pickling_and_copying() -> None:
    config = ContextConfig(max_tokens=500, budgets={"history": 5}, include={"memory": False})
    for again in (pickle.loads(pickle.dumps(config)), copy.deepcopy(config), copy.copy(config)):
        assert again == config and again.hash == config.hash


def test_caps_are_whole_and_round_down() -> None:
    assert ContextConfig(max_tokens=1000, reserve_ratio=0.9).shared_limit == 99
    assert ContextConfig(max_tokens=1000, reserve_ratio=0).shared_limit == 1000
    assert ContextConfig(max_tokens=1000, reserve_ratio=1).shared_limit == 0
    assert ContextConfig().shared_limit == 2400


def test_parts_8k() -> None:
    config = ContextConfig.parts_8k()
    assert config.max_tokens == 8000
    assert config.budgets == {"system": 1200, "tools": 1600, "evidence": 2400, "history": 2000}
    assert ContextConfig.parts_8k(fill="stop").fill == "stop"
    with pytest.raises(ConfigError, match="fill"):
        ContextConfig.parts_8k(fill="no")


def test_a_name_that_is_no_field_is_named_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError) as caught:
        ContextConfig(max_token=3, fil="skip", max_tokens=10)  # type: ignore[call-arg]
    assert caught.value.problems == (
        "max_token: unknown field; did you mean 'max_tokens'?",
        "fil: unknown field; did you mean 'fill'?",
    )
    with pytest.raises(ConfigError, match=r"colour: unknown field$"):
        ContextConfig(colour=1)  # type: ignore[call-arg]
    assert dataclasses.replace(ContextConfig(3), fill="stop") == ContextConfig(max_tokens=3, fill="stop")
    assert copy.deepcopy(ContextConfig(3)) == ContextConfig(3)


def test_to_dict_is_json_and_comes_back() -> None:
    import json

    config = ContextConfig.parts_8k(include={"memory": False})
    assert ContextConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert ContextConfig(strategy=Scores()).to_dict()["strategy"] == "mine"


def test_the_hash_is_the_same_in_every_process() -> None:
    code = "from ctx_vector.config import ContextConfig as C; print(C.parts_8k(include={'memory': False}).hash)"
    root = Path(__file__).parent.parent
    hashes = {
        subprocess.run(
            [sys.executable, "-c", code], cwd=root, env={"PYTHONHASHSEED": seed, "PATH": ""},
            capture_output=True, text=True, check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }  # fmt: skip
    assert hashes == {ContextConfig.parts_8k(include={"memory": False}).hash}
    assert len(hashes.pop()) == 16


def test_configs_are_keys() -> None:
    class Scorer:
        def score(self, query, candidates): ...

    scorer = Scorer()
    configs = [
        ContextConfig(),
        ContextConfig(recency_weight=0, relevance_weight=1),
        ContextConfig(budgets={"history": 9}),
        ContextConfig(strategy=scorer),
    ]
    again = [*configs[:1], ContextConfig(recency_weight=0.0, relevance_weight=1.0), *map(copy.copy, configs[2:])]
    assert {config: at for at, config in enumerate(configs)} == {config: at for at, config in enumerate(again)}
    assert len({*configs, *again}) == 4


def test_the_hash_differs_with_every_field_and_not_with_spelling() -> None:
    base, seen = ContextConfig(), {ContextConfig().hash}
    for name, bounds in BOUNDS.items():
        for value in bounds["good"]:
            other = base.with_(**{name: value})
            assert (other == base) == (other.hash == base.hash), (name, value)
            seen.add(other.hash)
    assert (
        base.with_(recency_weight=0, relevance_weight=1).hash
        == base.with_(recency_weight=0.0, relevance_weight=1.0).hash
    )
    assert base.with_(budgets={"history": 1, "memory": 2}).hash == base.with_(budgets={"memory": 2, "history": 1}).hash
    assert base.with_(tokenizer=len).hash != base.with_(tokenizer=str.split).hash
    assert len(seen) > 40
