"""Prints how long honest agents take beside clients of another API key that try to get more than their share.

    python benchmarks/fairness_keys.py [--rows light,compact] [--policies vllm,working-set] [--attackers other,same]

Each row is a closed loop of attacking clients. Beside them arrive honest programs. All run on vLLM's scheduler in
virtual time, with an A100's modelled step times and 1,200 KV blocks (``fairness_bench.py``). Mean seconds of the honest
programs; in brackets, as a multiple of what they take alone under that policy on their share of the engine. Half of the
engine is half of the memory, and steps that take twice as long. ``stock`` is policy vllm with ``--fair none``.

    python benchmarks/fairness_keys.py --search 200 [--policies working-set]

draws 200 behaviours of the attacking clients at random and prints those that cost the honest programs most.
Honest programs differ too. A third of the attacks come from two keys: the honest programs are then compared with a
third of the engine. In another third, nine more keys have one small stream each, too little to count as a share.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from statistics import mean

from commands import show
from continuum_analysis.compare.words import markdown
from continuum_server.policy.facts import PrefillCurve
from continuum_server.policy.program_table import Guards
from continuum_traces.schema import Tags
from continuum_traces.wire import MAX_HINT_S
from fairness_bench import PAUSE_S, Engine
from fairness_rows import BLOCK, KV_BLOCKS, TOOL_S, Ask, ids

ATTACKER, HONEST = "a" * 16, "b" * 16
KEYS: dict[str, tuple[str | None, str | None]] = {
    "other": (ATTACKER, HONEST),
    "same": (HONEST, HONEST),
    "none": (None, None),
}
"""The keys of the attacking clients and of the honest programs."""


@dataclass(frozen=True, slots=True)
class Victims:
    """Honest programs: so many, this long after each other, of so many turns."""

    number: int = 8
    apart_s: float = 0.25
    turns: int = 5
    prompt: int = 2200
    prefix: int = 0
    """Leading tokens of the prompt that are the same in all of them, and in some attackers' prompts."""
    output: int = 40
    more: int = 100
    """Tokens that each turn adds to the prompt beside the answer."""
    first_s: float = 3.0

    @property
    def least_blocks(self) -> int:
        """KV blocks in which one of them fits alone."""
        return (self.prompt + (self.turns - 1) * self.more + self.turns * self.output) // BLOCK + 2

    def ask(self, name: str, turn: int, context: list[int]) -> Ask:
        tags = Tags(program_id=name, is_last_step=True if turn == self.turns - 1 else None)
        return Ask(context, self.output, tags, None if tags.is_last_step else "bash")


Sending = Callable[[int, int], tuple[Ask, float]]
"""Returns a client's next request, and the seconds from its answer to the one after."""


@dataclass(frozen=True, slots=True)
class Attack:
    """Clients that send the requests of ``ask(client, number)``, each at once after the one before."""

    clients: int
    ask: Sending
    victims: Victims = Victims()
    limit_s: float = 150.0
    sends: str = ""
    keys: int = 1
    """Keys that the clients have, in turn."""
    streams: int = 0
    """Further keys, each with one stream of short prompts and long answers."""

    @property
    def part(self) -> float:
        """The honest programs' share of the engine. A key with a small stream needs no share."""
        return 1.0 / (1 + self.keys) if self.clients else 0.5


FAIR = 1.3
"""Times the share of an engine: above it, the search counts a behaviour as bad."""
DECODE_S = 0.012
"""Seconds of a decode step of one request on this GPU."""
COLLUDING = "c" * 16
"""The attacking clients' second key."""
POOL = BLOCK * (KV_BLOCKS - 1)
"""Tokens that a request can have at most."""
SPREAD = Victims(24, 2.0)
TWO_TURNS = Victims(turns=2)


def _compact(client: int, number: int) -> tuple[Ask, float]:
    short = number % 2 == 0
    prompt = ids(f"s{client}", 64) + ([] if short else ids(f"{client} {number}", 836))
    return Ask(prompt, 1 if short else 32, Tags(f"f{client}")), PAUSE_S


def _light(client: int, number: int, tagged: bool = True, tokens: int = 2600) -> tuple[Ask, float]:
    """The first client streams long answers, so that the engine never idles."""
    if client == 0:
        return Ask(ids("stream", 100), 3000, Tags("stream")), PAUSE_S
    prompt = ids(f"m{client}", tokens + 8 * (number % 12))
    return Ask(prompt, 20, Tags(f"m{client}") if tagged else Tags(), "bash"), 0.3


def _abort(client: int, number: int) -> tuple[Ask, float]:
    return Ask(ids(f"{client}", 290), 4000, Tags(f"f{client}"), abort_at=400), PAUSE_S


def _one_off(client: int, number: int, output: int = 64) -> tuple[Ask, float]:
    return Ask(ids(f"{client} {number}", 290), output, Tags()), PAUSE_S


def _long_answers(client: int, number: int) -> tuple[Ask, float]:
    return Ask(ids(f"{client} {number}", 290), 800, Tags()), PAUSE_S


def _continued(client: int, number: int) -> tuple[Ask, float]:
    return Ask(ids(f"{client}", 900 + 16 * number), 32, Tags(f"f{client}")), PAUSE_S


def _nothing(client: int, number: int) -> tuple[Ask, float]:
    raise AssertionError("no client sends")


def _stream(client: int, number: int) -> tuple[Ask, float]:
    return Ask(ids(f"stream {client} {number}", 64), 200, Tags(f"stream-{client}")), PAUSE_S


def _guest(client: int, number: int, prompt: int = 9000) -> tuple[Ask, float]:
    return Ask(ids(f"{client} {number}", prompt), 16, Tags(f"g{client}-{number}")), PAUSE_S


def _theirs(client: int, number: int) -> tuple[Ask, float]:
    """The ids of the honest programs, with prompts of its own."""
    return Ask(ids(f"{client} {number}", 900), 32, Tags(f"honest-{client % 8}")), PAUSE_S


def _retaining(ask: Sending) -> Sending:
    """Every request asks for the longest retention that is read, too. The operator's limit is shorter."""

    def hinted(client: int, number: int) -> tuple[Ask, float]:
        sent, pause_s = ask(client, number)
        return replace(sent, tags=replace(sent.tags, kv_ttl_s=MAX_HINT_S)), pause_s

    return hinted


STREAM = Attack(0, _stream)
LONGER = Victims(prompt=9000)
ATTACKS = {
    "compact": Attack(40, _compact, TWO_TURNS, sends="pretended compactions"),
    "light": Attack(8, _light, sends="light agents that go on for ever, and a stream"),
    "light-untagged": Attack(8, partial(_light, tagged=False), sends="the same without ids"),
    "one-light": Attack(2, partial(_light, tokens=16000), sends="one agent that fills most of the pool, and a stream"),
    "abort": Attack(64, _abort, SPREAD, sends="aborts, and tries again"),
    "one-offs": Attack(100, _one_off, SPREAD, sends="one-offs of 290 tokens in, 64 out"),
    "long-answers": Attack(64, _long_answers, SPREAD, sends="one-offs of 290 tokens in, 800 out"),
    "continued": Attack(40, _continued, sends="prompts that continue"),
    "guests": Attack(40, _guest, sends="fresh ids, each with a prompt of 9,000 tokens"),
    "guests-pool": Attack(8, partial(_guest, prompt=18_000), sends="fresh ids, prompts of 18,000 tokens"),
    "guests-two-keys": Attack(40, _guest, sends="the former but one, from two keys", keys=2),
    "guests-large": Attack(40, _guest, LONGER, sends="the same, beside programs of 9,000 tokens"),
    "nine-streams": Attack(8, _light, sends="`light`, and nine keys with a small stream each", streams=9),
    "nine-streams-large": Attack(8, _light, LONGER, sends="the same, beside programs of 9,000 tokens", streams=9),
    "light-hints": Attack(8, _retaining(_light), sends="`light` with retention hints of a day"),
    "one-offs-hints": Attack(100, _retaining(_one_off), SPREAD, sends="`one-offs` with such hints"),
    "continued-hints": Attack(40, _retaining(_continued), sends="`continued` with such hints"),
    "guests-hints": Attack(40, _retaining(_guest), sends="`guests` with such hints"),
    "theirs-hints": Attack(40, _retaining(_theirs), sends="the honest programs' ids, with such hints"),
}


@cache
def share_s(victims: Victims, policy: str, part: float) -> float:
    """Return the mean seconds of the honest programs alone on this part of the engine.

    A program that does not fit the part's memory gets as much memory as it needs, and the part's speed.
    """
    return seconds(Attack(0, _nothing, victims), policy, "none", Guards(), part)[0]


def seconds(attack: Attack, policy: str, keys: str, guards: Guards, part: float = 1.0) -> tuple[float, int]:
    """Return the mean seconds of the honest programs, and how many ended. Those that did not count up to the limit."""
    victims = attack.victims
    engine = Engine(policy, {}, guards, part, victims.least_blocks)
    key, honest = KEYS[keys]
    for client in range(attack.clients):
        of_client = key if client % attack.keys == 0 else COLLUDING
        engine.at(client * 0.01, partial(_send, engine, attack, client, 0, of_client))
    for number in range(attack.streams):
        engine.at(0.5, partial(_send, engine, STREAM, number, 0, f"{number:016d}"))
    begun = [victims.first_s + number * victims.apart_s for number in range(victims.number)]
    ended: dict[int, float] = {}
    for number, begin_s in enumerate(begun):
        context = ids("system", victims.prefix) + ids(f"task {number}", victims.prompt - victims.prefix)
        engine.at(begin_s, partial(_turn, engine, victims, number, 0, context, honest, ended))
    engine.run(lambda: len(ended) == victims.number, attack.limit_s)
    assert engine.scheduler.wall.errors == 0
    return mean(ended.get(number, attack.limit_s) - begin_s for number, begin_s in enumerate(begun)), len(ended)


def _send(engine: Engine, attack: Attack, client: int, number: int, key: str | None) -> None:
    ask, pause_s = attack.ask(client, number)
    again = partial(_send, engine, attack, client, number + 1, key)
    engine.send(ask, lambda answer: engine.at(engine.now_s + pause_s, again), key)


def _turn(
    engine: Engine,
    victims: Victims,
    number: int,
    turn: int,
    context: list[int],
    key: str | None,
    ended: dict[int, float],
) -> None:
    def end(answer: list[int]) -> None:
        if turn == victims.turns - 1:
            ended[number] = engine.now_s
            return
        longer = [*context, *answer, *ids(f"tool {number} {turn}", victims.more)]
        engine.at(engine.now_s + TOOL_S, partial(_turn, engine, victims, number, turn + 1, longer, key, ended))

    engine.send(victims.ask(f"honest-{number}", turn, context), end, key)


def invented(seed: int) -> Attack:
    """Return clients that choose ids, prompts, aborts, answers and pauses at random, each in its own way."""
    chance = random.Random(f"attack {seed}")
    kinds = [_habit(chance) for _ in range(chance.randint(1, 3))]
    prompt = chance.choice((600, 2200, 2200, 6000, 9000))
    number, apart_s, prefix = chance.choice((4, 8)), chance.choice((0.25, 2.0)), chance.choice((0, 0, 512))
    victims = Victims(number, apart_s, 3, prompt, prefix)
    keys, streams = chance.choice(((1, 0), (2, 0), (1, 9)))

    def ask(client: int, number: int) -> tuple[Ask, float]:
        return kinds[client % len(kinds)](client, number)

    clients = chance.choice((4, 8, 20, 40, 64))
    return Attack(clients, ask, victims, 100.0, f"invented {seed}", keys, streams)


def _habit(chance: random.Random) -> Sending:
    prompt = chance.choice((12, 64, 290, 900, 2600, 9000, 14_000, POOL - 300))
    output = min(chance.choice((1, 16, 64, 400, 3000)), POOL - 100 - prompt)
    names, texts = (
        chance.choice(("none", "fresh", "own", "shared")),
        chance.choice(("new", "same", "longer", "compact")),
    )
    abort_at = chance.choice((None, None, 1, 50))
    pause_s, tool = chance.choice((PAUSE_S, PAUSE_S, 0.3, 2.0)), chance.choice((None, "bash"))
    length, ttl_s = chance.choice((1, 4, 10**6)), chance.choice((None, None, 600.0))
    parent = chance.choice((None, None, None, "root", "before"))
    copies, prefix = chance.choice((1, 1, 1, 4)), chance.choice((0, 0, 512))

    def ask(client: int, number: int) -> tuple[Ask, float]:
        program, turn = divmod(number, length)
        name = {"none": None, "fresh": f"f{client}-{program}", "own": f"o{client}", "shared": "shared"}[names]
        text = {
            "new": lambda: ids(f"{client} {number}", prompt),
            "same": lambda: ids(f"{client}", prompt),
            "longer": lambda: ids(f"{client} {program}", min(prompt + 16 * turn, POOL - 100 - output)),
            "compact": lambda: ids(f"{client}", 64) + (ids(f"{client} {number}", prompt - 64) if number % 2 else []),
        }[texts]()
        text = ids("system", min(prefix, len(text) - 1)) + text[prefix:] if len(text) > 1 else text
        above = f"f{client}-{program - 1}" if parent == "before" else parent
        last = True if length < 10**6 and turn == length - 1 else None
        tags = Tags(name, parent_id=above, is_last_step=last, kv_ttl_s=ttl_s) if name else Tags()
        leaves_at = abort_at if abort_at is None else min(abort_at, output)
        return Ask(text, output, tags, tool, leaves_at, copies), pause_s

    return ask


def first_asks(attack: Attack) -> list[Ask]:
    """Return the first two requests of each attacking client."""
    return [attack.ask(client, number)[0] for client in range(attack.clients) for number in range(2)]


def longest_s(attack: Attack, prefill: PrefillCurve) -> float:
    """Return the seconds that the longest of the attackers' first requests takes alone, up to its abort."""
    asks = first_asks(attack)
    return max(prefill.marginal_prefill_s(len(ask.prompt)) + (ask.abort_at or ask.output) * DECODE_S for ask in asks)


def _guards(policy: str, options: argparse.Namespace) -> tuple[str, Guards]:
    """Return the policy and the guards of a column."""
    return ("vllm", Guards(fair="none")) if policy == "stock" else (policy, options.guards)


def _rows(options: argparse.Namespace) -> Iterator[list[str]]:
    for name, key in product(options.rows, options.attackers):
        attack, cells = ATTACKS[name], []
        for column in options.policies:
            policy, guards = _guards(column, options)
            mean_s, ended = seconds(attack, policy, key, guards)
            least = ">= " if ended < attack.victims.number else ""
            share = mean_s / share_s(attack.victims, policy, attack.part)
            cells.append(f"{least}{mean_s:.1f} ({least}{share:.2f})")
        yield [f"`{name}`: {attack.sends}", key, *cells]


def _search(options: argparse.Namespace) -> Iterator[str]:
    """Yield a line for each behaviour that is the worst so far, and at the end a line for each policy.

    A behaviour is judged by the honest programs' mean time beside it / their mean time alone on their share of the
    engine. What is promised is ``FAIR`` of that time, and for each turn one lag and the longest request of another key.
    """
    worst, facts = 0.0, Engine("vllm", {}, options.guards).scheduler.table
    ratios: dict[str, list[float]] = {column: [] for column in options.policies}
    small: dict[str, list[float]] = {column: [] for column in options.policies}
    beyond, unended = Counter[str](), Counter[str]()
    for seed in range(options.seed, options.seed + options.search):
        attack = replace(invented(seed), limit_s=options.limit_s)
        fits = all(2 * len(ask.prompt) + 2 * ask.output <= POOL for ask in first_asks(attack))
        turn_s = facts.tenants.lag_s + longest_s(attack, facts.policy.machine.prefill)
        for column, key in product(options.policies, options.attackers):
            policy, guards = _guards(column, options)
            mean_s, ended = seconds(attack, policy, key, guards)
            share = share_s(attack.victims, policy, attack.part)
            ratio = mean_s / share
            ratios[column].append(ratio)
            small[column] += [ratio] if fits else []
            unended[column] += ended < attack.victims.number
            beyond[column] += mean_s > FAIR * share + attack.victims.turns * turn_s
            if ratio > worst:
                worst = ratio
                yield f"{ratio:.2f} times its share: seed {seed}, {column}, {mean_s:.1f} s, {ended} ended"
    for column, of_column in ratios.items():
        bad, bad_small = (sum(ratio > FAIR for ratio in each) for each in (of_column, small[column]))
        yield (
            f"{column}: {bad} of {len(of_column)} above {FAIR}, worst {max(of_column):.2f}; without a request above "
            f"half of the pool {bad_small} of {len(small[column])}; {beyond[column]} beyond what is promised; in "
            f"{unended[column]} some had not ended"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = lambda text: text.split(",")  # noqa: E731
    parser.add_argument("--policies", type=names, default="stock,vllm,program-fcfs,continuum,working-set")
    parser.add_argument("--rows", type=names, default=",".join(ATTACKS), help="default: all")
    parser.add_argument("--attackers", type=names, default="other", help=f"their API keys: {', '.join(KEYS)}")
    parser.add_argument("--fair", choices=("keys", "none"), default="keys", help="as of continuum-bench serve")
    parser.add_argument("--key-lag", type=float, default=Guards().key_lag, help="as of continuum-bench serve")
    parser.add_argument("--search", type=int, metavar="NUMBER", help="draw so many behaviours at random")
    parser.add_argument("--limit-s", type=float, default=100.0, help="of the search: end a play after so long")
    parser.add_argument("--seed", type=int, default=0, help="the first behaviour of the search")
    options = parser.parse_args()
    options.guards = Guards(fair=options.fair, key_lag=options.key_lag)
    heads = ["the attacking clients send", "their key", *(f"`{policy}`" for policy in options.policies)]
    show(markdown(heads, _rows(options)) if options.search is None else _search(options))


if __name__ == "__main__":
    main()
