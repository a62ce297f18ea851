"""Convert vLLM's requests to the turns of policies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from continuum_traces.schema import Tags
from continuum_traces.wire import tags_from_xargs
from vllm.v1.request import Request

from continuum_server.defaults import Recognise
from continuum_server.foreign_ids import SESSIONS
from continuum_server.log_once import LogOnce
from continuum_server.policy.facts import ProgramState, TurnState
from continuum_server.policy.program_table import ProgramTable
from continuum_server.policy.recognise import Prompt
from continuum_server.vllm_plugin import touch_points
from continuum_server.vllm_plugin.request_tags import Caller, read_caller


class TagReader:
    """Reads the tags of requests, and counts malformed tags."""

    def __init__(self) -> None:
        self.rejected = 0
        self.ignored: Counter[str] = Counter()
        """Number of requests with each hint that did nothing."""
        self._warn = LogOnce()

    def read(self, request: Request) -> tuple[Tags, Caller]:
        xargs = touch_points.sampling(request).extra_args or {}
        read = tags_from_xargs(xargs, touch_points.session_id(request))
        caller = read_caller(xargs)
        self.ignored.update(caller.ignored)
        if read.rejected or caller.rejected:
            self.note_rejected((*read.rejected, *caller.rejected))
        return read.tags, caller

    def note_rejected(self, names: Sequence[str], count: int | None = None) -> None:
        """Count malformed tags, and log each name once.

        Args:
            count: number of malformed tags, if ``names`` lists only some of them.
        """
        self.rejected += len(names) if count is None else count
        for name in names:
            self._warn(name, "tag %r could not be read and is ignored (logged once)", name)


def program_of(
    table: ProgramTable, request: Request, tags: Tags, caller: Caller, now_s: float, recognise: Recognise
) -> ProgramState:
    """Return the program to which a request belongs.

    Its id names the program. Without an id it is the program whose last prompt this one extends, or else a new program.
    A request for embeddings, scores or classes always begins a new program, whatever its id: its text may extend an
    earlier one, but it is no part of a conversation.
    """
    prompt = Prompt(request.num_prompt_tokens, touch_points.block_hashes(request), request.prompt_token_ids)
    name, namespace = request.request_id, caller.namespace
    if touch_points.pools(request):
        program = table.identity.program_for(name, now_s, None, prompt, namespace)
        program.recognised_by = ""
    elif prompt.blocks and tags.program_id is None and recognise == "ids,prompts":
        program = table.identity.recognise(name, now_s, prompt, namespace)
        program.recognised_by = "prompt"
    elif caller.weak:
        is_session = caller.source in SESSIONS
        program = table.identity.recognise(name, now_s, prompt, namespace, tags.program_id, is_session)
        program.recognised_by = caller.source
    else:
        program = table.identity.program_for(tags.program_id or name, now_s, tags.parent_id, prompt, namespace)
        program.recognised_by = caller.source or ("" if tags.program_id is None else "tag")
    return program


def make_turn(
    table: ProgramTable,
    request: Request,
    tags: Tags,
    caller: Caller,
    now_s: float,
    recognise: Recognise,
    least_priority: int = 0,
) -> TurnState:
    """Convert a request to the next turn of its program.

    Args:
        least_priority: the most urgent priority that a request may have.
    """
    program = program_of(table, request, tags, caller, now_s, recognise)
    return TurnState(
        program=program,
        index=0,
        request_id=request.request_id,
        arrival_s=now_s,
        prompt_tokens=request.num_prompt_tokens,
        sequence=table.identity.next_sequence(),
        tags=tags,
        tagged=bool(program.recognised_by),
        blocks=touch_points.block_hashes(request),
        client=caller.client,
        weight=caller.weight,
        priority=max(least_priority, request.priority),
        prompt=touch_points.prompt_mark(request),
    )
