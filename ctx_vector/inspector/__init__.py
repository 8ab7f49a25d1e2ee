"""The inspector: recorded builds, knowledge and memories in a browser, on your own machine.

    Stores          what there is to look at: an audit log, a knowledge base, memories, a folder of reports
    make_app        an ASGI application over them, behind a guard (guard.py)
    serve           the same, served on a loopback address

    guard.py   who may ask: a token, the right Host and Origin, the right method
    pages.py   one function a page: reads, and renders a template
    views.py   what the templates show, made of a BuiltContext; knows no HTTP
    words.py   the words of the pages, in English and Chinese

Pages are rendered here and work without scripts; a small script makes tables sortable and sliders live. Nothing is
fetched from anywhere else.
"""

from __future__ import annotations

from ctx_vector.errors import OptionalDependencyError

try:
    import jinja2  # noqa: F401
    import starlette  # noqa: F401
    import uvicorn  # noqa: F401
except ImportError:
    raise OptionalDependencyError("the inspector", "web") from None

from ctx_vector.inspector.app import Stores, make_app, serve

__all__ = ["Stores", "make_app", "serve"]
