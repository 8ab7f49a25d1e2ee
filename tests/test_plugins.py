"""Strategies of other packages: a real distribution on the path, found by its entry points."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ctx_vector import ContextBuilder, ContextConfig
from ctx_vector.errors import ConfigError
from ctx_vector.plugins import plugin, plugin_names
from ctx_vector.scoring import make_scorer

CODE = """
import numpy as np

class Exact:
    name = "exact"

    def score(self, query, candidates):
        return np.array([float(query.text in text) for text in candidates.texts])

def exact(encoder):
    return Exact()

def by_model(encoder):
    return Exact() if encoder().name else None

def useless(encoder):
    return 7

number = 7
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that puts a package with these entry points on the path."""

    def install(name: str, **points: str) -> None:
        folder = tmp_path / name
        folder.mkdir()
        (folder / f"{name}.py").write_text(CODE)
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = [f"{key.replace('__', '.')} = {value}" for key, value in points.items()]
        (info / "entry_points.txt").write_text("[ctx_vector]\n" + "\n".join(lines) + "\n")
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.delitem(sys.modules, name, raising=False)

    return install


def no_encoder() -> None:
    raise AssertionError("this scorer needs no encoder")


def test_a_strategy_of_another_package_builds_contexts(install) -> None:
    install("scorers_of_others", strategy__exact="scorers_of_others:exact")
    assert plugin_names("strategy") == ["exact"]
    builder = ContextBuilder(config=ContextConfig(strategy="exact", recency_weight=0, relevance_weight=1))
    built = builder.assemble("内存", documents=["节省内存的办法", "今天天气很好"])
    assert [item.packet.content for item in built.kept] == ["节省内存的办法"]
    assert built.dropped[0].reason == "below_floor" and built.meta["strategy"] == "exact"


def test_a_plugin_may_ask_for_the_encoder(install) -> None:
    class Model:
        name = "model"

    install("asks_for_model", strategy__by_model="asks_for_model:by_model")
    assert make_scorer("by_model", Model).name == "exact"
    with pytest.raises(AssertionError):
        make_scorer("by_model", no_encoder)


def test_plugins_are_among_the_choices(install) -> None:
    install("more_scorers", strategy__exact="more_scorers:exact", rerank__other="more_scorers:exact")
    with pytest.raises(
        ConfigError, match=r"one of cosine, .*, jaccard, exact, or .* got 'exakt'; did you mean 'exact'"
    ):
        make_scorer("exakt", no_encoder)
    assert plugin_names("rerank") == ["other"] and plugin("rerank", "exact") is None


def test_a_second_pass_of_another_package_judges_what_is_found(install) -> None:
    install("judges_of_others", rerank__exact="judges_of_others:exact", rerank__useless="judges_of_others:useless")
    config = ContextConfig(strategy="bm25", rerank="exact", rerank_weight=1, recency_weight=0, relevance_weight=1)
    built = ContextBuilder(config=config).assemble("内存", documents=["内存很贵", "今天天气很好，适合内 存"])
    assert [item.packet.content for item in built.kept] == ["内存很贵"] and built.kept[0].relevance == 1.0
    with pytest.raises(ConfigError, match=r"rerank: expected one of late, exact, useless, .* did you mean 'exact'"):
        ContextBuilder(config=config.with_(rerank="exakt"))
    with pytest.raises(ConfigError, match=r"rerank: the plugin 'useless' gave 7, which has no score\(\)"):
        ContextBuilder(config=config.with_(rerank="useless")).assemble("内存", documents=["内存很贵"])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("broken_scorers:missing", "cannot be imported"),
        ("no_such_module:exact", "cannot be imported"),
        ("broken_scorers:number", "is no function; expected a function of a function"),
        ("broken_scorers:useless", "gave 7, which has no score"),
    ],
)
def test_a_plugin_that_does_not_work_is_a_config_error(install, value: str, message: str) -> None:
    install("broken_scorers", strategy__broken=value)
    with pytest.raises(ConfigError, match=message):
        make_scorer("broken", no_encoder)


def test_two_packages_with_one_name_are_a_config_error(install) -> None:
    install("one_scorers", strategy__exact="one_scorers:exact")
    install("two_scorers", strategy__exact="two_scorers:exact")
    with pytest.raises(ConfigError, match=r"two packages offer 'exact' .*uninstall one"):
        make_scorer("exact", no_encoder)


def test_a_name_of_ours_wins_over_a_plugin(install) -> None:
    install("shadowing", strategy__jaccard="shadowing:exact")
    assert make_scorer("jaccard", no_encoder).name == "jaccard"
