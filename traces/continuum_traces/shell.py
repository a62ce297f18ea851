"""Which programs a shell command runs. Never raises, whatever the text."""

from __future__ import annotations

import re

_SEPARATORS = re.compile(r"&&|\|\||;|\||\n|&(?![>\d])")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=\S*$")
_PREFIXES = {"sudo", "time", "nohup", "exec", "command", "env", "stdbuf", "xargs", "if", "elif", "while", "until"}
_WORD = re.compile(r"[\w./+@\[\]-]+$")


def shell_tools(command: str, first_word: bool = False) -> tuple[str, ...]:
    """Keys of a command's programs, in order: what each part of it runs.

    Args:
        command: one shell command line, or several lines.
        first_word: the papers' key instead: the first word of the whole command, whatever it is.
    """
    if first_word:
        words = command.split()
        return (_base(words[0]),) if words else ()
    found: list[str] = []
    for part in _SEPARATORS.split(_without_quotes(_without_heredocs(command))):
        name = _program(part.split())
        if name and name not in found:
            found.append(name)
    return tuple(found)


def tool_key(command: str, first_word: bool = False) -> str | None:
    """The one key a TTL is learnt under: the first real program; None for an empty command."""
    tools = shell_tools(command, first_word)
    return tools[0] if tools else ("cd" if command.split()[:1] == ["cd"] else None)


def _program(words: list[str]) -> str | None:
    """The program a simple command runs; None for ``cd X``, an assignment alone, a comment."""
    index = 0
    while index < len(words):
        word = words[index].lstrip("({!")
        if word in ("cd", "pushd", "popd", "export", "set", "source", ".", "#", "then", "do", "fi", "done"):
            return None
        if word == "timeout":
            index += 1
            while index < len(words) and (words[index].startswith("-") or words[index][:1].isdigit()):
                index += 1
            continue
        if not word or word in _PREFIXES or _ASSIGNMENT.match(word) or word.startswith("-"):
            index += 1
            continue
        return _base(word) if _WORD.match(word) else None
    return None


def _base(word: str) -> str:
    return word.rsplit("/", 1)[-1][:64] or word[:64]


def _without_quotes(text: str) -> str:
    """Quoted text blanked, so that separators inside it do not count."""
    return re.sub(r"'[^']*'|\"(?:\\.|[^\"\\])*\"", " q ", text)


def _without_heredocs(text: str) -> str:
    """The bodies of here-documents cut out; an unfinished one ends with the text."""
    return re.sub(r"<<-?\s*(['\"]?)(\w+)\1([^\n]*)\n.*?(?:^\s*\2\s*$|\Z)", r"\3\n", text, flags=re.S | re.M)
