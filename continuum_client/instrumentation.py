"""Programs for every openai client in the process, whoever made it: ``instrument()`` and ``uninstrument()``.

For each request of a plain client a *view* is made: an object of our class that shares the client's attributes and
sends its requests with tags. The client itself is not changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from continuum_client.ending import close_all
from continuum_client.hook import hook
from continuum_client.settings import ClientSettings, Options, ProgramOptions, settings_from

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from continuum_client.program import Program


class Instrumentation:
    """The tagging of all openai clients of the process; made by ``instrument()``."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._views: dict[type[Any], type[Any]] = {}

    def program(self, program_id: str | None = None, **options: Unpack[ProgramOptions]) -> Program:
        """Open a program, like ``client.program`` of our own clients."""
        return self._settings.program(program_id, **options)

    def view(self, client: Any) -> Any:
        """Return an object that sends the requests of ``client`` with tags."""
        cls = self._views.get(type(client))
        if cls is None:
            from continuum_client.client import tagged  # noqa: PLC0415 - it may be what imports openai just now

            ours = tagged(type(client))
            cls = self._views[type(client)] = type(ours.__name__, (ours,), {"_continuum": self._settings})
        view = object.__new__(cls)
        view.__dict__ = client.__dict__
        return view

    def end(self) -> None:
        """Close the programs that were opened for conversations. A forked process leaves this to its parent."""
        close_all(self._settings.forget_conversations())


_active: list[Instrumentation] = []
"""The instrumentation of this process, if there is one."""


def instrument(**options: Unpack[Options]) -> Instrumentation:
    """Tag and record the calls of every openai client in the process, also of clients that exist already.

    Our own clients keep their options. Each conversation outside any program becomes a program, which is released when
    the process ends. A second ``instrument()`` replaces the options of the first.

    Args:
        options: as for ``OpenAI``: dialect, record, content, predict, implicit. ``CONTINUUM_DIALECT``,
            ``CONTINUUM_RECORD`` and ``CONTINUUM_CONTENT`` in the environment are the defaults of the first three.

    Returns:
        An object whose method ``program()`` opens a program.

    Raises:
        UnknownDialect: no dialect has that name.
        ValueError: no ``content`` has that name, or the directory is already recorded with another ``content``.
    """
    made = Instrumentation(settings_from(**options))
    uninstrument()
    _active.append(made)
    hook.install()
    hook.view = made.view
    return made


def uninstrument() -> None:
    """Restore openai's classes, and release the programs that were opened for conversations.

    Never raises, and has no effect if no ``instrument()`` came before.
    """
    while _active:
        hook.remove()
        _active.pop().end()
