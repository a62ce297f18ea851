"""The waiting queue in the order of places, as a vLLM ``RequestQueue``. Its operations take O(log n)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass, field

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request

from continuum_server.policy.order import Class, Place


@dataclass(slots=True, order=True)
class _Entry:
    place: Place
    number: int
    request: Request = field(compare=False)
    valid: bool = field(default=True, compare=False)


class _Line:
    """Entries in order of their places. Entries that are no longer valid are dropped when they reach the head."""

    def __init__(self) -> None:
        self.heap: list[_Entry] = []
        self.count = 0
        """Number of valid entries."""

    def first(self) -> _Entry:
        while not self.heap[0].valid:
            heapq.heappop(self.heap)
        return self.heap[0]

    def drop_stale(self) -> None:
        """Keep at most half of the entries stale, and 64. Takes O(1) amortised."""
        if len(self.heap) > 2 * self.count + 64:
            self.heap = [entry for entry in self.heap if entry.valid]
            heapq.heapify(self.heap)


class PlacedQueue(RequestQueue):
    """Requests in the order of their places, with a heap for each line of places.

    When the place of a request changes, a new entry is added. The old entry is dropped when it reaches the head. If the
    policy holds all requests back, ``len()`` is above 0 and ``bool()`` is False.

    Args:
        place: returns the place of a request; None: it is unknown, so that the request is ordered by its arrival.
        first: returns which of the first places of all lines comes first now.
        changes: returns another number once answers of ``first`` may have changed.
    """

    def __init__(
        self,
        place: Callable[[Request], Place | None],
        first: Callable[[Collection[Place]], Place],
        changes: Callable[[], int] = lambda: 0,
    ) -> None:
        self._place, self._first_of, self._changes = place, first, changes
        self._lines: dict[Hashable, _Line] = {}
        self._entries: dict[str, _Entry | Request] = {}
        """Each request by its id, as an entry of a line. A request that is held back has none."""
        self._numbers = 0
        self._head: _Entry | None = None
        """The first entry, while ``changes`` returns ``_head_at`` and no request entered or left."""
        self._head_at = -1
        self._peeked: Request | None = None
        """What ``peek_request`` returned last; None: a request was popped since."""

    def add_request(self, request: Request) -> None:
        self._enter(request, self._place(request))

    def _enter(self, request: Request, place: Place | None) -> None:
        self._forget(request.request_id)
        self._numbers += 1
        place = place or Place.in_order_of_arrival(self._numbers + 0.5)
        if place.kind is Class.HELD_BACK:
            self._entries[request.request_id] = request
            return
        self._entries[request.request_id] = entry = _Entry(place, self._numbers, request)
        line = self._lines.get(place.line) or self._lines.setdefault(place.line, _Line())
        line.count += 1
        heapq.heappush(line.heap, entry)

    def _forget(self, request_id: str) -> None:
        self._head_at = -1
        entry = self._entries.pop(request_id, None)
        if isinstance(entry, _Entry):
            entry.valid = False
            line = self._lines[entry.place.line]
            line.count -= 1
            if line.count:
                line.drop_stale()
            else:
                del self._lines[entry.place.line]

    def peek_request(self) -> Request:
        first = self._first()
        if first is None:
            raise IndexError("peek from an empty queue")
        self._peeked = first.request
        return first.request

    def _first(self) -> _Entry | None:
        changes = self._changes()
        if self._head_at != changes:
            heads = {(head := line.first()).place: head for line in self._lines.values()}
            self._head = heads[self._first_of(heads)] if heads else None
            self._head_at = changes
        return self._head

    def pop_request(self) -> Request:
        """Remove and return the request that ``peek_request`` returned last, even if another one is first by now.

        vLLM peeks at a request, allocates its KV, and then pops it. KV that is released for the allocation may change
        which request is first.
        """
        request = self._peeked
        if request is None or request.request_id not in self._entries:
            request = self.peek_request()
        self._peeked = None
        self.remove_request(request)
        return request

    def prepend_request(self, request: Request) -> None:
        """Add a preempted or skipped request at its place, and not at the front."""
        self.add_request(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.add_request(request)

    def remove_request(self, request: Request) -> None:
        if request.request_id not in self._entries:
            raise KeyError(request.request_id)
        self._forget(request.request_id)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self._forget(request.request_id)

    def place_again(self, request_id: str) -> None:
        """Move a request whose place changed."""
        entry = self._entries.get(request_id)
        if entry is not None:
            self.add_request(_request(entry))

    def in_order_of_arrival(self) -> None:
        """Order all requests by their arrival only. None is held back."""
        requests = sorted(map(_request, self._entries.values()), key=lambda request: request.arrival_time)
        self._lines, self._entries, self._head_at = {}, {}, -1
        for request in requests:
            self._enter(request, None)

    def __bool__(self) -> bool:
        return self._first() is not None

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Request]:
        placed = sorted(entry for entry in self._entries.values() if isinstance(entry, _Entry))
        held_back = (entry for entry in self._entries.values() if not isinstance(entry, _Entry))
        return iter([*(entry.request for entry in placed), *held_back])


def _request(entry: _Entry | Request) -> Request:
    return entry.request if isinstance(entry, _Entry) else entry
