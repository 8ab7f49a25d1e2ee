"""What all commands share: exit codes, output, log lines, and how numbers are said.

What they open is in opening.py. Nothing here needs Typer or Rich: a plain search runs without them.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn

from ctx_vector.errors import CtxVectorError

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


def finish(code: int, *, quick: bool = False, own: bool = False) -> NoReturn:
    """Flush and exit; a reader that has gone away is no error message.

    With `quick` nothing is taken apart first: that of ONNX Runtime, FAISS and NumPy takes an eighth of a search. With
    `own` the process is this command's alone: another Ctrl-C while it ends changes nothing of what it has said.
    """
    if own:
        import signal

        signal.signal(signal.SIGINT, signal.SIG_IGN)
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
    note(f"error: {in_options(text)}")


def in_options(text: str) -> str:
    """Return an error of the library on one line, in words of the command line."""
    return " ".join(text.split()).replace("pass allow_python=True", "pass --allow-python")


def _drop_output() -> None:
    """Send what is still to be written nowhere: the reader (`| head -1`) has what it wants."""
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
    except (OSError, ValueError):  # a stream without a file, as in tests
        sys.stdout = open(os.devnull, "w", encoding="utf-8")


def check_files(*paths: str | None) -> None:
    """Raise IsADirectoryError for a file to be written that is a folder, before the work that is to go into it."""
    import errno

    for path in paths:
        if path is not None and os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)


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


# -- words ----------------------------------------------------------------------------------------------------------


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
