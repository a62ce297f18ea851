"""Find the programs that a shell command runs, in order. Never raises; the time is linear in the command's length.

The lexer knows what decides where the first command ends (quotes, substitutions, comments, redirections), and a few
words that precede a program's name. It expands no variables and no patterns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_CHARS = 64
"""The longest key; longer ones are cut."""
_MAX_COMMAND = 200_000
_NESTED = 3
"""The number of nested ``bash -c '...'`` that are parsed."""

# fmt: off
_KEYWORDS = frozenset((
    "if", "then", "else", "elif", "fi", "while", "until", "do", "done", "esac", "{", "}", "!", "time",
))
_SHELL_WORK = frozenset((
    "cd", "pushd", "popd", "export", "set", "unset", "source", ".", "alias", "shopt", "ulimit", "umask", "declare",
    "local", "readonly", "return", "exit", "read", "test", "[", "[[", "for", "case", "select", "function", "true",
    "false", ":", "eval", "trap", "wait", "shift", "break", "continue",
))
# fmt: on
"""Words of the shell itself, which make no useful key. They are a key only if a command runs nothing else."""
_WRAPPERS: dict[str, tuple[str, int]] = {
    "sudo": ("ugpChrtD", 0),
    "doas": ("uC", 0),
    "timeout": ("sk", 1),
    "nohup": ("", 0),
    "env": ("uCS", 0),
    "nice": ("n", 0),
    "ionice": ("cnp", 0),
    "stdbuf": ("ioe", 0),
    "setsid": ("", 0),
    "exec": ("a", 0),
    "command": ("", 0),
    "builtin": ("", 0),
}
"""Programs that run another program: the letters of their options that take a value, and the number of further words
before the other program's name."""
_SHELLS = frozenset(("bash", "sh", "zsh", "dash"))
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_NAME = re.compile(r"[\w./@+~\-][\w./@+~:%,\-]*$")


def first_program(command: str) -> str | None:
    """Return the key of one or several command lines: the first program that they run; None for an empty command."""
    program = next(programs(command), None)
    if program is not None:
        return program
    return next((words[0] for words in simple_commands(command) if words and words[0] in _SHELL_WORK), None)


def programs(command: str, depth: int = _NESTED) -> Iterator[str]:
    """Yield the keys of the programs that the command lines run, in order."""
    for words in simple_commands(command):
        rest = _without_wrappers(words)
        if not rest:
            continue
        name = rest[0].rsplit("/", 1)[-1] or rest[0]
        script = _script(name, rest) if depth > 0 else None
        if script is not None:
            yield from programs(script, depth - 1)
        elif name not in _SHELL_WORK and _NAME.match(name):
            yield name[:MAX_CHARS]


def _without_wrappers(words: list[str]) -> list[str]:
    """Return the words from the program's name on."""
    index = 0
    while index < len(words):
        word = words[index]
        if word in _KEYWORDS or _ASSIGNMENT.match(word):
            index += 1
        elif word in _WRAPPERS:
            index = _after_options(words, index + 1, *_WRAPPERS[word])
        else:
            return words[index:]
    return []


def _after_options(words: list[str], index: int, with_value: str, operands: int) -> int:
    while index < len(words) and words[index].startswith("-"):
        word = words[index]
        takes_next = len(word) == 2 and word[1] in with_value
        index += 2 if takes_next else 1
    return index + operands


def _script(name: str, words: list[str]) -> str | None:
    """Return the script of ``bash -c SCRIPT``, or None."""
    if name not in _SHELLS:
        return None
    for index, word in enumerate(words[1:], 1):
        if word.startswith("-") and not word.startswith("--") and "c" in word:
            return words[index + 1] if index + 1 < len(words) else None
        if not word.startswith("-"):
            return None
    return None


_TOKEN = re.compile(
    r"""
      (?P<group> [$<>](?=\())
    | (?P<redirect> (?:\d*|&(?=>))(?:<<<|<<-|[<>]{1,2}[&|]?))
    | (?P<end> [\n;|&()])
    | (?P<space> [ \t\r]+)
    | (?P<skipped> \\\n|(?<![^\s;|&()])\#[^\n]*)
    | (?P<single> '[^']*'?)
    | (?P<double> "(?P<inner>(?:[^"\\]|\\.)*)(?:"|\\?\Z))
    | (?P<escape> \\.?)
    | (?P<backticks> `[^`]*`?)
    | (?P<plain> [^\s'"\\`$<>&;|()]+|.)
    """,
    re.DOTALL | re.VERBOSE,
)
_BRACKETS = re.compile(r"\\.|'[^']*'?|\"(?:[^\"\\]|\\.)*\"?|[()]|[^()'\"\\]+", re.DOTALL)


def simple_commands(text: str) -> list[list[str]]:
    """Return the words of every simple command, without quotes and redirections.

    The lines of a here-document count as commands: they come after the program that reads them, so no key is theirs.
    """
    text = text[:_MAX_COMMAND]
    commands: list[list[str]] = [[]]
    word: str | None = None
    is_file = False  # the word is the name of a file after ``>`` or ``<``
    at = 0
    while token := _TOKEN.match(text, at):
        at, kind = token.end(), token.lastgroup
        if kind in ("end", "space", "redirect"):
            if word is not None and not is_file:
                commands[-1].append(word)
            is_file = kind == "redirect" or (kind == "space" and is_file and word is None)
            word = None
            if kind == "end":
                commands.append([])
        elif kind == "group":
            word, at = (word or "") + "$", _after_brackets(text, at)
        elif kind != "skipped":
            word = (word or "") + _unquoted(token)
    if word is not None and not is_file:
        commands[-1].append(word)
    return [words for words in commands if words]


def _unquoted(token: re.Match[str]) -> str:
    if token.lastgroup == "double":
        return re.sub(r"\\([\"\\$`])", r"\1", token["inner"])
    if token.lastgroup == "escape":
        return token[0][1:]
    if token.lastgroup == "backticks":
        return "$"
    return token[0].strip("'")


def _after_brackets(text: str, at: int) -> int:
    """Return the place after the closing bracket, or the end of the text if there is none."""
    depth = 0
    for match in _BRACKETS.finditer(text, at):
        depth += {"(": 1, ")": -1}.get(match[0], 0)
        if depth == 0:
            return match.end()
    return len(text)
