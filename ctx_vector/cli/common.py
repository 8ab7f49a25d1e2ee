"""What all commands share: exit codes, output, log lines, and opening encoders and knowledge bases.

Nothing here needs Typer or Rich: a plain search runs without them.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ctx_vector.errors import CtxVectorError

if TYPE_CHECKING:
    from ctx_vector.audit import AuditLog
    from ctx_vector.knowledge import KnowledgeBase
    from ctx_vector.stages import Encoder

DEFAULT_KB: Final = "kb"
KB_FILE: Final = "ctx.sqlite3"
AUDIT_FILE: Final = "audit.sqlite3"
AUDIT_SIZE: Final = "1GB"  # what commands keep of their builds
INTERRUPTED: Final = 130

_NAMELESS: Final = "pypdf"  # tells of every oddity of a file without its name; what matters is in our own warnings

_log = logging.getLogger("ctx_vector")


class UsageError(Exception):
    """The arguments make no sense together: exit code 2."""


# -- output ---------------------------------------------------------------------------------------------------------


def set_up_streams() -> None:
    """Never fail on a character: what the terminal's encoding lacks is escaped. Library warnings go to stderr."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    set_up_logging(verbose=False)


def out(text: str = "") -> None:
    """Write a line of the result to stdout."""
    sys.stdout.write(text + "\n")


def note(text: str) -> None:
    """Write a line that is no result to stderr."""
    sys.stderr.write(text + "\n")


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """Write a result as JSON, with characters as they are."""
    out(json.dumps(value, ensure_ascii=False, indent=indent))


# -- log lines ------------------------------------------------------------------------------------------------------


class _Lines(logging.Handler):
    """Shows records as one line each. While `held` is a list, warnings wait in it (a progress bar is on screen)."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[str] | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith(_NAMELESS) and self.level > logging.INFO:
            return
        line = f"{record.levelname.lower()}: {' '.join(record.getMessage().split())}"
        if record.exc_info and record.exc_info[1] is not None:  # a fault of ours, in a server that goes on
            line += f": {' '.join(repr(record.exc_info[1]).split())}"
            if self.level <= logging.INFO:
                line += "\n" + "".join(traceback.format_exception(record.exc_info[1])).rstrip()
        if self.held is not None and record.levelno >= logging.WARNING:
            self.held.append(line)
        else:
            note(line)


_lines = _Lines()


def set_up_logging(*, verbose: bool) -> None:
    """Show the library's warnings on stderr, with `verbose` its INFO lines too."""
    if _lines not in _log.handlers:
        _log.addHandler(_lines)
    _lines.held = None
    _lines.setLevel(logging.INFO if verbose else logging.WARNING)
    if verbose:
        _log.setLevel(logging.INFO)


def tell_on_stderr(logger: logging.Logger) -> None:
    """Show the warnings of another package too, in our form."""
    logger.addHandler(_lines)


class held_warnings:
    """Keep warnings back inside the `with`, and show them at its end, but for those that `told` says otherwise."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def __enter__(self) -> held_warnings:
        _lines.held = []
        return self

    def __exit__(self, *exc: object) -> None:
        held, _lines.held = _lines.held or [], None
        for line in held:
            if not any(text in line for text in self.told):
                note(line)


# -- exit codes -----------------------------------------------------------------------------------------------------


def run(command: Callable[[], int | None]) -> int:
    """Run a command and return its exit code; what went wrong is told in one line."""
    try:
        code = command() or 0
        sys.stdout.flush()
        return code
    except UsageError as error:
        _complain(str(error))
        return 2
    except CtxVectorError as error:
        _complain(str(error))
    except KeyboardInterrupt:
        note("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()
    except OSError as error:
        _complain(explain_os_error(error))
    except MemoryError:
        _complain("not enough memory; close other programs, or work on fewer files at a time")
    except Exception as error:  # a fault of ours: one line for people, everything for whoever asks
        if _lines.level <= logging.INFO:
            raise
        _complain(
            f"unexpected {type(error).__name__}: {error}; run it again as ctx-vector -v ... and report what it shows"
        )
    return 1


def finish(code: int, *, quick: bool = False) -> NoReturn:
    """Flush and exit; a reader that has gone away is no error message.

    With `quick` nothing is taken apart first: that of ONNX Runtime, FAISS and NumPy takes an eighth of a search.
    """
    try:
        sys.stdout.flush()
    except OSError:
        _drop_output()
        code = code or 1
    if quick:
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _complain(text: str) -> None:
    note("error: " + " ".join(text.split()))


def _drop_output() -> None:
    """Send what is still to be written nowhere: the reader (`| head -1`) has what it wants."""
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
    except (OSError, ValueError):  # a stream without a file, as in tests
        sys.stdout = open(os.devnull, "w", encoding="utf-8")


def explain_os_error(error: OSError) -> str:
    """Return what failed and what to do."""
    import errno

    where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, (str, bytes)) else ""
    what = error.strerror or str(error)
    todo = {
        errno.ENOSPC: "make room on the disk and run it again",
        errno.EDQUOT: "make room on the disk and run it again",
        errno.EACCES: "check the permissions",
        errno.EPERM: "check the permissions",
        errno.EROFS: "the disk is read-only; choose another folder",
        errno.ENOENT: "check the path",
        errno.EISDIR: "give a file",
        errno.ENOTDIR: "give a folder",
    }.get(error.errno or 0)
    return f"{where}{what}" + (f"; {todo}" if todo else "")


# -- the audit ------------------------------------------------------------------------------------------------------


def audit_file(given: str | None, kb: str | None) -> Path:
    """Return the file of the audit: the one given, else that of the knowledge base, else in the platform's data folder.

    Without a folder the default one is meant, if it is there. A knowledge base that cannot be written has none.
    """
    if given is not None:
        return Path(given)
    return _own_audit(kb if kb is not None else default_kb())


def _own_audit(kb: str | None) -> Path:
    if kb is not None and os.access(kb, os.W_OK):
        return Path(kb) / AUDIT_FILE
    from platformdirs import user_data_path

    return Path(user_data_path("ctx_vector")) / AUDIT_FILE


def open_audit(given: str | None, no_audit: bool, kb: str | None) -> AuditLog | None:
    """Return the audit of what a command builds, from the knowledge base it uses; None with `no_audit`."""
    if no_audit:
        if given is not None:
            raise UsageError("--audit and --no-audit: choose one")
        return None
    from ctx_vector.audit import AuditLog

    return AuditLog(_own_audit(kb) if given is None else Path(given), max_size=AUDIT_SIZE)


# -- the library ----------------------------------------------------------------------------------------------------


def open_encoder(name: str | None = None) -> Encoder:
    """Open an encoder; a known model that is used for the first time is prepared, with its steps on stderr."""
    from ctx_vector.encoders import load_encoder
    from ctx_vector.model_store import cards

    known = {card.lower(): card for card in cards()}
    card = next(iter(known.values())) if name is None else known.get(name.lower())
    if card is not None:
        prepare_model(card)
    return load_encoder(name)


def prepare_model(name: str, source: Path | None = None) -> Path:
    """Prepare a model that is not ready, with one line on stderr that says how far it is."""
    from ctx_vector.model_store import model_dir, prepare, read_manifest

    if source is None and read_manifest(folder := model_dir(name)):
        return folder
    from ctx_vector.cli.progress import step_line

    with step_line(f"preparing the model {name}") as tell:
        return prepare(name, source=source, progress=tell)


def open_kb(
    folder: str | Path, model: str | None = None, *, create: bool = False, chunk_tokens: int | None = None
) -> KnowledgeBase:
    """Open a knowledge base with the encoder it was made with, or the one named."""
    from ctx_vector.knowledge import KnowledgeBase

    kb = KnowledgeBase(folder, create=create)
    wanted = model or own_model(kb)
    kb.close()
    return KnowledgeBase(folder, open_encoder(wanted), create=create, chunk_tokens=chunk_tokens)


def default_kb() -> str | None:
    """Return the folder of the knowledge base that is used when none is named, if it is there."""
    return DEFAULT_KB if os.path.exists(os.path.join(DEFAULT_KB, KB_FILE)) else None


def used_kb(kb: str | None, no_kb: bool) -> str | None:
    """Return the folder of the knowledge base to use: the one named, else the default one if it is there.

    That there is none is said on stderr, unless `no_kb` asks for it. Raises UsageError when both are given.
    """
    if kb is not None and no_kb:
        raise UsageError("--kb and --no-kb: choose one")
    if kb is not None or no_kb or (kb := default_kb()) is not None:
        return kb
    note(f"note: there is no knowledge base in ./{DEFAULT_KB}, so none is used; name one with --kb, or say --no-kb")
    return None


def own_model(kb: KnowledgeBase) -> str | None:
    """Return the name of the model behind a knowledge base if it is one of the known ones."""
    from ctx_vector.model_store import cards

    name = kb.stats()["model"]
    return name if name in cards() else None


def agreed(rule: str, question: str) -> bool:
    """Ask a yes-or-no question on stderr. Raises UsageError with the `rule` when nobody is there to answer."""
    if not sys.stdin.isatty():
        raise UsageError(f"{rule}, and stdin is no terminal; add --yes")
    sys.stderr.write(question)
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes", "是")


def check_query(query: str) -> None:
    """Raise UsageError for a blank question: a slip of the shell more often than a wish."""
    if not query.strip():
        raise UsageError("the query is blank; ask for something")


def count(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> count(1, "file"), count(1204, "file"), count(2, "memory")
    ('1 file', '1,204 files', '2 memories')
    """
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun[:-1]}ies" if noun.endswith("y") else f"{number:,} {noun}s"


def seconds(value: float) -> str:
    """Return a time as people say it: ``0.8 s``, ``3 min 20 s``."""
    if value < 100:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def size(value: float) -> str:
    """Return bytes as people say them: ``12.3 MB``."""
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def some(names: Iterable[str], most: int = 3) -> str:
    """Return the first few names, and how many more there are."""
    listed = list(names)
    more = len(listed) - most
    return ", ".join(listed[:most]) + (f" and {more:,} more" if more > 0 else "")
