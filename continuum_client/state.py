"""``TaggedProgram``, what our own modules know of a program; ``Program`` is what its agent calls."""

from __future__ import annotations

import itertools
import os
import threading
import uuid
import weakref
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from continuum_traces.programs.lines import metadata_fault
from continuum_traces.schema import Metadata, Tags

from continuum_client.dialects import Dialect, Release
from continuum_client.ending import do_what_is_left, end_with_process, later
from continuum_client.endpoints import endpoints
from continuum_client.errors import InvalidTag, ProgramClosed
from continuum_client.own_requests import ProgramPost, Sender
from continuum_client.tagging import check_id
from continuum_client.tools import MAX_RUNS, ToolRun, busy_seconds, check_predict, predicted, tags_of

if TYPE_CHECKING:
    from continuum_client.options import ClientState
    from continuum_client.recorder import Ledger
    from continuum_client.tools import Predict
    from continuum_client.turns import EndedCall


_OF_A_TURN = ("turn_id", "is_last_step", "last_func_call", "last_tool_duration_s")
"""Tags that every try of a turn has."""


@dataclass(frozen=True, slots=True)
class CutOff:
    """A call whose answer was cut off."""

    tags: Tags
    prompt: object
    """The shape of its prompt."""


@dataclass(frozen=True, slots=True)
class CallTags:
    """The tags of one call, and the facts from which they were made."""

    tags: Tags
    runs: tuple[ToolRun, ...] = ()
    """The tools that ran since the previous call."""
    from_agent: Tags = field(default_factory=Tags)
    """The tags that the agent's code set, with ``Program.predict`` and the like."""


class TaggedProgram:
    """A program: the tags of its next call, its record, and the releases that its end sends.

    Args:
        client: what the client that opened the program shares with its copies.
        home: the client that opened the program; None: no single one.
        program_id, parent_id: the ids; None: a random one, no parent.
        predict: as for ``client.program``; None: the client's.
        output_tokens: expected length of each answer, in tokens.
        metadata: what the user noted about the program, for its record; never sent.

    Raises:
        InvalidTag: an id, a name or a number cannot be sent, or the metadata is too large.
    """

    def __init__(
        self,
        client: ClientState,
        home: Sender | None,
        program_id: str | None,
        parent_id: str | None,
        predict: Predict | None,
        output_tokens: int | None,
        metadata: Metadata | None,
    ) -> None:
        if output_tokens is not None and (isinstance(output_tokens, bool) or output_tokens < 1):
            raise InvalidTag(f"output_tokens {output_tokens!r}: must be at least 1")
        fault = None if metadata is None else metadata_fault(metadata)
        if fault is not None:
            raise InvalidTag(f"metadata: {fault}")
        self.id = uuid.uuid4().hex if program_id is None else check_id(program_id)
        self.parent_id = None if parent_id is None else check_id(parent_id, "parent id")
        self.output_tokens = output_tokens
        self.metadata = dict(metadata) if metadata else None
        self.clock = client.clock
        self.closed = False
        self.pid = os.getpid()
        """The process that opened the program."""
        self.ledger: Ledger | None = None
        """Records the turns; None: they are not recorded."""
        self.expected: dict[str, float] = {}
        """The latest ``expect_s`` of each tool, in seconds."""
        self._dialect = client.dialect
        self._home = home
        self._predict = check_predict(predict) or client.predict
        self._runs: list[ToolRun] = []
        self._from_agent = Tags()
        """The tags of the next call that the agent's code has set."""
        self._turns = itertools.count()
        self.cut_off: CutOff | None = None
        """The latest call, if its answer was cut off."""
        self._releases: dict[str, ProgramPost] = {}
        """By base URL, of the servers to which calls of this program were sent."""
        self._lock = threading.Lock()
        if client.recorder is not None:
            self._record_in(client.recorder.ledger(self.id, self.parent_id, self.metadata))

    def require_open(self) -> None:
        """Do nothing if the program is open.

        Raises:
            ProgramClosed: it is closed.
        """
        if self.closed:
            raise ProgramClosed(f"program {self.id!r} is closed")

    def set_tags(self, **tags: Any) -> None:
        """Send these tags with the next call."""
        with self._lock:
            self._from_agent = replace(self._from_agent, **tags)

    def ran(self, run: ToolRun) -> None:
        """Note that a tool has run."""
        with self._lock:
            if len(self._runs) < MAX_RUNS:
                self._runs.append(run)

    def handed_over(self) -> Mapping[str, object]:
        """Return the facts from which another process continues the program."""
        return {"program_id": self.id, "parent_id": self.parent_id, "metadata": self.metadata}

    # ------------------------------------------------------------------------------------ calls

    def _record_in(self, ledger: Ledger) -> None:
        """Record the turns in ``ledger`` until the program is closed or garbage collected, or the process exits."""
        self.ledger = ledger
        weakref.finalize(self, later, ledger.cut).atexit = False

    def end_turn(self, ended: EndedCall) -> None:
        """Record a call that has ended."""
        if self.ledger is not None:
            self.ledger.end_turn(ended)

    def take(self, before: Tags | None = None) -> CallTags:
        """Return the tags of a call that is about to be sent.

        The tools and the agent's own tags are then forgotten, because only one call sends them.

        Args:
            before: the tags of the latest call, if this call is another try of its turn.
        """
        do_what_is_left()
        with self._lock:
            runs, given, number = tuple(self._runs), self._from_agent, next(self._turns)
            self._runs, self._from_agent = [], Tags()
        prediction = predicted(self._predict, runs) if given.pred_tool is None and self._predict is not None else None
        slowest = max(runs, key=lambda run: run.duration_s, default=None)
        tags = replace(
            given,
            program_id=self.id,
            parent_id=self.parent_id,
            last_func_call=slowest.name if slowest else None,
            last_tool_duration_s=round(busy_seconds(runs), 6) if slowest else None,
            turn_id=f"{number}-{uuid.uuid4().hex[:8]}",  # a forked process counts from the same number
            **(tags_of(prediction) if prediction else {}),
        )
        if before is not None:
            same = {name: value for name in _OF_A_TURN if (value := getattr(before, name)) is not None}
            tags = replace(tags, **same)
        return CallTags(tags, runs, given)

    def give_back(self, taken: CallTags) -> None:
        """Take back the tags of a failed call. The next call sends its tools and the agent's own tags again."""
        given = replace(taken.from_agent, is_last_step=taken.tags.is_last_step)  # perhaps of the turn's earlier try
        with self._lock:
            self._runs = [*taken.runs, *self._runs][:MAX_RUNS]
            if self._from_agent.pred_tool is not None:  # the newer prediction counts as a whole
                given = replace(given, pred_tool_s=None, pred_tool_p90_s=None)
            newer = {name: value for name, value in asdict(self._from_agent).items() if value is not None}
            self._from_agent = replace(given, **newer)

    def carried_by(self, sender: Sender, dialect: Dialect, taken: CallTags) -> None:
        """Note that a call with these tags is sent to ``sender``'s server, in a dialect (``headers`` to a server that
        refuses our fields, and so holds nothing that could be released)."""
        end_with_process(self)
        request = dialect.release(self.id)
        if taken.tags.is_last_step:
            self._releases.clear()
        elif request is not None:
            self._releases[sender.url] = ProgramPost(self.id, request, sender)

    def refused_by(self, url: str) -> None:
        """Note that the server has refused the fields of the latest call."""
        self._releases.pop(url, None)

    def passed_on(self, is_last_step: bool) -> None:
        """Note that the tags were passed to a framework. The client that opened the program then has to release it."""
        if is_last_step:
            self._releases.clear()
        elif self._home is not None:
            end_with_process(self)
            request = endpoints.dialect_of(self._dialect, self._home.url).release(self.id)
            if request is not None:
                self._releases[self._home.url] = ProgramPost(self.id, request, self._home)

    def tell(self, event: Mapping[str, object]) -> None:
        """Send a tool event to each server that takes them, and to which calls of this program were sent."""
        with self._lock:
            servers = [*self._releases.values()]
        for server in servers:
            if server.request.events is not None:
                request = Release(server.request.events, event)
                ProgramPost(self.id, request, server.sender, "a tool event").send()

    # ------------------------------------------------------------------------------------ the end

    def close(self) -> None:
        """End the program. ``Program.close`` describes it."""
        for release in self._end():
            release.send()

    async def aclose(self) -> None:
        """End the program like ``close``, but wait until an asynchronous client has sent the release."""
        for release in self._end():
            await release.asend()

    def forget(self) -> None:
        """Close the program without a release, because the agent may still continue it."""
        self._end()

    def cut(self) -> None:
        """Complete the record, without the replies that are still being received."""
        if self.ledger is not None:
            self.ledger.cut()

    def _end(self) -> list[ProgramPost]:
        """Close the program. Return the releases that are to be sent."""
        do_what_is_left()
        with self._lock:
            if self.closed:
                return []
            self.closed = True
            releases, self._releases = [*self._releases.values()], {}
        if self.ledger is not None:
            self.ledger.finish(self._runs)
        return releases
