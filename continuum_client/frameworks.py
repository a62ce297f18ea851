"""Return tags as headers and body fields, for frameworks to which no client can be passed.

The end of ``with client.program(...)`` releases the program at ``client``'s base URL, in its dialect. If a program's id
is only passed to these functions, nothing releases the program: the server pins its KV cache until the TTL ends.

docs/client/frameworks.md and examples/frameworks have an example for each framework.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from continuum_traces.schema import Tags

from continuum_client.dialects import Dialect, DialectName, find_dialect
from continuum_client.program import current_program
from continuum_client.tagging import check_id, check_seconds, check_tool, tag_body, tag_headers


def headers(program_id: str | None = None, *, parent_id: str | None = None, last_step: bool = False) -> dict[str, str]:
    """Return headers with the program id, for ``extra_headers=`` and ``default_headers=``.

    Args:
        program_id: the program id. Default: that of the current program; without a current program the result is empty.
        parent_id: the id of the program that started this program. Default: that of the current program's parent.
        last_step: whether the next call is the program's last.

    Raises:
        InvalidTag: an id cannot be sent.
    """
    return tag_headers(_tags(program_id, parent_id, last_step, hints=False))


def extra_body(
    program_id: str | None = None,
    *,
    dialect: DialectName | Dialect = "vllm",
    path: str = "/chat/completions",
    parent_id: str | None = None,
    last_step: bool = False,
    predict: tuple[str, float] | None = None,
    last_tool: tuple[str, float] | None = None,
    output_tokens: int | None = None,
) -> dict[str, Any]:
    """Return body fields with the program id, for ``extra_body=``.

    Without ``program_id``, the result also contains the tags from ``p.tool``, ``p.predict``, ``p.last_step`` and the
    hints of the current program. They are returned once, so use the result for one call.

    Args:
        program_id: the program id. Default: that of the current program; without a current program the result is empty.
        dialect: the dialect of the server. ``auto`` means ``headers`` here, because only a client can ask the server.
        path: the path of the framework's requests: ``/chat/completions``, ``/responses`` or ``/completions``.
        parent_id: the id of the program that started this program. Default: that of the current program's parent.
        last_step: whether the next call is the program's last.
        predict: the tool that is expected to run after the call, and its seconds.
        last_tool: the tool that ran before the call, and its seconds.
        output_tokens: expected length of the answer; sent by the dialect ``dynamo``.

    Raises:
        InvalidTag: an id, a tool's name or a number of seconds cannot be sent.
        UnknownDialect: no dialect has that name.
    """
    program = current_program() if program_id is None else None
    tags = _tags(program_id, parent_id, last_step, hints=True)
    if tags.program_id is None:
        return {}
    if program is not None:
        output_tokens = output_tokens or program._state.output_tokens
    return tag_body(_with_tools(tags, predict, last_tool), find_dialect(dialect), path, output_tokens)


def _tags(program_id: str | None, parent_id: str | None, is_last_step: bool, hints: bool) -> Tags:
    """Return the tags of a program with an id, or of the current program: all of them, or without its ``hints``."""
    parent = None if parent_id is None else check_id(parent_id, "parent id")
    program = current_program()
    if program_id is not None:
        tags = Tags(program_id=check_id(program_id))
    elif program is None:
        return Tags()
    else:
        tags = program._state.take().tags if hints else Tags(program_id=program.id)
        parent = parent or program.parent_id
        program._state.passed_on(is_last_step or bool(tags.is_last_step))
    # a framework may send these tags with every call
    return replace(tags, turn_id=None, parent_id=parent, is_last_step=is_last_step or tags.is_last_step)


def _with_tools(tags: Tags, predict: tuple[str, float] | None, last_tool: tuple[str, float] | None) -> Tags:
    if predict is not None:
        seconds = check_seconds(predict[1], "predicted seconds")
        tags = replace(tags, pred_tool=check_tool(predict[0]), pred_tool_s=seconds)
    if last_tool is not None:
        seconds = check_seconds(last_tool[1], "measured seconds")
        tags = replace(tags, last_func_call=check_tool(last_tool[0]), last_tool_duration_s=seconds)
    return tags
