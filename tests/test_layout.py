"""Layout: its running sums are the exact counts of what it renders, after every step."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_help import FRAGMENTS, STEADY, chaos, message_tokens, short_chaos, tokens

from ctx_vector import ContextConfig, ContextPacket, TokenCounter
from ctx_vector.layout import Layout
from ctx_vector.packets import Candidate, Message
from ctx_vector.structure import TEXTS, Template, slot_of
from ctx_vector.tokens import ending

COUNTER = TokenCounter()
KINDS = [
    "knowledge",
    "agent_output",
    "memory",
    "general",
    "conversation_history",
    "task_state",
    "system_instruction",
    "Notes",
]


def candidate(kind, text, role):
    metadata = {"section": "Notes"} if kind == "Notes" else {"type": kind, "role": role}
    packet = ContextPacket(text, metadata={**metadata, "cite": "a.md:1" if role == "user" else ""})
    message = Message(text, role) if kind == "conversation_history" else None
    return Candidate(packet, "x", message=message)


steps = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        chaos,
        st.sampled_from(["user", "assistant"]),
        st.integers(0, 9),
        st.booleans(),
        st.booleans(),
    ),
    max_size=14,
)


def hold_sizes(query, moves, style, evidence):
    config = ContextConfig(messages_style=style, evidence_style=evidence, citations=True)
    template = Template(config, COUNTER, query, ["user", "assistant"])
    layout = template.layout(["Notes"])
    put = []

    def compare():
        size = layout.size()
        text, messages = layout.text(), layout.messages()
        assert (size.text, size.messages) == (tokens(text), message_tokens(messages))
        assert layout.render() == (text, messages, size.text, size.messages)
        assert sum(row[1] for row in layout.rows()) == size.text
        assert size.total == max(size.text, size.messages)
        assert sum(layout.parts().values()) == size.text

    compare()
    fixed = layout.size()
    layout.fix()
    assert layout.size().shared == 0 and layout.size().text == fixed.text
    for kind, text, role, order, shortened, take in moves:
        made = candidate(kind, text, role)
        body = template.body(made)
        if not body:
            continue
        slot = slot_of(made)
        piece = template.piece(made, slot, (order,), body, shortened=shortened)
        layout.add(*slot, piece)
        put.append((slot, piece))
        compare()
        assert layout.size().shared_text <= layout.size().text - fixed.text
        if take and put:
            slot, piece = put.pop(order % len(put))
            layout.remove(*slot, piece)
            compare()
    for slot, piece in put:
        layout.remove(*slot, piece)
    assert (layout.size().text, layout.size().messages) == (fixed.text, fixed.messages)


@settings(STEADY, max_examples=120)
@given(short_chaos, steps, st.sampled_from(["single", "split"]), st.sampled_from(["plain", "numbered"]))
def test_the_sums_are_the_exact_counts_after_every_step(query, moves, style, evidence):
    hold_sizes(query, moves, style, evidence)


@settings(STEADY, max_examples=800)
@given(st.one_of(chaos, st.text(alphabet=" .!?-'\"a1字é\u0301\t…¹½", max_size=20)))
def test_the_end_of_a_text_decides_what_a_blank_line_costs(text):
    text = text.encode("utf-8", "replace").decode()
    end = ending(text + "\n")
    assert (text + "\n").endswith(end)
    assert tokens(end + "\n") - tokens(end) == tokens(text + "\n\n") - tokens(text + "\n")


def test_the_end_of_every_pair_of_fragments():
    for one, other in itertools.product(FRAGMENTS, repeat=2):
        text = (one + other).encode("utf-8", "replace").decode() + "\n"
        end = ending(text)
        assert tokens(end + "\n") - tokens(end) == tokens(text + "\n") - tokens(text)


def test_sections_stand_in_the_order_of_the_template_whatever_comes_first():
    template = Template(ContextConfig(), COUNTER, "q")
    layout = template.layout(["B", "A"])
    for kind in reversed(KINDS):
        made = candidate(kind, kind, "user")
        slot = ("A", "items") if kind == "Notes" else slot_of(made)
        layout.add(*slot, template.piece(made, slot, (0,), kind))
    names = ["Role & Policies", "Task", "State", "A", "Evidence", "Context", "Output"]
    assert list(layout.bodies()) == names
    assert [line[1:-1] for line in layout.text().split("\n") if line.startswith("[") and line[1:-1] in names] == names


def test_an_empty_layout_is_task_and_output():
    layout = Layout(COUNTER, TEXTS["en"])
    assert layout.text() == "[Task]\n\n[Output]\n"
    assert layout.messages() == [{"role": "system", "content": "[Output]\n"}]
    assert layout.size().text == tokens("[Task]\n\n[Output]\n")
