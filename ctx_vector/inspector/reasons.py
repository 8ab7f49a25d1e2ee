"""The sentences of a record in Chinese: why a candidate was dropped, and what a build warns of.

A record says them in English, as everything that is kept does. Here each sentence is known by a pattern; names and
numbers in it stay as they are, and so does a sentence that is not known, such as the text of an error.
"""

from __future__ import annotations

import re
from typing import Final

from ctx_vector.inspector.words import WORDS

_CHINESE: Final = tuple(
    (re.compile(pattern, re.S), text)
    for pattern, text in (
        ("did not fit in what was left", "剩余空间放不下"),
        ("did not fit beside what is never cut", "与不可裁剪的部分放不到一起"),
        ("did not fit, and nothing of it could be kept", "放不下，截短也无法保留"),
        ("the whole did not fit when counted again", "整体复核时放不下"),
        ("compression is off", "未启用压缩"),
        ("nothing to show", "没有可显示的内容"),
        (r"expired at (.+)", r"已于 \1 过期"),
        (r"relevance (\S+) < min_relevance (\S+)", r"相关度 \1 低于最低相关度 \2"),
        (r"relevance (\S+) < score_threshold (\S+) of (.+)", r"相关度 \1 低于 \3 的阈值 \2"),
        (r"over top_k (\S+) of (.+)", r"超出 \2 的条数上限 \1"),
        (r"include\.(\S+) is False", r"设置中未包含 \1"),
        (r"same text as (.+)", r"与 \1 文本相同"),
        (r"says the same as (.+)", r"与 \1 内容相同"),
        (r"stands in (.+)", r"已包含在 \1 中"),
        (r"much like (.+) and others before it", r"与 \1 等前面的内容很相似"),
        (r"over the (\S+) tokens of tools", r"超出工具定义的 \1 个 token"),
        (r"(\w+): over the (\S+) tokens of the history", r"\1：超出对话历史的 \2 个 token"),
        (r"over the (\S+) tokens of (.+)", r"超出 \2 的 \1 个 token"),
        ("over the shared limit", "超出共享上限"),
        (r"(\w+) had to shrink", r"\1 需要缩减"),
        (r"over what (.+) may take of layer (\w+)", r"超出 \1 在 \2 层的份额"),
        (r"(\w+): the turn did not fit, and no older turn may stand without it",
         r"\1：这一轮放不下，更早的轮次也不单独保留"),
        (r"(\w+): the turn did not fit", r"\1：这一轮放不下"),
        (r"window: older than the newest (\S+) messages in whole turns", r"window：早于最近 \1 条消息（按整轮计）"),
        (r"head_tail: between the first (\S+) and the last (\S+) turns", r"head_tail：在最初 \1 轮与最后 \2 轮之间"),
        (r"summary: older than the newest (\S+) turns, and no summary fits", r"summary：早于最近 \1 轮，且摘要放不下"),
        ("summary: stands in the summary of the earlier conversation", "summary：已并入此前对话的摘要"),
        ("a tool result without its call", "工具结果缺少对应的调用"),
        (r"scored by the best of (\S+) windows", r"按 \1 个窗口中的最高分计"),
        (r"newer than (.+), which is like it", r"比相似的 \1 更新"),
        (r"by itself its relevance is (\S+)", r"自身相关度为 \1"),
        (r"version (.+) is there", r"已有版本 \1"),
        (r"version (.+)", r"版本 \1"),
        (r"shortened: (.+)", r"缩短为 \1"),
        (r"no answer within (\S+) s", r"\1 秒内没有应答"),
        # of a comparison
        (r"score (\S+) \(relevance (\S+)\)", r"分数 \1（相关度 \2）"),
        (r"place (\d+)", r"第 \1 位"),
        ("no candidate any more", "不再是候选"),
        (r"(\d+) characters", r"\1 个字符"),
        # of sliders
        (r"the parts that are never cut need (\S+) tokens, over the limit of (\S+) \(([^;]*)\); "
         r"shorten them or set max_tokens to at least (\S+)",
         r"不可裁剪的部分需要 \1 个 token，超过上限 \2（\3）；请缩短，或把 max_tokens 设为至少 \4"),
        # warnings
        ("evidence was cut to fit the budget", "为满足预算，证据被截短"),
        ("nothing besides the fixed parts fits the budget", "除固定部分外，预算放不下其他内容"),
        ("the newest turn of the history does not fit and was left out", "最新一轮对话放不下，未包含"),
        (r"the newest turn of the history is over the bound of (\S+) tokens", r"最新一轮对话超出 \1 个 token 的上限"),
        (r"system instructions, Task and Output take (\S+) tokens, over the reserve of (\S+)",
         r"系统指令、任务与输出占 \1 个 token，超出预留的 \2"),
        (r"system instructions take (\S+) tokens, over their budget of (\S+)",
         r"系统指令占 \1 个 token，超出其预算 \2"),
        ("they are never cut", "不会被裁剪"),
        (r"the context takes (\S+) of the model's (\S+) tokens, over 70 %",
         r"上下文占模型窗口 \2 中的 \1 个 token，超过 70%"),
        ("nothing is indexed in the knowledge base yet", "知识库还没有任何内容"),
        (r"try: (.+)", r"可运行：\1"),
        (r"source (\S+): no answer within (\S+) s", r"来源 \1：\2 秒内没有应答"),
        (r"source (\S+): (.+)", r"来源 \1 出错：\2"),
    )
)  # fmt: skip


_WORDS: Final = WORDS["zh"]
_KEPT: Final = re.compile(r"(\w+) with (\d+) tokens \(score (\S+)\)")
_DROPPED: Final = re.compile(r"dropped: (\w+)(?: \((.*)\))?", re.S)


def said_in(language: str, text: str) -> str:
    """Return what a record says, sentence by sentence, in the language of the page where it is known.

    >>> said_in("zh", "did not fit in what was left; relevance 0.050 < min_relevance 0.1")
    '剩余空间放不下；相关度 0.050 低于最低相关度 0.1'
    """
    if language != "zh" or not text:
        return text
    whole = _fate(text) or _known(text)
    if whole is not None:
        return whole
    parts = [(part, _known(part)) for part in text.split("; ")]
    return "；".join(known or part for part, known in parts) if any(known for _, known in parts) else text


def _fate(text: str) -> str | None:
    """Return a fate as a comparison tells it."""
    if found := _KEPT.fullmatch(text):
        how = _WORDS["kept"] if found[1] == "kept" else _WORDS.get(f"fate_{found[1]}", found[1])
        return f"{how}，{found[2]} 个 token（分数 {found[3]}）"
    if found := _DROPPED.fullmatch(text):
        why = f"（{said_in('zh', found[2])}）" if found[2] else ""
        return f"{_WORDS['dropped']}：{_WORDS.get(f'fate_{found[1]}', found[1])}{why}"
    return None


def _known(text: str) -> str | None:
    for pattern, chinese in _CHINESE:
        if "; " in text and ".+" in pattern.pattern:  # more than one sentence: a name does not reach over it
            continue
        if found := pattern.fullmatch(text):
            return found.expand(chinese)
    return None
