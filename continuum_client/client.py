"""The drop-in clients: ``openai.OpenAI`` and ``openai.AsyncOpenAI`` that say which program a call belongs to.

Everything goes through one override, ``request()``: once for each logical call, before openai's own retries, so a
retry keeps its ids. Resources, types and streams are openai's own.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast, overload
from urllib.parse import urlsplit, urlunsplit

import openai

from continuum_client.call import Call, call_for
from continuum_client.dialects import HEADERS, Dialect, Release
from continuum_client.endpoints import endpoints
from continuum_client.errors import once
from continuum_client.program import Program
from continuum_client.settings import OPTIONS, Settings, settings_from

if TYPE_CHECKING:
    import os
    from collections.abc import Awaitable, Callable

    from typing_extensions import Self

    from continuum_client.predictors import Predictor
    from continuum_client.recorder import Recorder
    from continuum_client.reply import Content

ASK_TIMEOUT_S = 2.0
"""For the two requests of our own: ``auto``'s one look at ``/models``, and the release of a program."""


SETTINGS = "_continuum_settings"
"""Name under which a copy's constructor gets them."""


class _Tagging:
    """What both clients have in common. Comes before openai's class in the order of bases."""

    _continuum: Settings
    _bound: Program | None = None
    base_url: Any

    def program(
        self,
        program_id: str | None = None,
        *,
        predict: bool | Predictor | None = None,
        parent: Program | str | None = None,
        output_tokens: int | None = None,
    ) -> Program:
        """Open a program: one agent run. Calls in the body of ``with client.program(...)`` are its turns.

        Args:
            program_id: 1 to 256 printable ASCII characters; without it a random one.
            predict: True, or a ``Predictor``: send a guess of the next tool with each call. Default: the client's.
            parent: the program this one works for; default: the current one, if there is one.
            output_tokens: expected length of an answer, for dialects that have a place for it (Dynamo).

        Raises:
            InvalidTag: an id or a number that cannot be sent.
        """
        return self._continuum.program(program_id, predict, parent, output_tokens)

    def bind(self, program: Program) -> Self:
        """A copy of this client whose every call belongs to ``program``, wherever it is made."""
        twin = cast("Any", self).copy()
        twin._bound = program
        return cast("Self", twin)

    def _call(self, options: Any) -> Call | None:
        return call_for(self._continuum, self._bound, options, str(self.base_url))

    def _set_up(self, options: dict[str, Any]) -> None:
        """Take our options out of a constructor's."""
        ours = {name: options.pop(name) for name in OPTIONS if name in options}
        self._continuum = options.pop(SETTINGS, None) or settings_from(**ours)

    def _passing_on(self, options: dict[str, Any]) -> dict[str, Any]:
        """``copy()``'s options, so that the constructor it calls takes this client's settings."""
        return {**options, "_extra_kwargs": {SETTINGS: self._continuum, **options.get("_extra_kwargs", {})}}

    def _passed_on(self, twin: Any) -> Any:
        twin._bound = self._bound
        return twin

    def _release_request(self, program_id: str) -> Release | None:
        """What ends a program at this client's server, if anything does."""
        url = str(self.base_url)
        dialect = self._continuum.dialect or endpoints.found(url)
        return dialect.release(program_id) if dialect is not None and endpoints.accepts(url, "extension") else None

    def _not_released(self, error: BaseException) -> None:
        if getattr(error, "status_code", None) not in (404, 405):  # a server without the endpoint holds nothing
            url = str(self.base_url)
            once.warn(f"release {url}", f"{url}: a program's end could not be told: {error!r}")


class _SyncTagging(_Tagging):
    if not TYPE_CHECKING:

        def __init__(self, **options: Any) -> None:
            self._set_up(options)
            super().__init__(**options)

        def copy(self, **options: Any) -> Any:
            return self._passed_on(super().copy(**self._passing_on(options)))

        with_options = copy

        def request(self, cast_to: Any, options: Any, *, stream: bool = False, stream_cls: Any = None) -> Any:
            call = self._call(options)
            if call is None:
                return super().request(cast_to, options, stream=stream, stream_cls=stream_cls)
            while True:
                try:
                    if not call.tagged:
                        call.apply_tags(call.dialect or self._ask(call.url), stream, self)
                    result = super().request(cast_to, options, stream=stream, stream_cls=stream_cls)
                except BaseException as error:
                    if not call.try_without(error):
                        raise
                else:
                    return call.answered(result)

    def _ask(self, url: str) -> Dialect:
        """``auto``: one look at the server's models."""
        if not endpoints.begin_probe(url):
            return HEADERS
        try:
            models = cast("Any", self).get("/models", cast_to=object, options=_ASK_OPTIONS)
        except (openai.APIStatusError, openai.APITimeoutError):
            models = None  # it has no list, or takes too long over it
        except openai.APIConnectionError:
            endpoints.abandon_probe(url)
            return HEADERS  # nobody there: the call itself will find out
        except BaseException:
            endpoints.abandon_probe(url)
            raise
        return endpoints.end_probe(url, models)

    def _release(self, program_id: str) -> None:
        wanted = self._release_request(program_id)
        if wanted is None:
            return
        try:
            url = root_of(str(self.base_url)) + wanted.path
            cast("Any", self).post(url, cast_to=object, body=wanted.body, options=_ASK_OPTIONS)
        except Exception as error:  # noqa: BLE001 - the program is over either way
            self._not_released(error)


class _AsyncTagging(_Tagging):
    if not TYPE_CHECKING:

        def __init__(self, **options: Any) -> None:
            self._set_up(options)
            super().__init__(**options)

        def copy(self, **options: Any) -> Any:
            return self._passed_on(super().copy(**self._passing_on(options)))

        with_options = copy

        async def request(self, cast_to: Any, options: Any, *, stream: bool = False, stream_cls: Any = None) -> Any:
            call = self._call(options)
            if call is None:
                return await super().request(cast_to, options, stream=stream, stream_cls=stream_cls)
            while True:
                try:
                    if not call.tagged:
                        call.apply_tags(call.dialect or await self._ask(call.url), stream, self)
                    result = await super().request(cast_to, options, stream=stream, stream_cls=stream_cls)
                except BaseException as error:
                    if not call.try_without(error):
                        raise
                else:
                    return call.answered(result)

    async def _ask(self, url: str) -> Dialect:
        """``auto``: one look at the server's models."""
        if not endpoints.begin_probe(url):
            return HEADERS
        try:
            models = await cast("Any", self).get("/models", cast_to=object, options=_ASK_OPTIONS)
        except (openai.APIStatusError, openai.APITimeoutError):
            models = None  # it has no list, or takes too long over it
        except openai.APIConnectionError:
            endpoints.abandon_probe(url)
            return HEADERS  # nobody there: the call itself will find out
        except BaseException:
            endpoints.abandon_probe(url)
            raise
        return endpoints.end_probe(url, models)

    def _release(self, program_id: str) -> Any:
        """None where there is nothing to tell, else what has to be awaited."""
        wanted = self._release_request(program_id)
        return None if wanted is None else self._send_release(wanted)

    async def _send_release(self, wanted: Release) -> None:
        try:
            url = root_of(str(self.base_url)) + wanted.path
            await cast("Any", self).post(url, cast_to=object, body=wanted.body, options=_ASK_OPTIONS)
        except Exception as error:  # noqa: BLE001 - the program is over either way
            self._not_released(error)


_ASK_OPTIONS: Mapping[str, Any] = {"timeout": ASK_TIMEOUT_S, "max_retries": 0}


class OpenAI(_SyncTagging, openai.OpenAI):
    """``openai.OpenAI`` with programs. Takes the same arguments, and five of its own, all optional.

    Args:
        dialect: what the server understands beyond headers: ``headers`` (default, legal everywhere), ``vllm``,
            ``sglang``, ``dynamo``, ``trtllm``, ``thunderagent``, ``openai``; ``auto`` asks the server. Or an object of
            your own. Default: the environment's ``CONTINUUM_DIALECT``.
        record: a directory to record to, or a ``Recorder``. Default: the environment's ``CONTINUUM_RECORD``, else
            nothing.
        content: how much text is recorded: ``none``, ``digest``, ``full``.
        predict: guess the next tool: False, True, or a ``Predictor``. A program may say otherwise.
        implicit: give calls made outside any program one of their own, by the conversation they go on with.

    Raises:
        UnknownDialect, ValueError: an option that does not exist.
    """

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            api_key: str | Callable[[], str] | None = None,
            admin_api_key: str | None = None,
            workload_identity: Any = None,
            organization: str | None = None,
            project: str | None = None,
            webhook_secret: str | None = None,
            provider: Any = None,
            base_url: Any = None,
            data_residency: Any = None,
            websocket_base_url: Any = None,
            timeout: float | openai.Timeout | openai.NotGiven | None = openai.NOT_GIVEN,
            max_retries: int = openai.DEFAULT_MAX_RETRIES,
            default_headers: Mapping[str, str] | None = None,
            default_query: Mapping[str, object] | None = None,
            http_client: openai.DefaultHttpxClient | None = None,
            _strict_response_validation: bool = False,
            _enforce_credentials: bool = True,
            dialect: str | Dialect | None = None,
            record: str | os.PathLike[str] | Recorder | None = None,
            content: Content = "none",
            predict: bool | Predictor = False,
            implicit: bool = True,
        ) -> None: ...


class AsyncOpenAI(_AsyncTagging, openai.AsyncOpenAI):
    """``openai.AsyncOpenAI`` with programs; the same arguments as ``OpenAI`` here, and ``async with`` for programs."""

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            api_key: str | Callable[[], Awaitable[str]] | None = None,
            admin_api_key: str | None = None,
            workload_identity: Any = None,
            organization: str | None = None,
            project: str | None = None,
            webhook_secret: str | None = None,
            provider: Any = None,
            base_url: Any = None,
            data_residency: Any = None,
            websocket_base_url: Any = None,
            timeout: float | openai.Timeout | openai.NotGiven | None = openai.NOT_GIVEN,
            max_retries: int = openai.DEFAULT_MAX_RETRIES,
            default_headers: Mapping[str, str] | None = None,
            default_query: Mapping[str, object] | None = None,
            http_client: openai.DefaultAsyncHttpxClient | None = None,
            _strict_response_validation: bool = False,
            _enforce_credentials: bool = True,
            dialect: str | Dialect | None = None,
            record: str | os.PathLike[str] | Recorder | None = None,
            content: Content = "none",
            predict: bool | Predictor = False,
            implicit: bool = True,
        ) -> None: ...


@overload
def wrap(client: openai.OpenAI, **options: Any) -> OpenAI: ...


@overload
def wrap(client: openai.AsyncOpenAI, **options: Any) -> AsyncOpenAI: ...


def wrap(client: Any, **options: Any) -> Any:
    """A client like the given one (an ``openai.OpenAI``, ``AzureOpenAI``, any subclass) that has programs too.

    The given client stays as it is; both share one connection pool. The result is of the given client's class and of
    ours.

    Args:
        client: someone else's.
        options: ``dialect``, ``record``, ``content``, ``predict``, ``implicit``, as for ``OpenAI``.

    Raises:
        TypeError: not a client of openai's, or an option that does not exist.
    """
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise TypeError(f"wrap() got an unexpected option {unknown[0]!r}; there are {', '.join(OPTIONS)}")
    cls = _tagged(type(client))
    twin: Any = object.__new__(cls)
    twin.__dict__.update(client.__dict__)
    for name in _cached(cls):
        twin.__dict__.pop(name, None)  # resources that were made point to the other client
    twin._continuum = settings_from(**options)
    return twin


_made: dict[type[Any], type[Any]] = {}
_made_lock = threading.Lock()


def _cached(cls: type[Any]) -> list[str]:
    """Names of a class's cached properties."""
    found = (item for base in cls.__mro__ for item in vars(base).items())
    return [name for name, value in found if isinstance(value, functools.cached_property)]


def _tagged(cls: type[Any]) -> type[Any]:
    """``cls`` with tagging, under its own name (openai sends it as the user agent)."""
    with _made_lock:
        if cls not in _made:
            _made[cls] = _make(cls)
        return _made[cls]


def _make(cls: type[Any]) -> type[Any]:
    if issubclass(cls, _Tagging):
        return cls
    for theirs, ours in ((openai.OpenAI, OpenAI), (openai.AsyncOpenAI, AsyncOpenAI)):
        if issubclass(cls, theirs):
            return type(cls.__name__, (ours, cls), {"__module__": cls.__module__, "__doc__": cls.__doc__})
    raise TypeError(f"wrap() takes a client of openai's, not {cls.__name__}")


def root_of(url: str) -> str:
    """A server's root: its base URL without ``/v1``, query and the end's slash."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/")
    return urlunsplit((parts.scheme, parts.netloc, path.removesuffix("/v1"), "", ""))
