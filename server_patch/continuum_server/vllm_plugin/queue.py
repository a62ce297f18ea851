"""The waiting queue in the policy's order, as a vLLM ``RequestQueue``. Its operations take O(log n)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request

from continuum_server.policy.base import Rank

OVERDUE, PREEMPTED, ONE_OFF, PINNED, REST, HELD_BACK = range(6)


@dataclass(slots=True, order=True)
class _Entry:
    key: tuple[int, Rank, int]
    request: Request = field(compare=False)
    valid: bool = field(default=True, compare=False)


class _Line:
    """Entries in order of their keys. Entries that are no longer valid are dropped when they reach the head."""

    def __init__(self) -> None:
        self.heap: list[_Entry] = []

    def push(self, entry: _Entry) -> None:
        heapq.heappush(self.heap, entry)

    def first(self) -> _Entry | None:
        heap = self.heap
        while heap and not heap[0].valid:
            heapq.heappop(heap)
        return heap[0] if heap and heap[0].key[0] != HELD_BACK else None

    def drop_stale(self, most: int) -> None:
        """Keep at most ``most`` entries, if so many are stale. Takes O(1) amortised."""
        if len(self.heap) > most:
            self.heap = [entry for entry in self.heap if entry.valid]
            heapq.heapify(self.heap)


class RankedQueue(RequestQueue):
    """Requests ordered by class, then by the policy's rank.

    One-offs have a line of their own. While ``one_offs_first`` returns True, they come before programs; otherwise both
    are ordered by their ranks.

    When the class or rank of a request changes, a new entry is added. The old entry is dropped when it reaches the
    head. If all requests in the queue are held back, ``len()`` is above 0 and ``bool()`` is False.

    Args:
        key: returns the class and rank of a request; None: the request is ordered by its arrival.
        one_offs_first: whether one-offs come first now. It changes between scheduling steps only.
    """

    def __init__(self, key: Callable[[Request], tuple[int, Rank] | None], one_offs_first: Callable[[], bool]) -> None:
        self._key = key
        self._one_offs_first = one_offs_first
        self._programs, self._one_offs = _Line(), _Line()
        self._entries: dict[str, _Entry] = {}
        self._count = 0

    def add_request(self, request: Request) -> None:
        self._enter(request, self._key(request))

    def _enter(self, request: Request, key: tuple[int, Rank] | None) -> None:
        self._count += 1
        kind, rank = key or (REST, (float(self._count),))
        line, kind = (self._one_offs, REST) if kind == ONE_OFF else (self._programs, kind)
        entry = _Entry((kind, rank, self._count), request)
        before = self._entries.get(request.request_id)
        if before is not None:
            before.valid = False
        self._entries[request.request_id] = entry
        line.push(entry)

    def peek_request(self) -> Request:
        first = self._first()
        if first is None:
            raise IndexError("peek from an empty queue")
        return first.request

    def _first(self) -> _Entry | None:
        program, one_off = self._programs.first(), self._one_offs.first()
        if program is None or one_off is None:
            return program or one_off
        if program.key[0] > PREEMPTED and self._one_offs_first():
            return one_off
        return min(program, one_off)

    def pop_request(self) -> Request:
        request = self.peek_request()
        self.remove_request(request)
        return request

    def prepend_request(self, request: Request) -> None:
        """Add a preempted or skipped request at the position of its class and rank, and not at the front."""
        self.add_request(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.add_request(request)

    def remove_request(self, request: Request) -> None:
        self._entries.pop(request.request_id).valid = False
        for line in (self._programs, self._one_offs):
            line.drop_stale(2 * len(self._entries) + 64)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            if request.request_id in self._entries:
                self.remove_request(request)

    def rank_again(self, request_id: str) -> None:
        """Move a request whose class or rank changed to its new position."""
        entry = self._entries.get(request_id)
        if entry is not None:
            self.add_request(entry.request)

    def in_order_of_arrival(self) -> None:
        """Order all requests by their arrival only. None is held back."""
        requests = sorted((entry.request for entry in self._entries.values()), key=lambda request: request.arrival_time)
        self._programs, self._one_offs, self._entries = _Line(), _Line(), {}
        for request in requests:
            self._enter(request, None)

    def __bool__(self) -> bool:
        return self._first() is not None

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Request]:
        return iter([entry.request for entry in sorted(self._entries.values())])
