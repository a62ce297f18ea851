"""Drop-in replacements for openai's clients that tell the server to which program a call belongs.

>>> from continuum_client import OpenAI
>>> client = OpenAI(base_url="http://localhost:8000/v1", dialect="vllm", record="runs/agent")   # doctest: +SKIP
>>> with client.program("task-7") as p: ...                                                     # doctest: +SKIP

Names are imported on first use, so that an import of ``continuum_client.tagging`` does not import openai.

The modules, in the order in which a call passes through them:

``client``             our clients; ``instrumentation`` patches plain openai clients, ``proxy`` serves other agents
``sending``            a request of an openai client: what it sends as ``call`` adds tags to it
``call``               one call: it takes the program's tags, adds them to the request and sends it
``program``            a program, and its ``state``; its ``tools``; ``current`` knows the current program,
                       ``conversation`` finds the program of a call that is made outside any program
``tagging``            tags as headers and body fields, in the ``dialects`` of servers; ``endpoints`` remembers the
                       dialect of each server and the fields that it refuses
``own_requests``       which dialect the server speaks, and the release of a program, which ``ending`` makes happen
``observe``            watches the reply while the caller reads it; ``reply`` reads its token counts and tool calls
``recorder``           writes calls to files, as turns of a trace (``turns``)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from continuum_client.client import AsyncOpenAI as AsyncOpenAI
    from continuum_client.client import OpenAI as OpenAI
    from continuum_client.client import wrap as wrap
    from continuum_client.errors import ContinuumError as ContinuumError
    from continuum_client.errors import ContinuumWarning as ContinuumWarning
    from continuum_client.errors import InvalidTag as InvalidTag
    from continuum_client.errors import ProgramClosed as ProgramClosed
    from continuum_client.errors import UnknownDialect as UnknownDialect
    from continuum_client.frameworks import extra_body as extra_body
    from continuum_client.frameworks import headers as headers
    from continuum_client.instrumentation import Instrumentation as Instrumentation
    from continuum_client.instrumentation import instrument as instrument
    from continuum_client.instrumentation import uninstrument as uninstrument
    from continuum_client.program import Program as Program
    from continuum_client.program import current_program as current_program
    from continuum_client.program import tool as tool
    from continuum_client.recorder import Recorder as Recorder
    from continuum_client.tools import Prediction as Prediction

_HOMES = {
    "client": ("AsyncOpenAI", "OpenAI", "wrap"),
    "errors": ("ContinuumError", "ContinuumWarning", "InvalidTag", "ProgramClosed", "UnknownDialect"),
    "frameworks": ("extra_body", "headers"),
    "instrumentation": ("Instrumentation", "instrument", "uninstrument"),
    "program": ("Program", "current_program", "tool"),
    "recorder": ("Recorder",),
    "tools": ("Prediction",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}
__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module(f"{__name__}.version").VERSION
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
