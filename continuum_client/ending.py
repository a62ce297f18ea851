"""What is done later than it happens, and what is done when the process ends.

Garbage collection interrupts any thread between two steps, also while the thread holds a lock. So what runs inside it
takes no lock and writes no file: it leaves its work to ``later``. Generators and coroutines that are dropped are closed
by garbage collection too, with ``GeneratorExit``.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from continuum_client.current import running_loop
from continuum_client.errors import once

if TYPE_CHECKING:
    from continuum_client.state import TaggedProgram

Work = Callable[[], object]


END_S = 5.0
"""The time after which no further program is released at the end of the process."""
_left: deque[Work] = deque()
_open: WeakValueDictionary[int, TaggedProgram] = WeakValueDictionary()
"""The open programs that this process has sent calls for."""
_registered = False


def later(work: Work) -> None:
    """Do ``work`` soon: in this thread's event loop, before the next call of a program, or when the process ends."""
    _left.append(work)
    loop = running_loop()
    if loop is not None:
        loop.call_soon(do_what_is_left)


def unless_dropped(error: object, work: Work) -> None:
    """Do ``work``; later, if ``error`` (an exception, or its class) is that of a generator that may be garbage."""
    if error is GeneratorExit or isinstance(error, GeneratorExit):
        later(work)
    else:
        work()


def do_what_is_left() -> None:
    """Do the work that was left to ``later``."""
    while _left:
        try:
            work = _left.popleft()
        except IndexError:  # another thread does it
            return
        once.guard("ending", "the end of a program or of a reply was not recorded", work)


def end_with_process(program: TaggedProgram) -> None:
    """Close the program when the process ends, if it is still open then."""
    global _registered
    if not _registered:
        _registered = True
        atexit.register(_end)
        multiprocessing = sys.modules.get("multiprocessing.util")
        if multiprocessing is not None:  # its forked processes end without ``atexit``
            multiprocessing.Finalize(None, _end, exitpriority=-100)
    _open[id(program)] = program


def close_all(
    programs: Iterable[TaggedProgram],
    clock: Callable[[], float] = time.monotonic,  # noqa: TID251 - at the edge of the process
) -> None:
    """Close programs, in ``END_S`` seconds at most. Those that another process opened are left to that process."""
    until_s = clock() + END_S
    for program in programs:
        if program.pid == os.getpid() and clock() < until_s:
            program.close()
        else:
            program.forget()


def _end() -> None:
    do_what_is_left()
    programs = [program for program in (reference() for reference in _open.valuerefs()) if program is not None]
    close_all(programs)
    for program in programs:
        program.cut()


def _forked() -> None:
    """Forget the programs of the parent process, which goes on with them."""
    global _registered
    _registered = False
    _left.clear()
    _open.clear()


os.register_at_fork(after_in_child=_forked)
