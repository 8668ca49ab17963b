"""The Tracing in force for a client, and the tracing state that each client object carries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from otel_mqtrace.hooks.outcome import when_collected

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mqtrace.hooks.tracing import Tracing

STATE: Final = "_mqtrace_state"
"""The instance attribute that holds a client's tracing state."""
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of a call."""


class ActiveTracing:
    """The Tracing in force for one kind of client; with ``None`` every patched method only calls the original.

    ``on_new_client()`` is called when a client is made or first used. ``configure`` takes the arguments a client is to
    be made with and returns others, or ``None`` to keep them.
    """

    def __init__(self) -> None:
        self.tracing: Tracing | None = None
        self.on_new_client: Callable[[], None] | None = None
        self.configure: Callable[[Arguments], Arguments | None] | None = None

    def stop(self) -> None:
        """Switch off."""
        self.tracing = self.on_new_client = self.configure = None


class _State(Protocol):
    def abandon(self) -> object: ...


def known_state(client: Any) -> Any:
    """Return the client's tracing state, or ``None`` when it has none."""
    return getattr(client, STATE, None)


def attach_state(client: Any, state: _State) -> None:
    """Keep ``state`` on the client. ``state.abandon`` is its finaliser: it may only defer what is open."""
    client.__dict__[STATE] = state
    when_collected(client, state.abandon)
