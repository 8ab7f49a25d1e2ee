"""JSON results on one line, and cut by rows and fields with counts."""

import json
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctx_vector import TokenCounter
from ctx_vector.escaping import escape, normalise
from ctx_vector.json_results import LeftOut, json_line, shorten_json

COUNTER = TokenCounter()
MARKED = re.compile(r"(.*)…\(\+(\d+)\)", re.S)
NOTE = "The customer called about the delivery, which was late. " * 8


def measure(line):
    return COUNTER.count(line + "\n")


def shorten(value, room, query=None):
    found = shorten_json(value, room, measure, query)
    assert found is not None
    text, left_out = found
    assert measure(text) <= room and "\n" not in text and normalise(text) == text == escape(text)
    return json.loads(text), left_out


def order(number, **more):
    return {"id": number, "status": "paid", "customer": f"Customer {number}", "note": NOTE, **more}


# -- the line ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{"b": 1, "a": [1, 2]}', '{"b":1,"a":[1,2]}'),
        ('{\n  "城市" : "北京",\r\n\t"x":null }', '{"城市":"北京","x":null}'),
        ('{"n": [1.50, 1e400, -0, 123456789012345678901, 1E+2]}', '{"n":[1.50,1e400,-0,123456789012345678901,1E+2]}'),
        (f'{{"n": {"9" * 5000}}}', f'{{"n":{"9" * 5000}}}'),
        (r'{"s": "\u57ce\u5e02 \/ \"q\" \\ \n a b"}', r'{"s":"城市 / \"q\" \\ \n a b"}'),
        ('{"a": 1, "a": 2}', '{"a":1,"a":2}'),
        ('{"a": NaN, "b": [Infinity, -Infinity], "c": "NaN"}', '{"a":"NaN","b":["Infinity","-Infinity"],"c":"NaN"}'),
        ('["a", "b"]', '{"items":["a","b"],"omitted":0}'),
        ("[ ]", '{"items":[],"omitted":0}'),
        ("{}", "{}"),
        ('{"result": null}', '{"result":null}'),
        (" 12.50 ", "12.50"),
        ("true", "true"),
        ('"a  b"', '"a  b"'),
        ('\ufeff{"a": 1}', '{"a":1}'),
        ('{"s": "a\u2028b\x85\x7f"}', r'{"s":"a\u2028b\u0085\u007f"}'),
        (r'{"s": "\ud800\u0000"}', '{"s":"\ufffd\\u0000"}'),
    ],
    ids=str,
)  # fmt: skip
def test_a_text_on_one_line(text, line):
    assert json_line(text) == line
    json.loads(line, parse_int=str)
    whole, left_out = shorten_json(text, 10_000, measure)
    assert left_out == LeftOut() and not left_out
    assert whole == line.replace('"a":1,"a":2', '"a":2')  # of double keys the last counts, once something is cut


@pytest.mark.parametrize(
    "text", ["", "no JSON", "{'a': 1}", '{"a": 1}\n{"a": 2}', '{"a": 1', "[1, 2,]", '{"a": "\n"}', "[" * 100_000]
)
def test_what_is_no_json_is_left_to_the_caller(text):
    assert json_line(text) is None and shorten_json(text, 100, measure) is None


def test_values_are_taken_like_texts():
    value = {"rows": ({"a": 1.5}, None, True), 5: "城", "nan": math.nan, "other": {1}}
    assert json_line(value) == '{"rows":[{"a":1.5},null,true],"5":"城","nan":"nan","other":"{1}"}'
    assert json_line([value])[:9] == '{"items":'
    assert json_line(None) == "null" and json_line(5) == "5"


@settings(deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
                    | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20),
       st.sampled_from([None, 2]), st.booleans())  # fmt: skip
def test_a_line_says_what_the_text_said(value, indent, ascii_only):
    line = json_line(json.dumps(value, indent=indent, ensure_ascii=ascii_only))
    clean = json.loads(json.dumps(value).encode("utf-8", "surrogatepass"))
    said = json.loads(line)
    expected = {"items": clean, "omitted": 0} if isinstance(clean, list) else clean
    assert json.dumps(said) == cleaned(expected)
    assert normalise(line) == line == escape(line) and "\n" not in line


def cleaned(value):
    """Return JSON in which lone surrogates are replaced, as everywhere in a context."""
    text = json.dumps(value, ensure_ascii=False)
    return json.dumps(json.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")))


# -- cutting by hand --------------------------------------------------------------------------------------------------


def test_rows_go_and_are_counted():
    rows = [order(number) for number in range(100)]
    found, left_out = shorten(rows, 400)
    assert list(found) == ["items", "omitted"]
    kept = found["items"]
    assert [row["id"] for row in kept] == list(range(len(kept))) and found["omitted"] == 100 - len(kept)
    assert len(kept) >= 10 and all(list(row) == list(order(0)) for row in kept)
    assert all(MARKED.fullmatch(row["note"]) for row in kept)
    assert left_out.rows == found["omitted"] and left_out.fields == 0
    assert left_out.characters == sum(int(MARKED.fullmatch(row["note"])[2]) for row in kept)


def test_ids_names_and_states_outlive_long_texts_and_all_rows_lose_the_same():
    rows = [order(number, **({"extra": [1]} if number == 5 else {}), phone="555") for number in range(100)]
    found, left_out = shorten({"orders": rows, "total": 100}, 210)
    assert found["total"] == 100 and found["orders_omitted"] == 100 - len(found["orders"])
    if "orders_omitted_fields" not in found:
        assert {tuple(row) for row in found["orders"]} <= {
            tuple(order(0, phone="")),
            tuple(order(0, extra=1, phone="")),
        }
    found, left_out = shorten({"orders": rows, "total": 100}, 100)
    assert {tuple(row) for row in found["orders"]} == {("id", "status", "customer", "phone")}
    assert found["orders_omitted_fields"] == 1 and left_out.fields == 1
    assert len(found["orders"]) >= 3


def test_what_lies_deep_becomes_a_count():
    geo = {"lat": 1.5, "lon": 2.5, "source": {"name": "survey " * 20, "year": 1999}}
    rows = [order(number, address={"city": "北京", "geo": geo}, lines=[{"sku": "a" * 50}] * 7) for number in range(50)]
    found, _ = shorten(rows, 150)
    for row in found["items"]:
        assert row["address_omitted"] == 2 and row["lines_omitted"] == 7 and "address" not in row
    found, _ = shorten({"a": {"b": {"c": {"d": {"e": {"text": NOTE * 9, "list": [NOTE] * 5}}}}}}, 30)
    assert found == {"a": {"b": {"c": {"d": {"e_omitted": 2}}}}}


def test_names_of_counts_keep_off_real_names():
    value = {"rows": [NOTE] * 50, "rows_omitted": "real", "omitted_fields": "real", "rows_omitted_": 1}
    found, _ = shorten(value, 60)
    assert found["rows_omitted"] == "real" and found["rows_omitted_"] == 1
    assert found["rows_omitted__"] == 50 - len(found.get("rows", []))
    rows = [
        {"tags": list(range(100)), "id": n} if n else {"tags": list(range(100)), "tags_omitted": 5} for n in range(4)
    ]
    found, _ = shorten(rows, 110)
    assert [row.get("tags_omitted") for row in found["items"]] == [5, None, None, None]
    assert all(row["tags_omitted_"] == 100 - len(row.get("tags", [])) for row in found["items"])


def test_arrays_in_arrays():
    found, left_out = shorten([[x * y for x in range(60)] for y in range(60)], 150)
    assert found["omitted"] == 60 - len(found["items"])
    for y, inner in enumerate(found["items"]):
        assert inner["items"] == [x * y for x in range(len(inner["items"]))]
        assert inner["omitted"] == 60 - len(inner["items"])
    assert left_out.rows == found["omitted"] + sum(inner["omitted"] for inner in found["items"])


def test_maps_of_many_keys_lose_fields():
    found, left_out = shorten({f"key{n}": {"name": f"Name {n}", "size": n} for n in range(500)}, 200)
    gone = found.pop("omitted_fields")
    assert left_out == LeftOut(fields=gone) and gone == 500 - len(found) and len(found) >= 4
    assert all(value == {"name": f"Name {key[3:]}", "size": int(key[3:])} for key, value in found.items())


def test_long_strings_fill_the_room_and_keep_characters_whole():
    for text in (NOTE * 50, "数据框的内存可以缩小。" * 300, "👨‍👩‍👧‍👦" * 400, "e\u0301" * 2000):
        found, left_out = shorten({"title": "short", "content": text}, 300)
        kept, count = MARKED.fullmatch(found["content"]).groups()
        assert text.startswith(kept) and len(text) - len(kept) == int(count) == left_out.characters
        assert text[len(kept)] not in "\u200d\u0301" and found["title"] == "short"
        assert COUNTER.count(json.dumps(found, ensure_ascii=False, separators=(",", ":"))) > 250
    found, _ = shorten(json.dumps(NOTE * 50), 40)
    assert NOTE.startswith(MARKED.fullmatch(found)[1][:40])


def test_the_rows_nearest_to_a_query_stay_in_their_order():
    rows = [{"id": n, "text": f"about topic {n} " + "and so on " * 20} for n in range(300)]
    rows[250]["text"] = "红色雨伞的退货政策" + "and so on " * 20
    rows[40]["text"] = "umbrella returns " + "and so on " * 20
    assert [row["id"] for row in shorten(rows, 150, "雨伞怎么退货")[0]["items"]][-1] == 250
    ids = [row["id"] for row in shorten(rows, 150, "umbrella 雨伞")[0]["items"]]
    assert {40, 250} <= set(ids) and ids == sorted(ids)
    ids = [row["id"] for row in shorten(rows, 150, "nothing of that kind")[0]["items"]]
    assert ids == list(range(len(ids)))
    many = [{"id": n, "text": f"topic{n}"} for n in range(20_000)]  # too many to rank by more than their words
    assert 15_151 in [row["id"] for row in shorten(many, 100, "where is topic15151?")[0]["items"]]


def test_what_cannot_be_shown_at_all():
    assert shorten_json('{"a": 1}', 0, measure) is None
    assert shorten_json("1234567890123456789014567890", 3, measure) is None
    assert shorten([NOTE] * 1000, 12) == ({"items": [], "omitted": 1000}, LeftOut(rows=1000))
    assert shorten({NOTE: 1}, 10) == ({"omitted_fields": 1}, LeftOut(fields=1))
    assert str(LeftOut(1, 2, 0)) == "1 row, 2 fields left out" and str(LeftOut()) == "nothing left out"


@pytest.mark.parametrize("query", [None, "n50230 产品"])
def test_ten_megabytes_are_not_counted_whole(query):
    rows = [
        {"id": n, "name": f"n{n}", "price": n * 1.25, "text": "lorem ipsum " * 5, "tags": ["a", "b"]}
        for n in range(75_000)
    ]
    text = json.dumps({"rows": rows})
    assert len(text) > 10_000_000
    seen = []

    def counted(line):
        seen.append(len(line))
        return measure(line)

    shown, left_out = shorten_json(text, 2_000, counted, query)
    assert measure(shown) > 1_800 and left_out.rows > 74_000
    assert sum(seen) < 400_000 and len(seen) < 60
    if query and "n50230" in query:
        assert '"n50230"' in shown


# -- any JSON in any room ---------------------------------------------------------------------------------------------


KEYS = st.sampled_from(
    ["id", "name", "text", "items", "omitted", "omitted_fields", "名称", "a", "a_omitted", "", "x" * 60]
)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=30),
    st.sampled_from([NOTE, "数据框的内存。" * 30, "…(+5)", "\u2028" * 60, "\ud800" * 50, '"\\' * 40]),
)  # fmt: skip
FIELDS = {"id": SCALARS, "text": SCALARS, "a": SCALARS, "sub": st.lists(SCALARS)}
ROWS = st.lists(st.fixed_dictionaries({}, optional=FIELDS), max_size=30)
VALUES = st.recursive(
    SCALARS | ROWS,
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(KEYS, inner, max_size=12),
    max_leaves=25,
)


class Check:
    """Holds a shortened value to its original: what is shown was there, in its place, and the counts are right."""

    def __init__(self):
        self.rows = self.fields = self.characters = 0

    def same(self, before, after):
        if isinstance(before, str) and after != before:
            kept, count = MARKED.fullmatch(after).groups()
            assert before.startswith(kept) and len(before) - len(kept) == int(count)
            self.characters += int(count)
        elif isinstance(before, list):
            self.array(before, after)
        elif isinstance(before, dict):
            self.object(before, after)
        else:
            assert type(before) is type(after) and before == after

    def array(self, before, after, closed=False):
        if isinstance(after, list):
            assert not closed and len(after) == len(before)
            for one, other in zip(before, after, strict=True):
                self.same(one, other)
            return
        assert after.keys() <= {"items", "omitted", "omitted_fields"}
        self.rows += after["omitted"]
        kept = after.get("items", [])
        assert len(kept) + after["omitted"] == len(before)
        self.shown_rows(before, kept, after.get("omitted_fields", 0))

    def shown_rows(self, before, kept, gone):
        """Without a query the first rows stay; of those that are objects the same fields go."""
        self.fields += gone
        rows = before[: len(kept)]
        names = set().union(*(row for row in rows if isinstance(row, dict)))
        pairs = zip(rows, kept, strict=True)
        stay = set().union(*(self.names_shown(row, new) for row, new in pairs if isinstance(row, dict)))
        assert len(names - stay) == gone
        for row, new in zip(rows, kept, strict=True):
            if isinstance(row, dict):
                self.object({key: row[key] for key in row if key in stay}, new, names)
            else:
                self.same(row, new)

    @staticmethod
    def names_shown(before, after):
        shown = set()
        for key in before:
            counted = any(name.rstrip("_") == f"{key}_omitted".rstrip("_") and name not in before for name in after)
            if key in after or counted:
                shown.add(key)
        return shown

    def object(self, before, after, taken=()):
        rest = dict(after)
        shown = self.names_shown(before, after)
        for key in before:
            if key not in shown:
                continue
            counts = {
                word: [name for name in after if name.startswith(f"{key}_{word}") and name not in before
                       and name[len(f"{key}_{word}"):].strip("_") == "" and name not in taken]
                for word in ("omitted", "omitted_fields")
            }  # fmt: skip
            missed = sum(rest.pop(name) for name in counts["omitted"])
            gone = sum(rest.pop(name) for name in counts["omitted_fields"])
            if key in after:
                kept = rest.pop(key)
                if isinstance(before[key], list):
                    assert isinstance(kept, list) and len(kept) + missed == len(before[key])
                    self.rows += missed
                    self.shown_rows(before[key], kept, gone)
                else:
                    self.same(before[key], kept)
            elif isinstance(before[key], list):
                assert missed == len(before[key]) > 0
                self.rows += missed
            else:
                assert missed == len(before[key]) > 0
                self.fields += missed
        gone = len(before) - len(shown)
        assert len(rest) == (gone > 0) and all(name.strip("_") == "omitted_fields" for name in rest)
        assert sum(rest.values()) == gone
        self.fields += gone


@settings(max_examples=150, deadline=None)
@given(VALUES, st.integers(1, 400))
def test_any_json_in_any_room(value, room):
    value = json.loads(cleaned(value))
    found = shorten_json(json.dumps(value), room, measure)
    if found is None:
        free = next(
            name
            for n in range(9)
            if (name := "omitted_fields" + "_" * n) not in (value if isinstance(value, dict) else ())
        )
        smallest = {free: len(value)} if isinstance(value, dict) else value
        smallest = {"items": [], "omitted": len(value)} if isinstance(value, list) else smallest
        line = json.dumps(smallest, separators=(",", ":"), ensure_ascii=False)
        assert isinstance(value, str) or measure(line) > room
        return
    text, left_out = found
    assert measure(text) <= room and normalise(text) == text == escape(text)
    check = Check()
    after = json.loads(text)
    if isinstance(value, list):
        check.array(value, after, closed=True)
    else:
        check.same(value, after)
    assert (check.rows, check.fields, check.characters) == (left_out.rows, left_out.fields, left_out.characters)
    whole = json_line(json.dumps(value))
    if measure(whole) <= room:
        assert text == whole
    assert shorten_json(json.dumps(value), room, measure) == found


@settings(max_examples=100, deadline=None)
@given(VALUES, st.integers(1, 200), st.sampled_from(["customer delivery", "内存 数据", "text"]))
def test_a_query_changes_only_which_rows_stay(value, room, query):
    value = json.loads(cleaned(value))
    found = shorten_json(json.dumps(value), room, measure, query)
    assert (found is None) == (shorten_json(json.dumps(value), room, measure) is None)
    if found is not None:
        assert measure(found[0]) <= room
        whole = json.dumps(value, ensure_ascii=False)
        for row in scalars(json.loads(found[0])):
            marked = isinstance(row, str) and MARKED.fullmatch(row)
            part = json.dumps(marked[1] if marked else row, ensure_ascii=False)
            assert (part[:-1] if marked else part) in whole or isinstance(row, int)


def scalars(value):
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from scalars(item)
    else:
        yield value
