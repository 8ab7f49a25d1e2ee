"""The rows of the READMEs' table of figures, made from the result files."""

from __future__ import annotations

from collections.abc import Iterator


def rows(results: dict[str, dict]) -> Iterator[tuple[str, str, str]]:
    """Yield (English label, Chinese label, figure); a row whose result is missing is left out."""
    encode = results.get("encode")
    if encode:
        ours, theirs = encode["documents_per_second"]["ours"], encode["documents_per_second"]["sentence_transformers"]
        yield (
            "passages of 150 tokens a second, against `SentenceTransformer.encode` (torch, fp32) on the same weights",
            "每秒编码 150 token 的段落数，对比同一权重的 `SentenceTransformer.encode`（torch，fp32）",
            f"{ours:.0f} : {theirs:.1f} = {ours / theirs:.1f}×",
        )
        ours, theirs = encode["query_ms"]["ours"], encode["query_ms"]["sentence_transformers"]
        yield (
            "one query, against the same",
            "单个提问的编码，对比同上",
            f"{ours:.1f} ms : {theirs:.1f} ms = {theirs / ours:.1f}×",
        )
        cosine = encode["cosine_int8_float32"]
        yield (
            "cosine of 8-bit vectors to fp32 ones, median and least",
            "8 位向量与 fp32 向量的余弦，中位数与最小值",
            f"{cosine['median']:.4f}, {cosine['least']:.4f}",
        )
    cold = results.get("cli_cold")
    if cold:
        ours, bare = cold["seconds"]["ctx-vector search"], cold["seconds"]["bare script"]
        yield (
            "`ctx-vector search` from a cold start, against a bare script that loads the whole model and asks the same",
            "`ctx-vector search` 冷启动，对比加载完整模型并做同样查询的最简脚本",
            f"{ours:.2f} s : {bare:.2f} s = {ours / bare:.2f}",
        )
    index = results.get("index")
    if index:
        yield (
            f"index {index['documents']} Markdown files ({index['chunks']} chunks): share outside the encoder",
            f"索引 {index['documents']} 个 Markdown 文件（{index['chunks']} 个分块）：编码以外的时间占比",
            f"{index['share_outside_encoder']:.1%}",
        )
        yield (
            "the same again, nothing changed, against the first run",
            "再次索引而无变化，对比首次",
            f"{index['second_share_of_first']:.2%}",
        )
    search = results.get("search")
    if search:
        yield (
            f"search in {search['rows']:,} chunks besides encoding the query, against encoding it",
            f"在 {search['rows']:,} 个分块中搜索（不含提问编码），对比编码",
            f"{search['search_besides_encoding_ms']:.2f} ms : {search['encode_query_ms']:.2f} ms",
        )
    build = results.get("build")
    if build:
        for key, en, zh in (
            ("all_fits", "everything fits", "全部放得下"),
            ("one_shortened", "one item is shortened", "压缩一条"),
        ):
            part = build[key]
            yield (
                f"a warm build over {build['rows']:,} chunks with 20 messages besides encoding the query, {en}",
                f"预热后在 {build['rows']:,} 个分块、20 条消息上构建（不含提问编码），{zh}",
                f"{part['besides_ms']:.1f} ms : {part['encode_ms']:.1f} ms = {part['share']:.2f}",
            )
    selection = results.get("selection")
    if selection:
        ours, query = selection["1000"]["select_ms"], selection["1000"]["encode_query_ms"]
        yield (
            "selecting among 1,000 candidates with ready vectors, MMR and near-duplicate removal on, against encoding "
            "a query; among 10,000, against among 1,000",
            "在 1,000 条已有向量的候选中选择（MMR、去除近似重复），对比编码一个提问；10,000 条对比 1,000 条",
            f"{ours:.1f} ms : {query:.1f} ms = {ours / query:.2f}; {selection['largest_to_smallest']:.1f}×",
        )
    audit = results.get("audit")
    if audit:
        part, after = audit["warm_build"], audit["growth"]
        yield (
            f"a warm build over {audit['rows']:,} chunks with audit, against the same without (median)",
            f"预热后在 {audit['rows']:,} 个分块上构建：记录审计，对比不记录（中位数）",
            f"{part['with_ms']:.1f} ms : {part['without_ms']:.1f} ms = {part['median_ratio']:.3f}",
        )
        yield (
            f"`audit list` and `audit stats` after {after['builds']:,} builds, against after 100",
            f"{after['builds']:,} 次构建之后的 `audit list` 与 `audit stats`，对比 100 次之后",
            f"{after['ratios']['list_ms']:.2f}×, {after['ratios']['stats_ms']:.2f}×",
        )
    memory = results.get("memory")
    if memory:
        part = memory["at_rows"]
        yield (
            f"search in {part['rows']:,} memories besides encoding the query, against encoding it",
            f"在 {part['rows']:,} 条记忆中搜索（不含提问编码），对比编码",
            f"{part['search_besides_encoding_ms']:.2f} ms : {part['encode_query_ms']:.2f} ms",
        )
    yield from _found_rows(results)
    yield from _rows_of_recall(results)


def _rows_of_recall(results: dict[str, dict]) -> Iterator[tuple[str, str, str]]:
    """Yield the rows that tell whether the right memories are in a context."""
    locomo = results.get("locomo")
    if locomo:
        for key, en, zh in (
            ("cosine only", "cosine only", "仅余弦"),
            ("hybrid only", "`hybrid` only", "仅 `hybrid`"),
            ("hybrid only, second pass", "`hybrid` and the second pass", "`hybrid` 加第二遍"),
            ("all defaults", "all defaults", "全部默认值"),
            ("all defaults, hybrid", "all defaults but `hybrid`", "默认值加 `hybrid`"),
        ):
            recall = locomo["strategies"][key]
            figures = " / ".join(f"{recall[f'evidence_recall@{size}']:.3f}" for size in (500, 1000, 2000))
            yield (
                f"LoCoMo (five conversations): evidence in a context of 500 / 1,000 / 2,000 tokens of memories, {en}",
                f"LoCoMo（五段对话）：500 / 1,000 / 2,000 token 的记忆上下文中的证据召回，{zh}",
                figures,
            )
        if held := locomo.get("held_out"):
            figures = " / ".join(f"{held['held out'][f'evidence_recall@{size}']:.3f}" for size in (500, 1000, 2000))
            yield (
                "the same, `hybrid` only, its settings chosen on the four other conversations each time",
                "同上，仅 `hybrid`，每次只用其余四段对话选择设置",
                figures,
            )
    freshness = results.get("freshness")
    if freshness:
        parts = [freshness["modes"][mode]["max_tokens=3000"] for mode in ("recency by age alone", "all defaults")]
        count = parts[0]["fresh"]["questions"]
        for side, zh in (("under", "以内"), ("over", "以上")):
            before, after = (part[f"fresh, versions {side} 23 days apart"]["share"] for part in parts)
            yield (
                f"changing facts ({count} questions): the newest version is in the context, above older ones, the last "
                f"two {side} 23 days apart, by age alone, all defaults",
                f"变化的事实（{count} 问）：最新说法在上下文中且排在旧的之上，最近两次相隔 23 天{zh}，"
                "只看年龄，全部默认值",
                f"{before:.3f}, {after:.3f}",
            )
    others = results.get("other_facts")
    if others:
        parts = [others["modes"][mode]["held out"] for mode in ("without looking at the words", "all defaults")]
        for name, en, zh in (
            (
                "other, same words",
                "a newer statement about something else, in the same words",
                "用同样的话说别的事的新句",
            ),
            ("other, other words", "the same, in other words", "同上，换了说法"),
            ("update, same words", "a newer statement of the fact, in the same words", "用同样的话说同一件事的新句"),
            ("update, other words", "the same, in other words", "同上，换了说法"),
        ):
            count = parts[0][name]["questions"]
            yield (
                f"{en} ({count} written afterwards): the right one is the first, by likeness alone, all defaults",
                f"{zh}（事后写的 {count} 例）：正确的一句排在第一，只看相似度，全部默认值",
                ", ".join(f"{part[name]['share']:.3f}" for part in parts),
            )
    yield from _passages(results)
    forms = results.get("recency_forms")
    if forms:
        age, default = "exp by type, episodic floor 0.7", "newer takes over, line 0.5, half of the budget (default)"
        before, after = (forms["forms"][name]["not versions, first"] for name in (age, default))
        yield (
            "100 unrelated memories with random dates: the right one is the first, by age alone, all defaults",
            "100 条互不相干、日期随机的记忆：正确的一条排在第一，只看年龄，全部默认值",
            f"{before:.3f}, {after:.3f}",
        )


def _passages(results: dict[str, dict]) -> Iterator[tuple[str, str, str]]:
    sizes = ("64", "128", "224", "320")
    sets = (
        ("bilingual_knowledge", "bilingual knowledge", "双语知识"),
        (
            "bilingual_knowledge, long documents",
            "the same, five documents as one without headings",
            "同上，五篇合为一篇、无标题",
        ),
    )
    for title, en, its_zh in sets:
        chunk_size = results.get("chunk_size", {}).get(title, {})
        for strategy, zh in (("cosine", "余弦"), ("hybrid", "混合")):
            if strategy in chunk_size:
                means = chunk_size[strategy]["means"]
                yield (
                    f"{en} (232 questions): the words that answer are in a context of 1,000 tokens, "
                    f"chunks of {' / '.join(sizes)} tokens, {strategy}",
                    f"{its_zh}（232 问）：1,000 token 的上下文含有答案原文，分块 {' / '.join(sizes)} token，{zh}",
                    " / ".join(f"{means[size]['answer_recall@1000']:.3f}" for size in sizes),
                )
    bilingual = results.get("bilingual", {}).get("own", {})
    cases = [f"{asked}, answered in {said}" for asked in ("en", "zh") for said in ("its own", "the other")]
    for arm, zh in (("raw cosine", "原始余弦"), ("cosine", "余弦"), ("hybrid", "混合")):
        if arm in bilingual:
            yield (
                "bilingual knowledge: the first hit answers; English questions, the answer in English / in Chinese "
                f"only, Chinese ones, in Chinese / in English only, {arm}",
                f"双语知识：首条即答案；英文提问，答案只在英文 / 只在中文，中文提问，答案只在中文 / 只在英文，{zh}",
                " / ".join(f"{bilingual[arm][case]['r@1']:.3f}" for case in cases),
            )


def _found_rows(results: dict[str, dict]) -> Iterator[tuple[str, str, str]]:
    """Yield the rows of what is found first, and of the second pass."""
    if late := results.get("late"):
        part, size = late["depth 30"], late["tokens of a passage"]
        yield (
            f"the second pass over 30 remembered passages of {size} tokens, against encoding one query "
            "(processor time)",
            f"对 30 段已记住的 {size} token 段落再看一遍，对比编码一个提问（处理器时间）",
            f"{part['remembered']['cpu']:.1f} ms : {late['encode_query']['cpu']:.1f} ms",
        )
        gains = late["bilingual_knowledge"]
        for first, zh in (("cosine", "余弦"), ("hybrid", "混合")):
            second = next(
                found for name, found in gains.items() if name.startswith(f"{first}+late, weight 0.6, depth 30")
            )
            cases = ("all", "en, answered in the other", "zh, answered in the other")
            yield (
                "bilingual knowledge: the first hit answers; all questions, English ones with the answer only in "
                f"Chinese, Chinese ones with it only in English; `{first}`, and with the second pass",
                f"双语知识：首条即答案；全部提问，英文提问而答案只在中文，中文提问而答案只在英文；{zh}，以及加第二遍",
                ", ".join(
                    " / ".join(f"{found[case]['r@1']:.3f}" for case in cases) for found in (gains[first], second)
                ),
            )
    names = {"cosine": "余弦", "hybrid": "混合", "hybrid+late": "混合加第二遍"}
    arms = results.get("xquad", {}).get("r@1", {})
    for arm, found in arms.items():
        if arm in names:
            yield (
                "XQuAD, the first passage is the right one: English / Chinese / Chinese questions on English text / "
                f"English and Chinese questions on both languages together, `{arm}`",
                "XQuAD，首个段落即正确段落：英文 / 中文 / 中文问英文 / 双语同库时的英文与中文提问，" + names[arm],
                " / ".join(f"{found[case]:.3f}" for case in ("en", "zh", "zh-en", "en in both", "zh in both")),
            )


_VERDICTS = {"better": "更好", "worse": "更差", "no difference shown": "未显示差异"}


def measured(results: dict[str, dict]) -> bool:
    """Return whether the changing facts were measured: without them their columns are left out."""
    return "changing_facts" in results.get("ab", {}).get("sets", {})


def lab_rows(results: dict[str, dict], zh: bool) -> Iterator[str]:
    """Yield a row for each arm that ran on this project's data sets; columns as `measured` says."""
    sets = results.get("ab", {}).get("sets", {})
    known, facts = sets.get("bilingual_knowledge", {}), sets.get("changing_facts", {})
    for arm in known.get("strategies", {}):
        verdict = "–"
        for one in known["comparisons"]:
            if one["arm"] == arm and one["metric"] == "evidence_recall@1000":
                word = _VERDICTS[one["verdict"]] if zh else one["verdict"]
                verdict = f"{word} ({one['difference']:+.3f})"
        means = [found.get("strategies", {}).get(arm, {}) for found in (known, facts)]
        if not measured(results):
            figures = " / ".join(f"{means[0][f'evidence_recall@{size}']:.3f}" for size in (500, 1000, 2000))
            yield f"| `{arm}` | {figures} | {verdict} |"
            continue
        figures = [
            " / ".join(f"{found[f'evidence_recall@{size}']:.3f}" for size in (500, 1000, 2000)) if found else "–"
            for found in means
        ]
        newest = f"{means[1]['freshness@1000']:.3f}" if means[1] else "–"
        yield f"| `{arm}` | {figures[0]} | {verdict} | {figures[1]} | {newest} |"
