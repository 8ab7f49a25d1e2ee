"""Models of the Hugging Face hub, by name: from its cache without a connection, and only then from the network.

The hub's libraries ask the network for news of what they have, with minutes of retries where there is none. So a name
is looked for in the cache alone first. What is not there is asked for only when the hub can be reached.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final, TypeVar

T = TypeVar("T")

_ENDPOINT: Final = "https://huggingface.co"
_SECONDS: Final = 5.0


def quiet() -> None:
    """Keep the hub's libraries from telling who uses them, unless the user wants it; before they are imported."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")


def opened(load: Callable[..., T], source: str, *, local: bool) -> T:
    """Return what `load(source, local_files_only=...)` gives: of a folder (`local`), of the cache, of the network.

    Raises what `load` raises, and OSError when the hub cannot be reached.
    """
    try:
        return load(source, local_files_only=True)
    except Exception:  # the libraries below raise whatever their parts raise
        if local:
            raise
    _reach()
    return load(source, local_files_only=False)


def _reach() -> None:
    import socket  # only names that are not in the cache pay for these
    from urllib.parse import urlsplit
    from urllib.request import getproxies

    endpoint = os.environ.get("HF_ENDPOINT") or _ENDPOINT
    parts = urlsplit(endpoint)
    if getproxies() or not parts.hostname:  # the libraries know the way
        return
    try:
        address: Any = parts.hostname, parts.port or (80 if parts.scheme == "http" else 443)
        socket.create_connection(address, _SECONDS).close()
    except OSError as error:
        raise OSError(
            f"it is not in the cache of the hub, and {endpoint} cannot be reached ({error}); check the name, or give "
            "the path of a folder"
        ) from None
