"""Routers, which choose the replica of each turn: in virtual runs, and among the engines of one vLLM server
(``vllm_plugin.ranks``).

A router only knows requests and answers. It does not know the state of the schedulers, and
assumes that a replica has cached every prompt that was sent to it. This module does not import vLLM.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Arrival:
    """A turn that needs a replica."""

    program_id: str
    prompt_tokens: int
    kept_tokens: int | None = None
    """Leading tokens of the program's previous context that the prompt keeps; None: all."""
    shared_prefix_id: str | None = None
    shared_prefix_tokens: int = 0
    is_last_step: bool = False
    parent_id: str | None = None
    """The program that started this one."""


@dataclass(slots=True)
class Traffic:
    """A router's knowledge about one replica."""

    requests: int = 0
    """Number of requests that were sent and not answered."""
    tokens: int = 0
    """Prompt tokens of these requests."""
    tokens_sent: int = 0
    """Prompt tokens sent so far. Tokens that were sent before as part of the same prefix do not count again."""
    programs: dict[str, str | None] = field(default_factory=dict)
    """Running programs whose latest turn was sent to this replica, with their ``shared_prefix_id``."""
    prefixes: dict[str, int] = field(default_factory=dict)
    """Of ``CacheAware``: leading tokens of each program's latest context that were sent to this replica."""


Replicas = Mapping[int, Traffic]
"""The replicas that can be chosen, by index."""


class Router(Protocol):
    def choose(self, arrival: Arrival, replicas: Replicas) -> int:
        """Return the index of a replica."""
        ...


class Affinity:
    """The hash of the program's id determines the replica (rendezvous hashing)."""

    def choose(self, arrival: Arrival, replicas: Replicas) -> int:
        return max(replicas, key=lambda index: _hash(arrival.program_id, index))


class RoundRobin:
    """Every turn goes to the next replica, regardless of its program."""

    def __init__(self) -> None:
        self._sent = count()

    def choose(self, arrival: Arrival, replicas: Replicas) -> int:
        return list(replicas)[next(self._sent) % len(replicas)]


class LeastLoaded:
    """Every turn goes to the replica with the fewest unanswered requests, and of equals to the fewest prompt tokens."""

    def choose(self, arrival: Arrival, replicas: Replicas) -> int:
        return _least_loaded(replicas)


class Sticky:
    """A program's turns go to the replica of its first turn, and its sub-programs' turns too.

    Another program begins at the replica with the fewest running programs. If its prompt begins with
    ``LONG_PREFIX_TOKENS`` or more tokens that running programs share, it begins where they run, as long as that replica
    has at most ``MORE_TOGETHER`` programs more than the one with the fewest. (vllm-router's sticky_least_loaded, with
    clients that mark the last turn of a program, has only the first and second rule.)
    """

    LONG_PREFIX_TOKENS, MORE_TOGETHER = 4096, 8

    def choose(self, arrival: Arrival, replicas: Replicas) -> int:
        for name in (arrival.program_id, arrival.parent_id):
            for index, replica in replicas.items():
                if name in replica.programs:
                    return index
        able = self._together(arrival, replicas) or replicas
        return min(able, key=lambda index: len(replicas[index].programs))

    def _together(self, arrival: Arrival, replicas: Replicas) -> list[int]:
        """Return the replicas whose programs share a long prefix with this one, and that can take one more."""
        if arrival.shared_prefix_id is None or arrival.shared_prefix_tokens < self.LONG_PREFIX_TOKENS:
            return []
        running = {index: replica.programs for index, replica in replicas.items()}
        most = min(map(len, running.values())) + self.MORE_TOGETHER
        prefix = arrival.shared_prefix_id
        return [index for index in running if prefix in running[index].values() and len(running[index]) <= most]


class CacheAware:
    """vllm-router's cache_aware, counted in tokens, with the defaults of its version 0.1.17.

    A turn goes to the replica that was sent the longest prefix of its prompt, if it is more than ``CACHE_THRESHOLD``
    of the prompt; otherwise to the replica that was sent the fewest tokens. If loads differ by more than both balance
    thresholds, turns go to the least loaded replica.
    """

    CACHE_THRESHOLD, BALANCE_ABS_THRESHOLD, BALANCE_REL_THRESHOLD = 0.3, 64, 1.5

    def __init__(self) -> None:
        self._shared: dict[str, set[int]] = {}
        """The replicas to which each shared prefix was sent."""

    def choose(self, arrival: Arrival, replicas: Replicas) -> int:
        for replica in replicas.values():
            if arrival.kept_tokens is not None and arrival.program_id in replica.prefixes:
                prefixes = replica.prefixes
                prefixes[arrival.program_id] = min(prefixes[arrival.program_id], arrival.kept_tokens)
        index = self._pick(arrival, replicas)
        replicas[index].tokens_sent += arrival.prompt_tokens - self._match(arrival, replicas, index)
        replicas[index].prefixes[arrival.program_id] = arrival.prompt_tokens
        if arrival.shared_prefix_id is not None:
            self._shared.setdefault(arrival.shared_prefix_id, set()).add(index)
        return index

    def _pick(self, arrival: Arrival, replicas: Replicas) -> int:
        loads = [replica.requests for replica in replicas.values()]
        apart = max(loads) - min(loads) > self.BALANCE_ABS_THRESHOLD
        if apart and max(loads) > min(loads) * self.BALANCE_REL_THRESHOLD:
            return _least_loaded(replicas)
        best = max(replicas, key=lambda index: self._match(arrival, replicas, index))
        if self._match(arrival, replicas, best) > self.CACHE_THRESHOLD * arrival.prompt_tokens:
            return best
        return min(replicas, key=lambda index: replicas[index].tokens_sent)

    def _match(self, arrival: Arrival, replicas: Replicas, index: int) -> int:
        """Return the number of leading tokens of this prompt that were sent to the replica before."""
        shared = index in self._shared.get(arrival.shared_prefix_id or "", ())
        shared_tokens = arrival.shared_prefix_tokens if shared else 0
        return max(replicas[index].prefixes.get(arrival.program_id, 0), shared_tokens)


ROUTERS: dict[str, Callable[[], Router]] = {
    "affinity": Affinity,
    "sticky": Sticky,
    "cache-aware": CacheAware,
    "least-loaded": LeastLoaded,
    "round-robin": RoundRobin,
}


class Door:
    """A router, and its knowledge about the replicas."""

    def __init__(self, router: Router, replicas: int) -> None:
        self.replicas = {index: Traffic() for index in range(replicas)}
        self._router = router

    def send(self, arrival: Arrival) -> int:
        """Choose the turn's replica, and return its index."""
        index = self._router.choose(arrival, self.replicas)
        for replica in self.replicas.values():
            replica.programs.pop(arrival.program_id, None)
        chosen = self.replicas[index]
        chosen.requests += 1
        chosen.tokens += arrival.prompt_tokens
        chosen.programs[arrival.program_id] = arrival.shared_prefix_id
        return index

    def answered(self, index: int, arrival: Arrival) -> None:
        """Note that the turn was answered."""
        replica = self.replicas[index]
        replica.requests -= 1
        replica.tokens -= arrival.prompt_tokens
        if arrival.is_last_step:
            self.forget(arrival.program_id)

    def forget(self, program_id: str) -> None:
        """Forget a program that has ended."""
        for replica in self.replicas.values():
            replica.programs.pop(program_id, None)
            replica.prefixes.pop(program_id, None)


def _least_loaded(replicas: Replicas) -> int:
    return min(replicas, key=lambda index: (replicas[index].requests, replicas[index].tokens))


def _hash(program_id: str, index: int) -> bytes:
    return hashlib.blake2b(f"{index}/{program_id}".encode(), digest_size=8).digest()
