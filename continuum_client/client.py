"""Drop-in clients: ``openai.OpenAI`` and ``openai.AsyncOpenAI`` that tell the server to which program a call belongs.

``sending`` has their methods. Resources, types and streams are openai's own.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

import openai

from continuum_client.sending import AsyncTagging, SyncTagging, Tagging
from continuum_client.settings import Options, settings_from, settings_like

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from typing_extensions import Unpack


class AllOptions(Options, total=False):
    """openai's options, and ours."""

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
    max_retries: int
    default_headers: Mapping[str, str] | None
    default_query: Mapping[str, object] | None
    http_client: openai.DefaultHttpxClient | openai.DefaultAsyncHttpxClient | None
    _strict_response_validation: bool
    _enforce_credentials: bool


_Class = TypeVar("_Class", bound=type[Any])
_OURS: Options = {"dialect": None, "record": None, "content": "none", "predict": None, "implicit": True}
_OUR_PARAMETERS = [
    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Options.__annotations__[name])
    for name, default in _OURS.items()
]


def _shows_arguments(theirs: type[Any]) -> Callable[[_Class], _Class]:
    """Decorate a class: its constructor's signature has the arguments of openai's class ``theirs``, and our options."""

    def decorate(cls: _Class) -> _Class:
        def __init__(self: Any, **options: Any) -> None:
            super(cast("Any", cls), self).__init__(**options)

        parameters = list(inspect.signature(theirs.__init__).parameters.values())
        rest = [parameter for parameter in parameters if parameter.kind is inspect.Parameter.VAR_KEYWORD]
        listed = [parameter for parameter in parameters if parameter not in rest]
        __init__.__signature__ = inspect.Signature([*listed, *_OUR_PARAMETERS, *rest])  # type: ignore[attr-defined]
        cls.__init__ = __init__
        return cls

    return decorate


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

        def __init__(self, **options: Unpack[AllOptions]) -> None: ...


@_shows_arguments(openai.AsyncOpenAI)
class AsyncOpenAI(AsyncTagging, openai.AsyncOpenAI):
    """``openai.AsyncOpenAI`` with programs. The constructor takes the same five arguments as that of ``OpenAI``. Enter
    programs with ``async with``."""

    if TYPE_CHECKING:

        def __init__(self, **options: Unpack[AllOptions]) -> None: ...


_Ours = TypeVar("_Ours", OpenAI, AsyncOpenAI)


@overload
def wrap(client: _Ours, **options: Unpack[Options]) -> _Ours: ...


@overload
def wrap(client: openai.OpenAI, **options: Unpack[Options]) -> OpenAI: ...


@overload
def wrap(client: openai.AsyncOpenAI, **options: Unpack[Options]) -> AsyncOpenAI: ...


def wrap(client: Any, **options: Unpack[Options]) -> Any:
    """Make a client with programs from an openai client (``openai.OpenAI``, ``AzureOpenAI`` or any subclass).

    The given client is not changed, and both clients share one connection pool. The result is an instance of the given
    client's class and of our ``OpenAI`` or ``AsyncOpenAI``. If the given client is an instance of our classes already,
    the result keeps its options, except for those that are passed here. If another library has replaced methods of the
    given client (as LangSmith's ``wrap_openai`` does), these methods hold that client, so its own calls are tagged too.

    Args:
        client: an instance of ``openai.OpenAI`` or ``openai.AsyncOpenAI``.
        options: as for ``OpenAI``: dialect, record, content, predict, implicit.

    Raises:
        TypeError: ``client`` is not an openai client.
    """
    known, cls = isinstance(client, Tagging), tagged(type(client))
    settings = settings_like(client._continuum, **options) if known else settings_from(**options)
    patched = any(map(_is_patched, vars(client).values()))
    if known and patched:
        client._continuum = settings
        return client
    twin: Any = object.__new__(cls)
    twin.__dict__.update(client.__dict__)
    twin._continuum = settings
    if patched:
        client._continuum = settings
        client.request = functools.partial(twin._send, type(client).request.__get__(client))
    else:
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
    for theirs, ours in ((openai.OpenAI, OpenAI), (openai.AsyncOpenAI, AsyncOpenAI)):
        if issubclass(cls, theirs):
            made = type(cls.__name__, (ours, cls), {"__module__": cls.__module__, "__doc__": cls.__doc__})
            return _shows_arguments(cls)(made)
    raise TypeError(f"wrap() takes an openai client, not {cls.__name__}")
