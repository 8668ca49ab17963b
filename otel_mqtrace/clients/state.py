"""The Tracing in force for a client, the state each client object carries, and the messages it handed over."""

from __future__ import annotations

import itertools
import weakref
from collections import OrderedDict
from contextlib import suppress
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any, Final, TypeVar

from otel_mqtrace._workers import LiveObjects, never_collect, restart_in_child
from otel_mqtrace.hooks.consume import ConsumeHook
from otel_mqtrace.hooks.outcome import UNHANDLED, count_missing, ends_at_exit, when_collected
from otel_mqtrace.hooks.process import Owner
from otel_mqtrace.hooks.send import SendHook
from otel_mqtrace.hooks.settle import TransactionHook
from otel_mqtrace.hooks.tracing import ClientInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from typing_extensions import Self

    from otel_mqtrace.hooks.attributes import IncomingMessage
    from otel_mqtrace.hooks.scope import ProcessSpan, SpanIds
    from otel_mqtrace.hooks.tracing import Tracing


STATE: Final = "_mqtrace_state"
"""The instance attribute that holds a client's tracing state."""
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of a call."""


_T = TypeVar("_T")


def take_all(held: dict[Any, _T]) -> Iterator[_T]:
    """Remove and yield the values of a dictionary, of which other threads may take some meanwhile."""
    with suppress(KeyError):
        while True:
            _, value = held.popitem()
            yield value


class ClientState:
    """The tracing state of one client; a deep copy or a pickle of the client begins without it.

    It never refers to the client, or neither would ever be collected. ``tracing`` and the hooks are there once
    :meth:`bind` was called.
    """

    tracing: Any = None

    @classmethod
    def of_client(cls, client: Any) -> Self:
        """Return the state of a client that has none at its first traced call."""
        return cls(client)  # type: ignore[call-arg]  # for those that are made so

    def bind(self, tracing: Tracing) -> None:
        """Have the hooks of the Tracing in force; a new ``instrument()`` makes new ones."""
        if self.tracing is not tracing:
            self.make_hooks(tracing)
            self.tracing = tracing
            _bound.add(self)

    def make_hooks(self, tracing: Tracing) -> None:
        """Make the hooks of this kind of client."""

    def abandon(self) -> None:
        """Defer the end of what is open: the client, or tracing, is gone. It may be called by a finaliser."""

    def switch_off(self) -> None:
        """Defer the end of what is open: tracing is being switched off."""
        self.abandon()

    def __reduce__(self) -> tuple[Any, ...]:
        """Become ``None``: an application may pickle a client of its own class with all attributes."""
        return type(None), ()


class KafkaProducerState(ClientState):
    """What one producer needs to be traced."""

    hook: SendHook
    transaction: TransactionHook

    def __init__(self, info: ClientInfo) -> None:
        self.info = info

    def make_hooks(self, tracing: Tracing) -> None:
        """Make the hooks of sends and of transactions."""
        self.hook = SendHook(tracing=tracing, info=self.info)
        self.transaction = TransactionHook(tracing, self.info, before=getattr(self, "transaction", None))


_S = TypeVar("_S", bound=ClientState)


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

    def state_of(self, client: Any, kind: type[_S]) -> _S | None:
        """Return the client's state, bound to the Tracing in force; ``None`` while nothing is traced.

        An object without a ``__dict__`` (``__slots__``) has no place for a state and is not traced.
        """
        tracing, on_new_client = self.tracing, self.on_new_client  # read once: another thread may switch off
        state: _S | None = getattr(client, STATE, None)
        if tracing is None:
            return None
        if state is None:
            if not hasattr(client, "__dict__"):
                return None
            if on_new_client is not None:
                on_new_client()
            state = attach_state(client, kind.of_client(client))
        if state.tracing is not tracing:
            state.bind(tracing)
        return state


def known_state(client: Any) -> Any:
    """Return the client's tracing state, or ``None`` when it has none."""
    return getattr(client, STATE, None)


def attach_state(client: Any, state: _S) -> _S:
    """Keep ``state`` on the client, unless another thread has been first; return the one that is kept.

    ``state.abandon`` is the client's finaliser: it may only defer what is open.
    """
    attributes = client.__dict__
    if attributes.get(STATE, state) is None:  # a copy of another client
        attributes[STATE] = state
    kept: _S = attributes.setdefault(STATE, state)
    if kept is state:
        with suppress(TypeError):  # __slots__ without __weakref__
            when_collected(client, state.abandon)
            kept_in_children.add(client)
    return kept


class _KeptInChildren(LiveObjects[Any]):
    """The clients we have seen; a forked child never collects those of its parent.

    The destructor of librdkafka's joins threads that a child does not have. That crashes once their stacks are gone:
    where the parent had more than some five threads, ours among them, and the child ended some of its own.
    """

    def after_fork(self) -> None:
        for client in self.all():
            never_collect(client)


kept_in_children: Final = _KeptInChildren()
restart_in_child(kept_in_children)


MAX_MESSAGES: Final = 10_000
_COPIED_SOON: Final = 500
"""Messages among which that of a copy is looked for."""
_bound: Final[LiveObjects[ClientState]] = LiveObjects()
"""The states of clients that were traced."""


def end_states(tracing: Tracing | None) -> None:
    """Defer the end of what the clients under ``tracing`` have open."""
    for state in _bound.all():
        if state.tracing is tracing:
            state.switch_off()


Entry = tuple[str, "int | None", "int | None", int, "ProcessSpan | SpanIds | None", bool]
"""Topic, partition and offset; the number of the consumer; its automatic span, if any; whether a block is awaited.

An entry of plain values costs the garbage collector nothing, and there may be 10,000.
"""
_OFFSET: Final = 2
_OWNER: Final = 3
_AWAITED: Final = 5


class MessageRegistry:
    """The last messages that the traced consumers of one client have handed over; a source of ``process``.

    A message is found by its identity, checked against its position, and is not kept alive. Callable from any thread
    without a lock, which a fork could leave locked: each step is one atomic call. The messages of a consumer are
    forgotten with its state, but for those that a block may still handle.

    ``is_message``, ``position_of`` (topic, partition, offset) and ``incoming`` read the client's messages.
    """

    def __init__(
        self,
        active: ActiveTracing,
        *,
        is_message: Callable[[object], bool],
        position_of: Callable[[Any], tuple[str, int | None, int | None]],
        incoming: Callable[[Any], IncomingMessage],
        max_messages: int = MAX_MESSAGES,
    ) -> None:
        self._active = active
        self._is_message = is_message
        self._position_of = position_of
        self._incoming = incoming
        self._max = max_messages
        # Not a plain dict: that one skips over everything dropped before to find its oldest entry.
        self._entries: OrderedDict[int, Entry] = OrderedDict()
        self._owners: dict[int, weakref.ref[Any]] = {}
        self._numbers = itertools.count(1)
        restart_in_child(self)
        _registries.add(self)

    def after_fork(self) -> None:
        """In a child: leave the counting of the parent's messages to the parent."""
        for key, entry in list(self._entries.items()):
            if entry[_AWAITED]:
                self._entries[key] = (*entry[:_AWAITED], False)

    def __len__(self) -> int:
        """How many messages are remembered."""
        return len(self._entries)

    def register(self, owner: Any) -> int:
        """Return the number of a consumer's state."""
        number = next(self._numbers)
        self._owners[number] = weakref.ref(owner, lambda _: self._remove_owner(number))
        return number

    def remember(self, key: int, entry: Entry) -> None:
        """Remember one message by its identity."""
        entries = self._entries
        before = entries.pop(key, None)  # an id that is used again goes to the end
        if before is not None and before[_AWAITED]:
            count_missing(UNHANDLED)
        entries[key] = entry
        if len(entries) > self._max:
            try:
                dropped = entries.popitem(last=False)[1]
            except KeyError:  # another thread was here as well
                return
            if dropped[_AWAITED]:
                count_missing(UNHANDLED)

    def remember_all(self, keys: Sequence[int], entries: Iterable[Entry]) -> None:
        """Remember messages of one call by their identities."""
        known = self._entries
        dropped = list(map(known.pop, keys, repeat(None)))
        known.update(zip(keys, entries, strict=True))
        for _ in range(len(known) - self._max):
            try:
                dropped.append(known.popitem(last=False)[1])
            except KeyError:  # as above
                break
        for entry in dropped:
            if entry is not None and entry[_AWAITED]:
                count_missing(UNHANDLED)

    def clear(self) -> None:
        """Forget every message."""
        for key in list(self._entries):
            entry = self._entries.pop(key, None)
            if entry is not None and entry[_AWAITED]:
                count_missing(UNHANDLED)

    def owner_of(self, message: object, consumer: object | None) -> Owner | None:
        """Take over the open span of ``message``, or open one under its consumer's group."""
        tracing = self._active.tracing
        if tracing is None or not self._is_message(message):
            return None
        owner: Any = None
        found = self._find(message)
        if found is not None:
            key, entry = found
            topic, partition, offset, number, call, is_awaited = entry
            reference = self._owners.get(number)
            owner = None if reference is None else reference()
            if is_awaited and owner is not None:
                owner.explicit.record_block()
            # Handled a second time it is a second attempt, with its own span.
            if self._entries.get(key) is entry:
                self._entries[key] = (topic, partition, offset, number, None if owner is not None else call, False)
            if owner is not None and call is not None:
                taken: Owner = owner.take(call, message)
                return taken
        own = known_state(consumer) or owner
        if own is not None:
            opened: Owner | None = own.open(message, tracing)
            return opened
        hook = ConsumeHook(tracing=tracing, info=ClientInfo())  # gone or never traced: no group and no server is known
        if found is not None:
            hook.poll_begins()  # the metrics have counted it when it was handed over
        calls = hook.before([self._incoming(message)])
        return Owner(calls[0], calls[0].finish) if calls else None

    def _find(self, message: Any) -> tuple[int, Entry] | None:
        """Return the entry of a message; that of a copy, made soon, by its position, where one consumer has had it."""
        key, position = id(message), self._position_of(message)
        entry = self._entries.get(key)
        if entry is not None and entry[:_OWNER] == position:
            return key, entry
        latest = list(islice(reversed(self._entries), _COPIED_SOON))  # keys: making pairs may start the collector
        known = ((each, entry) for each in latest if (entry := self._entries.get(each)) is not None)
        same = [each for each in known if each[1][_OFFSET] == position[_OFFSET] and each[1][:_OWNER] == position]
        return same[0] if len({each[_OWNER] for _, each in same}) == 1 else None

    def _remove_owner(self, owner: int) -> None:
        self._owners.pop(owner, None)
        entries = self._entries
        for key in list(entries):
            entry = entries.get(key)
            if entry is not None and entry[_OWNER] == owner and not entry[_AWAITED]:
                entries.pop(key, None)


_registries: Final[LiveObjects[MessageRegistry]] = LiveObjects()


def _clear_registries() -> None:
    for registry in _registries.all():
        registry.clear()


ends_at_exit.append(_clear_registries)
