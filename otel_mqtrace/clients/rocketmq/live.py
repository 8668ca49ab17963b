"""This module knows whether the patched client traces at all, and who each of its clients is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from weakref import WeakKeyDictionary

from otel_mqtrace.hooks._guard import guarded
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


class Bound(Generic[_B]):
    """What each client needs to be traced, made by ``make`` at its first use under an ``instrument()``.

    Clients are held weakly and have nothing of ours on them.
    """

    def __init__(self, make: Callable[[Tracing, ClientFacts], _B]) -> None:
        self._make = make
        self._known: WeakKeyDictionary[Any, tuple[Tracing, _B]] = WeakKeyDictionary()

    def of(self, client: Any) -> _B | None:
        """Return what belongs to ``client`` now; ``None`` while nothing is traced."""
        tracing = live.tracing
        return None if tracing is None else self._of(client, tracing)

    @guarded("rocketmq.client")
    def _of(self, client: Any, tracing: Tracing) -> _B:
        known = self._known.get(client)
        if known is None or known[0] is not tracing:
            known = self._known[client] = tracing, self._make(tracing, _facts_of(client))
        return known[1]

    def forget(self) -> list[_B]:
        """Forget every client and return what they had."""
        known = [bound for _, bound in self._known.values()]
        self._known.clear()
        return known


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
