"""No connection to SQLite is carried over a fork.

What SQLite knows of its locks belongs to a process. A child that goes on with a connection of its parent, or opens one
of its own beside it, believes it holds locks that the system never gave it: when the parent then closes its last
connection, the log that the child writes to is deleted, and with it what the child was told is written.

So each store registers here. Before a fork (`os.fork`, multiprocessing, a server that loads an application and then
forks its workers) the idle connections of all stores are closed, and those in use are waited for, a few seconds; in the
child every store begins anew. This is state of the process, like the locks themselves, and can be kept nowhere else.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final, Protocol

WAIT_SECONDS: Final = 5.0  # that a fork waits for connections in use: reads and writes last well under a second

log = logging.getLogger("ctx_vector.store")


class Carried(Protocol):
    """What has connections."""

    def close_idle(self) -> None:
        """Close the connections that nobody uses."""
        ...

    def begin_anew(self) -> None:
        """Forget, in a child process, the connections and locks of the parent."""
        ...


class _Gate:
    """Counts the connections in use, and closes while the process forks."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._known: weakref.WeakSet[Carried] = weakref.WeakSet()
        self._used: Counter[int] = Counter()  # thread -> connections that it has
        self._forking = 0  # the thread that forks

    def register(self, carried: Carried) -> None:
        with self._changed:
            self._known.add(carried)

    @contextmanager
    def in_use(self) -> Generator[None]:
        me = threading.get_ident()
        with self._changed:
            # who has a connection already may need another one to come to an end with it
            while self._forking not in (0, me) and me not in self._used:
                self._changed.wait()
            used = self._used
            used[me] += 1
        try:
            yield
        finally:
            with self._changed:
                used[me] -= 1
                if not used[me]:
                    del used[me]
                if self._forking:
                    self._changed.notify_all()

    def before(self) -> None:
        me = threading.get_ident()
        self._changed.acquire()  # and kept until the fork is over
        self._forking = me
        self._close_idle()
        end = time.monotonic() + WAIT_SECONDS
        while self._others(me) and (left := end - time.monotonic()) > 0:
            self._changed.wait(left)
        if self._others(me):
            log.warning("the process forks while other threads use a store; open the store anew in the child")
        self._close_idle()

    def _others(self, me: int) -> bool:
        return any(thread != me for thread in self._used)

    def _close_idle(self) -> None:
        for carried in list(self._known):
            carried.close_idle()

    def after_in_parent(self) -> None:
        self._forking = 0
        self._changed.notify_all()
        self._changed.release()

    def after_in_child(self) -> None:
        self._changed, self._used, self._forking = threading.Condition(), Counter(), 0
        for carried in list(self._known):
            carried.begin_anew()


_gate: Final = _Gate()

#: Call with a store when it is opened; it is forgotten when it is garbage.
register = _gate.register
#: A context: a connection is in use.
in_use = _gate.in_use

if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_gate.before, after_in_parent=_gate.after_in_parent, after_in_child=_gate.after_in_child)
