"""Print the page of the public Python names, from their signatures and docstrings."""

from __future__ import annotations

import inspect
import re
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import otel_mqtrace
from otel_mqtrace import message_id, testing
from otel_mqtrace.exporters.native_file import NativeFileSpanExporter
from otel_mqtrace.exporters.native_kafka import NativeKafkaSpanExporter
from otel_mqtrace.exporters.native_rocketmq import NativeRocketMqSpanExporter
from otel_mqtrace.exporters.otlp import OtlpSpanExporter
from otel_mqtrace.instrumentor import OBJECTS, ClientInstrumentor
from otel_mqtrace.testing.embedded import EmbeddedKafka
from otel_mqtrace.wire import native
from tools.handbook import options_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


_INSTRUMENTORS: Final = ("MqTraceInstrumentor", "AioKafkaInstrumentor", "RocketMqInstrumentor")
_OBJECTS: Final = {
    "tracer_provider": ("`TracerProvider`", "the global one", "whose spans the client's are"),
    "meter_provider": ("`MeterProvider`", "the global one", "where the messaging metrics go"),
    "produce_hook": ("function", "none", "`produce_hook(span, call)`, called once per recorded send span"),
    "consume_hook": ("function", "none", "`consume_hook(span, messages)`, called once per process and poll span"),
    "clock": ("`Clock`", "the system's", "time, for tests: `otel_mqtrace.testing.ManualClock`"),
}
_PARTS: Final[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
    ("Process spans", "process", ("each", "current", "outcome", "failed")),
    ("Send hook", "SendHook", ("before", "after")),
    ("Consume hook", "ConsumeHook", ("before", "after", "received", "empty", "poll_failed")),
    ("Settle hook", "SettleHook", ("before", "after")),
)
_PROCESSOR: Final = ("preset", "stats", "ledger", "internal_errors", "force_flush", "shutdown", "run_once")
_EXPORTERS: Final = (
    ("mqtrace_native", NativeKafkaSpanExporter),
    ("mqtrace_native_file", NativeFileSpanExporter),
    ("mqtrace_native_rocketmq", NativeRocketMqSpanExporter),
    ("mqtrace_otlp", OtlpSpanExporter),
)
_KIT: Final = {
    EmbeddedKafka: ("bootstrap_servers", "create_topic"),
    testing.ManualClock: ("advance", "wall_ns", "monotonic_ns"),
    testing.RecordingExporter: ("take", "take_all", "assert_empty"),
}
_IDS: Final = ("new_unique_id", "read_unique_id", "UniqueId", "new_offset_id", "read_offset_id", "OffsetId")
_MEMBERS: Final = {"uninstrument": "Switch tracing off and restore every class of the client."}
_CONSTANTS: Final = {
    "UNKNOWN_BODY": "Given as the body of a message whose length is not known.",
    "DEFAULT_DIALECT": f"The dialect written by default, `{native.DEFAULT_DIALECT}`.",
    "DIALECTS": "Every known generation of Java writers, by name.",
    "IMITATORS": "Every known client in another language.",
}


def python_page() -> str:
    """Return ``reference/python.md``."""
    return "\n".join(
        [
            "<!-- Generated from signatures and docstrings by `make docs`. Edit them, not this page. -->",
            "# Python",
            "",
            "The public names of the library. Anything that is not on this page may change without notice.",
            "How to use them: [Instrumentation](../instrumentation.md) and",
            "[Test your application](../how-to/test-your-application.md).",
            *_instrumentors(),
            *_options(),
            *_processor(),
            *_exporters(),
            *_hooks(),
            *_values(),
            *_kit(),
            *_codec(),
            "",
        ]
    )


def _instrumentors() -> list[str]:
    classes = [getattr(otel_mqtrace, name) for name in _INSTRUMENTORS]
    rows = [(f"`{one.__name__}`", f"`{one.requirement}`", f"`{one.extra}`") for one in classes]
    members = ("instrument", "uninstrument", "processor", "provider", "unrecorded", "refused_exporters")
    return [
        *("", "## Instrumentors", ""),
        "`MqTraceInstrumentor().instrument()` switches tracing on, `.uninstrument()` switches it off again.",
        "Neither raises.",
        "",
        *table(("class in `otel_mqtrace`", "client", "extra"), rows),
        "",
        *_members(ClientInstrumentor, members),
    ]


def _options() -> list[str]:
    if _OBJECTS.keys() != OBJECTS:
        raise SystemExit(f"the objects that instrument() takes are {sorted(OBJECTS)}: describe them in {__file__}")
    objects = [(f"`{name}`", *cells) for name, cells in _OBJECTS.items()]
    return [
        *("", "## Options of `instrument()`", ""),
        "Every option but the first five is also an [environment variable](../operations.md#settings): its name in",
        "upper case after `MQTRACE_`, as in `MQTRACE_QUEUE_SIZE`. An option wins over the variable. A wrong value is",
        "logged once, and the default is used.",
        "",
        *table(("option", "type", "default", "meaning"), [*objects, *options_table()]),
    ]


def _processor() -> list[str]:
    processor = otel_mqtrace.MqTraceSpanProcessor
    return [
        *("", "## Span processor", "", f"`{_call(processor.__name__, processor)}`", "", _first(processor), ""),
        *_arguments(processor),
        "",
        "An argument that is not given is taken from `MQTRACE_*`, then `OTEL_BSP_*`, then the default in brackets.",
        "A wrong value given in code raises `ValueError`.",
        "",
        *_members(processor, _PROCESSOR),
    ]


def _exporters() -> list[str]:
    lines = ["", "## Exporters", "", "Each has an entry point, so its name may stand in `MQTRACE_EXPORTERS`."]
    for name, exporter in _EXPORTERS:
        home = f"`{exporter.__module__}.{exporter.__name__}`"
        lines += ["", f"### {name}", "", f"{home}. {_first(exporter)}", "", *_arguments(exporter)]
    return lines


def _hooks() -> list[str]:
    lines = [
        "",
        "## Process spans and hooks",
        "",
        "The hooks trace [a client of your own](../instrumentation.md#a-client-of-your-own).",
    ]
    for title, name, members in _PARTS:
        thing = getattr(otel_mqtrace, name)
        lines += ["", f"### {title}", "", f"`{_call(name, thing)}`", "", _first(thing), "", *_members(thing, members)]
    return lines


def _values() -> list[str]:
    named = {name for _, name, _ in _PARTS} | set(_INSTRUMENTORS) | {"MqTraceSpanProcessor"}
    return ["", "### Values", "", *_names(otel_mqtrace, [name for name in otel_mqtrace.__all__ if name not in named])]


def _kit() -> list[str]:
    lines = ["", "## Testing kit", "", "`otel_mqtrace.testing`, with the extra `kafka` for the broker.", ""]
    lines += _names(testing, testing.__all__)
    for kind, members in _KIT.items():
        lines += ["", f"### {kind.__name__}", "", *_members(kind, members)]
    return lines


def _codec() -> list[str]:
    return [
        *("", "## Native format", ""),
        "`otel_mqtrace.wire.native` reads and writes [the native trace format](../wire-format.md) with the standard",
        "library only.",
        "",
        *_names(native, native.__all__),
        *("", "`otel_mqtrace.message_id` makes and reads RocketMQ's message ids, with an IPv4 or an IPv6 address.", ""),
        *_names(message_id, _IDS),
        "",
        *_members(message_id.UniqueId, ("made_ms",)),
    ]


def _names(module: Any, names: Iterable[str]) -> list[str]:
    rows = [
        (f"`{_call(name, getattr(module, name))}`", _CONSTANTS.get(name) or _first(getattr(module, name)))
        for name in names
    ]
    return table(("name", "meaning"), rows)


def _members(thing: Any, names: Sequence[str]) -> list[str]:
    rows = []
    for name in names:
        member = inspect.getattr_static(thing, name, None) or getattr(thing, name)
        shown = name if isinstance(member, property) else _call(name, getattr(thing, name))
        rows.append(
            (
                f"`{shown}`",
                _MEMBERS.get(name) or _first(member if isinstance(member, property) else getattr(thing, name)),
            )
        )
    return table(("member", "meaning"), rows)


def _arguments(thing: Any) -> list[str]:
    """Return the table of a constructor's arguments: default from the signature, meaning from the docstrings."""
    texts = [inspect.cleandoc(each.__doc__ or "") for each in inspect.getmro(thing) if _is_ours(each)]
    blocks = [found[1] for text in texts if (found := re.search(r"^Args:\n((?:    .*\n?|\n)+)", text, re.MULTILINE))]
    if not blocks:
        raise SystemExit(f"{thing.__name__} has no Args: in its docstring")
    entries = re.findall(r"^    (\*{0,2}\w+): (.*(?:\n {8}.*)*)", "\n".join(blocks), re.MULTILINE)
    known = inspect.signature(thing).parameters
    rows = []
    for name, meaning in entries:
        default = known[name.lstrip("*")].default
        shown = "" if default is inspect.Parameter.empty or callable(default) else f"`{default!r}`"
        rows.append((f"`{name}`", "none" if default is None else shown, _markdown(meaning)))
    return table(("argument", "default", "meaning"), rows)


def _is_ours(thing: type) -> bool:
    return thing.__module__.startswith("otel_mqtrace.")


def _call(name: str, thing: Any) -> str:
    """Return ``name(argument, option=default)`` without types; the bare name of what cannot be called."""
    if not callable(thing) or (inspect.isclass(thing) and not _has_own_arguments(thing)):
        return name
    known = inspect.signature(thing).parameters.values()
    bare = [each.replace(annotation=inspect.Parameter.empty) for each in known if each.name != "self"]
    shown = str(inspect.Signature([each for each in bare if not each.name.startswith("_")]))
    return name + re.sub(r"<(\w+\.\w+): [^>]*>", r"\1", shown).replace("Ellipsis", "…")


def _has_own_arguments(thing: type) -> bool:
    return not issubclass(thing, Enum) and not getattr(thing, "_is_protocol", False)


def _first(thing: Any) -> str:
    return _markdown((inspect.getdoc(thing) or "").split("\n\n", maxsplit=1)[0])


def _markdown(text: str) -> str:
    text = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", " ".join(text.split()))
    return text.replace("``", "`").replace("|", "\\|")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a Markdown table as lines; cells are taken as they are."""
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]
