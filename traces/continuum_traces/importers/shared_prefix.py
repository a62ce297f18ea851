"""Find the programs whose first prompts begin with the same text, in sources that contain these prompts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from os.path import commonprefix

from continuum_traces.grouped import grouped
from continuum_traces.importers.described import estimate_tokens
from continuum_traces.programs.assumptions import Assumptions
from continuum_traces.programs.lines import digest
from continuum_traces.schema import Program

PREFIX_ESTIMATED = "shared prefix estimated at 4 characters a token"
HEAD_CHARS = 256
"""Different first messages are one template if their first 256 characters (four blocks of 16 tokens) agree."""


def with_shared_prefixes(
    programs: Sequence[Program], messages: Sequence[Sequence[str]], assumptions: Assumptions
) -> list[Program]:
    """Return the programs in their order, each with the prefix that it shares with the other programs of its group.

    Args:
        programs: the programs; those that have no turns, or no messages, stay as they are.
        messages: the texts of the messages in each program's first prompt.
        assumptions: gets the number of prefixes whose length is estimated.

    The programs of a group have the same first message (a system prompt), or first messages that begin alike (a
    template). If the whole first prompts are equal, the prefix has the length that the source reports. If only a part
    of the prompts is equal, its length is estimated.
    """
    firsts = [texts[0] if texts and program.turns else "" for program, texts in zip(programs, messages, strict=True)]
    alike = Counter(firsts)
    keys = [first if alike[first] > 1 else first[:HEAD_CHARS] for first in firsts]
    shared = list(programs)
    for key, group in grouped((key, number) for number, key in enumerate(keys)).items():
        if key and len(group) > 1:
            texts = ["\n".join(messages[n]) for n in group]
            prefix = commonprefix(texts)  # noqa: RUF071 - characters are compared, not path components
            tokens = min(programs[n].turns[0].new_input_tokens for n in group)
            if any(text != prefix for text in texts):
                tokens = min(tokens, estimate_tokens(prefix))
                assumptions.assume("program", PREFIX_ESTIMATED, len(group))
            for n in group:
                shared[n] = replace(programs[n], shared_prefix_id=digest(prefix), shared_prefix_tokens=tokens)
    return shared
