"""Tags as headers and body fields, for frameworks to which no client can be passed.

The end of ``with client.program(...)`` releases the program at ``client``'s base URL, in its dialect. Nothing releases
a program id that is given here by name: the server keeps its KV cache until the TTL ends.

docs/client has recipes for LiteLLM, LangChain, the OpenAI Agents SDK and PydanticAI.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from continuum_traces.schema import Tags

from continuum_client.dialects import HEADERS, Dialect, DialectName, find_dialect
from continuum_client.program import current_program
from continuum_client.tagging import check_id, check_seconds, check_tool, tag_body, tag_headers


def headers(program_id: str | None = None, *, parent_id: str | None = None, last_step: bool = False) -> dict[str, str]:
    """Headers that name a program, for ``extra_headers=`` and ``default_headers=``.

    Args:
        program_id: default: the current program; without a current program the result is empty.
        parent_id: the program that started this one.
        last_step: the next call is the program's last.

    Raises:
        InvalidTag: an id that cannot be sent.
    """
    return tag_headers(_identity(program_id, parent_id, last_step))


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
    """Body fields that name a program, for ``extra_body=``.

    Without ``program_id``, the result also contains what ``p.tool``, ``p.predict`` and ``p.last_step`` of the current
    program have to report. It is reported once, so use the result for one call.

    Args:
        program_id: default: the current program; without a current program the result is empty.
        dialect: of the server; ``auto`` counts as ``headers`` here, because only a client can ask the server.
        path: of the requests that the framework sends: ``/chat/completions``, ``/responses`` or ``/completions``.
        parent_id: the program that started this one.
        last_step: the next call is the program's last.
        predict: the tool that is expected after the call, and its seconds.
        last_tool: the tool that ran before the call, and its seconds.
        output_tokens: expected length of the answer; sent by the dialect ``dynamo``.

    Raises:
        InvalidTag: an id, a tool's name or a number of seconds that cannot be sent.
        UnknownDialect: no dialect has that name.
    """
    program = current_program()
    if program_id is None and program is not None:
        tags = replace(program.take().tags, turn_id=None)  # a framework may send these fields with every call
        program.passed_on(last_step or bool(tags.is_last_step))
        output_tokens = output_tokens or program.output_tokens
    else:
        tags = _identity(program_id, parent_id, last_step)
    if tags.program_id is None:
        return {}
    return tag_body(
        _with_tools(tags, predict, last_tool, last_step), find_dialect(dialect) or HEADERS, path, output_tokens
    )


def _identity(program_id: str | None, parent_id: str | None, last_step: bool) -> Tags:
    program = current_program()
    if program_id is None and program is not None:
        program.passed_on(last_step)
        return Tags(program_id=program.id, parent_id=program.parent_id, is_last_step=last_step or None)
    if program_id is None:
        return Tags()
    parent = None if parent_id is None else check_id(parent_id, "parent id")
    return Tags(program_id=check_id(program_id), parent_id=parent, is_last_step=last_step or None)


def _with_tools(
    tags: Tags, predict: tuple[str, float] | None, last_tool: tuple[str, float] | None, last_step: bool
) -> Tags:
    values: dict[str, Any] = {"is_last_step": True} if last_step else {}
    if predict is not None:
        values |= {"pred_tool": check_tool(predict[0]), "pred_tool_s": check_seconds(predict[1], "predicted seconds")}
    if last_tool is not None:
        measured = check_seconds(last_tool[1], "measured seconds")
        values |= {"last_func_call": check_tool(last_tool[0]), "last_tool_duration_s": measured}
    return replace(tags, **values)
