"""Texts with hardly a word of any language: how near they are to every question, and what relevance they get.

    python benchmarks/wordless.py

Some texts of each kind, from one line to ten, before questions of everyday life that none of them answers, in Chinese
and in English. For each kind: the mean cosine with the background's questions (`to_all`), which is what calibration.py
takes away where it is more than usual; the mean relevance of the unrelated pairs and the share over 0.3; and both as
they would be if nothing were taken away. Writes benchmarks/results/wordless.json.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from common import hardware, write_result

from ctx_vector import load_encoder
from ctx_vector.calibration import load_calibration
from ctx_vector.languages import LANGUAGES, language_of

QUESTIONS = {
    "zh": [
        "保修期是多久？", "年假有几天？", "运输时的倾斜角度", "谁来浇花？", "附近有什么好吃的餐馆？",
        "他为什么辞职了？", "上周的会议决定了什么？", "如何清洗咖啡机", "冰川是怎样形成的？", "图书馆在哪里",
        "孩子发烧怎么办？",
    ],
    "en": [
        "How many days of leave do I get?", "Who waters the plants?", "Why did he resign?", "How do glaciers form?",
        "What did we decide last week?", "Where is the library?", "What helps against fever?",
        "Who signs the contract?", "At what angle may it be tilted?", "How do I clean the coffee machine?",
        "How long is the warranty?",
    ],
}  # fmt: skip
GIVEN = {
    "code": [
        "def f(x): return x", "for (int i = 0; i < n; ++i) { a[i] += b[i]; }", "SELECT id FROM t WHERE a > 30;",
        "import numpy as np\n\ndef norm(v):\n    return v / np.linalg.norm(v)\n", '<div class="b"><i></i></div>',
    ],
    "stack traces": [
        'Traceback (most recent call last):\n  File "m.py", line 12, in <module>\n    run()\nKeyError: "id"',
        "java.lang.NullPointerException\n\tat com.acme.Foo.bar(Foo.java:42)\n\tat com.acme.Main.main(Main.java:7)",
    ],
    "addresses": ["https://example.com/a/b?id=12&x=9", "http://10.0.0.1:8080/health", "user@example.com"],
    "settings": ["[server]\nhost = 0.0.0.0\nport = 8080\n", "timeout: 30\nretries: 3\n", "DB_PORT=5432\nDEBUG=1"],
    "names": ["max_speed_mps", "KX3-GEAR-07", "getUserById", "A-1", "TODO", "N/A"],
    "signs": ["---", "😀😀", "=> <=", "| | |\n|---|---|"],
    "single words": ["battery", "hello", "invoice", "error"],
    "pinyin": ["Women mingtian qu Beijing", "Kafeiji mei zhou qingxi yi ci"],
    "Chinese with code": ["用 pip install numpy==1.26.4 安装。", "调用 getUserById(id) 返回 user 对象。"],
    "English prose": [
        "The cat sleeps on the window sill.", "She paid forty euros for the ticket, and got nine back at the till.",
        "Glaciers carve valleys as they move downhill.", "Restart the router before you call support.",
    ],
    "Chinese prose": ["猫睡在窗台上。", "她花四十欧元买了车票，找回九欧元。", "打电话求助之前请先重启路由器。"],
}  # fmt: skip


def made() -> dict[str, list[str]]:
    rng = random.Random(7)
    number = rng.randint
    row = {
        "CSV": lambda: f"{rng.choice('ABCKR')}-{number(1, 99)},{number(1, 400)},{number(100, 99999) / 100:.2f}",
        "JSON": lambda: f'{{"id": {number(1, 999)}, "x": {number(0, 99) / 10}, "ok": null}}',
        "logs": lambda: f"2024-05-0{number(1, 9)} 1{number(0, 9)}:{number(10, 59)} INFO job={rng.getrandbits(32):08x}",
        "hashes": lambda: f"{rng.getrandbits(160):040x}",
        "versions": lambda: f"v{number(0, 9)}.{number(0, 20)}.{number(0, 9)}",
        "numbers": lambda: str(number(1, 9999)),
    }
    return {kind: ["\n".join(one() for _ in range(lines)) for lines in (1, 3, 10)] for kind, one in row.items()}


def shown(scores: np.ndarray) -> dict[str, float]:
    return {"mean": round(float(scores.mean()), 3), "over_0.3": round(float((scores > 0.3).mean()), 3)}


def main() -> None:
    encoder = load_encoder()
    known = load_calibration(encoder)
    kinds: dict[str, Any] = {}
    asked = {name: encoder.encode_queries(questions) for name, questions in QUESTIONS.items()}
    for kind, texts in (made() | GIVEN).items():
        vectors, said = encoder.encode_documents(texts), [language_of(text) for text in texts]
        kinds[kind] = {}
        for name in LANGUAGES:
            scores, plain = [], []
            for question, vector in zip(QUESTIONS[name], asked[name], strict=True):
                query = known.asked(question, vector)
                points = query.points(said)
                scores.append(query.relevance(query.excess(vectors, points)[0], points))
                plain.append(query.relevance(query.excess_of((vectors @ vector).astype(np.float64), points), points))
            kinds[kind][name] = {
                "to_all": round(float((vectors @ known.questions[name]).mean()), 3),
                "relevance": shown(np.array(scores)),
                "with_nothing_taken_away": shown(np.array(plain)),
            }
        print(f"{kind:18}", kinds[kind], flush=True)
    result = {"what": "relevance of texts without words to unrelated questions", "hardware": hardware(), "kinds": kinds}
    write_result("wordless", result)


if __name__ == "__main__":
    main()
