"""The fast encoder: dynamic int8 under ONNX Runtime, without torch.

A dynamic int8 vector depends on what shares its batch, since a tensor has one activation scale. So every text is run
alone and unpadded: the same text gets the same bits alone, in company, in any order and from any thread. Texts are run
side by side on one single-threaded session, which is also the fastest way on a CPU.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ctx_vector import e5_format
from ctx_vector.errors import InputError, ModelError
from ctx_vector.model_store import LIGHT, Manifest, read_manifest
from ctx_vector.onnx_export import INPUT, TOKENS, VECTOR
from ctx_vector.unigram import UnigramTokenizer
from ctx_vector.values import clean_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ctx_vector.stages import Vectors

Kind = Literal["query", "passage"]
Progress = Callable[[int, int], None]
"""Called with the number of texts done and the number of texts."""

# The small tokenizer does up to this many characters, of queries at once and of documents in all; what is more pays for
# loading tokenizer.json (0.4-2 s), which then is ten times faster.
_SMALL_CHARS = 20_000
# A longer text is cut at a space before it is tokenised; the rest of it cannot reach the tokens that are kept.
_HEAD_CHARS_PER_TOKEN = 64


def available_cpus() -> int:
    """Return the number of CPUs this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


class OnnxEncoder:
    """Encodes with the ``light`` files of a prepared model.

    `threads` texts are run at a time (all CPUs by default); it does not change a bit of the result.
    """

    def __init__(self, folder: str | Path, *, threads: int | None = None) -> None:
        if threads is not None and threads < 1:
            raise InputError(f"threads: expected an integer >= 1, got {threads}")
        self._folder = Path(folder)
        manifest = read_manifest(self._folder)
        if manifest is None:
            raise ModelError(f"{folder} holds no prepared model; make one with: ctx-vector models prepare")
        _check_sizes(self._folder, manifest)
        self._manifest = manifest
        self._threads = threads or available_cpus()
        light = self._folder / LIGHT
        self._words = np.load(light / "words.npy", mmap_mode="r", allow_pickle=False)
        self._session = _open_session(light / "graph.onnx")
        self._small = UnigramTokenizer(light) if (light / "unigram.json").is_file() else None
        self._library: Any = None
        self._document_chars = 0
        self._last_query: tuple[str | None, NDArray[np.float32]] = None, np.empty((1, 0, 0), np.float32)
        self._pool: ThreadPoolExecutor | None = None
        self._process = os.getpid()
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """What a person calls the model."""
        return self._manifest.name

    @property
    def fingerprint(self) -> str:
        """Changes with the weights, the quantisation, the tokenizer and the prompts."""
        return self._manifest.fingerprint

    @property
    def dim(self) -> int:
        """The length of a vector."""
        return self._manifest.dim

    @property
    def max_tokens(self) -> int:
        """The most tokens of a text that are looked at, its prompt and the special tokens included."""
        return self._manifest.max_tokens

    def encode_queries(self, texts: Sequence[str], *, progress: Progress | None = None) -> Vectors:
        """Return (n, dim) float32, unit rows, for texts that ask."""
        return self._encode(texts, "query", progress)

    def encode_documents(self, texts: Sequence[str], *, progress: Progress | None = None) -> Vectors:
        """Return (n, dim) float32, unit rows, for texts that answer."""
        return self._encode(texts, "passage", progress)

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return the tokens of each text with its document prompt and the two special tokens, without truncation."""
        texts = self._with_prompt(texts, "passage", trim=False)  # counts of parts are to cover that of the whole
        if self._small and not self._library_pays(texts, "passage"):
            return [len(self._small.encode(text)) for text in texts]
        library = self._load_library()
        counts: list[int] = []
        for start in range(0, len(texts), 1024):  # encodings are large objects: a few at a time
            counts.extend(map(len, library.encode_batch_fast(texts[start : start + 1024])))
        return counts

    def token_ids(self, text: str, kind: Kind = "passage") -> list[int]:
        """Return the ids that the model is given for a text: with its prompt, truncated to `max_tokens`."""
        return self._ids(self._with_prompt([text], kind)[0])

    def encode_tokens(self, texts: Sequence[str], kind: Kind = "passage") -> list[Vectors]:
        """Return the vectors (tokens, dim) float32, unit rows, of the tokens of each text.

        Those of the prompt and the special tokens are left out; a blank text has none. As with whole texts, the same
        text gets the same bits in any company.
        """
        prompted = self._with_prompt(texts, kind)
        before = len(self._ids(self._manifest.prompts[kind].rstrip())) - 1  # the end of a text comes after it
        unique = list(dict.fromkeys(prompted))
        if self._library_pays(unique, kind):
            self._load_library()
        found: dict[str, Vectors] = {}
        blank = len(self._manifest.prompts[kind])

        def put(i: int) -> None:
            asked, whole = self._last_query
            if unique[i] != asked:
                (whole,) = self._run(unique[i], TOKENS)
            rows = whole[0, before:-1]
            if not unique[i][blank:].strip():  # a token of white space is no word
                rows = rows[:0]
            norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
            found[unique[i]] = rows / np.maximum(norms, np.float32(1e-12))[:, None]

        self._each(unique, put, None)
        return [found[text] for text in prompted]

    def close(self) -> None:
        """Stop the worker threads; the encoder can be used again after it."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool:
            pool.shutdown(wait=True)

    def _with_prompt(self, texts: Sequence[str], kind: Kind, *, trim: bool = True) -> list[str]:
        if isinstance(texts, str):
            raise InputError("expected a sequence of texts, got one str; put it in a list")
        prompt = self._manifest.prompts[kind]
        # A lone surrogate is no character; the tokenizers refuse it. A blank or a line feed at an end is a token of its
        # own, and moves a vector as a word does: the cosine of a short question with and without it is 0.98.
        cleaned = map(clean_text, texts)
        return [prompt + (text.strip() if trim else text) for text in cleaned]

    def _encode(self, texts: Sequence[str], kind: Kind, progress: Progress | None) -> Vectors:
        prompted = self._with_prompt(texts, kind)
        rows = {text: i for i, text in enumerate(dict.fromkeys(prompted))}  # a text given twice is encoded once
        unique = list(rows)
        if self._library_pays(unique, kind):
            self._load_library()
        vectors = np.empty((len(unique), self.dim), np.float32)

        def put(i: int) -> None:
            if kind == "query" and len(unique) == 1:  # its tokens may be asked for next, and cost nothing more
                found, tokens = self._run(unique[i], VECTOR, TOKENS)
                self._last_query = unique[i], tokens
            else:
                (found,) = self._run(unique[i], VECTOR)
            vectors[i] = found[0]

        self._each(unique, put, progress)
        if len(unique) == len(prompted):
            return vectors
        return vectors[[rows[text] for text in prompted]]

    def _each(self, texts: list[str], put: Callable[[int], None], progress: Progress | None) -> None:
        """Call `put` with the place of each text, side by side where that saves time."""
        if len(texts) == 1 or self._threads == 1:
            for i in range(len(texts)):
                put(i)
                if progress:
                    progress(i + 1, len(texts))
        elif texts:
            self._side_by_side(texts, put, progress)

    def _side_by_side(self, texts: list[str], put: Callable[[int], None], progress: Progress | None) -> None:
        """Do the same with all threads; workers take the longest texts first, so that they finish together."""
        order = iter(sorted(range(len(texts)), key=lambda i: -len(texts[i])))
        done: SimpleQueue[BaseException | None] = SimpleQueue()
        stop = threading.Event()
        take = threading.Lock()

        def work() -> None:
            while not stop.is_set():
                with take:
                    i = next(order, None)
                if i is None:
                    return
                try:
                    put(i)
                    done.put(None)
                except BaseException as error:  # handed to the caller below
                    done.put(error)
                    return

        with self._lock:
            if self._process != os.getpid():  # the threads of the parent process did not come along
                self._pool, self._process = None, os.getpid()
            self._pool = self._pool or ThreadPoolExecutor(self._threads, thread_name_prefix="ctx_vector-encode")
            pool = self._pool
        workers = [pool.submit(work) for _ in range(min(self._threads, len(texts)))]
        try:
            for count in range(1, len(texts) + 1):
                if error := done.get():
                    raise error
                if progress:
                    progress(count, len(texts))
        finally:
            # After an error or Ctrl-C the workers end with the text they are at, a few milliseconds.
            stop.set()
            for worker in workers:
                worker.cancel()

    def _run(self, text: str, *outputs: str) -> list[NDArray[np.float32]]:
        """Return outputs of the graph, (1, ...) float32, for one text with its prompt."""
        rows = self._words[self._ids(text)]
        words = e5_format.dequantise(rows) if rows.dtype == np.uint8 else rows
        found: list[NDArray[np.float32]] = self._session.run(list(outputs), {INPUT: words[None]})
        return found

    def _ids(self, text: str) -> list[int]:
        limit = self.max_tokens
        head = _HEAD_CHARS_PER_TOKEN * limit
        if len(text) > head and (cut := max(text.rfind(" ", 0, head), text.rfind("\n", 0, head))) > 0:
            ids = self._all_ids(text[:cut])
            if len(ids) > limit:
                return [*ids[: limit - 1], ids[-1]]
        ids = self._all_ids(text)
        return ids if len(ids) <= limit else [*ids[: limit - 1], ids[-1]]

    def _all_ids(self, text: str) -> list[int]:
        if self._library is None:
            if self._small and len(text) <= _SMALL_CHARS:
                return self._small.encode(text)
            self._load_library()
        ids: list[int] = self._library.encode(text).ids
        return ids

    def _library_pays(self, texts: Sequence[str], kind: Kind) -> bool:
        """Say whether the library is loaded, or worth loading for these texts and the documents before them."""
        chars = sum(map(len, texts))
        if kind == "passage":
            self._document_chars += chars  # a lost update between threads only delays the switch
            chars = self._document_chars
        return self._library is not None or chars > _SMALL_CHARS

    def _load_library(self) -> Any:
        """Load tokenizer.json, once."""
        with self._lock:
            if self._library is None:
                from tokenizers import Tokenizer

                try:
                    library = Tokenizer.from_file(str(self._folder / "tokenizer.json"))
                except Exception as error:  # tokenizers raises bare Exceptions
                    raise ModelError(f"cannot read tokenizer.json of {self._folder}: {error}") from error
                library.no_truncation()
                library.no_padding()
                self._library = library
            return self._library


def _check_sizes(folder: Path, manifest: Manifest) -> None:
    """Refuse a folder whose light files are missing or cut short; their digests are checked by `verify`."""
    for path, (_, size) in manifest.files.items():
        if path.startswith(f"{LIGHT}/"):
            file = folder / path
            if not file.is_file() or file.stat().st_size != size:
                raise ModelError(
                    f"{file} is missing or incomplete; delete {folder} and run: "
                    f"ctx-vector models prepare {manifest.name}"
                )


def _open_session(path: Path) -> Any:
    try:
        # official builds of late collect events and send them home, unless told not to before they are loaded
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
        import onnxruntime
    except ImportError as error:
        raise ModelError(
            f"onnxruntime cannot be imported ({error}); install it with: pip install onnxruntime"
        ) from error

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # The graph is made of the fastest operators already; extended optimisation could put slower ones in their place.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.enable_mem_pattern = False  # it keeps a plan for every length of text ever seen
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises many classes of its own
        raise ModelError(f"onnxruntime cannot load {path}: {error}") from error
