"""A cache of a function's results that forgets all of them when it has grown too large."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable


_MAX_ENTRIES: Final = 4_096
_MAX_KEY_LENGTH: Final = 256
_K = TypeVar("_K")
_V = TypeVar("_V")


class BoundedCache(dict[_K, _V], Generic[_K, _V]):
    """Results of ``compute``, a function of one text or number; texts above 256 characters are not cached."""

    def __init__(self, compute: Callable[[_K], _V]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, key: _K) -> _V:
        value = self._compute(key)
        if not isinstance(key, str) or len(key) <= _MAX_KEY_LENGTH:
            if len(self) >= _MAX_ENTRIES:
                self.clear()
            self[key] = value
        return value
