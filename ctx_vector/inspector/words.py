"""The words of the pages, in English and Chinese. A test holds the two to the same names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

WORDS: Final[Mapping[str, Mapping[str, str]]] = {
    "en": {
        "title": "ctx_vector inspector", "builds": "Builds", "knowledge": "Knowledge", "memory": "Memory",
        "reports": "Reports", "search": "Search", "session": "Session", "all": "all", "query": "Query",
        "time": "Time",
        "tokens": "Tokens", "of": "of", "older": "Older", "newest": "Newest",
        "none": "Nothing here.",
        "no_audit": "There is no audit log: name one with --audit or --kb.",
        "no_kb": "There is no knowledge base: name one with --kb.",
        "no_memory": "There are no memories: name a folder with --memory.",
        "no_reports": "There are no reports: name a folder of HTML reports with --reports.",
        "context": "The context as the model saw it", "messages": "As messages", "candidates": "Candidates",
        "kept": "kept", "dropped": "dropped", "section": "Section", "source": "Source", "relevance": "Relevance",
        "recency": "Recency", "score": "Score", "fate": "Fate", "why": "Why", "text": "Text",
        "by_section": "By section",
        "by_source": "By source", "free": "free", "what_if": "What if", "max_tokens": "Budget (tokens)",
        "relevance_weight": "Weight of relevance", "min_relevance": "Least relevance", "fill": "Filling",
        "recalculate": "Recalculate", "reset": "As it was", "changes": "What this changes",
        "no_changes": "No change.",
        "compare": "Compare", "compare_previous": "Compare with the build before", "went": "went",
        "came": "came", "moved": "moved", "documents": "Documents", "chunks": "Chunks",
        "n_documents": "{n} document|{n} documents", "n_chunks": "{n} chunk|{n} chunks",
        "framing": "message framing", "beside": "tool definitions, sent apart", "fixed": "headings, Task and Output",
        "as_text": "{text} as text, {messages} as chat messages; the larger counts. "
        "All but system instructions, Task and Output may take {shared}.",
        "would_take": "would have taken {n} tokens", "size": "Tokens it would have taken", "sort_by": "Sort by",
        "part_role": "Role & Policies", "part_task": "Task", "part_state": "State", "part_evidence": "Evidence",
        "part_context": "Context", "part_output": "Output",
        "source_knowledge": "knowledge", "source_memory": "memory", "source_history": "history",
        "type_working": "working", "type_episodic": "episodic", "type_semantic": "semantic", "type_profile": "profile",
        "source_documents": "documents", "source_custom": "custom", "source_tools": "tools",
        "source_tool_results": "tool_results", "source_agent_outputs": "agent_outputs", "source_images": "images",
        "active": "active", "try_query": "Try a query", "lines": "lines", "user": "User",
        "importance": "Importance", "delete": "Delete", "deleted": "Deleted.", "sure": "Delete this memory for good?",
        "back": "Back", "not_found": "There is no such page.", "language": "中文", "other": "zh",
        "skip": "Skip to the content", "item": "Candidate", "metadata": "Metadata",
        "purged": "Some texts of this build were purged: {names}.",
        "too_small": "This cannot be built; below is the build as it was. {error}",
        "settings": "Settings of this build", "filter": "Filter",
        "cut": "{count} more characters", "id": "Build", "answered": "Rendered",
        "cut_pieces": "{count} more pieces", "some_rows": "{shown} of {count} are shown.", "show_rows": "Show all",
        "choose_two": "Choose two builds of the list to compare.", "small_tokens": "tokens", "more": "{count} more",
        "before": "before", "after": "after", "changed": "changed", "shortened": "shortened",
        "rescored": "scored anew",
        "new": "new candidates", "gone": "candidates no more", "state_of": "What differs", "versions": "Versions",
        "fate_full": "whole", "fate_extracted": "extracted", "fate_summarised": "summarised",
        "fate_truncated": "cut short",
        "fate_below_floor": "below the floor", "fate_budget": "no room", "fate_quota": "over its share",
        "fate_duplicate": "duplicate",
        "fate_superseded": "superseded", "fate_oversize": "too large", "fate_window": "outside the window",
        "fate_scope": "another scope",
        "fate_expired": "expired", "fate_empty": "empty", "fate_fault": "source failed", "fate_timeout": "too late",
        "fill_skip": "skip what does not fit", "fill_stop": "stop at the first",
        "broken": "This cannot be shown.", "shift": "Slide, and the same candidates are chosen anew.",
    },
    "zh": {
        "title": "ctx_vector 检查器", "builds": "构建记录", "knowledge": "知识库", "memory": "记忆",
        "reports": "报告", "search": "搜索", "session": "会话", "all": "全部", "query": "提问", "time": "时间",
        "tokens": "Token", "of": "/", "older": "更早", "newest": "最新", "none": "这里没有内容。",
        "no_audit": "没有审计日志：用 --audit 或 --kb 指定。",
        "no_kb": "没有知识库：用 --kb 指定。", "no_memory": "没有记忆：用 --memory 指定文件夹。",
        "no_reports": "没有报告：用 --reports 指定 HTML 报告所在的文件夹。",
        "context": "模型看到的上下文", "messages": "消息形式", "candidates": "候选",
        "kept": "保留", "dropped": "舍弃", "section": "段落", "source": "来源", "relevance": "相关度",
        "recency": "新近度", "score": "分数", "fate": "结果", "why": "原因", "text": "内容", "by_section": "按段落",
        "by_source": "按来源", "free": "空余", "what_if": "假如", "max_tokens": "预算（token）",
        "relevance_weight": "相关度权重", "min_relevance": "最低相关度", "fill": "填充方式",
        "recalculate": "重新计算", "reset": "恢复原样", "changes": "变化", "no_changes": "没有变化。",
        "compare": "比较", "compare_previous": "与上一次构建比较", "went": "移除",
        "came": "新增", "moved": "移动", "documents": "文档", "chunks": "片段",
        "n_documents": "{n} 个文档", "n_chunks": "{n} 个片段",
        "framing": "消息格式开销", "beside": "单独发送的工具定义", "fixed": "标题、任务与输出",
        "as_text": "作为文本 {text}，作为聊天消息 {messages}，以较大者为准。"
        "除系统指令、任务与输出外，其余最多可用 {shared}。",
        "would_take": "本需 {n} 个 token", "size": "本需的 token", "sort_by": "排序",
        "part_role": "角色与规则", "part_task": "任务", "part_state": "状态", "part_evidence": "证据",
        "part_context": "上下文", "part_output": "输出",
        "source_knowledge": "知识库", "source_memory": "记忆", "source_history": "对话历史",
        "type_working": "工作记忆", "type_episodic": "情景记忆", "type_semantic": "语义记忆",
        "type_profile": "用户画像",
        "source_documents": "传入文档", "source_custom": "自定义", "source_tools": "工具定义",
        "source_tool_results": "工具结果", "source_agent_outputs": "其他智能体", "source_images": "图片",
        "active": "当前", "try_query": "试一个问题", "lines": "行", "user": "用户",
        "importance": "重要性", "delete": "删除", "deleted": "已删除。", "sure": "彻底删除这条记忆？",
        "back": "返回", "not_found": "没有这个页面。", "language": "English", "other": "en",
        "skip": "跳到正文", "item": "候选", "metadata": "元数据",
        "purged": "这次构建的部分文本已被清除：{names}。", "too_small": "无法这样构建，下面是原来的构建。{error}",
        "settings": "这次构建的设置", "filter": "筛选",
        "cut": "还有 {count} 个字符", "id": "构建", "answered": "呈现为",
        "cut_pieces": "还有 {count} 条", "some_rows": "显示 {count} 条中的 {shown} 条。", "show_rows": "显示全部",
        "choose_two": "请在列表中选择两次构建进行比较。", "small_tokens": "token", "more": "还有 {count} 条",
        "before": "之前", "after": "之后", "changed": "内容改变", "shortened": "缩短", "rescored": "分数改变",
        "new": "新候选", "gone": "不再是候选", "state_of": "差异", "versions": "版本",
        "fate_full": "全文", "fate_extracted": "摘取", "fate_summarised": "概括", "fate_truncated": "截断",
        "fate_below_floor": "低于阈值", "fate_budget": "放不下", "fate_quota": "超出份额", "fate_duplicate": "重复",
        "fate_superseded": "已被取代", "fate_oversize": "过大", "fate_window": "窗口之外", "fate_scope": "其他范围",
        "fate_expired": "已过期", "fate_empty": "空", "fate_fault": "来源出错", "fate_timeout": "超时",
        "fill_skip": "跳过放不下的", "fill_stop": "遇到第一个就停止",
        "broken": "无法显示。", "shift": "拖动滑块，同一批候选会重新挑选。",
    },
}  # fmt: skip


def language_of(header: str) -> str:
    """Return `zh` when an Accept-Language header asks for Chinese before English, else `en`."""
    ranked: list[tuple[float, int, str]] = []
    for place, part in enumerate(header.split(",")):
        name, _, rest = part.strip().partition(";")
        try:
            weight = float(rest.strip().removeprefix("q=")) if rest.strip() else 1.0
        except ValueError:
            weight = 0.0
        ranked.append((-weight, place, name.casefold()[:2]))
    return next((name for _, _, name in sorted(ranked) if name in WORDS), "en")


def counted(number: int, forms: str) -> str:
    """Return a number with its noun, which has a form for one and a form for more, parted by ``|``."""
    one, _, more = forms.partition("|")
    return (one if number == 1 or not more else more).format(n=f"{number:,}")
