"""Recorded tool times: the TTL that pays best among them, without looking at each.

The best TTL maximises rank * gain / n - time over the sorted times. Up to some thousand samples they are a sorted list,
searched where the best can be. Beyond, the best is a tangent to the lower convex hull of the points (rank, time), which
a balanced tree of sorted runs keeps: each fork remembers the one edge that joins the hulls of its halves; ranks are
relative to a fork's first sample, so a new sample touches the forks above it and no others. Those edges are found again
when a decision needs them, each by walking down both halves at once (Overmars and van Leeuwen, 1981).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import repeat
from operator import mul, sub

_RUN = 64
"""Samples of a run are up to twice as many."""
_LIST = 4096
"""Up to so many samples a plain list is faster."""

Edge = tuple[int, float, int, float]
"""Two points of a hull: rank and time, rank and time."""


class _Run:
    """A few sorted samples: a leaf."""

    __slots__ = ("_hull", "values")

    forks = 0

    def __init__(self, values: list[float]) -> None:
        self.values = values
        self._hull: list[int] | None = None

    @property
    def size(self) -> int:
        return len(self.values)

    @property
    def low(self) -> float:
        return self.values[0]

    @property
    def hull(self) -> list[int]:
        """Ranks of the samples on the lower convex hull."""
        if self._hull is None:
            values, hull = self.values, list[int]()
            for rank, value in enumerate(values):
                while len(hull) > 1 and _is_above(values, hull[-2], hull[-1], rank, value):
                    hull.pop()
                hull.append(rank)
            self._hull = hull
        return self._hull

    def changed(self) -> None:
        self._hull = None


def _is_above(values: list[float], first: int, middle: int, last: int, last_value: float) -> bool:
    """The middle point is on or above the line between the others."""
    rise = (values[middle] - values[first]) * (last - first)
    return rise >= (last_value - values[first]) * (middle - first)


class _Fork:
    __slots__ = ("_edge", "forks", "left", "low", "right", "size")

    def __init__(self, left: _Node, right: _Node) -> None:
        self.left, self.right = left, right
        self.changed()

    def changed(self) -> None:
        left, right = self.left, self.right
        self.size: int = left.size + right.size
        self.low: float = left.low
        self.forks: int = left.forks + right.forks + 1
        self._edge: Edge | None = None

    @property
    def edge(self) -> Edge:
        """The hull's edge from the left half to the right one."""
        if self._edge is None:
            self._edge = _join(self.left, self.right)
        return self._edge


_Node = _Run | _Fork


class _Cursor:
    """A place on the way down a hull: a fork, or a part of a run's hull, narrowed until one point is left."""

    __slots__ = ("_first", "_last", "_node", "_offset")

    def __init__(self, node: _Node, offset: int) -> None:
        self._enter(node, offset)

    def _enter(self, node: _Node, offset: int) -> None:
        self._node, self._offset = node, offset
        self._first, self._last = 0, len(node.hull) - 1 if isinstance(node, _Run) else 0

    @property
    def is_point(self) -> bool:
        return isinstance(self._node, _Run) and self._first == self._last

    def edge(self) -> Edge:
        node, offset = self._node, self._offset
        if isinstance(node, _Fork):
            i, x, j, y = node.edge
            return i + offset, x, j + offset, y
        middle = (self._first + self._last) // 2
        i, j = node.hull[middle], node.hull[min(middle + 1, self._last)]
        return i + offset, node.values[i], j + offset, node.values[j]

    def to_left(self) -> None:
        """To what lies before the edge, its first point included."""
        if isinstance(self._node, _Fork):
            self._enter(self._node.left, self._offset)
        else:
            self._last = (self._first + self._last) // 2

    def to_right(self) -> None:
        if isinstance(self._node, _Fork):
            self._enter(self._node.right, self._offset + self._node.left.size)
        else:
            self._first = (self._first + self._last) // 2 + 1


def _join(left: _Node, right: _Node) -> Edge:
    """The common tangent below two hulls, all of whose ranks are apart."""
    split = left.size
    one, two = _Cursor(left, 0), _Cursor(right, split)
    while not (one.is_point and two.is_point):
        i, x, j, y = one.edge()
        k, u, m, v = two.edge()
        if not one.is_point and (u - x) * (j - i) <= (y - x) * (k - i):
            one.to_left()  # the right half's point is below the left edge's line
        elif not two.is_point and (v - y) * (k - j) <= (u - y) * (m - j):
            two.to_right()
        elif one.is_point:
            two.to_left()
        elif two.is_point or _meet(i, x, j, y, k, u, m, v) < split:
            one.to_right()  # no point of the right half is below the left edge's line
        else:
            two.to_left()  # nor one of the left half below the right edge's
    i, x, _, _ = one.edge()
    k, u, _, _ = two.edge()
    return i, x, k, u


def _meet(i: int, x: float, j: int, y: float, k: int, u: float, m: int, v: float) -> float:
    """Rank at which the lines of two edges meet, the second being the steeper one."""
    slope, steeper = (y - x) / (j - i), (v - u) / (m - k)
    return 0.0 if steeper <= slope else (y - u + steeper * k - slope * j) / (steeper - slope)


# ------------------------------------------------------------------------------------------------- the tree


def _insert(node: _Node, value: float) -> _Node:
    if isinstance(node, _Run):
        insort(node.values, value)
        node.changed()
        if node.size <= 2 * _RUN:
            return node
        upper = _Run(node.values[_RUN:])
        del node.values[_RUN:]
        return _Fork(node, upper)
    if value >= node.right.low:
        node.right = _insert(node.right, value)
    else:
        node.left = _insert(node.left, value)
    return _balanced(node)


def _remove(node: _Node, value: float) -> _Node | None:
    if isinstance(node, _Run):
        del node.values[bisect_left(node.values, value)]
        node.changed()
        return node if node.values else None
    in_right = value >= node.right.low
    left = node.left if in_right else _remove(node.left, value)
    right = _remove(node.right, value) if in_right else node.right
    if left is None or right is None:
        return left or right
    node.left, node.right = left, right
    return _balanced(node)


def _balanced(node: _Fork) -> _Node:
    """The fork, built anew where one half has more than three times the forks of the other."""
    node.changed()
    fewer, more = sorted((node.left.forks, node.right.forks))
    return _build(list(_packed(_runs(node)))) if more > 3 * fewer + 3 else node


def _runs(node: _Node) -> Iterator[_Run]:
    if isinstance(node, _Run):
        yield node
    else:
        yield from _runs(node.left)
        yield from _runs(node.right)


def _packed(runs: Iterable[_Run]) -> Iterator[_Run]:
    """The same samples in runs that are not too short."""
    before: _Run | None = None
    for run in runs:
        if before is not None and before.size + run.size <= _RUN:
            before = _Run(before.values + run.values)
            continue
        if before is not None:
            yield before
        before = run
    if before is not None:
        yield before


def _build(runs: list[_Run]) -> _Node:
    if len(runs) == 1:
        return runs[0]
    middle = len(runs) // 2
    return _Fork(_build(runs[:middle]), _build(runs[middle:]))


class ToolTimes:
    """Recorded tool times, the most recent ``window`` of them.

    A sample takes O(log n); a decision O(log n) too, and as much again for each of the O(log n) edges that samples
    since the last one have undone.
    """

    def __init__(self, window: int) -> None:
        self.count = 0
        """Samples ever seen, forgotten ones included."""
        self._window = max(1, window)
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []
        self._root: _Node | None = None
        """The tree, once the list has become too long; the list is empty then."""
        self._last_best_s = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self._recent.append(seconds)
        if self._root is None and len(self._sorted) == _LIST and self._window > _LIST:
            runs = [_Run(self._sorted[at : at + _RUN]) for at in range(0, _LIST, _RUN)]
            self._root, self._sorted = _build(runs), []
        if self._root is None:
            insort(self._sorted, seconds)
        else:
            self._root = _insert(self._root, seconds)
        if len(self._recent) > self._window:
            self._forget(self._recent.popleft())

    def _forget(self, seconds: float) -> None:
        if self._root is None:
            del self._sorted[bisect_left(self._sorted, seconds)]
        else:
            self._root = _remove(self._root, seconds)

    def __len__(self) -> int:
        return len(self._recent)

    def recent(self) -> list[float]:
        """The samples kept, oldest first."""
        return list(self._recent)

    def best_ttl(self, gain_s: float) -> float:
        """argmax over tau in {0} and the recorded times of P(tau) * gain - tau; ties go to the smaller tau."""
        if not self._recent or gain_s <= 0.0:
            return 0.0
        per_sample = gain_s / len(self._recent)
        if per_sample <= 0.0:  # a gain too small to divide
            return 0.0
        if self._root is None:
            self._last_best_s = _best_in_list(self._sorted, gain_s, per_sample, self._last_best_s)
            return self._last_best_s
        return _best_in_tree(self._root, gain_s, per_sample)


def _best_in_list(times: list[float], gain_s: float, per_sample: float, guess_s: float) -> float:
    """The best of a sorted list, given any guess: below it P is too small to be better, above it the time too long."""
    rank = bisect_right(times, guess_s)
    good = max(0.0, rank * per_sample - times[rank - 1]) if rank else 0.0
    first = max(0, int(good / per_sample) - 2)
    last = min(bisect_left(times, gain_s), bisect_right(times, gain_s - good + 1e-9 * gain_s))
    if first >= last:
        return 0.0
    values = list(map(sub, map(mul, repeat(per_sample), range(first + 1, last + 1)), times[first:last]))
    best = max(values)
    return times[first + values.index(best)] if best > 0.0 else 0.0


def _best_in_tree(node: _Node, gain_s: float, per_sample: float) -> float:
    offset = 0
    while isinstance(node, _Fork):
        i, x, j, y = node.edge
        if per_sample * (j - i) > y - x:
            offset, node = offset + node.left.size, node.right
        else:
            node = node.left
    rank = _tangent(node, per_sample)
    seconds = node.values[rank]
    return seconds if seconds < gain_s and (offset + rank + 1) * per_sample > seconds else 0.0


def _tangent(run: _Run, slope: float) -> int:
    """Rank of the first of the run's samples that a line of that slope touches from below."""
    hull, values = run.hull, run.values
    first, last = 0, len(hull) - 1
    while first < last:
        middle = (first + last) // 2
        i, j = hull[middle], hull[middle + 1]
        if slope * (j - i) > values[j] - values[i]:
            first = middle + 1
        else:
            last = middle
    return hull[first]
