"""Fixtures that all tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ctx_vector.encoders import load_encoder
from ctx_vector.onnx_encoder import OnnxEncoder

_SHARED = Path(__file__).resolve().parent.parent.parent / "shared"


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what is cached and kept for the user (calibrations, audits) apart: every run starts as on a new machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        patch.delenv("COLUMNS", raising=False)  # a worker of pytest-xdist has that of the terminal
        yield


@pytest.fixture(scope="session")
def encoder() -> OnnxEncoder:
    """The default encoder; its model is prepared in this checkout if it is not there yet."""
    return load_encoder()


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of public data sets beside the checkout, with `datasets` and `corpora` in it."""
    if not (_SHARED / "datasets").is_dir():
        pytest.skip("the shared data sets are not beside this checkout (../shared)")
    return _SHARED
