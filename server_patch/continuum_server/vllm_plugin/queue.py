"""The waiting queue in the policy's order, as a vLLM ``RequestQueue``. Its operations take O(log n)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request

from continuum_server.policy.base import Rank

OVERDUE, PREEMPTED, ONE_OFF, PINNED, REST, HELD_BACK = range(6)


@dataclass(slots=True, order=True)
class _Entry:
    key: tuple[int, Rank, int]
    request: Request = field(compare=False)
    tenant: str | None = field(default=None, compare=False)
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


class _Lines:
    """The requests of one API key: programs, and one-offs."""

    def __init__(self) -> None:
        self.programs, self.one_offs = _Line(), _Line()
        self.count = 0
        """Number of requests in both lines."""

    def first(self, one_offs_first: bool) -> tuple[int, _Entry] | None:
        """Return the first entry and its class among the entries of all keys."""
        program, one_off = self.programs.first(), self.one_offs.first()
        if one_off is not None and one_offs_first and (program is None or program.key[0] > PREEMPTED):
            return ONE_OFF, one_off
        first = min(program, one_off) if program is not None and one_off is not None else program or one_off
        return None if first is None else (first.key[0], first)


class RankedQueue(RequestQueue):
    """Requests ordered by class, then by the policy's rank, among the API keys that may go on now.

    One-offs have a line of their own. While ``one_offs_first`` returns True, they come before programs; otherwise both
    are ordered by their ranks.

    When the class or rank of a request changes, a new entry is added. The old entry is dropped when it reaches the
    head. If all requests in the queue are held back, ``len()`` is above 0 and ``bool()`` is False.

    Args:
        key: returns the class and rank of a request; None: the request is ordered by its arrival.
        one_offs_first: whether the one-offs of an API key come first now.
        tenant: returns the API key of a request.
        within_lag: returns those of the API keys of waiting requests that may go on now.
        changes: returns another number once answers of ``one_offs_first`` and ``within_lag`` may have changed.
    """

    def __init__(
        self,
        key: Callable[[Request], tuple[int, Rank] | None],
        one_offs_first: Callable[[str | None], bool],
        tenant: Callable[[Request], str | None] = lambda request: None,
        within_lag: Callable[[Collection[str | None]], Collection[str | None]] = lambda keys: keys,
        changes: Callable[[], int] = lambda: 0,
    ) -> None:
        self._key, self._one_offs_first = key, one_offs_first
        self._tenant, self._within_lag, self._changes = tenant, within_lag, changes
        self._lines: dict[str | None, _Lines] = {}
        self._entries: dict[str, _Entry] = {}
        self._count = 0
        self._head: _Entry | None = None
        """The first entry, while ``changes`` returns ``_head_at`` and no request entered or left."""
        self._head_at = -1

    def add_request(self, request: Request) -> None:
        self._enter(request, self._key(request))

    def _enter(self, request: Request, key: tuple[int, Rank] | None) -> None:
        self._forget(request.request_id)
        self._count += 1
        kind, rank = key or (REST, (float(self._count),))
        tenant = self._tenant(request)
        lines = self._lines.get(tenant) or self._lines.setdefault(tenant, _Lines())
        line, kind = (lines.one_offs, REST) if kind == ONE_OFF else (lines.programs, kind)
        self._entries[request.request_id] = entry = _Entry((kind, rank, self._count), request, tenant)
        lines.count += 1
        line.push(entry)

    def _forget(self, request_id: str) -> None:
        self._head_at = -1
        entry = self._entries.pop(request_id, None)
        if entry is not None:
            entry.valid = False
            lines = self._lines[entry.tenant]
            lines.count -= 1
            if not lines.count:
                del self._lines[entry.tenant]

    def peek_request(self) -> Request:
        first = self._first()
        if first is None:
            raise IndexError("peek from an empty queue")
        return first.request

    def _first(self) -> _Entry | None:
        changes = self._changes()
        if self._head_at != changes:
            self._head, self._head_at = self._find_first(), changes
        return self._head

    def _find_first(self) -> _Entry | None:
        firsts = {
            tenant: first
            for tenant, lines in self._lines.items()
            if (first := lines.first(self._one_offs_first(tenant))) is not None
        }
        if len(firsts) < 2:
            return next((entry for _, entry in firsts.values()), None)
        return min(firsts[tenant] for tenant in self._within_lag(firsts))[1]

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
        entry = self._entries[request.request_id]
        lines = self._lines[entry.tenant]
        self._forget(request.request_id)
        for line in (lines.programs, lines.one_offs):
            line.drop_stale(2 * lines.count + 64)

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
        self._lines, self._entries, self._head_at = {}, {}, -1
        for request in requests:
            self._enter(request, None)

    def __bool__(self) -> bool:
        return self._first() is not None

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Request]:
        return iter([entry.request for entry in sorted(self._entries.values())])
