"""Drop-in clients: ``openai.OpenAI`` and ``openai.AsyncOpenAI`` that tell the server to which program a call belongs.

``request()`` is the only overridden method that sends requests. openai's resources call it once for each call, and
openai's retries happen inside it, so that a retry has the same tags. Resources, types and streams are openai's own.
"""

from __future__ import annotations

import functools
import inspect
import json
import threading
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

import anyio
import openai

from continuum_client.decorators import F, around
from continuum_client.ending import close_all
from continuum_client.errors import InvalidTag
from continuum_client.options import OPTIONS, ClientOptions, ClientState, OptionArguments
from continuum_client.own_requests import run
from continuum_client.program import Program, ProgramArguments
from continuum_client.sending import ClientSender, send_tagged
from continuum_client.tagging import check_id

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from typing_extensions import Self, Unpack

STATE = "_continuum_state"
"""The constructor argument by which ``copy()`` passes a client's state to the copy."""


class Tagging:
    """The methods that both clients share. The class precedes openai's class in the order of bases."""

    _continuum: ClientState
    _bound: Program | None = None

    if not TYPE_CHECKING:

        def __init__(self, **arguments: Any) -> None:
            options = {name: arguments.pop(name) for name in OPTIONS if name in arguments}
            self._continuum = arguments.pop(STATE, None) or ClientState(ClientOptions(**options))
            super().__init__(**arguments)

        def copy(self, **options: Any) -> Any:
            """Copy the client as openai does. The copy has this client's programs, and is bound to the same one. With
            options of ours it has its own conversations and record."""
            ours = {name: options.pop(name) for name in OPTIONS if name in options}
            state = self._continuum.with_options(ours) if ours else self._continuum
            more = {STATE: state, **options.pop("_extra_kwargs", {})}
            twin = super().copy(**options, _extra_kwargs=more)
            twin._bound = self._bound
            return twin

        with_options = copy

    @overload
    def program(self, program_id: F, /) -> F: ...

    @overload
    def program(self, program_id: str | None = None, **options: Unpack[ProgramArguments]) -> Program: ...

    def program(self, program_id: Any = None, **options: Unpack[ProgramArguments]) -> Any:
        """Open a program: one run of an agent. Calls in the body of ``with client.program(...)`` are its turns.

        As the decorator ``@client.program`` it makes each call of a function a program of its own, with a random id;
        as ``@client.program("name")`` with an id that begins with the name.

        Args:
            program_id: 1 to 256 printable ASCII characters. Default: a random id.
            predict: a function that predicts the next tool (``tools.Predict``). Default: the client's.
            parent: the program that starts this program, or its id. Default: the current program, if there is one.
            output_tokens: expected length of each answer, in tokens; sent by the dialect ``dynamo``.
            metadata: at most 16 texts and numbers by name, for the record only; nothing of it is sent.

        Raises:
            InvalidTag: an id, a name or a number cannot be sent, or the metadata is too large.
        """
        if callable(program_id):
            return around(program_id, self.program, Program._paused)
        return Program(self._continuum, ClientSender(self), program_id, **options)

    def resume(self, handoff: str) -> Program:
        """Continue a program that another process has ended with ``program.handoff()``.

        Args:
            handoff: the text that ``handoff()`` returned there.

        Raises:
            InvalidTag: the text is not from ``handoff()``.
        """
        try:
            facts = json.loads(handoff)
            check_id(facts["program_id"])
            return self.program(facts["program_id"], parent=facts["parent_id"], metadata=facts.get("metadata"))
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidTag(f"resume: expected the text from program.handoff(): {error!r}") from error

    def bind(self, program: Program) -> Self:
        """Return a copy of this client whose calls all belong to ``program``, in any thread or task."""
        twin = cast("Any", self).copy()
        twin._bound = program
        return cast("Self", twin)


class SyncTagging(Tagging):
    if not TYPE_CHECKING:

        def request(self, cast_to: Any, options: Any, *, stream: bool = False, stream_cls: Any = None) -> Any:
            send = super().request
            return run(send_tagged(self._continuum, self._bound, self, send, cast_to, options, stream, stream_cls))

        def close(self) -> None:
            """Release the programs that were opened for conversations, and close the client as openai does."""
            close_all(self._continuum.forget_conversations())
            super().close()


class AsyncTagging(Tagging):
    if not TYPE_CHECKING:

        async def request(self, cast_to: Any, options: Any, *, stream: bool = False, stream_cls: Any = None) -> Any:
            send = super().request
            return await send_tagged(self._continuum, self._bound, self, send, cast_to, options, stream, stream_cls)

        async def close(self) -> None:
            """Release the programs that were opened for conversations, and close the client as openai does."""
            async with anyio.create_task_group() as tasks:
                for program in self._continuum.forget_conversations():
                    tasks.start_soon(program.aclose)
            await super().close()


class _SharedArguments(OptionArguments, total=False):
    """The arguments that constructors and ``copy()`` take alike: openai's, and ours."""

    api_key: str | Callable[[], str] | Callable[[], Awaitable[str]] | None
    admin_api_key: str | None
    workload_identity: Any
    organization: str | None
    project: str | None
    webhook_secret: str | None
    provider: Any
    base_url: Any
    data_residency: Any
    websocket_base_url: Any
    timeout: float | openai.Timeout | openai.NotGiven | None
    default_headers: Mapping[str, str] | None
    default_query: Mapping[str, object] | None
    http_client: openai.DefaultHttpxClient | openai.DefaultAsyncHttpxClient | None


class AllArguments(_SharedArguments, total=False):
    """The arguments of constructors."""

    max_retries: int
    _strict_response_validation: bool
    _enforce_credentials: bool


class CopyArguments(_SharedArguments, total=False):
    """The arguments of ``copy()`` and ``with_options()``."""

    max_retries: int | openai.NotGiven
    _enforce_credentials: bool | None
    set_default_headers: Mapping[str, str] | None
    set_default_query: Mapping[str, object] | None
    _extra_kwargs: Mapping[str, Any]


_Class = TypeVar("_Class", bound=type[Any])
_OUR_PARAMETERS = [
    inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
    for field in fields(ClientOptions)
]


def _shows_arguments(plain: type[Any]) -> Callable[[_Class], _Class]:
    """Decorate a class: its constructor's signature has the arguments of openai's class ``plain``, and our options."""

    def decorate(cls: _Class) -> _Class:
        def __init__(self: Any, **options: Any) -> None:
            super(cast("Any", cls), self).__init__(**options)

        parameters = list(inspect.signature(plain.__init__).parameters.values())
        rest = [parameter for parameter in parameters if parameter.kind is inspect.Parameter.VAR_KEYWORD]
        listed = [parameter for parameter in parameters if parameter not in rest]
        __init__.__signature__ = inspect.Signature([*listed, *_OUR_PARAMETERS, *rest])  # type: ignore[attr-defined]
        cls.__init__ = __init__
        if (plain_copy := getattr(plain, "copy", None)) is not None:
            cls.copy = cls.with_options = _copying(cls, inspect.signature(plain_copy))
        return cls

    return decorate


def _copying(cls: Any, plain: inspect.Signature) -> Any:
    """Return the method ``copy`` of a class, whose signature has openai's parameters and our options."""

    def copy(self: Any, **options: Any) -> Any:
        return super(cls, self).copy(**options)

    ours = [parameter.replace(default=None) for parameter in _OUR_PARAMETERS]
    parameters = plain.parameters.values()
    copy.__signature__ = plain.replace(parameters=[*parameters, *ours])  # type: ignore[attr-defined]
    copy.__doc__ = getattr(Tagging, "copy").__doc__  # noqa: B009 - type checkers see openai's
    return copy


@_shows_arguments(openai.OpenAI)
class OpenAI(SyncTagging, openai.OpenAI):
    """``openai.OpenAI`` with programs. The constructor takes openai's arguments and five optional arguments.

    Args:
        dialect: which body fields the server accepts: ``headers`` (no fields; works with every server), ``vllm``,
            ``sglang``, ``dynamo``, ``trtllm``, ``thunderagent``, ``openai``; ``auto`` asks the server; or your own
            ``Dialect`` object. Default: ``CONTINUUM_DIALECT`` in the environment, else ``headers``.
        record: the directory to record to, or a ``Recorder``. Default: ``CONTINUUM_RECORD`` in the environment, else
            nothing is recorded.
        content: how much text is recorded: ``none``, ``digest``, ``full`` (see ``Recorder``).
        predict: a function from the tools that ran since the previous call to a ``Prediction`` of the next tool, or
            None. It is called before each call; ``client.program(predict=...)`` replaces it.
        implicit: give each conversation outside ``client.program`` a program of its own.

    Raises:
        UnknownDialect: no dialect has that name.
        ValueError: no ``content`` has that name, or the directory is already recorded with another ``content``.
    """

    if TYPE_CHECKING:

        def __init__(self, **options: Unpack[AllArguments]) -> None: ...

        def copy(self, **options: Unpack[CopyArguments]) -> Self: ...

        with_options = copy


@_shows_arguments(openai.AsyncOpenAI)
class AsyncOpenAI(AsyncTagging, openai.AsyncOpenAI):
    """``openai.AsyncOpenAI`` with programs. The constructor takes the same five arguments as that of ``OpenAI``. Enter
    programs with ``async with``."""

    if TYPE_CHECKING:

        def __init__(self, **options: Unpack[AllArguments]) -> None: ...

        def copy(self, **options: Unpack[CopyArguments]) -> Self: ...

        with_options = copy


@overload
def wrap(client: openai.OpenAI, **options: Unpack[OptionArguments]) -> OpenAI: ...


@overload
def wrap(client: openai.AsyncOpenAI, **options: Unpack[OptionArguments]) -> AsyncOpenAI: ...


def wrap(client: Any, **options: Unpack[OptionArguments]) -> Any:
    """Make a client with programs from an openai client (``openai.OpenAI``, ``AzureOpenAI`` or any subclass).

    The given client is not changed, and both clients share one connection pool. The result is an instance of the given
    client's class and of our ``OpenAI`` or ``AsyncOpenAI``.

    Args:
        client: an instance of ``openai.OpenAI`` or ``openai.AsyncOpenAI``.
        options: as for ``OpenAI``: dialect, record, content, predict, implicit.

    Raises:
        TypeError: ``client`` is not an openai client, or is one of ours already, or another library has replaced
            methods of it.
    """
    cls = tagged(type(client))
    if isinstance(client, Tagging):
        raise TypeError("wrap() takes a client of openai's; this one has programs already")
    if any(map(_is_patched, vars(client).values())):
        raise TypeError(
            "another library has replaced methods of this client, which a new client would not have: call wrap() "
            "before that library's own wrapper, or call continuum_client.instrument()"
        )
    twin: Any = object.__new__(cls)
    twin.__dict__.update(client.__dict__)
    twin._continuum = ClientState(ClientOptions(**options))
    for name in _cached(cls):
        twin.__dict__.pop(name, None)  # the given client's resources hold a reference to it
    return twin


def _is_patched(resource: Any) -> bool:
    """Whether ``resource`` is a part of a client, such as ``client.chat``, in which a method was replaced."""
    if not hasattr(resource, "_client"):
        return False
    parts = vars(resource).items()
    return any(
        callable(getattr(type(resource), name, None)) or _is_patched(part) for name, part in parts if name != "_client"
    )


_made: dict[type[Any], type[Any]] = {}
_made_lock = threading.Lock()


def _cached(cls: type[Any]) -> list[str]:
    """Return the names of a class's cached properties."""
    attributes = (item for base in cls.__mro__ for item in vars(base).items())
    return [name for name, value in attributes if isinstance(value, functools.cached_property)]


def tagged(cls: type[Any]) -> type[Any]:
    """Return a subclass of ``cls`` with programs. It has the same name, because openai sends it as the user agent."""
    with _made_lock:
        if cls not in _made:
            _made[cls] = _make(cls)
        return _made[cls]


def _make(cls: type[Any]) -> type[Any]:
    if issubclass(cls, Tagging):
        return cls
    for plain, tagging in ((openai.OpenAI, OpenAI), (openai.AsyncOpenAI, AsyncOpenAI)):
        if issubclass(cls, plain):
            made = type(cls.__name__, (tagging, cls), {"__module__": cls.__module__, "__doc__": cls.__doc__})
            return _shows_arguments(cls)(made)
    raise TypeError(f"wrap() takes an openai client, not {cls.__name__}")
