"""Programs of shell commands; agents, importers and servers know a command by the same name."""

from __future__ import annotations

import json

import pytest
from continuum_server.vllm_plugin.tool_calls import openai_key
from continuum_traces.shell import first_program, programs, simple_commands
from hypothesis import given
from hypothesis import strategies as st

from continuum_client.recorder import tool_by_command

COMMANDS: list[tuple[str, str | None, tuple[str, ...]]] = [
    ("cd /testbed && python -m pytest tests", "python", ("python",)),
    ("cd x || exit 1\ngrep -rn foo .", "grep", ("grep",)),
    ("cat a.txt | grep b | wc -l", "cat", ("cat", "grep", "wc")),
    ("FOO=1 BAR='a b' make -j4", "make", ("make",)),
    ("sudo -u root -E timeout -s KILL 10 nohup time ./run.sh &", "run.sh", ("run.sh",)),
    ("timeout 300s /usr/bin/python3 x.py", "python3", ("python3",)),
    ("env -i PATH=/bin nice -n 5 gcc a.c", "gcc", ("gcc",)),
    ("cd /only/that", "cd", ()),
    ("source venv/bin/activate && pip install -e .", "pip", ("pip",)),
    ("export A=1", "export", ()),
    ("", None, ()),
    ("# a comment\npython x.py # and another", "python", ("python",)),
    ("echo 'a && b; c | d'", "echo", ("echo",)),
    ('echo "a && $(rm -rf / && ls) \\" ; b" && sed -n 1p f', "echo", ("echo", "sed")),
    ("bash -c 'cd x && pytest -k \"a and b\"'", "pytest", ("pytest",)),
    ("bash -lc \"bash -c 'cd y; tox'\"", "tox", ("tox",)),
    ("bash run.sh", "bash", ("bash",)),
    ("bash", "bash", ("bash",)),
    ("grep x <<< 'y && z'", "grep", ("grep",)),
    ("make 2>&1 | tee log.txt", "make", ("make", "tee")),
    ("make &> log; ls", "make", ("make", "ls")),
    (">out.txt 2>/dev/null ls", "ls", ("ls",)),
    ("(cd a && npm test) && { yarn; }", "npm", ("npm", "yarn")),
    ("for f in *.py; do black $f; done", "black", ("black",)),
    ("if [ -f x ]; then cat x; else touch x; fi", "cat", ("cat", "touch")),
    ("while read l; do echo $l; done < f", "echo", ("echo",)),
    ("x=$(git log | head) && echo $x", "echo", ("echo",)),
    ("diff <(sort a) <(sort b)", "diff", ("diff",)),
    ("ls `pwd; date`", "ls", ("ls",)),
    ("python -c 'import sys\nsys.exit(0)'\nls", "python", ("python", "ls")),
    ("ls \\\n  -la && pwd", "ls", ("ls", "pwd")),
    ("echo 'unfinished", "echo", ("echo",)),
    ('echo "unfinished\\', "echo", ("echo",)),
    ("echo $(unfinished", "echo", ("echo",)),
    ("$PYTHON x.py", None, ()),
    ("&& || ; |", None, ()),
    ("echo a#b; ls", "echo", ("echo", "ls")),
]


@pytest.mark.parametrize(("command", "key", "all_of_them"), COMMANDS)
def test_commands(command: str, key: str | None, all_of_them: tuple[str, ...]) -> None:
    assert first_program(command) == key
    assert tuple(dict.fromkeys(programs(command))) == all_of_them


@pytest.mark.parametrize(
    "command",
    [
        "cat > f.py <<'EOF'\nimport os; os.system('rm')\nls && pwd\nEOF\npython f.py",
        "cd x && cat <<-END | sort > out\n\tb && c\n\tEND\nwc out",
        "<<A cat <<B\none\nA\ntwo\nB\nuniq x",
        "export A=1; cat <<EOF\nnever finished && rm x",
    ],
)
def test_here_documents_come_after_their_program(command: str) -> None:
    assert first_program(command) == "cat"


def test_words_lose_their_quotes() -> None:
    assert simple_commands('a \'b c\'"d\\"e"\\ f; g') == [["a", 'b cd"e f'], ["g"]]


@pytest.mark.parametrize("command", [command for command, _, _ in COMMANDS])
def test_a_client_and_a_server_name_a_command_alike(command: str) -> None:
    called = {"function": {"name": "bash", "arguments": json.dumps({"command": command})}}
    assert tool_by_command("bash", json.dumps({"command": command})) == openai_key([called])


PIECES = st.sampled_from(
    ["bash -c ", "'", '"', "\\", "$(", "`", "cat <<E\n", "E\n", "cd x && ", "|", "&", ">", "#", "ls "]
)


@given(st.one_of(st.text(max_size=200), st.lists(PIECES, max_size=40).map("".join)))
def test_no_text_breaks_it(command: str) -> None:
    assert first_program(command) is None or first_program(command)
    assert all(programs(command))
