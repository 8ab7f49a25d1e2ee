"""Loaders given as text: what they read, when they read again, and that nothing outside of the base is opened."""

import os
import threading
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipeline_help import NOW, STEADY, HashEncoder

from ctx_vector import ConfigError, ContextBuilder, ContextConfig, KnowledgeBase, Memory, SourceConfig
from ctx_vector.audit import AuditLog
from ctx_vector.errors import InputError, LoaderError
from ctx_vector.gather import gather
from ctx_vector.live_sources import LiveSources
from ctx_vector.source_files import MOST_BYTES, items_of, rooted
from ctx_vector.stages import Request

FAQ = """
- id: returns
  question: 多久可以退货？
  answer: 签收后三十天内。
  version: 1.10
- content: Delivery takes three days.
  expires_at: 2025-02-01
  priority: 2
  团队: 物流
- 只有一句话。
"""


def write(folder, name, text):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def live(folder, loader, layer="static", allow_python=False, encoder=None, **fields):
    config = SourceConfig("s", layer, loader, **fields)
    return LiveSources([config], base_dir=folder, allow_python=allow_python, encoder=encoder)


def ask(sources, query="q"):
    return gather(sources.specs(query), Request(query, NOW, top_k=5, score_threshold=0.0))


def texts(gathered):
    assert not gathered.faults, gathered.faults
    return [item.packet.content for item in gathered.candidates if not item.reason]


def fault(gathered):
    (found,) = gathered.faults
    return found.detail


def problem(call):
    with pytest.raises(ConfigError) as caught:
        call()
    return caught.value.problems[0]


# -- files ------------------------------------------------------------------------------------------------------------


def test_a_yaml_file_has_items_with_versions_and_expiry(tmp_path):
    write(tmp_path, "数据/faq.yaml", FAQ)
    found = ask(live(tmp_path, "yaml:数据/faq.yaml"))
    assert texts(found) == ["多久可以退货？\n签收后三十天内。", "只有一句话。", "Delivery takes three days."]
    first, third, second = (item.packet.meta for item in found.candidates)  # by their priority
    assert first == {
        "type": "knowledge", "id": "returns", "version": "1.10", "source": "数据/faq.yaml",
        "document_id": "数据/faq.yaml#id=returns",
    }  # fmt: skip
    assert (second["expires_at"], second["priority"], second["团队"]) == ("2025-02-01", 2, "物流")
    assert third == {"type": "knowledge", "source": "数据/faq.yaml", "document_id": "数据/faq.yaml#3"}


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (
            "- {id: a, content: alt, version: 1}\n- {id: a, content: neu, version: 2}\n- {id: b, content: b}",
            ["neu", "b"],
        ),
        ("- {content: alt, version: 1.9}\n- {content: neu, version: 1.10}\n- egal", ["neu", "egal"]),
        ("version: 2\nitems: [a, {content: b, version: 3}, {content: c, version: 1}]", ["a", "b"]),
        ("- {product: chair, version: 1}\n- {product: table, version: 2}", ["product: chair", "product: table"]),
        ("- {document_id: x, content: alt, version: 1}\n- {document_id: x, content: neu, version: 2}", ["neu"]),
        ("- {id: a, content: a}\n- {id: a, content: b}", ["a", "b"]),
    ],
)
def test_what_counts_as_versions_of_one_item(tmp_path, text, kept):
    write(tmp_path, "x.yaml", text)
    assert texts(ask(live(tmp_path, "yaml:x.yaml"))) == kept
    assert texts(ask(live(tmp_path, "yaml:x.yaml", version="9"))) == kept


@pytest.mark.parametrize(
    ("text", "contents"),
    [
        ("items: [a, {content: b, version: 3}]\nversion: 2\n", ["a", "b"]),
        ("content: one\nversion: 2", ["one"]),
        (
            "姓名: 王芳\n等级: 金卡\n标签: [常客, 北京]\n地址: {市: 北京}\nversion: 2",
            ['姓名: 王芳\n等级: 金卡\n标签: 常客, 北京\n地址: {"市": "北京"}'],
        ),
        ("just a sentence", ["just a sentence"]),
        ("", []),
        ("[]", []),
        ("- text: t", ["t"]),
    ],
)
def test_the_forms_of_a_yaml_file(tmp_path, text, contents):
    write(tmp_path, "x.yaml", text)
    found = ask(live(tmp_path, "yaml:x.yaml"))
    assert texts(found) == contents
    if "version: 2" in text:
        assert {item.packet.meta["version"] for item in found.candidates} <= {"2", "3"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- [a]\n- b", "x.yaml, item 1: expected a text or a mapping"),
        ("- 7", "x.yaml, item 1: expected a text or a mapping"),
        ("a: [", "line 2: no valid YAML"),
        ("a: &x 1\nb: *x", "aliases are not allowed"),
        ("a: !!python/object:os.system x", "tags are not allowed"),
        ("a: 1\na: 2", "the key comes again"),
    ],
)
def test_a_yaml_file_that_cannot_be_used_is_a_fault(tmp_path, text, words):
    write(tmp_path, "x.yaml", text)
    assert words in fault(ask(live(tmp_path, "yaml:x.yaml")))


def test_a_text_file_is_one_item_and_front_matter_tells_about_it(tmp_path):
    write(tmp_path, "rules.md", "---\nversion: 2.10\ndocument_id: rules\n---\n# 规则\n\n先核实身份。\n")
    (found,) = ask(live(tmp_path, "text:rules.md", layer="system")).candidates
    assert found.packet.content.strip() == "# 规则\n\n先核实身份。"
    assert (found.packet.type, found.packet.meta["version"]) == ("system_instruction", "2.10")
    assert (found.packet.meta["document_id"], found.packet.meta["source"]) == ("rules", "rules.md")
    write(tmp_path, "gb.txt", "退货政策：签收后三十天内可以无理由退货，运费由卖家承担。".encode("gb18030"))
    assert texts(ask(live(tmp_path, "text:gb.txt")))[0].startswith("退货政策")
    write(tmp_path, "error.txt", "Error: what it means")
    assert texts(ask(live(tmp_path, "text:error.txt"))) == ["Error: what it means"]
    write(tmp_path, "empty.txt", " \n")
    assert [item.reason for item in ask(live(tmp_path, "text:empty.txt")).candidates] == ["empty"]


def test_a_binary_and_a_huge_file_are_faults(tmp_path):
    write(tmp_path, "a.txt", b"\x7fELF\0\0\0")
    assert "is no text" in fault(ask(live(tmp_path, "text:a.txt")))
    write(tmp_path, "b.txt", "x" * (MOST_BYTES + 1))
    assert "over 4,000,000 bytes" in fault(ask(live(tmp_path, "text:b.txt")))


@pytest.mark.parametrize("layer", ["static", "system", "tool"])
def test_a_file_is_read_again_only_when_its_content_changed(tmp_path, monkeypatch, layer):
    path = write(tmp_path, "a.txt", "eins")
    sources = live(tmp_path, "text:a.txt", layer=layer)
    read = []
    real = type(path).open
    monkeypatch.setattr(type(path), "open", lambda self, *args, **keys: read.append(self) or real(self, *args, **keys))
    assert [texts(ask(sources)) for _ in range(3)] == [["eins"]] * 3
    once = len(read)
    assert once <= 2
    os.utime(path, (1, 1))
    assert texts(ask(sources)) == ["eins"] and len(read) == once + 1  # looked at, and it was the same
    path.write_bytes(b"zwei")  # as long, and of the same time
    os.utime(path, (1, 1))
    assert [texts(ask(sources)) for _ in range(2)] == [["zwei"]] * 2
    path.unlink()
    found = ask(sources)
    assert [item.reason for item in found.faults] == ["fault"]
    path.write_text("drei")
    assert texts(ask(sources)) == ["drei"]


def test_a_version_that_is_rolled_back_changes_the_next_build(tmp_path):
    path = write(tmp_path, "p.yaml", "content: 三十天\nversion: 2")
    sources = live(tmp_path, "yaml:p.yaml")
    assert ask(sources).candidates[0].packet.meta["version"] == "2"
    path.write_text("content: 七天\nversion: 1", encoding="utf-8")
    (found,) = ask(sources).candidates
    assert (found.packet.content, found.packet.meta["version"]) == ("七天", "1")


def test_threads_read_one_file_while_it_changes(tmp_path):
    path = write(tmp_path, "a.txt", "0" * 50)
    sources = live(tmp_path, "text:a.txt", timeout=None)
    seen, wrong = set(), []

    def reader():
        for _ in range(60):
            for text in texts(ask(sources)):
                (wrong.append if len(set(text)) != 1 else seen.add)(text)

    threads = [threading.Thread(target=reader) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(1, 10):
        other = write(tmp_path, "new.txt", str(number) * 50)
        other.replace(path)
    for thread in threads:
        thread.join()
    assert not wrong and texts(ask(sources)) == ["9" * 50]


# -- paths ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "../secret.txt", "a/../../secret.txt", "/etc/passwd", "link.txt", "folder/secret.txt", "C:/secret.txt",
        "c:secret.txt", "..\\secret.txt", "\\\\server\\share", "./../base/../secret.txt", "~/../../../etc/passwd",
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["text", "yaml", "kb", "memory"])
def test_what_lies_outside_is_refused(tmp_path, path, kind):
    base = tmp_path / "base"
    write(tmp_path, "secret.txt", "secret")
    base.mkdir()
    (base / "link.txt").symlink_to(tmp_path / "secret.txt")
    (base / "folder").symlink_to(tmp_path)
    args = {"user": "ada"} if kind == "memory" else {}
    line = problem(lambda: live(base, f"{kind}:{path}", args=args))
    assert line.startswith("sources.s.loader: ")
    assert "lies outside of" in line or "with / and without a drive" in line or "there is no" in line
    if not path.startswith("~"):
        assert "there is no" not in line


def test_what_lies_inside_is_found_however_it_is_said(tmp_path):
    write(tmp_path, "a/b.txt", "x")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    for path in ("a/b.txt", "./a/b.txt", "a/../a/b.txt", "link/b.txt", str(tmp_path / "a" / "b.txt")):
        assert texts(ask(live(tmp_path, f"text:{path}"))) == ["x"]


def test_a_link_that_comes_to_point_outside_is_refused_when_read(tmp_path):
    base = tmp_path / "base"
    write(base, "a.txt", "inside")
    write(tmp_path, "secret.txt", "secret")
    sources = live(base, "text:a.txt")
    assert texts(ask(sources)) == ["inside"]
    (base / "a.txt").unlink()
    (base / "a.txt").symlink_to(tmp_path / "secret.txt")
    assert "lies outside" in fault(ask(sources))


@STEADY
@given(
    st.lists(st.sampled_from(["..", ".", "a", "/", "\\", "C:", "~", "\0", "link", " ", "文"]), max_size=8).map("".join)
)
def test_no_path_leads_out(tmp_path_factory, text):
    base = tmp_path_factory.getbasetemp() / "rooted"
    base.mkdir(exist_ok=True)
    if not (base / "link").is_symlink():
        (base / "link").symlink_to(base.parent)
    try:
        path = rooted(base, text)
    except InputError:
        return
    assert path.resolve().is_relative_to(base.resolve())


def test_a_file_that_is_not_there_is_an_error_at_the_start(tmp_path):
    assert "there is no file a.txt in" in problem(lambda: live(tmp_path, "text:a.txt"))
    assert "there is no file" in problem(lambda: live(tmp_path, "yaml:."))
    assert "there is no knowledge base in kb" in problem(lambda: live(tmp_path, "kb:kb"))
    (tmp_path / "kb").mkdir()
    assert "there is no knowledge base" in problem(lambda: live(tmp_path, "kb:kb"))


# -- sessions ---------------------------------------------------------------------------------------------------------


def test_a_session_has_the_turns_that_the_audit_recorded(tmp_path):
    audit = AuditLog(tmp_path / "audit.sqlite3")
    builder = ContextBuilder(
        sources=[SourceConfig("before", "memory", "session:")],
        config=ContextConfig(strategy="jaccard", min_relevance=0, locale="zh"),
        audit=audit,
        encoder=HashEncoder(),
    )
    talk = []

    def ask_(question, session="s1", **given):
        talk.append(question)
        at = NOW + timedelta(minutes=len(talk))
        return builder.assemble(question, session_id=session, now=at, **given)

    said = lambda built: [item.packet.content for item in built.kept if item.source == "before"]  # noqa: E731
    assert said(ask_("订单A1还能退吗？")) == []
    answered = [{"role": "user", "content": "订单A1还能退吗？"}, {"role": "assistant", "content": "可以，三十天内。"}]
    assert said(ask_("运费谁出？", conversation_history=answered)) == ["user: 订单A1还能退吗？"]
    found = said(ask_("退款要多久？"))
    assert sorted(found) == ["user: 订单A1还能退吗？\nassistant: 可以，三十天内。", "user: 运费谁出？"]
    other = ask_("别的客户", session="s2")
    assert said(other) == [] and ("before", "empty") in [(item.source, item.reason) for item in other.dropped]
    assert said(builder.assemble("没有会话")) == []
    audit.purge("订单A1还能退吗？")
    assert not any("订单A1" in text for text in said(ask_("还在吗？")))
    for number in range(8):
        ask_(f"第{number}问")
    assert sorted(said(ask_("最后"))) == [f"user: 第{number}问" for number in range(3, 8)]
    audit.close()


def test_sessions_of_two_users_may_have_one_name(tmp_path):
    sources = [SourceConfig("before", "memory", "session:")]
    config = ContextConfig(strategy="jaccard", min_relevance=0)
    with AuditLog(tmp_path / "audit.sqlite3") as audit:

        def said(user, question):
            builder = ContextBuilder(sources=sources, config=config, audit=audit, encoder=HashEncoder(), user_id=user)
            built = builder.assemble(question, session_id="s1")
            return [item.packet.content for item in built.kept if item.source == "before"]

        assert said("ada", "Ada 的问题") == said("bob", "Bob's question") == []
        assert said("ada", "again") == ["user: Ada 的问题"]
        assert said("bob", "again") == ["user: Bob's question"]


def test_a_session_needs_an_audit(tmp_path):
    assert "session: reads the audit, and there is none" in problem(lambda: live(tmp_path, "session:"))
    assert "args.x: unknown argument (it takes none)" in problem(lambda: live(tmp_path, "session:", args={"x": 1}))


# -- knowledge and memory ---------------------------------------------------------------------------------------------

POLICIES = [
    {
        "text": "Refunds: goods can be returned within seven days of delivery, unused and in the original box.",
        "source": "refund-2023.md",
        "metadata": {"document_id": "refund", "version": "1", "language": "en"},
    },
    {
        "text": "Refunds: goods can be returned within thirty days of delivery, and we pay the postage.",
        "source": "refund-2024.md",
        "metadata": {"document_id": "refund", "version": "2", "language": "en"},
    },
    {
        "text": "物流：普通地区三天送达，偏远地区七天送达，运费由卖家承担。",
        "source": "delivery.md",
        "metadata": {"language": "zh", "scope": "agent_b"},
    },
    {
        "text": "Gift cards are valid for two years and cannot be exchanged for money.",
        "source": "gift.md",
        "metadata": {"language": "en"},
    },
]


@pytest.fixture(scope="module")
def shop(tmp_path_factory, encoder):
    folder = tmp_path_factory.mktemp("shop")
    with KnowledgeBase(folder / "kb", encoder) as kb:
        kb.add_texts(POLICIES)
    return folder


QUESTION = "How long do I have to return goods?"


def test_a_knowledge_base_is_searched_with_its_own_vectors_and_scores(shop, encoder):
    sources = live(shop, "kb:kb", layer="dynamic", encoder=lambda: encoder, top_k=1, score_threshold=0.1)
    found = ask(sources, QUESTION)
    new, *old = sorted(found.candidates, key=lambda item: item.reason)
    assert new.packet.meta["source"] == "refund-2024.md" and new.packet.meta["version"] == "2"
    (hit,) = [hit for hit in KnowledgeBase(shop / "kb", encoder).search(QUESTION) if hit.source == "refund-2024.md"]
    assert new.known == {"cosine": hit.score} and (new.vectors == hit.vector[None, :]).all()
    assert [(item.packet.meta["source"], item.reason) for item in old] in ([], [("refund-2023.md", "superseded")])


def test_an_old_version_is_left_out_even_if_it_fits_the_question_best(shop, encoder):
    sources = live(shop, "kb:kb", layer="dynamic", encoder=lambda: encoder, top_k=1, score_threshold=0.0)
    found = ask(sources, "goods can be returned within seven days of delivery, unused, in the original box")
    assert [item.packet.meta["source"] for item in found.candidates if not item.reason] == ["refund-2024.md"]
    (old,) = [item for item in found.candidates if item.reason]
    assert (old.packet.meta["source"], old.reason, old.detail) == (
        "refund-2023.md", "superseded", "version 1; version 2 is there"
    )  # fmt: skip


def test_knowledge_of_another_scope_is_left_out_and_filters_hold(shop, encoder):
    sources = live(shop, "kb:kb", layer="dynamic", encoder=lambda: encoder, score_threshold=0.0)
    found = ask(sources, "多久送达？")
    assert ("scope", "") in [(item.reason, item.packet.content) for item in found.candidates]
    assert not any("送达" in text for text in texts(found))
    sources = live(shop, "kb:kb", encoder=lambda: encoder, args={"filter": {"source": "gift.md"}}, score_threshold=0.0)
    assert texts(ask(sources, QUESTION)) == [POLICIES[3]["text"]]


def test_knowledge_opens_without_a_builder_and_sees_what_is_added(tmp_path, encoder):
    with KnowledgeBase(tmp_path / "kb", encoder) as kb:
        kb.add_text("Bread is baked for forty minutes.", "bread.md")
        sources = live(tmp_path, "kb:kb", score_threshold=0.0)  # in the layer static, and still asked each time
        assert texts(ask(sources, "bread")) == ["Bread is baked for forty minutes."]
        kb.add_text("Bread is baked for fifty minutes.", "bread.md")
        assert texts(ask(sources, "bread")) == ["Bread is baked for fifty minutes."]
        kb.rollback(1)
        assert texts(ask(sources, "bread")) == ["Bread is baked for forty minutes."]
        assert texts(ask(sources, "")) == []


def test_a_newer_version_replaces_an_older_one_at_once_and_comes_back_after_a_rollback(tmp_path, encoder):
    with KnowledgeBase(tmp_path / "kb", encoder) as kb:
        kb.add_texts(POLICIES[:1])
        sources = live(tmp_path, "kb:kb", encoder=lambda: encoder, score_threshold=0.0)
        assert kb.superseded() == {} and texts(ask(sources, QUESTION)) == [POLICIES[0]["text"]]
        kb.add_texts(POLICIES[1:2])
        assert kb.superseded() == {"refund-2023.md": "version 1; version 2 is there"}
        assert texts(ask(sources, QUESTION)) == [POLICIES[1]["text"]]
        kb.rollback(1)
        assert texts(ask(sources, QUESTION)) == [POLICIES[0]["text"]]


def test_many_old_versions_do_not_crowd_out_the_newest(tmp_path, encoder):
    with KnowledgeBase(tmp_path / "kb", encoder) as kb:
        kb.add_texts(
            {"text": f"Goods can be returned within {days} days.", "source": f"{days}.md",
             "metadata": {"document_id": "refund", "version": days}}
            for days in range(1, 13)
        )  # fmt: skip
        kb.add_text("Gift cards are valid for two years.", "gift.md")
        sources = live(tmp_path, "kb:kb", encoder=lambda: encoder, top_k=2, score_threshold=0.0)
        found = ask(sources, "Within how many days can goods be returned?")
    assert sorted(item.packet.meta["source"] for item in found.candidates if not item.reason) == ["12.md", "gift.md"]


def test_memories_of_one_user(tmp_path, encoder):
    with Memory(tmp_path / "memory", "ada", encoder) as memory:
        memory.add("Ada 喜欢用中文回答", type="semantic", importance=0.9)
        memory.add("Ada lives in Hamburg", importance=0.1)
    with Memory(tmp_path / "memory", "bob", encoder) as memory:
        memory.add("Bob 喜欢用德语回答", type="semantic", importance=0.9)
    made = lambda **fields: live(  # noqa: E731
        tmp_path, "memory:memory", layer="memory", encoder=lambda: encoder, **{"args": {"user": "ada"}, **fields}
    )
    found = ask(made(), "她想用哪种语言？")
    assert texts(found) == ["Ada 喜欢用中文回答"]
    assert found.candidates[0].packet.type == "memory" and found.candidates[0].known["cosine"] > 0
    assert len(texts(ask(made(args={"user": "ada", "min_importance": 0.0}), "Ada"))) == 2
    assert len(texts(ask(made(args={"user": "ada", "min_importance": 0.0}, top_k=1), "Ada"))) == 1
    assert texts(ask(made(score_threshold=1.0), "Ada")) == []
    assert "sources.s.args.user: expected a name, got None" in problem(lambda: made(args={}))
    assert "sources.s.args.usr: unknown argument; did you mean 'user'?" in problem(lambda: made(args={"usr": "ada"}))


# -- code -------------------------------------------------------------------------------------------------------------

TOOL = """
from __future__ import annotations
from dataclasses import dataclass, field

calls = []

@dataclass
class Order:
    number: str
    tags: list[str] = field(default_factory=list)

def order(request, number):
    calls.append(number)
    return {"content": f"订单 {Order(number).number}: 已发货 ({len(calls)})", "version": "1"}

def broken(request):
    raise ValueError("no such order")

class Source:
    def load(self, request):
        return "from an object"

source = Source()
value = 7
"""


def test_a_function_runs_only_when_allowed(tmp_path):
    write(tmp_path, "ran.py", "open('ran', 'w').close()\ndef f(request): return 'x'\n")
    line = problem(lambda: live(tmp_path, "python:ran.f"))
    assert "python: runs code, which was not allowed; pass allow_python=True" in line
    assert not (tmp_path / "ran").exists() and not os.path.exists("ran")


def test_a_function_of_the_base_folder_gets_its_arguments(tmp_path):
    write(tmp_path, "tools/orders.py", TOOL)
    made = lambda name, **fields: live(  # noqa: E731
        tmp_path, f"python:tools.orders.{name}", layer="tool", allow_python=True, **fields
    )
    found = ask(made("order", args={"number": "A1"}))
    assert texts(found) == ["订单 A1: 已发货 (1)"] and found.candidates[0].packet.meta["version"] == "1"
    assert texts(ask(made("source"))) == ["from an object"]
    assert "no such order" in fault(ask(made("broken")))
    assert "missing 1 required positional argument" in fault(ask(made("order")))
    assert "expected a function value" in problem(lambda: made("value"))
    assert "expected a function nothing" in problem(lambda: made("nothing"))
    assert "expected a function Source" in problem(lambda: made("Source"))


def test_two_folders_with_a_module_of_one_name_share_nothing(tmp_path):
    made = []
    for name in ("a", "b"):
        write(tmp_path, f"{name}/orders.py", TOOL)
        made.append(
            live(tmp_path / name, "python:orders.order", layer="tool", allow_python=True, args={"number": name})
        )
    assert [texts(ask(item))[0][-3:] for item in (*made, *made)] == ["(1)", "(1)", "(2)", "(2)"]


def test_installed_modules_and_modules_that_fail(tmp_path):
    assert texts(ask(live(tmp_path, "python:builtins.repr", layer="tool", allow_python=True)))[0].startswith("Request(")
    write(tmp_path, "bad.py", "raise RuntimeError('启动失败')")
    assert "cannot import bad: RuntimeError: 启动失败" in problem(
        lambda: live(tmp_path, "python:bad.f", allow_python=True)
    )
    line = problem(lambda: live(tmp_path, "python:no_such_module.f", allow_python=True))
    assert "cannot import no_such_module: ModuleNotFoundError" in line


# -- items, without files ---------------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.dates(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["content", "text", "items", "id", "version", "metadata", "score", "q", "问"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=10,
)


@given(VALUES)
def test_every_value_gives_items_or_a_loader_error(value):
    try:
        found = items_of(value, "x.yaml")
    except LoaderError:
        return
    assert all(isinstance(item["content"], str) and isinstance(item["metadata"], dict) for item in found)
