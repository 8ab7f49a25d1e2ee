"""Sources and shares as data: what is refused, with every problem at once."""

import pickle
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctx_vector import ConfigError, LayerShares, SourceConfig
from ctx_vector.errors import InputError
from ctx_vector.sources import LAYER_KINDS, LAYERS, check_sources, read_expiry


def problems(call):
    with pytest.raises(ConfigError) as caught:
        call()
    return list(caught.value.problems)


def test_a_source_has_sensible_defaults():
    source = SourceConfig("faq", "static", "yaml:faq.yaml")
    assert (source.priority, source.min_share, source.max_share, source.scope) == (0, 0, 1, "shared")
    assert (source.enabled, source.timeout, source.degrade, source.kind) == (True, 10.0, "extract", "knowledge")
    assert set(LAYER_KINDS) == set(LAYERS)


def test_all_problems_of_a_source_come_at_once_with_their_paths():
    found = problems(
        lambda: SourceConfig(
            "faq", "statik", "yml:faq.yaml", max_share=2, min_share=-1, top_k=0, degrade="extrakt", timeout=0, enabled=1
        )
    )
    assert [line.partition(":")[0] for line in found] == [
        f"sources.faq.{name}"
        for name in ("layer", "loader", "top_k", "min_share", "max_share", "enabled", "timeout", "degrade")
    ]
    assert "did you mean 'static'?" in found[0] and "did you mean 'yaml'?" in found[1]
    assert "did you mean 'extract'?" in found[-1]
    assert found[4] == "sources.faq.max_share: expected a number >= 0 and <= 1, got 2"


@pytest.mark.parametrize(
    ("name", "values", "line"),
    [
        ("faq", {"layer": "static"}, "sources.faq.loader: missing; such as yaml:faq.yaml, text:rules.md or kb:kb"),
        (
            "问答",
            {"layer": "static", "loader": "text:a", "max_shares": 1},
            "sources.问答.max_shares: unknown field; did you mean 'max_share'?",
        ),
        ("faq", ["static"], "sources.faq: expected a mapping of fields, got ['static']"),
        ("faq", {"layer": "static", "loader": "session:s1"}, None),
        ("faq", {"layer": "static", "loader": "python:os"}, None),
        ("faq", {"layer": "static", "loader": "python:a b.c"}, None),
        ("faq", {"layer": "static", "loader": "kb: "}, None),
        ("faq", {"layer": "static", "loader": 7}, None),
        ("faq", {"layer": "static", "loader": "text:a", "expires": "soon"}, None),
        ("faq", {"layer": "static", "loader": "text:a", "version": ["2"]}, None),
        ("faq", {"layer": "static", "loader": "text:a", "scope": ""}, None),
        ("faq", {"layer": "static", "loader": "text:a", "title": "a\nb"}, None),
        ("faq", {"layer": "static", "loader": "text:a", "args": [1]}, None),
        ("faq", {"layer": "static", "loader": "text:a", "min_share": 0.6, "max_share": 0.5}, None),
        ("custom", {"layer": "static", "loader": "text:a"}, None),
        ("a\nb", {"layer": "static", "loader": "text:a"}, None),
    ],
)
def test_a_mapping_is_checked(name, values, line):
    (found,) = problems(lambda: SourceConfig.from_dict(name, values))
    assert found.startswith("sources.")
    assert line is None or found == line


def test_a_source_cannot_change_and_can_be_copied():
    args = {"city": "北京"}
    source = SourceConfig("weather", "tool", "python:tools.weather", args=args, version=2)
    args["city"] = "上海"
    assert source.args == {"city": "北京"} and source.version == "2"
    with pytest.raises(TypeError):
        source.args["city"] = "x"
    assert pickle.loads(pickle.dumps(source)) == source
    assert SourceConfig.from_dict("weather", {k: v for k, v in source.to_dict().items() if k != "name"}) == source


@pytest.mark.parametrize(
    ("given_", "read"),
    [
        (None, None),
        ("90s", timedelta(seconds=90)),
        ("15min", timedelta(minutes=15)),
        ("15 m", timedelta(minutes=15)),
        ("12h", timedelta(hours=12)),
        ("1.5d", timedelta(days=1.5)),
        ("2W", timedelta(weeks=2)),
        (60, timedelta(minutes=1)),
        (timedelta(days=1), timedelta(days=1)),
        ("2025-01-01T00:00:00Z", datetime(2025, 1, 1, tzinfo=UTC)),
        ("2025-01-01T08:00:00+08:00", datetime(2025, 1, 1, tzinfo=UTC)),
        (date(2025, 1, 1), datetime(2025, 1, 1).astimezone(UTC)),
        (datetime(2025, 1, 1, tzinfo=UTC), datetime(2025, 1, 1, tzinfo=UTC)),
    ],
)
def test_expiry_is_a_date_or_a_duration(given_, read):
    assert read_expiry(given_) == read


@pytest.mark.parametrize("wrong", ["", "soon", "30 years", "0d", 0, -1, True, float("nan"), [1], "9999999999d", "1e9d"])
def test_an_expiry_nobody_can_read_is_refused(wrong):
    with pytest.raises(InputError, match="expected a date, or a duration"):
        read_expiry(wrong)


def test_sources_are_checked_together():
    made = [
        SourceConfig("a", "static", "text:a", min_share=0.6, scope="agent_a"),
        SourceConfig("b", "static", "text:a", min_share=0.6, scope="agent_b"),
        SourceConfig("b", "dynamic", "text:a"),
    ]
    assert check_sources(made, "agent_a") == [
        "sources.b.scope: expected agent_a or shared, got agent_b",
        "sources.b: there are two sources of this name; rename one",
        "sources: expected min_share to sum to at most 1 in layer static, got 1.2",
    ]
    assert check_sources(made[:1]) == []


# -- shares -----------------------------------------------------------------------------------------------------------


def test_shares_have_the_defaults_of_the_design():
    shares = LayerShares()
    assert shares.to_dict() == {"system": 0.1, "static": 0.2, "dynamic": 0.5, "tool": 0.15, "buffer": 0.05}
    assert [shares.owner(layer) for layer in LAYERS] == ["system", "static", "dynamic", "tool", "dynamic", "dynamic"]
    own = LayerShares.from_mapping({"dynamic": 0.4, "memory": 0.1})
    assert own.owner("memory") == "memory" and own.dynamic == 0.4 and own.system == 0.1


def test_all_problems_of_shares_come_at_once():
    assert problems(lambda: LayerShares.from_mapping({"sytem": 0.1, "tool": -1, "memory": "x"})) == [
        "budget_ratio.sytem: unknown layer; did you mean 'system'?",
        "budget_ratio.tool: expected a number >= 0 and <= 1, got -1",
        "budget_ratio.memory: expected a number >= 0 and <= 1 or None, got 'x'",
    ]
    (line,) = problems(lambda: LayerShares.from_mapping({"dynamic": 0.6}, "budget"))
    assert line.startswith("budget: expected shares that sum to at most 1, got 1.1 (system 0.1 + ")


@given(st.lists(st.integers(0, 100), min_size=7, max_size=7))
def test_shares_over_one_are_refused_and_others_are_not(cents):
    values = dict(zip(["system", "static", "dynamic", "tool", "memory", "agents", "buffer"], cents, strict=True))
    if sum(Fraction(cent, 100) for cent in cents) <= 1:
        assert sum(LayerShares(**{name: cent / 100 for name, cent in values.items()}).to_dict().values()) <= 1 + 1e-9
    else:
        problems(lambda: LayerShares(**{name: cent / 100 for name, cent in values.items()}))


@pytest.mark.parametrize("name", ["custom", "documents", "history", "tools", "tool_results", "agent_outputs", "images"])
def test_names_of_what_the_caller_gives_are_taken(name):
    with pytest.raises(ConfigError, match="expected another name"):
        SourceConfig(name, "static", lambda request: [])
