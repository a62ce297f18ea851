"""Convert vLLM's requests to the turns of policies."""

from __future__ import annotations

from collections.abc import Sequence

from continuum_traces.schema import Tags
from continuum_traces.wire import tags_from_xargs
from vllm.v1.request import Request

from continuum_server.log_once import LogOnce
from continuum_server.policy.facts import TurnState
from continuum_server.policy.program_table import ProgramTable
from continuum_server.policy.recognise import Prompt
from continuum_server.vllm_plugin import touch_points
from continuum_server.vllm_plugin.request_tags import Caller, read_caller


class TagReader:
    """Reads the tags of requests, and counts malformed tags."""

    def __init__(self) -> None:
        self.rejected = 0
        self._warn = LogOnce()

    def read(self, request: Request) -> tuple[Tags, Caller]:
        xargs = touch_points.sampling(request).extra_args or {}
        read = tags_from_xargs(xargs, touch_points.session_id(request))
        caller = read_caller(xargs)
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


def make_turn(
    table: ProgramTable, request: Request, tags: Tags, caller: Caller, now_s: float, by_prompt: bool
) -> TurnState:
    """Convert a request to the next turn of its program.

    Args:
        by_prompt: whether a request without an id continues the program whose prompt it extends. Otherwise it is a
            program of its own.
    """
    blocks = touch_points.block_hashes(request)
    prompt = Prompt(request.num_prompt_tokens, blocks, request.prompt_token_ids)
    by_prompt = by_prompt and tags.program_id is None and bool(blocks)
    if by_prompt:
        program = table.recognise(request.request_id, now_s, prompt, caller.namespace)
        program.recognised_by = "prompt"
    else:
        program = table.program_for(
            tags.program_id or request.request_id, now_s, tags.parent_id, prompt, caller.namespace
        )
    return TurnState(
        program=program,
        index=0,
        request_id=request.request_id,
        arrival_s=now_s,
        prompt_tokens=request.num_prompt_tokens,
        sequence=table.next_sequence(),
        is_last=bool(tags.is_last_step),
        tool_hint=tags.pred_tool,
        tool_hint_s=tags.pred_tool_s,
        tool_hint_p90_s=tags.pred_tool_p90_s,
        soft_hold_s=tags.kv_ttl_s or 0.0,
        this_func_call=tags.this_func_call,
        ran=tags.last_func_call,
        ran_s=tags.last_tool_duration_s,
        tagged=by_prompt or tags.program_id is not None,
        blocks=blocks,
        client=caller.client,
        turn_id=tags.turn_id,
        prompt=touch_points.prompt_mark(request),
    )
