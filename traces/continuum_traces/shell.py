"""Find the programs that a shell command runs, in order. Never raises; the time is linear in the command's length.

The lexer knows everything that decides where a command ends (quotes, substitutions, here-documents, comments,
redirections), and a few words that precede a program's name. It expands no variables and no patterns.
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


def programs(command: str) -> tuple[str, ...]:
    """Return the keys of all programs that one or several command lines run, in order and without repetition."""
    return tuple(dict.fromkeys(_programs(command, _NESTED)))


def first_program(command: str, first_word: bool = False) -> str | None:
    """Return the key of a command: the first program that it runs; None for an empty command.

    Args:
        command: one shell command line, or several.
        first_word: return the command's first word instead, as the papers do.
    """
    words = command[:_MAX_COMMAND].split(maxsplit=1)
    if first_word or not words:
        return words[0][:MAX_CHARS] if words else None
    program = next(_programs(command, _NESTED), None)
    if program is not None:
        return program
    return next((words[0] for words in simple_commands(command) if words and words[0] in _SHELL_WORK), None)


def _programs(command: str, depth: int) -> Iterator[str]:
    for words in simple_commands(command):
        rest = _without_wrappers(words)
        if not rest:
            continue
        name = rest[0].rsplit("/", 1)[-1] or rest[0]
        script = _script(name, rest) if depth > 0 else None
        if script is not None:
            yield from _programs(script, depth - 1)
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


def simple_commands(text: str) -> list[list[str]]:
    """Return the words of every simple command, without quotes, redirections and here-documents."""
    return _Lexer(text[:_MAX_COMMAND]).run()


class _Lexer:
    """Splits one text into commands and words."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._commands: list[list[str]] = []
        self._words: list[str] = []
        self._word: list[str] | None = None
        self._drop_next = False
        """Whether the next word is dropped, because it is the file name after ``>`` or ``<``."""
        self._heredocs: list[tuple[str, bool]] = []
        """Here-documents that begin after this line: the delimiter, and whether it may be indented with tabs."""

    def run(self) -> list[list[str]]:
        handlers = {
            "\n": self._newline,
            "'": self._single,
            '"': self._double,
            "\\": self._escape,
            "`": self._backticks,
            "$": self._dollar,
            "#": self._comment,
            "<": self._redirect,
            ">": self._redirect,
            "&": self._ampersand,
            **dict.fromkeys(" \t\r", self._space),
            **dict.fromkeys(";|()", self._end_command),
        }
        while self._at < len(self._text):
            handler = handlers.get(self._text[self._at])
            if handler is None:
                self._plain()
            else:
                handler()
        self._end_words()
        return self._commands

    # ------------------------------------------------------------------------------------- words

    def _add(self, piece: str) -> None:
        if self._word is None:
            self._word = []
        self._word.append(piece)

    def _end_word(self) -> None:
        if self._word is not None:
            if not self._drop_next:
                self._words.append("".join(self._word))
            self._word, self._drop_next = None, False

    def _end_words(self) -> None:
        self._end_word()
        self._drop_next = False
        if self._words:
            self._commands.append(self._words)
            self._words = []

    _PLAIN = re.compile(r"[^\s'\"\\`$#<>&;|()]+|.", re.DOTALL)

    def _plain(self) -> None:
        match = self._PLAIN.match(self._text, self._at)
        piece = match.group() if match else self._text[self._at]
        self._add(piece)
        self._at += len(piece)

    def _space(self) -> None:
        self._end_word()
        self._at += 1

    def _end_command(self) -> None:
        self._end_words()
        self._at += 1

    def _newline(self) -> None:
        self._end_words()
        self._at += 1
        for delimiter, indented in self._heredocs:
            self._skip_heredoc(delimiter, indented)
        self._heredocs = []

    # ------------------------------------------------------------------------------------ quotes

    def _until(self, end: str, start: int) -> int:
        index = self._text.find(end, start)
        return len(self._text) if index < 0 else index

    def _single(self) -> None:
        end = self._until("'", self._at + 1)
        self._add(self._text[self._at + 1 : end])
        self._at = end + 1

    _DOUBLE = re.compile(r'"((?:[^"\\]|\\.)*)("|\\?\Z)', re.DOTALL)

    def _double(self) -> None:
        match = self._DOUBLE.match(self._text, self._at)
        if match is None:
            self._at = len(self._text)
            return
        self._add(re.sub(r"\\([\"\\$`])", r"\1", match.group(1)))
        self._at = match.end()

    def _escape(self) -> None:
        following = self._text[self._at + 1 : self._at + 2]
        if following != "\n":
            self._add(following)
        self._at += 2

    def _backticks(self) -> None:
        end = self._until("`", self._at + 1)
        self._add("$")
        self._at = end + 1

    def _dollar(self) -> None:
        self._add("$")
        self._at += 1
        if self._text.startswith("(", self._at):
            self._skip_parentheses()

    _BRACKETS = re.compile(r"\\.|'[^']*'?|\"(?:[^\"\\]|\\.)*\"?|[()]|[^()'\"\\]+", re.DOTALL)

    def _skip_parentheses(self) -> None:
        """Go on after the closing parenthesis, or at the end of the text if there is none."""
        depth = 0
        for match in self._BRACKETS.finditer(self._text, self._at):
            depth += {"(": 1, ")": -1}.get(match.group(), 0)
            if depth == 0:
                self._at = match.end()
                return
        self._at = len(self._text)

    def _comment(self) -> None:
        if self._word is None:
            self._at = self._until("\n", self._at)
        else:
            self._plain()

    # -------------------------------------------------------------------------------- redirections

    _HEREDOC = re.compile(r"<<(-?)[ \t]*(?:'([^'\n]*)'|\"([^\"\n]*)\"|\\?([^\s;&|<>()'\"]+))")
    _OPERATOR = re.compile(r"<<<|[<>]{1,2}[&|]?")

    def _redirect(self) -> None:
        if self._word is not None and all(piece.isdigit() for piece in self._word):
            self._word = None  # the digits were a file descriptor
        self._end_word()
        heredoc = self._HEREDOC.match(self._text, self._at)
        if heredoc and not self._text.startswith("<<<", self._at):
            self._heredocs.append((next(g for g in heredoc.groups()[1:] if g is not None), heredoc[1] == "-"))
            self._at = heredoc.end()
            return
        operator = self._OPERATOR.match(self._text, self._at)
        self._at = operator.end() if operator else self._at + 1
        if self._text.startswith("(", self._at):
            self._skip_parentheses()  # process substitution
        else:
            self._drop_next = True

    def _ampersand(self) -> None:
        if self._text.startswith("&>", self._at):
            self._end_word()
            self._at += 1
            self._redirect()
        else:
            self._end_command()

    def _skip_heredoc(self, delimiter: str, indented: bool) -> None:
        while self._at < len(self._text):
            end = self._until("\n", self._at)
            line = self._text[self._at : end]
            self._at = min(len(self._text), end + 1)
            if (line.lstrip("\t") if indented else line).rstrip("\r") == delimiter:
                return
