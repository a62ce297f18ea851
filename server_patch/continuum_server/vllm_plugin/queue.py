"""The waiting queue in the policy's order, as a vLLM ``RequestQueue``. Its operations take O(log n)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request

from continuum_server.policy.base import Rank

OVERDUE, PREEMPTED, PINNED, REST, HELD_BACK = range(5)


@dataclass(slots=True, order=True)
class _Entry:
    key: tuple[int, Rank, int]
    request: Request = field(compare=False)
    valid: bool = field(default=True, compare=False)


class RankedQueue(RequestQueue):
    """Requests ordered by class, then by the policy's rank.

    When the class or rank of a request changes, a new entry is added. The old entry is dropped when it reaches the
    head. If all requests in the queue are held back, ``len()`` is above 0 and ``bool()`` is False.

    Args:
        key: returns the class and rank of a request; None: the request is ordered by its arrival.
    """

    def __init__(self, key: Callable[[Request], tuple[int, Rank] | None]) -> None:
        self._key = key
        self._heap: list[_Entry] = []
        self._entries: dict[str, _Entry] = {}
        self._count = 0

    def add_request(self, request: Request) -> None:
        self._enter(request, self._key(request))

    def _enter(self, request: Request, key: tuple[int, Rank] | None) -> None:
        self._count += 1
        kind, rank = key or (REST, (float(self._count),))
        entry = _Entry((kind, rank, self._count), request)
        before = self._entries.get(request.request_id)
        if before is not None:
            before.valid = False
        self._entries[request.request_id] = entry
        heapq.heappush(self._heap, entry)

    def peek_request(self) -> Request:
        first = self._first()
        if first is None:
            raise IndexError("peek from an empty queue")
        return first.request

    def _first(self) -> _Entry | None:
        heap = self._heap
        while heap and not heap[0].valid:
            heapq.heappop(heap)
        return heap[0] if heap and heap[0].key[0] != HELD_BACK else None

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
        self._drop_stale()

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
        self._heap, self._entries = [], {}
        for request in requests:
            self._enter(request, None)

    def _drop_stale(self) -> None:
        """Keep the heap at most about twice as long as the queue. Takes O(1) amortised."""
        if len(self._heap) > 2 * len(self._entries) + 64:
            self._heap = [entry for entry in self._heap if entry.valid]
            heapq.heapify(self._heap)

    def __bool__(self) -> bool:
        return self._first() is not None

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Request]:
        return iter([entry.request for entry in sorted(self._entries.values())])
