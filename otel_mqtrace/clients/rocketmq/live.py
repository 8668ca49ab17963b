"""This module knows whether the patched client traces at all, and who each of its clients is."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from weakref import ref

from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.hooks._left_behind import when_collected
from otel_mqtrace.hooks.tracing import ClientFacts

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mqtrace.hooks.tracing import Tracing

__all__ = ["Bound", "first_address", "live"]

_B = TypeVar("_B")
_SYSTEM: Final = "rocketmq"
_CLUSTERING: Final = "clustering"
"""How every consumer of this client shares the messages of its group; it has no broadcasting."""


class _Live:
    """The Tracing in force; ``None`` makes every patched class behave as if it had never been touched."""

    tracing: Tracing | None = None


live: Final = _Live()


class _Known(ref[Any], Generic[_B]):
    """A client, and what belongs to it under one ``instrument()``."""

    __slots__ = ("bound", "key", "tracing")

    key: int
    tracing: Tracing
    bound: _B


class Bound(Generic[_B]):
    """What each client needs to be traced, made by ``make`` at its first use under an ``instrument()``.

    Clients are held weakly and have nothing of ours on them. ``abandon`` is called with what belonged to a client that
    is collected, or was not closed when the process ends: a finaliser, so it may only leave behind what is open.
    Callable from any thread, the collector's too: each step is one atomic call.
    """

    def __init__(
        self, make: Callable[[Tracing, ClientFacts], _B], *, abandon: Callable[[_B], object] | None = None
    ) -> None:
        self._make = make
        self._abandon = abandon
        self._known: dict[int, _Known[_B]] = {}
        self._collected: Callable[[_Known[_B]], None] = _forgetter(self._known)

    def of(self, client: Any) -> _B | None:
        """Return what belongs to ``client`` now; ``None`` while nothing is traced."""
        tracing = live.tracing
        return None if tracing is None else self._of(client, tracing)

    @guarded("rocketmq.client")
    def _of(self, client: Any, tracing: Tracing) -> _B:
        known = self._known.get(id(client))
        if known is not None and known.tracing is tracing and known() is client:
            return known.bound
        found = _Known(client, self._collected)
        found.key, found.tracing, found.bound = id(client), tracing, self._make(tracing, _facts_of(client))
        self._known[found.key] = found
        if self._abandon is not None:
            when_collected(client, partial(self._abandon, found.bound))
        return found.bound

    def forget(self) -> list[_B]:
        """Forget every client and return what they had."""
        gone = [self._known.pop(key, None) for key in list(self._known)]
        return [each.bound for each in gone if each is not None]


def _forgetter(known: dict[int, _Known[_B]]) -> Callable[[_Known[_B]], None]:
    def forget(reference: _Known[_B]) -> None:
        if known.get(reference.key) is reference:
            known.pop(reference.key, None)

    return forget


def first_address(endpoints: object) -> str | None:
    """Return the first ``host:port`` of the client's endpoints, or ``None`` when they name none."""
    return str(endpoints).partition(",")[0] or None if endpoints is not None else None


def _facts_of(client: Any) -> ClientFacts:
    configuration = client.client_configuration
    group = getattr(client, "consumer_group", None) or getattr(client, "_consumer_group", None)
    facts = ClientFacts.named(
        _SYSTEM,
        group_name=group,
        client_id=client.client_id,
        servers=first_address(configuration.rpc_endpoints),
    )
    return replace(
        facts, namespace=configuration.namespace or None, consumption_model=None if group is None else _CLUSTERING
    )
