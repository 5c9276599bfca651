"""Maps and sets of TVM objects by identity.

The ``==`` of TVM's expressions may build another expression, and integers hash by value. A bare address as a key is no
better: once an object is freed, another may get its address. These containers hold their objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping, MutableSet, Sequence
from typing import Any, Generic, TypeVar

V = TypeVar("V")


class IdentityMap(MutableMapping[Any, V], Generic[V]):
    """A dict whose keys are TVM objects, compared by identity; in order of insertion."""

    def __init__(self, items: Iterable[tuple[Any, V]] = ()) -> None:
        self._items = {key.__chandle__(): (key, value) for key, value in items}

    def __getitem__(self, key: Any) -> V:
        return self._items[key.__chandle__()][1]

    def __setitem__(self, key: Any, value: V) -> None:
        self._items[key.__chandle__()] = (key, value)

    def __delitem__(self, key: Any) -> None:
        del self._items[key.__chandle__()]

    def __contains__(self, key: Any) -> bool:
        return key.__chandle__() in self._items

    def __iter__(self) -> Iterator[Any]:
        return (key for key, _ in self._items.values())

    def __len__(self) -> int:
        return len(self._items)


class IdentitySet(MutableSet[Any]):
    """A set of TVM objects, compared by identity; in order of insertion."""

    def __init__(self, items: Iterable[Any] = ()) -> None:
        self._items = {item.__chandle__(): item for item in items}

    def __contains__(self, item: Any) -> bool:
        return item.__chandle__() in self._items

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items.values())

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: Any) -> None:
        """Add an object; no effect if it is in the set."""
        self._items[item.__chandle__()] = item

    def discard(self, item: Any) -> None:
        """Remove an object; no effect if it is not in the set."""
        self._items.pop(item.__chandle__(), None)


def same_objects(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Whether two sequences hold the same objects in the same order."""
    return len(left) == len(right) and all(a.same_as(b) for a, b in zip(left, right, strict=True))


def position(items: Iterable[Any], item: Any) -> int:
    """Return the index of an object among others. Raises StopIteration if it is not among them."""
    return next(index for index, other in enumerate(items) if other.same_as(item))
