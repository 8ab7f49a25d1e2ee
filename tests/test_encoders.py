"""Encoders: the same bits in any company, near float32, light, and what wraps them."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

from ctx_vector import ContextBuilder, ContextConfig, KnowledgeBase, Memory, MemoryTool, RAGTool
from ctx_vector.encoders import CachedEncoder, OnnxEncoder, SentenceTransformerEncoder, load_encoder
from ctx_vector.errors import ConfigError, InputError, ModelError
from ctx_vector.model_store import model_dir
from ctx_vector.stages import Encoder

E5 = "multilingual-e5-small"

EN = (
    "Reading a large CSV file with pandas takes several times its size in memory.",
    "Use the chunksize argument to read a file in parts and aggregate as you go.",
    "A category column stores each distinct string once and small integers for the rows.",
    "The meeting moved to Thursday because the projector in room four is broken.",
    "Bake the bread at 230 degrees for twenty minutes, then lower the heat.",
    "def add(a: int, b: int) -> int:\n    return a + b",
    '{"id": 17, "name": "pump", "pressure": 2.4, "tags": ["north", "spare"]}',
    "She plays the cello in a small orchestra that rehearses on Sundays.",
)
ZH = (
    "用 pandas 读取很大的 CSV 文件时，内存占用可能是文件大小的好几倍。",
    "可以用 chunksize 参数分块读取文件，边读边汇总。",
    "类别类型的列只保存一次不同的字符串，每一行只存一个小整数。",
    "会议改到星期四了，因为四号会议室的投影仪坏了。",
    "面包先用二百三十度烤二十分钟，然后把温度调低。",
    "她在一个小乐团里拉大提琴，每个星期天排练。",
    "这台水泵的压力是二点四巴，属于北区的备用设备。",
    "昨天晚上下了一场大雨，河水涨了半米。",
)
ODD = (
    "",
    " ",
    "🙂",
    "<s>",
    "a\0b",
    "\ud800 lone",
    "x" * 3000,
    "字" * 2000,
    "ﷺ" * 200,
    "https://example.org/?q=1&r=%20",
)


def mixed(count: int, seed: int = 1) -> list[str]:
    """Return distinct texts of both languages, from a sentence to a page long."""
    rng = random.Random(seed)
    texts: dict[str, None] = {}
    while len(texts) < count:
        pool = rng.choice((EN, ZH, EN + ZH))
        texts[" ".join(rng.choices(pool, k=rng.randint(1, 12)))] = None
    return list(texts)


def read_texts(path: Path, step: int = 1) -> list[str]:
    return [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").splitlines()[::step]]


@pytest.fixture(scope="module")
def encoder(forgetful):
    return forgetful


# Shape and meaning


def test_protocol(encoder):
    assert isinstance(encoder, Encoder)
    assert (encoder.name, encoder.dim, encoder.max_tokens) == (E5, 384, 512)
    assert encoder.fingerprint.startswith(E5)


def test_rows_are_unit_float32(encoder):
    vectors = encoder.encode_documents([*EN, *ODD])
    assert vectors.shape == (len(EN) + len(ODD), 384)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_empty_list(encoder):
    for encode in (encoder.encode_queries, encoder.encode_documents):
        assert encode([]).shape == (0, 384)
        assert encode([]).dtype == np.float32
    assert list(encoder.count_tokens([])) == []


def test_prompts_differ(encoder):
    query, document = encoder.encode_queries(EN[:1]), encoder.encode_documents(EN[:1])
    assert not np.array_equal(query, document)


def test_one_string_is_refused(encoder):
    for call in (encoder.encode_queries, encoder.encode_documents, encoder.count_tokens):
        with pytest.raises(InputError, match="put it in a list"):
            call("text")
    with pytest.raises(InputError, match="put it in a list"):
        CachedEncoder(encoder).encode_queries("text")


def test_a_question_finds_its_answer_in_both_languages(encoder):
    documents = encoder.encode_documents(EN + ZH)
    queries = encoder.encode_queries(["how to read a big csv with little memory", "会议改到哪一天？", "谁会拉大提琴"])
    best = (queries @ documents.T).argmax(1)
    assert best[0] in (0, 1, 8, 9)
    assert best[1] in (3, 11)
    assert best[2] in (7, 13)


# The same bits


def test_bits_alone_in_company_in_any_order(encoder):
    texts = mixed(12) + list(ODD)
    together = encoder.encode_documents(texts)
    order = list(range(len(texts)))
    random.Random(2).shuffle(order)
    shuffled = encoder.encode_documents([texts[i] for i in order])
    np.testing.assert_array_equal(shuffled, together[order])
    for i in range(0, len(texts), 5):
        np.testing.assert_array_equal(encoder.encode_documents([texts[i]])[0], together[i])


def test_bits_under_threads_and_across_sessions(encoder):
    texts = mixed(10, seed=3)
    expected = encoder.encode_documents(texts)
    for threads in (1, 3):
        other = OnnxEncoder(model_dir(E5), threads=threads)
        np.testing.assert_array_equal(other.encode_documents(texts), expected)
        other.close()
    results: list[np.ndarray] = [np.empty(0)] * 4

    def run(slot: int) -> None:
        results[slot] = encoder.encode_documents(texts[slot:])

    workers = [threading.Thread(target=run, args=(slot,)) for slot in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for slot, result in enumerate(results):
        np.testing.assert_array_equal(result, expected[slot:])


def test_bits_across_processes_and_tokenizers(encoder):
    texts = [*EN[:3], *ZH[:3], "ﬁ ª\u0301 <s> x"]
    encoder._load_library()
    expected = encoder.encode_documents(texts)
    code = (
        "import sys; from ctx_vector.encoders import load_encoder\n"
        f"v = load_encoder().encode_documents({texts!r})\n"
        "bad = {'torch', 'transformers', 'tokenizers', 'sentence_transformers', 'onnx'} & set(sys.modules)\n"
        "assert not bad, bad\n"
        "sys.stdout.buffer.write(v.tobytes())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60)
    np.testing.assert_array_equal(np.frombuffer(done.stdout, np.float32).reshape(-1, 384), expected)


def test_torch_is_not_imported_for_many_texts(encoder):
    code = (
        "import sys; from ctx_vector.encoders import load_encoder\n"
        "e = load_encoder(); texts = ['word ' * 90 + str(i) for i in range(60)]\n"
        "assert e.encode_documents(texts[:3] + ['long ' * 5000]).shape == (4, 384); e.count_tokens(texts)\n"
        "bad = {'torch', 'transformers', 'sentence_transformers', 'onnx'} & set(sys.modules); assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_text_given_twice_is_encoded_once(encoder):
    done = []
    vectors = encoder.encode_documents([EN[0], EN[1], EN[0]], progress=lambda n, total: done.append((n, total)))
    assert done == [(1, 2), (2, 2)]
    np.testing.assert_array_equal(vectors[0], vectors[2])


# Tokens


def test_count_is_without_truncation_and_the_same_alone_or_in_bulk(encoder):
    texts = [*EN, *ZH, *ODD, "word " * 5000]
    fresh = OnnxEncoder(model_dir(E5))
    alone = [fresh.count_tokens([text])[0] for text in texts[:-1]]  # by the small tokenizer
    bulk = list(encoder.count_tokens(texts))  # by the library
    assert bulk[:-1] == alone
    assert bulk[-1] > 5000
    assert alone[0] == len(fresh.token_ids(EN[0]))


def test_truncation(encoder):
    words = "alpha beta gamma delta " * 400
    ids = encoder.token_ids(words)
    assert len(ids) == 512
    assert (ids[0], ids[-1]) == (0, 2)
    np.testing.assert_array_equal(encoder.encode_documents([words])[0], encoder.encode_documents([words + "more"])[0])


def test_a_very_long_text_is_cut_before_it_is_tokenised(encoder):
    for unit in ("lorem ipsum dolor ", "一行中文字符\n", "x" * 40 + " "):
        text = unit * (100_000 // len(unit))
        whole = encoder._all_ids("passage: " + text)
        assert len(whole) > 512
        assert encoder.token_ids(text) == [*whole[:511], whole[-1]]
    assert len(encoder.token_ids("\n" * 100_000 + "end")) < 10  # nothing is lost behind a run of blank lines


# Against float32


@pytest.fixture(scope="module")
def reference(encoder):
    """The same folder under sentence-transformers, torch and float32."""
    import torch

    torch.set_num_threads(1)  # on a busy machine torch's threads mostly wait for one another
    return SentenceTransformerEncoder(model_dir(E5))


@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_int8_is_near_float32(encoder, reference, count):
    texts = mixed(200, seed=4)
    shared = Path(__file__).resolve().parent.parent.parent / "shared" / "datasets"
    if shared.is_dir():
        counts = {"xquad-en": 30, "xquad-zh": 30, "locomo-26": 70, "locomo-30": 70}
        texts = [text for name, n in counts.items() for text in read_texts(shared / name / "corpus.jsonl")[:n]]
    texts = texts[:: len(texts) // count]
    cosines = (encoder.encode_documents(texts) * reference.encode_documents(texts)).sum(1)
    assert len(cosines) == count
    assert np.median(cosines) >= 0.99
    assert cosines.min() >= 0.97
    queries = (encoder.encode_queries(EN + ZH) * reference.encode_queries(EN + ZH)).sum(1)
    assert queries.min() >= 0.97


def test_token_ids_equal_those_of_transformers(encoder, reference):
    texts = [*EN, *ZH, *mixed(30, seed=5), *(text for text in ODD if text.isprintable() or "\0" in text)]
    tokenizer = reference._model.tokenizer
    expected = tokenizer(["passage: " + text for text in texts], truncation=True, max_length=512)["input_ids"]
    assert [encoder.token_ids(text) for text in texts] == expected
    assert reference.count_tokens(texts) == encoder.count_tokens(texts)


def test_sentence_transformer_encoder(reference, encoder):
    assert isinstance(reference, Encoder)
    assert (reference.name, reference.dim, reference.max_tokens) == (E5, 384, 512)
    texts = [*EN[:3], EN[0], ZH[0], ODD[5]]
    together = reference.encode_documents(texts)
    assert together.dtype == np.float32
    np.testing.assert_array_equal(together[0], together[3])
    np.testing.assert_array_equal(reference.encode_documents(texts[4:5])[0], together[4])
    assert reference.encode_queries([]).shape == (0, 384)
    assert reference.fingerprint != encoder.fingerprint
    assert SentenceTransformerEncoder(model_dir(E5)).fingerprint == reference.fingerprint


@pytest.mark.parametrize("which", ["encoder", "reference"])
def test_blanks_around_a_text_change_nothing(which, request):
    model, texts = request.getfixturevalue(which), ["How do I declare a path parameter?", "如何声明路径参数？"]
    padded = [f"\r\n {text}\u3000\n \n" for text in texts]
    np.testing.assert_array_equal(model.encode_queries(padded), model.encode_queries(texts))
    np.testing.assert_array_equal(model.encode_documents(padded), model.encode_documents(texts))
    for some, same in zip(model.encode_tokens(padded), model.encode_tokens(texts), strict=True):
        np.testing.assert_array_equal(some, same)


def test_minilm(encoder):
    small = load_encoder("all-MiniLM-L6-v2")
    assert (small.dim, small.max_tokens) == (384, 256)
    vectors = small.encode_documents(EN)
    best = (small.encode_queries(["who plays an instrument?", "baking temperature"]) @ vectors.T).argmax(1)
    assert best.tolist() == [7, 4]
    theirs = SentenceTransformerEncoder(model_dir("all-MiniLM-L6-v2"))
    assert np.median((vectors * theirs.encode_documents(EN)).sum(1)) >= 0.98
    assert small.count_tokens(EN) == theirs.count_tokens(EN)


def recall_at_1(encoder, folder: Path) -> float:
    """Return the share of questions whose paragraph comes first."""
    corpus = [json.loads(line) for line in (folder / "corpus.jsonl").read_text(encoding="utf-8").splitlines()]
    queries = [json.loads(line) for line in (folder / "queries.jsonl").read_text(encoding="utf-8").splitlines()]
    rows = [line.split("\t") for line in (folder / "qrels" / "test.tsv").read_text(encoding="utf-8").splitlines()[1:]]
    relevant = {(query, document) for query, document, *_ in rows}
    documents = encoder.encode_documents([row["text"] for row in corpus])
    best = (encoder.encode_queries([row["text"] for row in queries]) @ documents.T).argmax(1)
    hits = [(query["_id"], corpus[i]["_id"]) in relevant for query, i in zip(queries, best, strict=True)]
    return sum(hits) / len(hits)


@pytest.mark.slow  # test_calibration.py has the like for a sample
@pytest.mark.parametrize(("name", "least"), [("xquad-en", 0.92), ("xquad-zh", 0.88), ("xquad-zh-en", 0.66)])
def test_xquad(encoder, shared, name, least):
    assert recall_at_1(encoder, shared / "datasets" / name) >= least


# Opening


def test_load_encoder_by_path(encoder):
    assert load_encoder(model_dir(E5)).fingerprint == encoder.fingerprint
    assert load_encoder(str(model_dir(E5))).fingerprint == encoder.fingerprint


def test_what_cannot_be_opened(tmp_path, encoder):
    with pytest.raises(ModelError, match="holds no prepared model"):
        OnnxEncoder(tmp_path)
    with pytest.raises(ModelError, match="unknown model"):
        load_encoder(tmp_path / "none")
    with pytest.raises(ModelError, match="sentence-transformers cannot load"):
        load_encoder(tmp_path)
    with pytest.raises(InputError, match="threads: expected an integer >= 1, got 0"):
        OnnxEncoder(model_dir(E5), threads=0)


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_interrupt_stops_promptly(encoder):
    code = (
        "from ctx_vector.encoders import load_encoder\n"
        "e = load_encoder(threads=2)\n"
        "def progress(n, total):\n    if n == 2: print('started', flush=True)\n"
        "e.encode_documents([f'{i} ' * 500 for i in range(3000)], progress=progress)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    try:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)  # all of it would take minutes
    finally:
        process.kill()
    assert "KeyboardInterrupt" in err


def test_a_failing_worker_reaches_the_caller(encoder, monkeypatch):
    other = OnnxEncoder(model_dir(E5), threads=2)

    def fail(text: str, *outputs: str) -> list[np.ndarray]:
        raise OSError("disk gone")

    monkeypatch.setattr(other, "_run", fail)
    with pytest.raises(OSError, match="disk gone"):
        other.encode_documents(list(EN))
    monkeypatch.undo()
    assert other.encode_documents(list(EN)).shape == (8, 384)


# The cache


class Counting:
    """An encoder that records what it is asked, and whose vectors are made of the text's length."""

    name, fingerprint, dim, max_tokens = "counting", "counting:1", 2, 8

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[str]]] = []

    def _encode(self, kind: str, texts: list[str]) -> np.ndarray:
        self.calls.append((kind, list(texts)))
        angles = np.array([len(text) + (kind == "query") for text in texts])
        return np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32).reshape(-1, 2)

    def encode_queries(self, texts: list[str]) -> np.ndarray:
        return self._encode("query", texts)

    def encode_documents(self, texts: list[str]) -> np.ndarray:
        return self._encode("passage", texts)

    def count_tokens(self, texts: list[str]) -> list[int]:
        return [len(text) for text in texts]


def test_cache_encodes_only_what_is_missing_in_one_call():
    inner = Counting()
    cached = CachedEncoder(inner)
    first = cached.encode_documents(["a", "bb", "a"])
    again = cached.encode_documents(["bb", "ccc", "a", "dddd"])
    assert inner.calls == [("passage", ["a", "bb"]), ("passage", ["ccc", "dddd"])]
    np.testing.assert_array_equal(first[[1, 0]], again[[0, 2]])
    cached.encode_queries(["a"])
    assert inner.calls[-1] == ("query", ["a"])  # another kind is another vector
    assert cached.encode_documents([]).shape == (0, 2)
    assert (cached.name, cached.fingerprint, cached.dim, cached.max_tokens) == ("counting", "counting:1", 2, 8)
    assert cached.count_tokens(["abc"]) == [3]
    assert isinstance(cached, Encoder)


def test_cache_keeps_the_last_used():
    inner = Counting()
    cached = CachedEncoder(inner, capacity=2)
    cached.encode_documents(["a", "bb"])
    cached.encode_documents(["a"])
    cached.encode_documents(["ccc"])
    inner.calls.clear()
    cached.encode_documents(["a", "ccc"])
    assert inner.calls == []
    cached.encode_documents(["bb"])
    assert inner.calls == [("passage", ["bb"])]
    CachedEncoder(inner, capacity=0).encode_documents(["a", "b"])
    with pytest.raises(InputError, match="capacity: expected an integer >= 0, got -1"):
        CachedEncoder(inner, capacity=-1)


def test_a_result_may_be_changed_without_harm():
    cached = CachedEncoder(Counting())
    cached.encode_documents(["a"])[:] = 0
    assert np.linalg.norm(cached.encode_documents(["a"])) == pytest.approx(1)


def test_cache_asks_its_store_before_it_encodes():
    class Store(dict):
        def get_many(self, keys):
            return {key: self[key] for key in keys if key in self}

        def put_many(self, vectors):
            self.update(vectors)

    store = Store()
    inner = Counting()
    expected = CachedEncoder(inner, store=store).encode_documents(["a", "bb"])
    assert len(store) == 2
    inner.calls.clear()
    fresh = CachedEncoder(inner, store=store)
    np.testing.assert_array_equal(fresh.encode_documents(["a", "bb"]), expected)
    assert inner.calls == []
    fresh.forget(["a"])
    del store[fresh.key("a")]
    fresh.encode_documents(["a", "bb"])
    assert inner.calls == [("passage", ["a"])]


def test_the_runtime_keeps_and_sends_no_telemetry(encoder, tmp_path):
    """ONNX Runtime's official builds leave a device id and a queue of events under the cache folder, unless told."""
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    environment |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    code = (
        "from ctx_vector import load_encoder\n"
        "assert load_encoder().encode_queries(['Does it phone home?']).shape == (1, 384)\n"
        "import os; assert os.environ['ORT_DISABLE_TELEMETRY'] == '1'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.rglob("*")] == []


# -- what is given as an encoder --------------------------------------------------------------------------------------

TAKERS = {
    "builder": lambda folder, encoder: ContextBuilder(encoder=encoder),
    "knowledge": lambda folder, encoder: KnowledgeBase(folder, encoder),
    "memory": lambda folder, encoder: Memory(folder, encoder=encoder),
    "rag-tool": lambda folder, encoder: RAGTool(folder, encoder),
    "memory-tool": lambda folder, encoder: MemoryTool("ada", folder, encoder),
}


@pytest.mark.parametrize("take", TAKERS.values(), ids=TAKERS)
def test_what_is_no_encoder_is_refused_at_once(take, tmp_path):
    class Half:
        name, fingerprint, dim, max_tokens = "half", "half:1", 3, 10

        def encode_queries(self, texts):
            return np.ones((len(texts), 3), np.float32)

    with pytest.raises(ConfigError, match=r"encoder: .*without encode_documents, count_tokens: "):
        take(tmp_path, Half())
    with pytest.raises(ConfigError, match=r"or a name for load_encoder, got .*: 7"):
        take(tmp_path, 7)


@pytest.mark.parametrize("take", TAKERS.values(), ids=TAKERS)
def test_a_name_is_opened_when_it_is_needed(take, tmp_path):
    taker = take(tmp_path, "no-such-model")
    with pytest.raises(ModelError, match="unknown model 'no-such-model'; choose from: multilingual-e5-small"):
        use(taker)
    use(take(tmp_path / "other", E5))


def use(taker):
    if isinstance(taker, ContextBuilder):
        return taker.assemble("where is the pump", documents=["The spare pump stands in the north shed."])
    if isinstance(taker, (KnowledgeBase, RAGTool)):
        return getattr(taker, "knowledge", taker).add_text("The spare pump stands in the north shed.", source="pump")
    return getattr(taker, "memory", taker).add("The spare pump stands in the north shed.")


def test_a_lazy_encoder_is_not_loaded_to_be_checked(tmp_path):
    class Lazy:
        name = max_tokens = property(lambda self: 1 / 0)
        fingerprint = dim = encode_queries = encode_documents = count_tokens = property(lambda self: 1 / 0)

    for take in TAKERS.values():
        take(tmp_path, Lazy())


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda rows: rows * 7, r"unit rows, got one of length 7; divide each vector by its length"),
        (lambda rows: np.full_like(rows, np.nan), r"unit rows, got one of length nan"),
        (lambda rows: rows[:, :5], r"of shape \(1, 384\), got \(1, 5\)"),
        (lambda rows: rows[0], r"of shape \(1, 384\), got \(384,\)"),
    ],
    ids=["long", "nan", "narrow", "flat"],
)
def test_vectors_that_would_make_everything_relevant_are_refused(wrong, words, encoder):
    class Other:
        name, fingerprint, dim, max_tokens = "other", f"other:{words}", encoder.dim, encoder.max_tokens
        count_tokens = staticmethod(encoder.count_tokens)

        def encode_queries(self, texts):
            return wrong(encoder.encode_queries(texts))

        encode_documents = encode_queries

    with pytest.raises(ModelError, match=f"other: expected .*{words}"):
        ContextBuilder(config=ContextConfig(strategy="cosine_raw"), encoder=Other()).assemble("茶", documents=["绿茶"])


def test_lists_of_numbers_are_vectors_too(encoder):
    class Lists:
        name, fingerprint, dim, max_tokens = "lists", "lists:1", encoder.dim, encoder.max_tokens
        count_tokens = staticmethod(encoder.count_tokens)

        def encode_queries(self, texts):
            return encoder.encode_queries(texts).tolist()

        encode_documents = encode_queries

    given = CachedEncoder(Lists())
    np.testing.assert_allclose(
        given.encode_documents(["绿茶", "tea"]), encoder.encode_queries(["绿茶", "tea"]), atol=1e-6
    )


def test_a_hub_name_is_opened_from_the_cache_without_a_connection_and_a_wrong_one_fails_at_once(
    tmp_path: Path,
) -> None:
    cached = tmp_path / "hub" / "models--owner--little" / "snapshots" / "1"
    cached.mkdir(parents=True)
    (cached.parents[1] / "refs").mkdir()
    (cached.parents[1] / "refs" / "main").write_text("1")
    for file in model_dir(E5).iterdir():
        (cached / file.name).symlink_to(file)
    script = """
        import socket
        calls = []

        def refuse(*args, **kwargs):
            calls.append(args)
            raise OSError("there is no network")

        socket.getaddrinfo = socket.socket.connect = refuse
        from ctx_vector import load_encoder
        from ctx_vector.errors import ModelError

        print(load_encoder("owner/little").dim, len(calls))
        try:
            load_encoder("owner/litle")
        except ModelError as error:
            print(error, len(calls))
    """
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_ENDPOINT": "http://hub.test"}
    environment = {name: value for name, value in environment.items() if not name.lower().endswith("_proxy")}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "384 0",
        "sentence-transformers cannot load owner/litle: it is not in the cache of the hub, and http://hub.test cannot "
        "be reached (there is no network); check the name, or give the path of a folder 1",
    ]
