"""Find the tool calls in a model's output, and the key under which their times are recorded.

The functions never raise an exception, whatever the output is. Each output format has a parser. The parsers are tried
in order until one returns calls. The key is the function's name or, for a function that runs a shell command, the
command's first program (as in clients and importers). Several calls have one key, which lists their keys, because the
recorded time is that of the slowest.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from continuum_traces.shell import MAX_CHARS, first_program

_MAX_TEXT = 65_536
"""Number of characters at the end of an output that are read. Calls are at the end."""
_MAX_FAILED = 16
"""Number of broken JSON objects after which the search ends."""
_MAX_CALLS = 16
_MAX_SOURCE = 16_384
"""Characters of Python that are parsed."""


@dataclass(frozen=True, slots=True)
class OutputCall:
    """A tool call in an output."""

    name: str
    command: str | None = None
    """The shell command, if the call runs one."""


Parser = Callable[[str], Sequence[OutputCall]]
"""Returns the calls in an output, which are none if the output has another format."""

SHELL = "bash"
"""The name of a call that consists of a shell command only."""
# fmt: off
SHELL_FUNCTIONS = frozenset((
    "bash", "execute_bash", "sh", "shell", "local_shell", "terminal", "run_terminal_cmd", "run_command", "cmd", "exec",
    "run_shell_command", "execute_command", "run_in_terminal",
))
# fmt: on
"""Names of functions whose argument is a shell command. Their key is derived from the command."""
_COMMAND_ARGUMENTS = ("command", "cmd", "commands", "script", "keystrokes", "code")


# ---------------------------------------------------------------------------------------------- what callers use


CommandKey = Callable[[str], str | None]
"""Returns the key of a shell command; None: it has none."""


def first_word(command: str) -> str | None:
    """Return a command's first word, which is the key of arXiv 2511.02230 (v4, appendix A)."""
    return next(iter(command.split(maxsplit=1)), None)


def tool_key(text: str, command_key: CommandKey = first_program) -> str | None:
    """Return the key of the calls in an output; None if it calls no tool."""
    return _calls_key(read_calls(text), command_key)


def openai_key(tool_calls: Any, command_key: CommandKey = first_program) -> str | None:
    """Return the key of a response's ``tool_calls``, which are objects or dictionaries."""
    return _calls_key(read_openai(tool_calls), command_key)


def _calls_key(calls: Sequence[OutputCall], command_key: CommandKey) -> str | None:
    names = {(command_key(call.command or "") or call.name).strip()[:MAX_CHARS] for call in calls[:_MAX_CALLS]}
    return "+".join(sorted(names - {""})) or None


def read_calls(text: str) -> Sequence[OutputCall]:
    """Return the calls in an output, according to the first parser that returns any."""
    text = text[-_MAX_TEXT:] if isinstance(text, str) else ""
    if not text.strip():
        return ()
    for parser in PARSERS.values():
        try:
            calls = parser(text)
        except Exception:  # noqa: BLE001 - a user's parser may raise any exception
            continue
        if calls:
            return calls
    return ()


def read_openai(tool_calls: Any) -> list[OutputCall]:
    """Return the calls in a response's ``tool_calls``, without malformed ones."""
    calls = []
    for call in tool_calls if isinstance(tool_calls, list | tuple) else ():
        function = _get(call, "function") or call
        name, arguments = _get(function, "name"), _get(function, "arguments")
        if isinstance(name, str) and name.strip():
            calls.append(_call(name, arguments))
    return calls


def _get(item: Any, name: str) -> Any:
    return item.get(name) if isinstance(item, Mapping) else getattr(item, name, None)


def _call(name: str, arguments: Any = None) -> OutputCall:
    """Return a call of a function. The command of a shell function is in its arguments, which may be JSON text."""
    name = name.strip()
    if name.lower() not in SHELL_FUNCTIONS:
        return OutputCall(name)
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return OutputCall(name)
    return OutputCall(name, _command(arguments))


def _command(arguments: Any) -> str | None:
    if isinstance(arguments, str):
        return arguments
    if isinstance(arguments, Mapping):
        commands = (arguments[key] for key in _COMMAND_ARGUMENTS if arguments.get(key))
        return _command(next(commands, None))
    if isinstance(arguments, list | tuple) and arguments and all(isinstance(part, str) for part in arguments):
        return shlex.join(arguments)
    return None


# ---------------------------------------------------------------------------------------------- formats

_MARK = re.compile(
    r"(?:<\|tool_call_begin\|>\s*(?:functions\.)?|<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?"
    r"|<\|(?:start|channel)\|>\w+ to=functions\.)([\w.-]+)"
)


def marked(text: str) -> Sequence[OutputCall]:
    """Read calls behind special tokens, with JSON as arguments (Kimi-K2, DeepSeek, gpt-oss's harmony)."""
    marks = list(_MARK.finditer(text))[-_MAX_CALLS:]
    ends = [*(mark.start() for mark in marks[1:]), len(text)]
    return [
        _call(mark[1], arguments)
        for mark, end in zip(marks, ends, strict=False)
        if isinstance(arguments := next(_json_values(text[mark.end() : end]), None), Mapping)
    ]


_FENCE = re.compile(r"```(?:bash|sh|shell|mswea_bash_command)[ \t]*\r?\n", re.I)
_FENCE_END = re.compile(r"^[ \t]*```", re.M)


def fenced_shell(text: str) -> Sequence[OutputCall]:
    """Read a single fenced shell block (mini-swe-agent). Several blocks are a mistake of the model and not a call."""
    blocks = _elements(text, _FENCE, _FENCE_END)
    return [OutputCall(SHELL, blocks[0][1])] if len(blocks) == 1 and blocks[0][1].strip() else ()


def _elements(text: str, opening: re.Pattern[str], closing: re.Pattern[str]) -> list[tuple[str, str]]:
    """Return (first group of the opening, body) of every closed element, in linear time.

    The search ends at the first element that is not closed.
    """
    elements: list[tuple[str, str]] = []
    start = opening.search(text)
    while start and (end := closing.search(text, start.end())):
        elements.append((start[1] if opening.groups else "", text[start.end() : end.start()]))
        start = opening.search(text, end.end())
    return elements


_TOOL_CODE = re.compile(r"```tool_code[ \t]*\r?\n")


def tool_code(text: str) -> Sequence[OutputCall]:
    """Read ``tool_code`` blocks: Python calls, one or more, each printed or not (Gemma)."""
    blocks = "\n".join(body for _, body in _elements(text, _TOOL_CODE, _FENCE_END))
    statements = ast.parse(blocks).body if len(blocks) <= _MAX_SOURCE else []
    calls = [_python_call(_printed(line.value)) for line in statements if isinstance(line, ast.Expr)]
    return [call for call in calls if call is not None]


def _printed(node: ast.expr) -> ast.expr:
    is_print = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    return node.args[0] if isinstance(node, ast.Call) and is_print and len(node.args) == 1 else node


_TAG, _TAG_END = re.compile(r"<tool_call>"), re.compile(r"</tool_call>")
_GLM_KEY, _GLM_KEY_END = re.compile(r"<arg_key>"), re.compile(r"</arg_key>")
_GLM_VALUE, _GLM_VALUE_END = re.compile(r"<arg_value>"), re.compile(r"</arg_value>")


def tagged(text: str) -> Sequence[OutputCall]:
    """Read ``<tool_call>`` elements with JSON (Hermes, Qwen) or with a name and arguments (GLM)."""
    calls: list[OutputCall] = []
    for _, body in _elements(text, _TAG, _TAG_END):
        calls += json_calls(body) or functions(body) or _glm_call(body.strip())
    return calls


def _glm_call(body: str) -> list[OutputCall]:
    name = re.match(r"[\w.-]+(?=\s|<|$)", body)
    if name is None or not re.match(r"\s*(<arg_key>|$)", body[name.end() :]):
        return []
    keys = [key.strip() for _, key in _elements(body, _GLM_KEY, _GLM_KEY_END)]
    values = [value for _, value in _elements(body, _GLM_VALUE, _GLM_VALUE_END)]
    return [_call(name.group(), dict(zip(keys, values, strict=False)))]


_FUNCTION, _FUNCTION_END = re.compile(r"<function[= ](?:name=)?[\"']?([\w.-]+)[\"']?\s*>"), re.compile(r"</function>")
_PARAMETER, _PARAMETER_END = (
    re.compile(r"<parameter[= ](?:name=)?[\"']?([\w.-]+)[\"']?\s*>"),
    re.compile(r"</parameter>"),
)


def functions(text: str) -> Sequence[OutputCall]:
    """Read ``<function=NAME>`` elements with parameters or JSON (Qwen-Coder, OpenHands, Llama)."""
    calls = []
    for name, body in _elements(text, _FUNCTION, _FUNCTION_END):
        parameters = dict(_elements(body, _PARAMETER, _PARAMETER_END))
        calls.append(_call(name, parameters or body.strip() or None))
    return calls


def json_calls(text: str) -> Sequence[OutputCall]:
    """Read objects ``{"name": ..., "arguments" or "parameters": ...}``, in a list or not (Llama, Mistral, Qwen)."""
    calls = []
    for item in _json_values(text):
        for call in item if isinstance(item, list) else [item]:
            if not isinstance(call, dict):
                continue
            call = call["function"] if isinstance(call.get("function"), dict) else call
            name, arguments = call.get("name"), call.get("arguments", call.get("parameters"))
            if isinstance(name, str) and name.strip() and isinstance(arguments, dict | str):
                calls.append(_call(name, arguments))
    return calls


def terminal_commands(text: str) -> Sequence[OutputCall]:
    """Read ``{"commands": [{"keystrokes": ...}]}`` (Terminal-Bench), the keystrokes for one shell, as one call."""
    for item in _json_values(text):
        commands = item.get("commands") if isinstance(item, dict) else None
        if isinstance(commands, list):
            typed = [c.get("keystrokes") if isinstance(c, dict) else c for c in commands]
            lines = [line for line in typed if isinstance(line, str)]
            return [OutputCall(SHELL, "".join(f"{line}\n" for line in lines))] if any(map(str.strip, lines)) else ()
    return ()


_END_OF_TURN = re.compile(r"(?:<\|[a-z_]{1,32}\|>|</s>)\s*\Z")
"""The text of a token that ends an output, such as <|eot_id|>, <|eom_id|>, <|im_end|> or </s>."""


def pythonic(text: str) -> Sequence[OutputCall]:
    """Read an output that is ``name(a=1)`` or ``[f(a=1), g()]`` with constants as arguments (Llama; BFCL's prompts)."""
    source = _END_OF_TURN.sub("", text.replace("<|python_tag|>", "")).strip()
    if not re.match(r"\[?\s*[A-Za-z_][\w.]*\(", source) or source[-1] not in ")]" or len(source) > _MAX_SOURCE:
        return ()
    try:
        tree = ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return ()
    calls = tree.elts if isinstance(tree, ast.List) else [tree]
    read = [_python_call(call) for call in calls]
    return [call for call in read if call is not None] if all(read) else ()


def _python_call(node: ast.expr) -> OutputCall | None:
    if not isinstance(node, ast.Call):
        return None
    try:
        named = {word.arg: ast.literal_eval(word.value) for word in node.keywords if word.arg is not None}
        plain = [ast.literal_eval(value) for value in node.args]
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    return _call(ast.unparse(node.func).removeprefix("default_api."), named or (plain[0] if len(plain) == 1 else None))


def _json_values(text: str) -> Iterator[Any]:
    """Yield the outermost JSON objects and lists in a text."""
    decoder, at, failed = json.JSONDecoder(strict=False), 0, 0
    while failed < _MAX_FAILED and (match := _OPENING.search(text, at)):
        try:
            value, at = decoder.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            failed, at = failed + 1, match.start() + 1
            continue
        yield value


_OPENING = re.compile(r"[{\[](?=\s*[{\"\]}])")

PARSERS: dict[str, Parser] = {
    "marked": marked,
    "fenced-shell": fenced_shell,
    "tool-code": tool_code,
    "tagged": tagged,
    "functions": functions,
    "terminal": terminal_commands,
    "json": json_calls,
    "pythonic": pythonic,
}
"""The parsers by name, in the order in which they are tried. Entries can be added and removed."""
