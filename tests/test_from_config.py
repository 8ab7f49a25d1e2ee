"""Builders from YAML: what a file does to a context, sources that misbehave in it, and agents that share nothing."""

import threading

import pytest
from pipeline_help import NOW, HashEncoder, check, read, tokens

from ctx_vector import ConfigError, ContextBuilder, ContextConfig, KnowledgeBase, LayerShares, SourceConfig
from ctx_vector.errors import InputError
from ctx_vector.replay import rebuild
from ctx_vector.settings import load_settings

FILES = {
    "rules.md": "只回答政策里写明的内容。",
    "profile.yaml": "姓名: 王芳\n等级: 金卡\n",
    "faq.yaml": "- {id: a, content: 发票在订单页申请。, version: 1}\n- {id: a, content: 发票自动发送。, version: 2}\n",
    "tools.py": "def order(request, number):\n    return f'订单 {number} 已发货'\n",
    "context.yaml": """
model: {max_tokens: 5000}
sources:
  rules: {layer: system, loader: "text:rules.md", scope: a, version: 3}
  profile: {layer: static, loader: "yaml:profile.yaml", scope: a}
  faq: {layer: static, loader: "yaml:faq.yaml", scope: shared}
  order: {layer: tool, loader: "python:tools.order", args: {number: A1}, scope: a}
context: {strategy: jaccard, min_relevance: 0, versions: true, locale: zh}
""",
}


@pytest.fixture
def folder(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def made(folder, **keys):
    keys = {"scope": "a", "allow_python": True, "encoder": HashEncoder(), **keys}
    return ContextBuilder.from_config(folder / "context.yaml", **keys)


def assembled(builder, query="发票怎么开？", **arguments):
    built = builder.assemble(query, now=NOW, **arguments)
    check(built, builder.config.max_tokens)
    return built


def test_a_file_makes_a_context(folder):
    built = assembled(made(folder))
    assert built.budget.total_limit == 4000
    sections = read(built.text)
    assert "只回答政策里写明的内容。" in built.sections["Role & Policies"]
    evidence = built.sections["Evidence"]
    assert evidence.index("姓名: 王芳") < evidence.index("发票自动发送。") < evidence.index("订单 A1 已发货")
    assert "发票在订单页申请" not in built.text and "(version: 2)" in evidence
    assert [(item.source, item.reason) for item in built.dropped] == [("faq", "superseded")]
    assert set(sections) >= {"Role & Policies", "Task", "Evidence", "Output"}


def test_the_same_in_code_gives_the_same_text(folder):
    builder = ContextBuilder(
        sources=[
            SourceConfig("rules", "system", "text:rules.md", scope="a", version=3),
            SourceConfig("profile", "static", "yaml:profile.yaml", scope="a"),
            SourceConfig("faq", "static", "yaml:faq.yaml"),
            SourceConfig("order", "tool", "python:tools.order", {"number": "A1"}, scope="a"),
        ],
        config=ContextConfig(strategy="jaccard", min_relevance=0, versions=True, locale="zh"),
        budget_ratio=LayerShares(), model_max_tokens=5000, encoder=HashEncoder(),
        scope="a", base_dir=folder, allow_python=True,
    )  # fmt: skip
    assert assembled(builder).text == assembled(made(folder)).text


def test_replacements_take_the_place_of_what_the_file_says(folder):
    asked = []
    builder = made(folder, budget_policy=lambda request: asked.append(request) or 300)
    assert assembled(builder).budget.total_limit == 300 and asked
    settings = load_settings(folder / "context.yaml", scope="a", allow_python=True)
    same = ContextBuilder.from_config(settings, allow_python=True, encoder=HashEncoder())
    assert assembled(same).text == assembled(made(folder)).text
    with pytest.raises(TypeError, match="no_such_argument"):
        made(folder, no_such_argument=1)


def test_an_explicit_limit_counts_even_if_it_is_the_default(folder):
    path = folder / "context.yaml"
    path.write_text("model: {max_tokens: 128000}\ncontext: {max_tokens: 3000}\n", encoding="utf-8")
    builder = ContextBuilder.from_config(path)
    assert builder.config.max_tokens == 3000
    assert builder.assemble("q", max_tokens=5000).budget.total_limit == 3000
    assert builder.assemble("q", max_tokens=500).budget.total_limit == 500


def test_builds_are_recorded_unless_the_file_or_the_caller_says_otherwise(folder):
    builder = made(folder)
    built = assembled(builder)
    builder.audit.flush()
    assert builder.audit.path == folder.resolve() / ".ctx_vector" / "audit.sqlite3" and builder.audit.path.exists()
    assert builder.audit.list()[0]["id"] == built.meta["build_id"]
    assert builder.audit.replay("last").equal
    builder.audit.close()
    assert made(folder, audit=None).audit is None
    path = folder / "context.yaml"
    path.write_text(
        FILES["context.yaml"] + "audit: {max_age: 30d, max_size: 5MB, path: log/a.sqlite3}\n", encoding="utf-8"
    )
    audit = made(folder).audit
    assert (audit.path, audit.max_age.days, audit.max_size) == (folder.resolve() / "log" / "a.sqlite3", 30, 5_000_000)
    path.write_text(FILES["context.yaml"] + "audit: {enabled: false}\n", encoding="utf-8")
    assert made(folder).audit is None


def test_a_file_without_sources_and_shares_is_a_plain_configuration(folder):
    path = folder / "context.yaml"
    path.write_text("context: {max_tokens: 2000, reserve_ratio: 0.5, strategy: jaccard}\n", encoding="utf-8")
    builder = ContextBuilder.from_config(path, audit=None)
    plain = ContextBuilder(config=ContextConfig(max_tokens=2000, reserve_ratio=0.5, strategy="jaccard"))
    assert builder.config == plain.config
    given = {"system_instructions": "规则", "documents": [{"content": "文档", "score": 1}], "now": NOW}
    assert builder.assemble("q", **given).text == plain.assemble("q", **given).text


def test_a_source_is_overridden_for_one_build(folder):
    builder = made(folder)
    built = assembled(builder, overrides={"profile": "姓名: 李雷"})
    assert "李雷" in built.text and "王芳" not in built.text
    assert "王芳" in assembled(builder).text
    with pytest.raises(InputError, match="did you mean 'profile'"):
        builder.assemble("q", overrides={"profil": "x"})


def test_rules_are_there_without_a_question(folder):
    built = assembled(made(folder), "")
    assert "只回答政策里写明的内容。" in built.text and "姓名: 王芳" in built.text and "订单" not in built.text


def test_a_change_of_a_file_changes_the_next_context(folder):
    builder = made(folder)
    assembled(builder)
    (folder / "faq.yaml").write_text("- {id: a, content: 发票在订单页申请。, version: 1}\n", encoding="utf-8")
    built = assembled(builder)
    assert "发票在订单页申请。" in built.text and "(version: 1)" in built.text and "发票自动发送" not in built.text


def test_rules_over_the_share_of_their_layer_are_an_error_at_the_start(folder):
    (folder / "rules.md").write_text("规则很长。" * 200, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"budget\.system: the layer system takes .* over its share of 400"):
        made(folder)


def test_all_mistakes_come_at_once(folder):
    path = folder / "context.yaml"
    path.write_text(FILES["context.yaml"].replace("layer: static", "layer: statik").replace("scope: a", "scope: b"))
    with pytest.raises(ConfigError) as caught:
        made(folder)
    assert len(caught.value.problems) == 5
    with pytest.raises(ConfigError, match="allow_python"):
        ContextBuilder.from_config(folder / "context.yaml")


BAD = {
    "hangs": "import time\ndef f(request):\n    time.sleep(3)\n",
    "raises": "def f(request):\n    raise ValueError('坏了')\n",
    "nothing": "def f(request):\n    return []\n",
    "huge": "def f(request):\n    return '大' * 10_000_000\n",
    "foreign": "def f(request):\n    return {'content': '机密', 'metadata': {'scope': 'b'}}\n",
    "good": "def f(request):\n    return '有用的内容'\n",
}


def test_sources_that_misbehave_leave_a_valid_context_and_a_record(folder):
    lines = ["sources:"]
    for name, code in BAD.items():
        (folder / f"{name}.py").write_text(code, encoding="utf-8")
        lines.append(
            f"  {name}: {{layer: tool, loader: 'python:{name}.f', scope: a, timeout: {0.5 if name == 'hangs' else 60}}}"
        )
    lines.append("context: {strategy: jaccard, min_relevance: 0}")
    (folder / "context.yaml").write_text("\n".join(lines), encoding="utf-8")
    builder = made(folder)
    built = assembled(builder, "内容")
    assert {item.source: item.reason for item in built.dropped} == {
        "hangs": "timeout", "raises": "fault", "nothing": "empty", "huge": "oversize", "foreign": "scope"
    }  # fmt: skip
    assert "有用的内容" in built.text and "机密" not in str(built.to_dict())
    assert built.budget.sources["hangs"].fault and "坏了" in built.budget.sources["raises"].fault
    again = assembled(builder, "内容")
    assert (again.text, again.messages) == (built.text, built.messages)


# -- two agents -------------------------------------------------------------------------------------------------------


def agent(folder, name):
    folder.mkdir()
    files = {
        "rules.md": f"我是{name}。",
        "faq.yaml": f"- {{id: x, content: {name}的答案, scope: {name}}}\n- {{content: 公共答案, scope: shared}}\n",
        "state.py": "calls = []\ndef f(request):\n    calls.append(1)\n    return f'NAME {len(calls)}'\n".replace(
            "NAME", name
        ),
        "context.yaml": f"""
sources:
  rules: {{layer: system, loader: "text:rules.md", scope: {name}}}
  faq: {{layer: static, loader: "yaml:faq.yaml", scope: {name}}}
  calls: {{layer: tool, loader: "python:state.f", scope: {name}}}
context: {{strategy: jaccard, min_relevance: 0, max_tokens: {700 if name == "agent_a" else 600}}}
""",
    }
    for file, text in files.items():
        (folder / file).write_text(text, encoding="utf-8")
    return ContextBuilder.from_config(folder / "context.yaml", scope=name, allow_python=True, encoder=HashEncoder())


def test_two_agents_from_two_files_share_nothing_in_threads_either(tmp_path):
    agents = {name: agent(tmp_path / name, name) for name in ("agent_a", "agent_b")}
    texts = {name: [] for name in agents}

    def run(name):
        for _ in range(20):
            texts[name].append(agents[name].assemble("答案", now=NOW).text)

    threads = [threading.Thread(target=run, args=(name,)) for name in (*agents, *agents)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, other in (("agent_a", "agent_b"), ("agent_b", "agent_a")):
        assert len(texts[name]) == 40
        for text in texts[name]:
            assert f"我是{name}。" in text and f"{name}的答案" in text and "公共答案" in text and other not in text
        counts = sorted(int(text.split(f"{name} ")[1].split()[0]) for text in texts[name])
        assert counts == list(range(1, 41))  # its own module, asked once a build
    assert {name: builder.config.max_tokens for name, builder in agents.items()} == {"agent_a": 700, "agent_b": 600}
    (tmp_path / "agent_b" / "rules.md").write_text("新规则", encoding="utf-8")
    assert "新规则" in agents["agent_b"].build("答案") and "新规则" not in agents["agent_a"].build("答案")
    assert "override" in agents["agent_a"].build("答案", overrides={"rules": "override"})
    assert "override" not in agents["agent_b"].build("答案")


def test_an_agent_cannot_be_given_another_ones_file(tmp_path):
    agent(tmp_path / "agent_a", "agent_a")
    with pytest.raises(ConfigError, match="expected agent_b or shared, got 'agent_a'"):
        ContextBuilder.from_config(tmp_path / "agent_a" / "context.yaml", scope="agent_b", allow_python=True)


def test_tokens_of_layers_hold(folder):
    """The shares of the file bound what the sources take; counted by tiktoken itself."""
    (folder / "faq.yaml").write_text(
        "\n".join(f"- 第{n}条：发票问题的回答有很多种，{n}。" for n in range(300)), encoding="utf-8"
    )
    built = assembled(made(folder))
    assert tokens(built.text) <= 4000
    assert 0 < built.budget.sources["faq"].tokens


# -- limits of sources that are not searched --------------------------------------------------------------------------


@pytest.mark.parametrize("layer", ["static", "dynamic", "tool", "memory"])
def test_top_k_and_a_threshold_choose_the_best_of_what_a_source_gives(layer):
    items = [{"content": f"{score}", "score": score} for score in (0.1, 0.9, 0.5, 0.3, 0.7)]

    def kept(**limits):
        source = SourceConfig("s", layer, lambda request: items, **limits)
        config = ContextConfig(strategy="jaccard", min_relevance=0)
        built = assembled(ContextBuilder(sources=[source], config=config), "q")
        assert rebuild(built.trace).to_dict()["kept"] == built.to_dict()["kept"]
        return {item.packet.content for item in built.kept}, {item.reason for item in built.dropped}

    assert kept() == ({"0.1", "0.9", "0.5", "0.3", "0.7"}, set())
    assert kept(top_k=2) == ({"0.9", "0.7"}, {"quota"})
    assert kept(score_threshold=0.3) == ({"0.9", "0.7", "0.5", "0.3"}, {"below_floor"})
    assert kept(top_k=1, score_threshold=0.95) == (set(), {"below_floor"})


def test_rules_are_never_chosen_among():
    source = SourceConfig("rules", "system", lambda request: ["a", "b", "c"], top_k=1, score_threshold=1)
    built = assembled(ContextBuilder(sources=[source]), "q")
    assert len(built.kept) == 3


def test_the_version_of_the_knowledge_stands_in_the_record(tmp_path, encoder):
    with KnowledgeBase(tmp_path / "kb", encoder) as kb:
        kb.add_text("Goods can be returned within thirty days.", "refund.md", metadata={"version": "2"})
        source = SourceConfig("policies", "dynamic", "kb:kb")
        builder = ContextBuilder(
            sources=[source], base_dir=tmp_path, encoder=encoder, config=ContextConfig(versions=True)
        )
        built = assembled(builder, "How long can goods be returned?")
        assert built.meta["knowledge_version"] == 1 and "(version: 2)" in built.text
        kb.add_text("Goods can be returned within sixty days.", "refund.md", metadata={"version": "3"})
        built = assembled(builder, "How long can goods be returned?")
        assert built.meta["knowledge_version"] == 2 and "(version: 3)" in built.text and "thirty" not in built.text
        kb.rollback(1)
        built = assembled(builder, "How long can goods be returned?")
        assert built.meta["knowledge_version"] == 1 and "(version: 2)" in built.text and "sixty" not in built.text
