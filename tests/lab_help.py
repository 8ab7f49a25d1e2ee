"""Small data sets for the tests of the laboratory, in both languages."""

from __future__ import annotations

import json
from pathlib import Path

FACTS = [
    ("d1", "The library opens at nine in the morning on weekdays.", "2024-01-05"),
    ("d2", "图书馆周末上午十点开门，下午五点关门。", "2024-01-06"),
    ("d3", "Borrowed books can be kept for four weeks.", "2024-01-07"),
    ("d4", "逾期还书每天罚款两元。", "2024-01-08"),
    ("d5", "The reading room on the second floor has forty seats and power at every desk.", "2024-01-09"),
    ("d6", "打印机在一楼入口旁边，每页收费五角。", "2024-01-10"),
    ("d7", "Students may reserve a study room for two hours a day.", "2024-01-11"),
    ("d8", "The library opened at eight before the summer of 2023.", "2022-05-01"),
    ("d9", "食堂的午餐从十一点半供应到一点。", "2024-01-12"),
    ("d10", "The bicycle shed behind the gym is locked at night.", "2024-01-13"),
]
ASKED = [
    ("q1", "When does the library open on weekdays?", {"d1": 2, "d8": 0}, "opening"),
    ("q2", "周末图书馆几点开门？", {"d2": 2}, "opening"),
    ("q3", "How long may I keep a book?", {"d3": 1, "d4": 1}, "lending"),
    ("q4", "打印一页多少钱？", {"d6": 1}, "printing"),
    ("q5", "Where can I plug in my laptop?", {"d5": 1}, "rooms"),
    ("q6", "还书晚了要交多少钱？", {"d4": 1}, "lending"),
]


def lines(items) -> str:
    return "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items)


def write_beir(folder: Path, *, session: bool = False, collection: str = "") -> Path:
    """Write the facts above as a BEIR folder; with `session` they are turns of a conversation."""
    (folder / "qrels").mkdir(parents=True)
    more = {"collection": collection} if collection else {}
    documents = [
        {"_id": id_, "title": "", "text": text, "timestamp": stamp, **more}
        | ({"session": "s1", "role": "Ada" if number % 2 else "Bo"} if session else {})
        for number, (id_, text, stamp) in enumerate(FACTS)
    ]
    queries = [
        {"_id": id_, "text": text, "now": "2024-02-01", "category": category, **more}
        for id_, text, _, category in ASKED
    ]
    rows = [f"{id_}\t{document}\t{grade}\n" for id_, _, grades, _ in ASKED for document, grade in grades.items()]
    (folder / "corpus.jsonl").write_text(lines(documents), encoding="utf-8")
    (folder / "queries.jsonl").write_text(lines(queries), encoding="utf-8")
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(rows), encoding="utf-8")
    return folder
