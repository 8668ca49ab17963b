"""Change a client's modules and classes, put everything back, and recognise other instrumentations of it."""

from __future__ import annotations

import inspect
import logging
import sys
import weakref
from abc import ABC, ABCMeta, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from types import FunctionType, MethodDescriptorType, WrapperDescriptorType
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from typing_extensions import Protocol  # its metaclass is derived from typing's before Python 3.13

from otel_mqtrace.clients.state import end_states
from otel_mqtrace.hooks.guard import guarded
from otel_mqtrace.hooks.outcome import drain_deferred_ends
from otel_mqtrace.hooks.process import MessageSource, end_blocks, sources

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_mqtrace.clients.state import ActiveTracing
    from otel_mqtrace.hooks.tracing import Tracing


_log: Final = logging.getLogger(__name__)
_ABSENT: Final = object()
_FUNCTIONS: Final = (FunctionType, MethodDescriptorType, WrapperDescriptorType)
Wrapper = Callable[[Callable[..., Any]], Callable[..., Any] | None]
"""A client's method → what takes its place; ``None`` means that this one cannot be traced in place."""
Wrappers = Mapping[str, Wrapper]
"""Method → how to wrap it."""


@dataclass(frozen=True, slots=True)
class Change:
    """One attribute of a module or class: ``before``, and ``after`` while instrumented."""

    owner: Any
    name: str
    before: Any
    after: Any

    def apply(self) -> None:
        """Set ``after``."""
        setattr(self.owner, self.name, self.after)

    def undo(self) -> None:
        """Restore what was there, unless other code has changed it since."""
        if vars(self.owner).get(self.name, _ABSENT) is not self.after:
            return
        if self.before is _ABSENT:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.before)


class Patches(ABC):
    """The changes made by one ``instrument()``; ``restore()`` undoes them in reverse order.

    A subclass has the client's ``name``, its ``active`` tracing, its ``source`` of messages for ``process``, and
    ``ending``, its own steps of switching off: if one fails, the others still run. ``untraceable`` names what could
    not be changed.
    """

    name: ClassVar[str]
    active: ClassVar[ActiveTracing]
    source: ClassVar[MessageSource]
    ending: ClassVar[tuple[Callable[[], object], ...]] = ()

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.untraceable: list[str] = []
        self._knows_conflict = False
        self._at_exit = weakref.finalize(type(self), _unwrap_classes, self.changes)

    @classmethod
    def apply(cls, tracing: Tracing) -> Patches:
        """Patch the client and start tracing; broken off half-way, nothing stays changed."""
        patches = cls()
        patches._knows_conflict = cls.find_conflict() is not None  # it was here first, and MQTRACE_ON_CONFLICT is wrap
        cls.active.tracing = tracing
        cls.active.on_new_client = patches.on_new_client
        sources.append(cls.source)
        try:
            patches.patch(tracing)
        except BaseException:
            patches.restore()
            raise
        return patches

    @abstractmethod
    def patch(self, tracing: Tracing) -> None:
        """Change the client."""

    @staticmethod
    @abstractmethod
    def find_conflict() -> str | None:
        """Return the other instrumentation that wraps the client, and how to switch it off."""

    @guarded("Patches.on_new_client")
    def on_new_client(self) -> None:
        """Warn once if another instrumentation has wrapped the client after us."""
        other = None if self._knows_conflict else self.find_conflict()
        if other is not None:
            self._knows_conflict = True
            _log.warning(
                "mqtrace: %s wraps %s on top of mqtrace, so messages are traced twice, or by it alone: "
                "switch it off, or uninstrument mqtrace",
                other,
                self.name,
            )

    def restore(self) -> None:
        """Undo every change and stop tracing; clients that are still alive go on untraced."""
        tracing = self.active.tracing
        self.active.stop()
        self._at_exit.detach()
        steps: list[Callable[[], object]] = [change.undo for change in reversed(self.changes)]
        self.changes = []
        steps += self._remove_source, partial(end_states, tracing), *self.ending, drain_deferred_ends
        for step in steps:
            _run(step)

    def survey(self) -> dict[str, list[str]]:
        """Return what is not traced now, by kind, and ``wrappers``: other instrumentations. For ``mqtrace doctor``."""
        conflict = self.find_conflict()
        return {"untraceable": list(self.untraceable), "wrappers": [] if conflict is None else [conflict]}

    def make(self, change: Change) -> None:
        """Apply one change and remember it."""
        change.apply()
        self.changes.append(change)

    def wrap_method(self, owner: type[Any], name: str, wrap: Wrapper) -> bool:
        """Wrap a method, inherited or own; ``False`` where it does not exist or cannot be traced in place."""
        raw: Any = inspect.getattr_static(owner, name, None)
        is_bound = callable(raw) and hasattr(type(raw), "__get__") and not isinstance(raw, (staticmethod, classmethod))
        if not is_bound:
            return False  # it is called without the client, or with arguments of its own (a partialmethod)
        wrapped = _wrap(raw if type(raw) in _FUNCTIONS else _bind(raw), wrap)  # wrapt's wrappers pass for functions
        if wrapped is None:
            return False
        self.make(Change(owner, name, vars(owner).get(name, _ABSENT), wrapped))
        return True

    def wrap_methods(self, owner: type[Any], wrappers: Wrappers) -> None:
        """Wrap methods of one class; those that this version of the client does not have are noted."""
        for name, wrap in wrappers.items():
            if not self.wrap_method(owner, name, wrap):
                self.untraceable.append(f"{owner.__module__}.{owner.__qualname__}.{name}")

    def _remove_source(self) -> None:
        if self.source in sources:
            sources.remove(self.source)
        end_blocks(self.source)


def _wrap(original: Callable[..., Any], wrap: Wrapper) -> Callable[..., Any] | None:
    wrapped = wrap(original)
    if wrapped is not None and not hasattr(original, "__annotations__"):
        wrapped.__annotations__ = {}  # get_type_hints() looks for our names in the original's module
    return wrapped


def _bind(descriptor: Any) -> Callable[..., Any]:
    """Return a function that calls what a decorator of another library or the application's own made of a method."""

    @wraps(descriptor)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return descriptor.__get__(self, type(self))(*args, **kwargs)

    return call


@guarded("Patches.restore")
def _run(step: Callable[[], object]) -> None:
    step()


def _unwrap_classes(changes: Sequence[Change]) -> None:
    """Undo the changes of classes at exit: Python empties our modules before the application's clients are gone."""
    for change in reversed(changes):
        if isinstance(change.owner, type):
            _run(change.undo)


Observe = Callable[[Any, Any], object]
"""Takes what a call returned, and what it raised or ``None``; it must not raise."""
Begin = Callable[[Any, tuple[Any, ...], dict[str, Any]], Observe | None]
"""Client and arguments of a call → what observes it, if anything. Must not raise."""


def observe_calls(begin: Begin, *, is_async: bool = False) -> Wrapper:
    """Return the wrapper of a method of which only the start and the end are recorded, or the start alone."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            observe = begin(self, args, kwargs)
            if observe is None:
                return original(self, *args, **kwargs)
            try:
                result = original(self, *args, **kwargs)
            except:  # a KafkaError can be raised, but is not a BaseException
                observe(None, sys.exc_info()[1])
                raise
            observe(result, None)
            return result

        @wraps(original)
        async def call_async(self: Any, *args: Any, **kwargs: Any) -> Any:
            observe = begin(self, args, kwargs)
            if observe is None:
                return await original(self, *args, **kwargs)
            try:
                result = await original(self, *args, **kwargs)
            except:  # as above
                observe(None, sys.exc_info()[1])
                raise
            observe(result, None)
            return result

        return call_async if is_async else call

    return wrap


def call_after(act: Callable[[Any, tuple[Any, ...], dict[str, Any], Any], object]) -> Wrapper:
    """Return the wrapper that calls ``act`` with client, arguments and result once the method has returned."""

    def begin(client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Observe:
        return lambda result, raised: act(client, args, kwargs, result) if raised is None else None

    return observe_calls(begin)


def call_finally(act: Callable[[Any], object], *, is_async: bool = False) -> Wrapper:
    """Return the wrapper that calls ``act`` with the client once the method is over, however it ended."""
    return observe_calls(lambda client, _args, _kwargs: lambda _result, _raised: act(client), is_async=is_async)


class _Replacement(type(Protocol)):  # type: ignore[misc]  # typing has no public name for it
    """Keeps ``isinstance(x, Producer)`` true for everything it was true for before the name was rebound.

    Derived from the metaclass of protocols, an ``ABCMeta``, because applications mix protocols and abstract bases into
    their clients and metaclasses must not clash. No class of it is a protocol.
    """

    def __instancecheck__(cls, instance: object) -> bool:
        original = cls.__dict__.get("_mqtrace_original")
        return ABCMeta.__instancecheck__(cls, instance) if original is None else isinstance(instance, original)

    def __subclasscheck__(cls, subclass: type[Any]) -> bool:
        original = cls.__dict__.get("_mqtrace_original")
        return ABCMeta.__subclasscheck__(cls, subclass) if original is None else issubclass(subclass, original)

    def __dir__(cls) -> list[str]:
        original = cls.__dict__.get("_mqtrace_original")  # our own bookkeeping is not a member of the client's
        return list(super().__dir__()) if original is None else dir(original)


def replacement_class(original: type[Any], wrappers: Wrappers) -> type[Any]:
    """Return a subclass of a C class, which cannot be changed, with ``wrappers`` in place and looking like it."""
    body = {"__doc__": original.__doc__, "__module__": original.__module__, "_mqtrace_original": original}
    replacement = _Replacement(original.__name__, (original,), body)
    methods = ((name, getattr(original, name, None), wrap) for name, wrap in wrappers.items())
    changes = [Change(replacement, name, _ABSENT, _wrap(method, wrap)) for name, method, wrap in methods if method]
    for change in changes:
        change.apply()
    weakref.finalize(replacement, _unwrap_classes, changes)
    return replacement


# -- other instrumentations of the same client ---------------------------------------------------------------------
class Instrumentation(NamedTuple):
    """Another instrumentation: its name, the module of its code, its distribution, what keeps it off the client.

    ``switched_off_by`` is ``VARIABLE=value`` for the environment, or else words.
    """

    name: str
    module: str
    distribution: str
    switched_off_by: str

    def __str__(self) -> str:
        return f"{self.name} (off with {self.switched_off_by})"


def _of_opentelemetry(client: str) -> Instrumentation:
    return Instrumentation(
        "OpenTelemetry's own instrumentation",
        f"opentelemetry.instrumentation.{client}",
        f"opentelemetry-instrumentation-{client.replace('_', '-')}",
        f"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS={client}",
    )


INSTRUMENTATIONS: Final = {
    "confluent-kafka": (
        _of_opentelemetry("confluent_kafka"),
        Instrumentation("Datadog's ddtrace", "ddtrace", "ddtrace", "DD_TRACE_KAFKA_ENABLED=false"),
        Instrumentation(
            "New Relic's agent", "newrelic", "newrelic", "enabled = false under [import-hook:confluent_kafka.cimpl]"
        ),
        Instrumentation(
            "SkyWalking's agent", "skywalking", "apache-skywalking", "SW_AGENT_DISABLE_PLUGINS=sw_confluent_kafka"
        ),
    ),
    "aiokafka": (
        _of_opentelemetry("aiokafka"),
        Instrumentation("Datadog's ddtrace", "ddtrace", "ddtrace", "DD_TRACE_AIOKAFKA_ENABLED=false"),
    ),
    "rocketmq-python-client": (),
}
"""Distribution of a client → the other instrumentations of it."""
_OURS: Final = "otel_mqtrace."


def _identify(client: str, modules: Iterable[str]) -> str | None:
    known = INSTRUMENTATIONS[client]
    matches = (each for module in modules for each in known if f"{module}.".startswith(f"{each.module}."))
    return next(map(str, matches), None)


def identify_class(client: str, candidate: object) -> str | None:
    """Return who made a class, proxy or function, and how to switch that off; ``None`` if no instrumentation did."""
    modules = [str(getattr(candidate, "__module__", "")), type(candidate).__module__]
    return _identify(client, modules + [each.__module__ for each in getattr(candidate, "__mro__", ())])


def identify_method(client: str, module: str, method: Any) -> str | None:
    """Return the name of what has wrapped a method of ``client``; ``None`` for its own ``module`` and for ours."""
    home = _defining_module(method)
    if method is None or home.startswith((f"{module}.", _OURS)):
        return None
    return _identify(client, (home,)) or f"the module {home}"


def find_wrapper(client: str, module: str, methods: Iterable[Any]) -> str | None:
    """Return the name of the first that has wrapped any of ``methods``."""
    return next(filter(None, (identify_method(client, module, each) for each in methods)), None)


def _defining_module(method: Any) -> str:
    """Return the module of a method's outermost code; its ``__module__`` is that of what is wrapped."""
    wrapper = getattr(method, "_self_wrapper", None)  # wrapt's, which most instrumentations are made with
    if wrapper is not None:
        return str(getattr(wrapper, "__module__", type(wrapper).__module__))
    if type(method) is FunctionType:
        return str(method.__globals__.get("__name__", method.__module__))
    return type(method).__module__
