"""Every build is recorded as it was, made again with the same bytes whatever became of its sources, and compared."""

import json
import random
import shutil
import sqlite3
import zlib
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from audit_help import evidence, varied
from pipeline_help import NOW, HashEncoder, plain

from ctx_vector import ContextBuilder, ContextConfig, ContextPacket, KnowledgeBase, Memory, MemoryTool, Message, RAGTool
from ctx_vector.audit import AuditLog
from ctx_vector.audit_bounds import bytes_of, span_of
from ctx_vector.audit_stats import quota_of
from ctx_vector.errors import InputError, SchemaError, StoreError


@pytest.fixture
def log(tmp_path):
    with AuditLog(tmp_path / "audit.sqlite3") as made:
        yield made


def jaccard(log, **changes):
    return ContextBuilder(config=plain(**changes), audit=log)


@pytest.fixture
def tools(tmp_path):
    encoder = HashEncoder()
    kb = KnowledgeBase(tmp_path / "kb", encoder)
    texts = [f"# 内存 {n}\n\nPandas memory note {n}: 数据框 uses dtype {n}. Column {n}.\n" * 3 for n in range(12)]
    kb.add_texts([{"text": text, "source": f"notes/{n}.md"} for n, text in enumerate(texts)])
    memory = Memory(tmp_path / "memory", "ada", encoder)
    memory.add_many([{"content": f"Ada 喜欢 note {n} about memory", "importance": 0.5} for n in range(9)])
    yield {"rag_tool": RAGTool(knowledge=kb), "memory_tool": MemoryTool(memory=memory), "encoder": encoder}
    kb.close()
    memory.close()


# -- replay -----------------------------------------------------------------------------------------------------------


def test_builds_of_every_kind_are_made_again_with_the_same_bytes(log, tools, tmp_path):
    made, seen = [], set()
    for seed in range(80):
        builder, arguments = varied(seed, audit=log, **(tools if seed % 2 else {}))
        built = builder.assemble(**arguments)
        made.append(built)
        seen |= {item.action for item in built.kept} | {item.reason for item in built.dropped} | {*built.sources}
        seen |= {built.meta["history"]["strategy"], built.meta["locale"], built.meta["tokenizer"]}
        seen |= {"tools" for _ in built.tools} | {"layers" for use in built.sources.values() if use.layer}
    assert {"full", "extracted", "truncated", "summarised", "tools", "layers", "knowledge", "memory"} <= seen
    assert {"fault", "window", "budget", "duplicate", "expired", "oversize", "below_floor"} <= seen
    assert {"window", "head_tail", "importance", "summary", "budget", "en", "zh", "estimate"} <= seen
    log.flush()
    tools["rag_tool"].knowledge.add_text("# New\n\nSomething else.", "notes/1.md")
    for store in (tools["rag_tool"].knowledge, tools["memory_tool"].memory):
        store.close()
    shutil.rmtree(tmp_path / "kb")
    shutil.rmtree(tmp_path / "memory")
    for built in made:
        replay = log.replay(built.meta["build_id"])
        assert replay.equal and str(replay) == "equal" and not replay.differences, replay.differences[:3]
        assert evidence(replay.built) == evidence(log.show(replay.id).built) == evidence(built)


def test_a_record_holds_what_the_build_was_and_when(log):
    before = datetime.now(UTC)
    builder, arguments = varied(7, audit=log)
    built = builder.assemble(**{**arguments, "session_id": "s1"})
    record = log.show(built.meta["build_id"])
    assert before <= record.created_at <= datetime.now(UTC)  # not `now`, which lies in the past
    assert (record.session_id, record.redacted, record.purged) == ("s1", False, ())
    assert {**record.built.meta, "framing": None} == {**built.meta, "framing": None}
    assert record.built.sources["custom"].milliseconds == pytest.approx(built.sources["custom"].milliseconds, abs=1e-3)
    assert dict(record.config) == json.loads(json.dumps(builder.config.to_dict()))
    shown = record.to_dict()
    assert json.loads(json.dumps(shown)) == shown
    assert shown["text"] == built.text and shown["query"] == arguments["user_query"]


def test_what_the_caller_does_with_a_context_afterwards_is_not_recorded(log):
    built = jaccard(log).assemble("q", documents=["a fox"], conversation_history=[{"role": "user", "content": "hi"}])
    messages = [dict(message) for message in built.messages]
    built.messages[0]["content"] = "changed"
    built.messages.append({"role": "assistant", "content": "the answer"})
    built.meta["more"] = built.stats["more"] = 1
    record = log.show(built.meta["build_id"]).built
    assert record.messages == messages and "more" not in record.meta and "more" not in record.stats
    assert log.replay("last").equal


def test_a_difference_is_named(log, tmp_path):
    built = jaccard(log).assemble("fox", documents=["a fox and a dog"], now=NOW)
    log.flush()
    with closing(sqlite3.connect(log.path)) as conn, conn:
        conn.execute("UPDATE contents SET text = 'a fox and a cat' WHERE text = 'a fox and a dog'")
    assert log.replay("last").equal  # record and repeat are made from the same text
    with closing(sqlite3.connect(log.path)) as conn, conn:
        conn.execute("UPDATE contents SET text = '[Evidence!]' || char(10) WHERE text = '[Evidence]' || char(10)")
    replay = log.replay(built.meta["build_id"])
    assert not replay.equal
    assert replay.differences[0] == "text, line 4: '[Evidence!]' recorded, '[Evidence]' repeated"
    assert str(replay).startswith("differs: text, line 4")


def test_a_tokenizer_of_the_callers_has_to_be_given(log):
    def letters(text):
        return len(text)

    builder = ContextBuilder(config=plain(max_tokens=900, tokenizer=letters), audit=log)
    built = builder.assemble("fox", documents=["a fox " * 40, "a dog " * 40, "fox"], now=NOW)
    with pytest.raises(InputError, match=r"tokenizer 'callable:.*letters'.*give it: replay\(id, counter=...\)"):
        log.replay("last")
    assert log.replay("last", counter=builder.counter).equal
    other = ContextBuilder(config=plain(tokenizer="estimate")).counter
    replay = log.replay("last", counter=other)
    assert not replay.equal and replay.differences[-1] == "the tokenizer estimate counts differently now"
    assert built.meta["tokenizer_fingerprint"] == log.show("last").built.meta["tokenizer_fingerprint"]


def test_a_strategy_of_the_callers_need_not_be_there(log):
    class Judge:
        name = "judge"

        def score(self, query, candidates):
            return [len(text) % 7 / 7 for text in candidates.texts]

    built = jaccard(log, strategy=Judge()).assemble("fox", documents=["a", "bb", "ccc"], now=NOW)
    assert log.replay("last").equal and log.list()[0]["strategy"] == "judge"
    assert evidence(log.replay("last").built) == evidence(built)


def test_a_record_of_another_version_is_shown_as_far_as_it_is_known(log):
    jaccard(log, max_tokens=700).assemble("fox", documents=["a fox"], now=NOW)
    log.flush()
    with closing(sqlite3.connect(log.path)) as conn, conn:
        config = json.loads(conn.execute("SELECT config FROM configs").fetchone()[0])
        changed = json.dumps({**config, "fill": "sideways", "was_there_once": 7, "tokenizer": "callable:gone"})
        conn.execute("UPDATE configs SET config = ?", (changed,))
    record = log.show("last")
    assert record.config["was_there_once"] == 7 and "a fox" in record.built.text
    assert record.built.trace.config.max_tokens == 700 and record.built.trace.config.fill == "skip"
    with closing(sqlite3.connect(log.path)) as conn, conn:
        record = json.loads(zlib.decompress(conn.execute("SELECT record FROM context_logs").fetchone()[0]))
        newer = zlib.compress(json.dumps({**record, "format": 99}).encode())
        conn.execute("UPDATE context_logs SET record = ?, version = '9.0'", (newer,))
    with pytest.raises(SchemaError, match=r"recorded by ctx_vector 9.0, which this version cannot read; upgrade"):
        log.show("last")


def test_a_long_conversation_is_recorded_as_it_grows(log):
    """Messages and what was left out are written in blocks that are remembered: whole, grown, moved and changed."""
    builder = jaccard(log, max_tokens=600)
    said = [{"role": role, "content": f"{role} {n} 消息"} for n in range(400) for role in ("user", "assistant")]
    stamped = [Message(item["content"], item["role"], NOW - timedelta(hours=n)) for n, item in enumerate(said)]
    changed = [*said[:100], {"role": "assistant", "content": "changed"}, *said[101:]]
    made = []
    for history in (said[:200], said[:600], said, said[300:], said[300:], changed, stamped, stamped[:500], []):
        made.append(builder.assemble("fox", conversation_history=history, now=NOW))
        log.flush()
    for built in made:
        assert evidence(log.show(built.meta["build_id"]).built) == evidence(built)
        assert log.replay(built.meta["build_id"]).equal
    with closing(sqlite3.connect(log.path)) as conn:
        sizes = [row[0] for row in conn.execute("SELECT length(record) FROM context_logs ORDER BY number")]
    assert sizes[2] < 6_000


def test_a_replay_logs_and_records_nothing(log, caplog):
    jaccard(log, max_tokens=200).assemble("fox", documents=["fox " * 400])
    log.flush()
    caplog.clear()
    assert log.replay("last").equal and log.count() == 1
    assert not caplog.records


# -- live -------------------------------------------------------------------------------------------------------------


def test_after_a_knowledge_change_live_names_it(log, tmp_path):
    with KnowledgeBase(tmp_path / "kb", HashEncoder()) as kb:
        kb.add_texts([{"text": f"Rule {n}: the fox waits {n} days.", "source": f"rules/{n}.md"} for n in range(4)])
        config = ContextConfig(strategy="jaccard", knowledge_min_score=0, min_relevance=0)
        builder = ContextBuilder(rag_tool=RAGTool(knowledge=kb), config=config, audit=log)
        built = builder.assemble("How long does the fox wait?", documents=["given"], now=NOW)
        assert log.replay("last", live=builder).equal
        kb.add_text("Rule 1: the fox waits 100 days.", "rules/1.md")
        kb.remove("rules/2.md")
        kb.add_text("Rule 9: no fox.", "rules/9.md")
        assert log.replay("last").equal
        live = log.replay("last", live=builder)
        assert not live.equal and log.count() == 1  # asking again is no build
        facts = {name: (one, two) for name, one, two in live.change.facts}
        assert facts["knowledge version"] == (1, 4)
        by = {}
        for change in live.change.changes:
            by.setdefault(change.what, []).append(change)
        assert [change.preview for change in by["changed"]] == ["Rule 1: the fox waits 100 days."]
        assert [(change.what, change.preview) for change in by["went"]] == [("went", "Rule 2: the fox waits 2 days.")]
        assert [change.preview for change in by["came"]] == ["Rule 9: no fox."]
        assert "no candidate any more" in str(live) and "knowledge version: 1 → 4" in str(live)
        assert all(change.source == "knowledge" for change in live.change.changes)
        assert built.text != live.built.text


def test_live_names_changed_scores_and_configs(log):
    class Judge:
        name, factor = "judge", 1.0

        def score(self, query, candidates):
            return [self.factor * 0.5] * len(candidates.texts)

    judge = Judge()
    builder = jaccard(log, strategy=judge)
    builder.assemble("fox", documents=["one", "two"], now=NOW)
    judge.factor = 0.6
    live = log.replay("last", live=builder)
    assert {change.what for change in live.change.changes} == {"rescored"} and len(live.change.changes) == 2
    change = live.change.changes[0]
    assert "relevance 0.5000" in change.before and "relevance 0.3000" in change.after
    other = builder.with_config(builder.config.with_(min_relevance=0.4))
    facts = dict((name, (one, two)) for name, one, two in log.replay("last", live=other).change.facts)
    assert facts["config.min_relevance"] == (0, 0.4)


# -- list and show ----------------------------------------------------------------------------------------------------


def test_the_list_is_newest_first_by_session_and_paged(log):
    builder = jaccard(log)
    for number in range(12):
        session = "a" if number % 3 else "b"
        builder.assemble(f"question {number} 100% 问题", session_id=session, now=NOW - timedelta(days=number))
    queries = [row["query"] for row in log.list(limit=100)]
    assert queries == [f"question {number} 100% 问题" for number in reversed(range(12))]
    assert len(log.list()) == 5 and log.count() == 12
    assert [row["query"][9:11].strip() for row in log.list(session="b")] == ["9", "6", "3", "0"]
    first = log.list(limit=4)
    rest = log.list(limit=100, before=first[-1]["id"])
    assert [row["query"] for row in (*first, *rest)] == queries
    assert [row["query"] for row in log.list(search="QUESTION 11")] == ["question 11 100% 问题"]
    assert log.count(search="0% 问") == 12 and log.count(search="_ 1") == 0 and log.count(search="1_") == 0
    assert log.count(session="a") == 8 and log.list(session="none") == []
    assert [(row["session"], row["builds"]) for row in log.sessions()] == [("a", 8), ("b", 4)]
    assert log.count(since="1h") == 12 and log.count(since=datetime.now(UTC) + timedelta(hours=1)) == 0
    row = first[0]
    assert row["sources"] == {} and row["feedback"] == {"count": 0, "mean": None} and row["purged"] is False
    with pytest.raises(InputError, match=r"limit: expected an integer >= 1, got 0"):
        log.list(limit=0)


def test_a_build_that_goes_while_it_is_looked_up_is_said_to_be_gone(log, monkeypatch):
    jaccard(log).assemble("q")
    resolve = log.resolve

    def rotated(id, **options):  # by the writer's thread, or by another process
        found = resolve(id, **options)
        log.purge(session=None, before="9999-01-01")
        return found

    monkeypatch.setattr(log, "resolve", rotated)
    for look in (log.show, log.replay, lambda id: log.feedback(id, 1)):
        jaccard(log).assemble("q")
        with pytest.raises(InputError, match=r"there is no build .* any more"):
            look("last")


def test_builds_are_named_by_the_beginning_of_their_id(log):
    builder = jaccard(log)
    ids = [builder.assemble(f"q{number}").meta["build_id"] for number in range(3)]
    assert log.resolve(ids[0][:8]) == ids[0] and log.resolve("last") == ids[2]
    for wrong, message in (
        ("abc", "at least 4"),
        ("x" * 8, "has no build"),
        ("", "expected the id"),
        (7, "expected the"),
    ):
        with pytest.raises(InputError, match=message):
            log.show(wrong)


def test_a_missing_audit_is_said(tmp_path):
    with AuditLog(tmp_path / "none.sqlite3") as log, pytest.raises(StoreError, match=r"there is no audit at .*none"):
        log.list()
    assert not (tmp_path / "none.sqlite3").exists()


def test_builders_of_other_configs_share_the_audit(tmp_path):
    builder = ContextBuilder(config=plain(), audit=tmp_path / "a.sqlite3")
    other = builder.with_config(plain(max_tokens=500))
    assert other.audit is builder.audit
    builder.assemble("one")
    other.assemble("two")
    assert [row["budget_limit"] for row in builder.audit.list()] == [500, 3000]
    builder.audit.close()


def test_a_context_without_a_trace_cannot_be_recorded(log):
    built = ContextBuilder(config=plain()).assemble("q")
    with pytest.raises(InputError, match="without its trace"):
        log.record(replace(built, trace=None))
    assert log.record(built, variant="b") == built.meta["build_id"]
    assert log.list(variant="b")[0]["variant"] == "b" and log.list(variant="a") == []


def test_texts_are_stored_once(log):
    builder = jaccard(log)
    text = "A fox is a small animal that lives in the woods. " * 40
    documents = [{"text": f"{number} {text}", "id": number} for number in range(3)]
    for number in range(50):
        builder.assemble(f"fox {number}", documents=documents, conversation_history=[{"role": "user", "content": text}])
    log.flush()
    with closing(sqlite3.connect(log.path)) as conn:
        for (stored,) in conn.execute("SELECT text FROM contents WHERE length(text) > 1000"):
            assert stored.count(text.strip()) == 1
        assert conn.execute("SELECT count(*) FROM contents WHERE length(text) > 1000").fetchone()[0] == 4
        sizes = conn.execute("SELECT max(length(record)), max(length(messages)) FROM context_logs").fetchone()
    assert sizes[0] < 1500 and sizes[1] < 500


# -- diff -------------------------------------------------------------------------------------------------------------


def test_diff_tells_what_came_went_moved_and_was_shortened(log):
    builder = ContextBuilder(config=plain(max_tokens=400), audit=log)

    def item(name, text, score):
        return ContextPacket(text, NOW, None, score, {"type": "knowledge", "id": name})

    long = "A long story about a fox. " * 90
    builder.assemble("fox", custom_packets=[
        item("stays", "stays here", 0.9), item("goes", "goes away", 0.8), item("first", "first then last", 0.7),
        item("second", "second", 0.6), item("cut", long, 0.5),
    ], now=NOW)  # fmt: skip
    builder.assemble("fox", custom_packets=[
        item("stays", "stays here", 0.9), item("comes", "comes in", 0.75), item("first", "first then last", 0.55),
        item("second", "second", 0.6), item("cut", "A short story", 0.5),
    ], now=NOW)  # fmt: skip
    b, a = (row["id"] for row in log.list())
    found = log.diff(a, b)
    by = {}
    for change in found.changes:
        by.setdefault(change.what, set()).add(change.name)
    assert by == {"came": {"comes"}, "went": {"goes"}, "moved": {"first"}, "changed": {"cut"}, "shortened": {"cut"},
                  "rescored": {"first"}}  # fmt: skip
    assert found.counts["moved"] == 1
    moved = next(change for change in found.changes if change.what == "moved")
    assert (moved.before, moved.after) == ("place 2", "place 3")
    assert not log.diff(a, a) and log.diff(a, a).lines() == []
    assert json.dumps(found.to_dict()) and "went: custom goes: kept with" in "\n".join(found.lines())


# -- feedback ---------------------------------------------------------------------------------------------------------


def test_feedback_is_attached_later(log):
    built = jaccard(log).assemble("q")
    log.record(ContextBuilder(config=plain()).assemble("other"), variant="b")
    log.feedback(built.meta["build_id"][:10], True, "good 好")
    log.feedback(built.meta["build_id"], 0.5, variant="a")
    log.feedback("last", 0)
    record = log.show(built.meta["build_id"])
    assert [(item["value"], item["note"], item["variant"]) for item in record.feedback] == [
        (1.0, "good 好", None), (0.5, "", "a"),
    ]  # fmt: skip
    assert log.show("last").feedback[0]["variant"] == "b"
    assert [row["feedback"] for row in log.list()] == [{"count": 1, "mean": 0.0}, {"count": 2, "mean": 0.75}]
    for value in ("good", None, float("nan"), 1e12):
        with pytest.raises(InputError, match="value: expected a number"):
            log.feedback("last", value)
    with pytest.raises(InputError, match="note: expected a text"):
        log.feedback("last", 1, note=3)


# -- statistics -------------------------------------------------------------------------------------------------------


def test_statistics_are_the_sums_of_the_builds(log):
    made = []
    for seed in range(60):
        builder, arguments = varied(seed, audit=log)
        made.append(builder.assemble(**arguments))
    found = log.stats("1h")
    assert found["builds"] == len(made)
    assert found["mean_tokens"] == pytest.approx(sum(built.budget.total_used for built in made) / 60, abs=0.05)
    usage = sum(built.budget.total_used for built in made) / sum(built.budget.total_limit for built in made)
    assert found["usage_rate"] == pytest.approx(usage, abs=1e-4)
    trimmed = [
        any(item.action != "full" for item in built.kept)
        or any(item.reason in ("budget", "quota", "oversize") for item in built.dropped)
        for built in made
    ]
    assert 0 < sum(trimmed) < 60 and found["trim_rate"] == pytest.approx(sum(trimmed) / 60, abs=1e-4)
    total = sum(built.budget.total_used for built in made)
    for name, row in found["sources"].items():
        uses = [built.sources[name] for built in made if name in built.sources]
        assert row["builds"] == len(uses) and row["tokens"] == sum(use.tokens for use in uses)
        assert row["share"] == pytest.approx(sum(use.tokens for use in uses) / total, abs=1e-4)
        assert (row["kept"], row["dropped"]) == (sum(use.kept for use in uses), sum(use.dropped_items for use in uses))
        assert row["faults"] == sum(bool(use.fault) for use in uses)
    assert set(found["sources"]) == {name for built in made for name in built.sources}
    assert found["bytes"] == sum(
        file.stat().st_size for file in log.path.parent.glob("audit.sqlite3*") if "lock" not in file.name
    )
    assert log.stats(None)["builds"] == 60


def test_statistics_warn_of_a_source_near_its_quota_and_of_one_that_is_often_cut(log):
    turns = [{"role": role, "content": "talk " * 30} for _ in range(20) for role in ("user", "assistant")]
    builder = jaccard(log, max_tokens=1000, history_strategy="budget", budgets={"history": 300})
    for _ in range(4):
        builder.assemble("fox", conversation_history=turns, documents=["fox " * 900], now=NOW)
    builder.assemble("fox", documents=["fox"], now=NOW)
    found = log.stats()
    assert found["sources"]["history"]["quota_use"] > 0.8 and found["sources"]["history"]["near_quota"] == 4
    assert found["sources"]["documents"]["quota_use"] is None and found["sources"]["documents"]["cut_rate"] == 0.8
    lines = "\n".join(found["warnings"])
    assert "history takes" in lines and "of its quota, over 80%" in lines
    assert "documents was cut in 80% of its builds" in lines and "documents takes" not in lines


def test_statistics_count_from_the_minute_of_since(log):
    builder = ContextBuilder(config=plain())
    now = datetime.now(UTC)
    ages = [timedelta(minutes=1), timedelta(minutes=59), timedelta(minutes=61), timedelta(hours=5), timedelta(days=8),
            timedelta(days=50)]  # fmt: skip
    for age in ages:
        built = builder.assemble("q")
        built.trace.started = (now - age).timestamp()
        log.record(built)
    for since, builds in (("30m", 1), ("1h", 2), ("62m", 3), ("6h", 4), ("7d", 4), ("9d", 5), (None, 6), ("60d", 6)):
        assert log.stats(since)["builds"] == builds, since
    assert log.stats(now - timedelta(minutes=60))["builds"] == 2
    with pytest.raises(InputError, match=r"since: expected a length of time such as 7d.*got 'soon'"):
        log.stats("soon")


def test_spans_and_sizes():
    assert [span_of(text, "x") for text in ("7d", "1.5h", " 30 m", 90, timedelta(1), None)] == [
        timedelta(7), timedelta(hours=1.5), timedelta(minutes=30), timedelta(seconds=90), timedelta(1), None,
    ]  # fmt: skip
    assert [bytes_of(value) for value in ("500MB", "1.5 gb", 2_000_000, "2000000", None)] == [
        500_000_000, 1_500_000_000, 2_000_000, 2_000_000, None,
    ]  # fmt: skip
    for value in ("7 fortnights", -1, True, "d"):
        with pytest.raises(InputError, match="max_age: expected a length of time"):
            AuditLog("x", max_age=value)
    for value in ("much", 10, True, "1kb"):
        with pytest.raises(InputError, match="max_size: expected a size of at least 1MB"):
            AuditLog("x", max_size=value)
    with pytest.raises(InputError, match="redact: expected a function"):
        AuditLog("x", redact="secret")


def test_the_quota_of_a_source_is_its_own_or_its_parts():
    from ctx_vector.built import SourceUse

    config = ContextConfig(budgets={"history": 300, "evidence": 900})
    assert [quota_of(name, SourceUse(), config) for name in ("history", "knowledge", "documents", "custom")] == [
        300, 900, 900, 0,
    ]  # fmt: skip


@pytest.mark.parametrize("builds", [1_500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_lists_and_statistics_of_many_builds_cost_what_those_of_a_hundred_do(log, builds):
    """Counted in steps of SQLite's machine, which do not depend on what else the computer does."""
    built = ContextBuilder(config=plain()).assemble("q", documents=["a", "b"], session_id="s", now=NOW)
    chance = random.Random(1)

    def record(first, last):
        for number in range(first, last):
            trace = built.trace.again()
            trace.started -= chance.random() * 6 * 86_400
            trace.session_id = f"s{number % 10}"
            log.record(replace(built, meta={**built.meta, "build_id": f"{number:032x}"}, trace=trace))
            if number % 1000 == 999:
                log.flush()
        log.flush()

    def steps(work):
        count = 0

        def step():
            nonlocal count
            count += 1

        with log._store().read() as conn:
            conn.set_progress_handler(step, 1)
        work()
        with log._store().read() as conn:
            conn.set_progress_handler(None, 0)
        return count

    works = {
        "list": lambda: log.list(limit=5),
        "session": lambda: log.list("s3", limit=5),
        "page": lambda: log.list(limit=5, before=f"{77:032x}"),
        "show": lambda: log.show(f"{50:032x}"),
        "stats": lambda: log.stats("7d"),
    }
    record(0, 100)
    before = {name: steps(work) for name, work in works.items()}
    record(100, builds)
    after = {name: steps(work) for name, work in works.items()}
    assert log.count() == builds and all(before.values())
    assert {name: after[name] / before[name] for name in works if after[name] > 2 * before[name]} == {}


# -- redaction --------------------------------------------------------------------------------------------------------


def test_nothing_is_stored_before_it_is_redacted(tmp_path):
    path = tmp_path / "audit.sqlite3"
    with AuditLog(path, redact=lambda text: text.replace("s4711", "s0000")) as log:
        builder = ContextBuilder(config=plain(max_tokens=300, reminder="s4711 reminder"), audit=log)
        builder.assemble(
            "s4711 query",
            system_instructions="s4711 system",
            documents=["s4711 document " * 80, {"text": "x", "metadata": {"heading": ["s4711 heading"]}}],
            conversation_history=[
                {"role": "user", "content": "s4711 turn"},
                {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "s4711"}}]},
                {"role": "tool", "content": "s4711 result", "tool_call_id": "1"},
            ],
            state={"s4711": "s4711 state"},
        )
        log.feedback("last", 1, "s4711 note")
        replay = log.replay("last")
        assert replay.redacted and "s0000 query" in log.list()[0]["query"]
        assert replay.equal and str(replay) == "equal, of the texts as they were redacted"
        assert "s0000 document" in replay.built.text
    for file in tmp_path.iterdir():
        assert b"s4711" not in file.read_bytes()


def test_a_replay_of_redacted_texts_says_that_their_sizes_are_others(tmp_path):
    with AuditLog(tmp_path / "audit.sqlite3", redact=lambda text: text.replace("fox", "a much longer word")) as log:
        jaccard(log, max_tokens=120).assemble("fox", documents=["fox fox " * 12, "fox " * 30])
        replay = log.replay("last")
    assert not replay.equal and replay.differences[-1].startswith("the texts were redacted before they were stored")
    assert str(replay).startswith("differs, of the texts as they were redacted: text, line")


def test_a_failing_redaction_stores_no_text(tmp_path, caplog):
    def broken(text):
        raise RuntimeError("no 模型")

    with AuditLog(tmp_path / "audit.sqlite3", redact=broken) as log:
        ContextBuilder(config=plain(), audit=log).assemble("a s4711 query", documents=["s4711"])
        assert log.list()[0]["query"] == "(not stored: the redaction failed)"
        assert not log.replay("last").missing
    assert "the redaction failed (RuntimeError: no 模型)" in caplog.text
    assert not any(b"s4711" in file.read_bytes() for file in tmp_path.iterdir())
