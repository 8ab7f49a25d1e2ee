"""Fixtures that all tests share."""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ctx_vector.model_store import prepare
from ctx_vector.onnx_encoder import OnnxEncoder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Files for one worker of pytest-xdist, since what they import takes longer than their tests.
_TOGETHER = {
    "torch": ("test_encoders", "test_rerank"),
    "frameworks": ("test_adapters_haystack", "test_adapters_langchain", "test_adapters_llama_index", "test_examples"),
}
#: What takes longest, first, so that at the end no worker waits for a long file of another.
_LONG = (
    "test_mcp", "test_encoders", "test_rerank", "test_adapters_haystack", "test_adapters_langchain",
    "test_adapters_llama_index", "test_examples", "test_inspector_browser", "test_knowledge", "test_tokens",
    "test_agent", "test_cli", "test_cli_models", "test_crash", "test_budget", "test_tools", "test_audit_writer",
)  # fmt: skip

_SHARED = Path(__file__).resolve().parent.parent.parent / "shared"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while hundreds of modules are imported, which stay: that takes longer than importing them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _LONG.index(item.path.stem) if item.path.stem in _LONG else len(_LONG))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out whole files in the order above, some of them together, for `--dist loadfile`."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    groups = {name: group for group, names in _TOGETHER.items() for name in names}

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return groups.get(Path(file).stem, file)

    config.option.loadscopereorder = False  # the order of the files, not of their numbers of tests
    return Scheduling(config, log)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what is cached and kept for the user (calibrations, audits) apart: every run starts as on a new machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        patch.delenv("COLUMNS", raising=False)  # a worker of pytest-xdist has that of the terminal
        yield


class Remembering(OnnxEncoder):
    """The default encoder, which runs no text twice: a text has the same bits at any time, as test_encoders shows."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._known: dict[tuple[str, ...], list[NDArray[np.float32]]] = {}

    def _run(self, text: str, *outputs: str) -> list[NDArray[np.float32]]:
        key = (text, *outputs)
        found = self._known.get(key)
        if found is None:
            found = super()._run(text, *outputs)
            if sum(output.nbytes for output in found) < 100_000:
                for output in found:
                    output.flags.writeable = False
                self._known[key] = found
        return list(found)


@pytest.fixture(scope="session")
def encoder() -> OnnxEncoder:
    """The default encoder; its model is prepared in this checkout if it is not there yet."""
    return Remembering(prepare("multilingual-e5-small"))


@pytest.fixture(scope="session")
def forgetful() -> OnnxEncoder:
    """The same, which runs every text it is given."""
    return OnnxEncoder(prepare("multilingual-e5-small"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of public data sets beside the checkout, with `datasets` and `corpora` in it."""
    if not (_SHARED / "datasets").is_dir():
        pytest.skip("the shared data sets are not beside this checkout (../shared)")
    return _SHARED
