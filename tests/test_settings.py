"""Settings from YAML: every problem in one pass, with path, line and nearest name, and none of another kind."""

import dataclasses
import pickle
from datetime import timedelta

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pipeline_help import STEADY

from ctx_vector import ConfigError, ContextConfig, LayerShares, SourceConfig
from ctx_vector.config import field_schemas
from ctx_vector.scoring import SCORERS
from ctx_vector.settings import (
    AUDIT_RULES,
    MODEL_RULES,
    SECTIONS,
    load_settings,
    parse_settings,
)
from ctx_vector.settings_schema import settings_schema
from ctx_vector.sources import SHARE_RULES, SOURCE_RULES

GOOD = """
model: {name: 本地模型, max_tokens: 128000, output_reserve_ratio: 0.25}
budget: {total: 60000, system: 0.1, static: 0.2, dynamic: 0.4, tool: 0.15, memory: 0.1, buffer: 0.05}
sources:
  rules: {layer: system, loader: "text:rules.md", version: 2.10}
  问答:
    layer: static
    loader: yaml:faq.yaml
    args: {a: 1}
    max_tokens: 500
    min_share: 0.1
    max_share: 0.5
    priority: 1
    top_k: 3
    score_threshold: 0.2
    scope: agent_a
    timeout: 2
    expires: 2030-01-01
    authoritative: yes
    degrade: drop
    title: 常见问题
  off: {layer: memory, loader: "memory:memory", enabled: no, args: {user: ada}}
context: {min_relevance: 0.2, locale: zh, budgets: {history: 100}, shrink_order: [memory, evidence]}
audit: {path: log/audit.sqlite3, enabled: false, max_age: 90d, max_size: 500MB}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("settings")
    (folder / "rules.md").write_text("先核实身份。", encoding="utf-8")
    (folder / "faq.yaml").write_text("- a\n- b\n", encoding="utf-8")
    (folder / "settings.yaml").write_text(GOOD, encoding="utf-8")
    return folder


def problems(text, folder=".", **keys):
    with pytest.raises(ConfigError) as caught:
        parse_settings(text, folder, **keys)
    return list(caught.value.problems)


# -- what a file says -------------------------------------------------------------------------------------------------


def test_a_file_says_everything_a_builder_needs(folder):
    found = load_settings(folder / "settings.yaml")
    assert (found.model_name, found.model_max_tokens, found.output_reserve_ratio) == ("本地模型", 128000, 0.25)
    assert found.total == found.config.max_tokens == 60000  # 96,000 by the model, 60,000 by the budget
    assert found.shares == LayerShares(dynamic=0.4, memory=0.1)
    assert found.config == ContextConfig(
        max_tokens=60000, min_relevance=0.2, locale="zh", budgets={"history": 100}, shrink_order=("memory", "evidence")
    )
    rules, faq, off = found.sources
    assert (rules.name, rules.layer, rules.loader, rules.version) == ("rules", "system", "text:rules.md", "2.10")
    assert faq == SourceConfig(
        "问答", "static", "yaml:faq.yaml", {"a": 1}, priority=1, top_k=3, score_threshold=0.2, max_tokens=500,
        min_share=0.1, max_share=0.5, scope="agent_a", timeout=2, expires=faq.expires, authoritative=True,
        degrade="drop", title="常见问题",
    )  # fmt: skip
    assert str(faq.expires) == "2030-01-01" and off.enabled is False
    assert found.audit.path == (folder / "log" / "audit.sqlite3").resolve()
    assert (found.audit.enabled, found.audit.max_age, found.audit.max_size) == (False, timedelta(days=90), 500_000_000)
    assert (found.base_dir, found.scope, found.path) == (folder.resolve(), None, folder / "settings.yaml")
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.total = 1
    assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize("text", ["", "~", "{}", "sources: {}", "model:\nbudget:\nsources:\ncontext:\naudit:\n"])
def test_everything_may_be_left_out(text, folder):
    found = parse_settings(text, folder)
    assert (found.total, found.sources, found.shares, found.config) == (3000, (), LayerShares(), ContextConfig())
    assert found.audit.enabled and found.audit.path == folder.resolve() / ".ctx_vector" / "audit.sqlite3"
    assert (found.audit.max_age, found.audit.max_size, found.output_reserve_ratio) == (None, None, 0.2)


@pytest.mark.parametrize(
    ("text", "total"),
    [
        ("model: {max_tokens: 128000}", 102400),
        ("model: {max_tokens: 1001, output_reserve_ratio: 0.1}", 900),
        ("model: {max_tokens: 128000}\nbudget: {total: 50000}", 50000),
        ("model: {max_tokens: 10000}\nbudget: {total: 50000}", 8000),
        ("context: {max_tokens: 700}\nbudget: {total: 50000}", 700),
        ("budget: {total: 50000}", 50000),
        ("model: {output_reserve_ratio: 0.5}", 3000),
        ("model: {max_tokens: ~}\nbudget: {total: ~}", 3000),
    ],
)
def test_the_total_is_the_least_of_those_given(text, total):
    found = parse_settings(text)
    assert found.total == found.config.max_tokens == total


def test_a_file_has_layers_if_it_says_anything_of_them(folder):
    assert parse_settings(GOOD, folder).layered
    for text in ("budget: {dynamic: 0.4}", "budget: {total: 5000}", "model: {max_tokens: 5000}"):
        assert parse_settings(text).layered
    parts = "context: {budgets: {evidence: 100, history: 50}}\n"
    found = parse_settings(parts + "audit: {max_age: 1d}\nmodel: {}\nbudget:\nsources: {}")
    assert not found.layered and found.config.budgets == {"evidence": 100, "history": 50}
    assert problems(parts + "budget: {dynamic: 0.4}") == [
        "context.budgets.evidence (line 1): not used with layers; give a layer a share under budget"
    ]


def test_fields_without_a_section_are_the_context(folder):
    fields = "max_tokens: 500\nlocale: zh\nrecency_weight: 0.2\nrelevance_weight: 0.8\n"
    under = parse_settings("context:\n" + "".join(f"  {line}\n" for line in fields.splitlines()), folder)
    alone = parse_settings(fields, folder)
    assert alone == under and (alone.total, alone.config.locale, alone.layered) == (500, "zh", False)


@pytest.mark.parametrize("strategy", SCORERS)
def test_every_strategy_can_be_named(strategy):
    assert parse_settings(f"context: {{strategy: {strategy}}}").config.strategy == strategy


def test_base_dir_roots_the_paths(folder, tmp_path):
    text = f"base_dir: {folder}\nsources: {{a: {{layer: static, loader: 'text:rules.md'}}}}"
    assert parse_settings(text, tmp_path).base_dir == folder.resolve()
    (tmp_path / "a").mkdir()
    assert parse_settings("base_dir: a", tmp_path).base_dir == (tmp_path / "a").resolve()
    assert problems("base_dir: nowhere", tmp_path) == ["base_dir (line 1): there is no folder 'nowhere'"]
    assert "expected a folder" in problems("base_dir: [a]", tmp_path)[0]


# -- problems ---------------------------------------------------------------------------------------------------------

SIX = """\
model:
  max_token: 128000
budget:
  dynamik: 0.5
sources:
  faq:
    layer: statik
    loader: yaml:../faq.yaml
    max_share: 2
context:
  strategy: cosin
"""


def test_six_mistakes_are_six_problems_with_paths_lines_and_nearest_names(folder):
    found = problems(SIX, folder)
    assert [line.partition(":")[0] for line in found] == [
        "model.max_token (line 2)",
        "budget.dynamik (line 4)",
        "sources.faq.layer (line 7)",
        "sources.faq.loader (line 8)",
        "sources.faq.max_share (line 9)",
        "context.strategy (line 11)",
    ]
    nearest = ["max_tokens", "dynamic", "static", None, None, "cosine"]
    for line, name in zip(found, nearest, strict=True):
        assert (f"did you mean '{name}'?" in line) == (name is not None)
    assert "lies outside of" in found[3] and "expected a number >= 0 and <= 1, got 2" in found[4]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("- a", ["the file: expected a mapping with model, budget, sources, context, audit, base_dir, got ['a']"]),
        ("contxt: {}", ["contxt (line 1): unknown section; did you mean 'context'?"]),
        ("max_tokens: 5\nmodel: {}", ["max_tokens (line 1): unknown section; put it under context"]),
        ("locale: zh\nfil: stop", ["fil (line 2): unknown field; did you mean 'fill'?"]),
        ("locale: zh\nstrategy: cosin", ["strategy (line 2): "]),
        ("min_relevence: 1", ["min_relevence (line 1): unknown section; did you mean 'min_relevance'?"]),
        ("model: [a]", ["model (line 1): expected a mapping, got ['a']"]),
        ("sources: {a: b}", ["sources.a (line 1): expected a mapping of fields, got 'b'"]),
        ("sources: {a: {layer: tool}}", ["sources.a.loader (line 1): missing; such as yaml:faq.yaml, text:"]),
        ("budget: {dynamic: 0.9}", None),
        ("budget: {total: 0}", ["budget.total (line 1): expected an integer >= 1 or None, got 0"]),
        ("budget: {total: 1.5}", ["budget.total (line 1): expected an integer >= 1 or None, got 1.5"]),
        ("model: {max_tokens: 1}", ["model.max_tokens (line 1): expected more than the reserve for the output, got 1"]),
        ("model: {output_reserve_ratio: 1}", ["model.output_reserve_ratio (line 1): expected a number >= 0"]),
        ("context: {recency_weight: 0.5}", ["context.recency_weight + relevance_weight (line 1): expected a sum of 1"]),
        ("context:\n  budgets:\n    histori: 5", None),
        ("audit: {max_age: 2024-01-01}", ["audit.max_age (line 1): expected a length of time such as 7d"]),
        ("audit: {path: ../a}", None),
        ("context: {tokenizer: 'hf:../tokenizer.json'}", None),
        ("context: {tokenizer: klingon}", None),
        ("a: *b", ["a (line 1): aliases are not allowed (*b)", "a (line 1): unknown section; there are model,"]),
        ("model: *b", ["model (line 1): aliases are not allowed (*b); write the value out"]),
        ("sources: {a: {layer: tool, loader: *b}}", ["sources.a.loader (line 1): aliases are not allowed (*b); write"]),
        ("context: !!python/object/apply:os.system [ls]", None),
        ("base_dir: !x y", None),
        ("sources: {a: {layer: tool, layer: static, loader: 'python:os.system'}}", None),
        ("model: {max_tokens: 0x" + "f" * 5000 + "}", None),
        ("model: {max_tokens: " + "9" * 99 + "}", None),
        ("a: [", ["settings: line "]),
    ],
)  # fmt: skip
def test_each_kind_of_problem_is_told(text, lines):
    found = problems(text)
    if lines is not None:
        assert len(found) == len(lines)
        assert all(one.startswith(start) for one, start in zip(sorted(found), lines, strict=True)), found
    assert all(line.partition(":")[0].endswith(")") for line in found) or text in ("- a", "a: [")


def test_sources_are_checked_together_too():
    one = "{layer: tool, loader: 'session:', min_share: 0.7}"
    text = f"sources: {{a: {one}, b: {one}}}"
    assert "sources (line 1): expected min_share to sum to at most 1 in layer tool, got 1.4" in problems(text)


def test_a_bomb_of_aliases_takes_no_time_and_no_memory():
    lines = ["a0: &a0 [lol]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    found = problems("\n".join(lines))
    assert sum("aliases are not allowed" in line for line in found) == 99


def test_a_file_that_cannot_be_read_is_a_config_error(tmp_path):
    for name, data in (("missing.yaml", None), ("latin.yaml", "a: \u00e4".encode("latin-1")), ("dir.yaml", "dir")):
        path = tmp_path / name
        if data == "dir":
            path.mkdir()
        elif data is not None:
            path.write_bytes(data)
        with pytest.raises(ConfigError, match=name):
            load_settings(path)
    (tmp_path / "bom.yaml").write_bytes(b"\xef\xbb\xbfbudget: {total: 5000}")
    assert load_settings(tmp_path / "bom.yaml").total == 5000
    (tmp_path / "huge.yaml").write_text("#" * 5_000_000)
    with pytest.raises(ConfigError, match="at most 4,000,000 characters"):
        load_settings(tmp_path / "huge.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_settings("a\0b.yaml")


def test_python_needs_permission_and_nothing_runs_while_checking(tmp_path):
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')")
    text = "sources: {a: {layer: tool, loader: 'python:evil.run'}}"
    assert problems(text, tmp_path) == [
        "sources.a.loader (line 1): python: runs code, which was not allowed; pass allow_python=True if you trust it"
    ]
    assert parse_settings(text, tmp_path, allow_python=True).sources[0].loader == "python:evil.run"


# -- scopes -----------------------------------------------------------------------------------------------------------

SCOPED = """\
sources:
  own: {layer: static, loader: "text:rules.md", scope: agent_a}
  shared: {layer: static, loader: "text:rules.md", scope: shared}
"""


def test_with_a_scope_every_source_carries_it_or_shared(folder):
    assert [item.scope for item in parse_settings(SCOPED, folder, scope="agent_a").sources] == ["agent_a", "shared"]
    assert parse_settings(SCOPED, folder).scope is None
    assert problems(SCOPED, folder, scope="agent_b") == [
        "sources.own.scope (line 2): expected agent_b or shared, got 'agent_a'"
    ]
    more = (
        SCOPED
        + "  none: {layer: static, loader: 'text:rules.md'}\n  no: {layer: static, loader: 'text:rules.md', scope: ~}\n"
    )
    assert problems(more, folder, scope="agent_a") == [
        "sources.none.scope (line 4): missing; give agent_a or shared",
        "sources.no.scope (line 5): expected the name of a scope, on one line, got None",
    ]
    for wrong in ("", " ", 7):
        assert "scope: expected the name" in problems("", scope=wrong)[0]


# -- nothing unexpected -----------------------------------------------------------------------------------------------

KEYS = [
    *SECTIONS,
    *SOURCE_RULES,
    *SHARE_RULES,
    *MODEL_RULES,
    *AUDIT_RULES,
    "total",
    "faq",
    "user",
    "历史",
    "<<",
    "layr",
]
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.dates(), st.text(max_size=6), st.binary(max_size=3),
    st.sampled_from([*KEYS, "yaml:a", "text:rules.md", "kb:..", "python:a.b", "memory:m", "session:", "text:\0"]),
    st.sampled_from(["hf:..", "12h", "1kB", "2030-01-01", "agent_a", "agent_b"]),
)  # fmt: skip
TREES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=25,
)
SOURCES = st.dictionaries(
    st.sampled_from(["faq", "a.b", "x\ny", "历史"]),
    st.dictionaries(st.sampled_from(sorted(SOURCE_RULES)), LEAVES, max_size=8) | LEAVES,
    max_size=3,
)
NEAR = st.fixed_dictionaries(
    {},
    optional={
        "model": st.dictionaries(st.sampled_from(sorted(MODEL_RULES)), LEAVES),
        "budget": st.dictionaries(st.sampled_from(["total", *SHARE_RULES]), LEAVES),
        "sources": SOURCES,
        "context": st.dictionaries(st.sampled_from(sorted(field_schemas())), TREES),
        "audit": st.dictionaries(st.sampled_from(sorted(AUDIT_RULES)), LEAVES),
        "base_dir": LEAVES,
    },
)


@STEADY
@given(TREES | NEAR, st.sampled_from([None, "agent_a"]), st.booleans())
def test_no_tree_of_values_makes_it_fail_otherwise(folder, value, scope, python):
    text = yaml.dump(value, allow_unicode=True)
    try:
        found = parse_settings(text, folder, scope=scope, allow_python=python)
    except ConfigError as error:
        assert error.problems and all(": " in line for line in error.problems)
        assert all("\n" not in line for line in error.problems), error.problems
        return
    assert found.total >= 1


@STEADY
@given(
    st.integers(0, len(GOOD)), st.integers(0, 30), st.text("ab:-{}[]*&!\n\t\"'#?|>%@` 中\x00\ud800\u2028", max_size=8)
)
def test_no_damage_to_a_good_file_makes_it_fail_otherwise(folder, at, gone, put):
    try:
        parse_settings(GOOD[:at] + put + GOOD[at + gone :], folder)
    except ConfigError as error:
        assert error.problems


# -- the schema for editors -------------------------------------------------------------------------------------------


def test_the_schema_knows_what_the_classes_know():
    schema = settings_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    sections = schema["properties"]
    names = lambda section: set(sections[section]["properties"])  # noqa: E731
    assert set(sections) == set(SECTIONS)
    assert names("context") == {item.name for item in dataclasses.fields(ContextConfig)}
    assert names("budget") == {"total", *(item.name for item in dataclasses.fields(LayerShares))}
    one = sections["sources"]["additionalProperties"]
    assert set(one["properties"]) == {item.name for item in dataclasses.fields(SourceConfig)} - {"name"}


def test_a_good_file_passes_the_schema_and_six_mistakes_are_seen(folder):
    validator = jsonschema.Draft202012Validator(settings_schema())
    assert list(validator.iter_errors(plain(GOOD))) == []
    places = {".".join(map(str, error.absolute_path)) for error in validator.iter_errors(plain(SIX))}
    assert places == {"model", "budget", "sources.faq.layer", "sources.faq.max_share"}


def plain(text):
    import json

    return json.loads(json.dumps(yaml.safe_load(text), default=str))


JSON = st.none() | st.booleans() | st.integers(-5, 200) | st.floats(-2, 2) | st.text(max_size=5) | st.sampled_from(
    ["static", "cosine", "skip", "zh", "12h", "500MB", "yaml:a", "drop", "budget", "plain"]
)  # fmt: skip


@STEADY
@given(st.data())
def test_what_the_rules_allow_the_schema_allows(data):
    """Each single value is put into an otherwise good file; the schema may be more generous, never stricter."""
    tables = {"model": MODEL_RULES, "budget": SHARE_RULES, "audit": AUDIT_RULES, "source": SOURCE_RULES}
    table = data.draw(st.sampled_from(sorted(tables)))
    key = data.draw(st.sampled_from(sorted(tables[table])))
    value = data.draw(JSON)
    schema = settings_schema()["properties"]
    one = schema["sources"]["additionalProperties"] if table == "source" else schema[table]
    allowed = jsonschema.Draft202012Validator(one["properties"][key]).is_valid(value)
    assert allowed or tables[table][key](value) is not None, (table, key, value)


@STEADY
@given(st.data())
def test_what_a_config_allows_the_schema_allows(data):
    key = data.draw(st.sampled_from(sorted(field_schemas())))
    value = data.draw(
        JSON
        | st.dictionaries(st.sampled_from(["history", "memory", "x"]), JSON, max_size=2)
        | st.lists(JSON, max_size=2)
    )
    try:
        ContextConfig.from_dict({key: value})
    except ConfigError:
        return
    assert jsonschema.Draft202012Validator(settings_schema()["properties"]["context"]).is_valid({key: value})
