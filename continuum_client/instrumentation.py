"""Programs for every client of openai's in the process, whoever made it: ``instrument()`` and ``uninstrument()``.

A plain client is seen through a *view*: an object of our class that shares the client's attributes, and sends the
client's requests as our own clients send theirs. The client itself is not changed.
"""

from __future__ import annotations

import atexit
import os
from typing import TYPE_CHECKING, Any

from continuum_client.client import tagged
from continuum_client.hook import hook
from continuum_client.settings import ClientSettings, Options, settings_from

if TYPE_CHECKING:
    from continuum_client.dialects import Dialect, DialectName
    from continuum_client.predictors import Predictor
    from continuum_client.program import Program
    from continuum_client.recorder import Recorder
    from continuum_client.reply import Content

END_S = 5.0
"""``uninstrument()`` and the end of the process take at most this long to release the open programs."""


class Instrumentation:
    """All openai clients of the process, tagged. ``instrument()`` makes it."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._views: dict[type[Any], type[Any]] = {}
        self._pid = os.getpid()

    def program(
        self,
        program_id: str | None = None,
        *,
        predict: bool | Predictor | None = None,
        parent: Program | str | None = None,
        output_tokens: int | None = None,
    ) -> Program:
        """Open a program; as ``client.program`` of our own clients."""
        return self._settings.program(program_id, predict, parent, output_tokens)

    def view(self, client: Any) -> Any:
        """An object that sends the requests of ``client`` with tags."""
        cls = self._views.get(type(client))
        if cls is None:
            ours = tagged(type(client))
            cls = self._views[type(client)] = type(ours.__name__, (ours,), {"_continuum": self._settings})
        found = object.__new__(cls)
        found.__dict__ = client.__dict__
        return found

    def end(self) -> None:
        """Close the programs of conversations that nobody named. A forked process leaves them to its parent."""
        conversations, clock = self._settings.conversations, self._settings.clock
        if os.getpid() != self._pid:
            return
        until_s = clock() + END_S
        for program in conversations.forget() if conversations is not None else ():
            if clock() < until_s:
                program.close()
            else:
                program.forget()


_active: list[Instrumentation] = []


def instrument(
    *,
    dialect: DialectName | Dialect | None = None,
    record: str | os.PathLike[str] | Recorder | None = None,
    content: Content | None = None,
    predict: bool | Predictor | None = None,
    implicit: bool | None = None,
) -> Instrumentation:
    """Tag and record the calls of every openai client in the process, also of clients that exist already.

    Clients of ours keep their own options. A call outside any program belongs to a program of its conversation; such
    programs are released when the process ends. A second call replaces the options of the first.

    Args:
        dialect, record, content, predict, implicit: as for ``OpenAI``. ``CONTINUUM_DIALECT``, ``CONTINUUM_RECORD`` and
            ``CONTINUUM_CONTENT`` in the environment are the defaults of the first three.

    Returns:
        An object whose method ``program()`` opens a program.

    Raises:
        UnknownDialect: no dialect has that name.
        ValueError: no ``content`` has that name, or the directory is already recorded with another one.
    """
    options = Options(dialect=dialect, record=record, content=content, predict=predict, implicit=implicit)
    made = Instrumentation(settings_from(options))
    uninstrument()
    _active.append(made)
    hook.install()
    hook.view = made.view
    atexit.register(uninstrument)
    return made


def uninstrument() -> None:
    """Restore openai's classes, and release the programs that ``instrument()`` has opened for conversations.

    Never raises, and has no effect if nothing is instrumented.
    """
    atexit.unregister(uninstrument)
    while _active:
        hook.remove()
        _active.pop().end()
