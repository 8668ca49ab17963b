"""One run of the forwarder: open what the options name, stop on a signal, print what was done."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from bridge.addresses import Kind, check_client_config, check_stores, parse_address, reads_tree, root_of
from bridge.codec.files import BodyDecoder
from bridge.commands import warn_of_orphans
from bridge.forwarder.files_source import FilesTraceSource, SpanFilesSource
from bridge.forwarder.native_delivery import NativeForwarding, open_native
from bridge.forwarder.pairing import DEFAULT_MAX_PENDING, DEFAULT_TIMEOUT_MS, Pairing
from bridge.forwarder.resume_file import CANNOT_WRITE, ResumeFile, not_written, state_name
from bridge.forwarder.service import ForwardMetrics, forward_once, forward_until
from bridge.forwarder.span_delivery import OtlpDelivery, SpanForwarding
from bridge.forwarder.span_fields import SpanRules
from bridge.forwarder.store_landing import open_landing
from bridge.page.wording import plural, visible
from bridge.storage.paths import as_path
from otel_mqtrace._errors import MqTraceError, PeerError, UsageError
from otel_mqtrace.client_properties import read_properties, without_password
from otel_mqtrace.config import Settings
from otel_mqtrace.landing import claim, native_directory
from otel_mqtrace.wire.native.layout import DEFAULT_DIALECT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bridge.forwarder.service import ForwardCounts
    from bridge.forwarder.trace_source import TraceSource
    from bridge.storage.paths import AnyPath


_ROCKETMQ_KEYS: Final = {"accessKey": "access_key", "secretKey": "secret_key"}
"""In the properties file, as RocketMQ's own tools spell them → the client's parameters."""
_MEMORY_DIRECTORY: Final = "_mqtrace-forward"  # the underscore keeps readers of the landing from taking it for data
_PAUSE_MS: Final = 1_000
_NEVER_ANSWERED: Final = 2
_STOPPED_ON_ERROR: Final = 1  # nothing uncommitted is lost: it will be forwarded again


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardOptions:
    """The options of ``mqtrace forward``; ``service_name`` is ``None`` for the record's group."""

    source: str
    landing: AnyPath | None = None
    otlp_endpoint: str | None = None
    native: str | None = None
    dialect: str | None = None
    state: AnyPath | None = None
    once: bool = False
    group: str = "mqtrace-forward"
    client_config: Path | None = None
    landing_format: str = "parquet"
    accept_trimmed: bool = False
    timeout_ms: float = 10_000
    otlp_timeout_ms: float = 10_000
    pair_timeout_ms: int = DEFAULT_TIMEOUT_MS
    max_pending: int = DEFAULT_MAX_PENDING
    service_name: str | None = None
    messaging_system: str = "rocketmq"
    stamped_after: tuple[str, ...] = ()
    msg_type_map: str = "a"
    charset: str = "utf-8"


def run(options: ForwardOptions, *, as_json: bool = False) -> int:
    """Forward, print what was moved, and return the exit code.

    It is 0, 1 when a peer failed, a directory was full or a codec was missing later (after the first commit, be it of
    nothing, or when all peers had answered), 2 when the source or the receiver did not answer at the start. After 1
    only JSON is printed.

    Raises:
        UsageError: a contradictory option, or a directory that cannot be written at the start.
    """
    _check_delivery(options)
    _check_places(options)
    decoder = BodyDecoder(options.msg_type_map, options.charset)  # a wrong charset fails before anything is read
    landing = None if options.landing is None else open_landing(options.landing, options.landing_format)
    with ExitStack() as opened:
        opened.enter_context(_lock_state(options))
        source = opened.enter_context(_open_source(options))
        native = None if options.native is None else _open_native(opened, options, options.native)
        spans = None if options.otlp_endpoint is None else _open_spans(opened, options, options.otlp_endpoint, decoder)
        forwarding = native or spans
        metrics = ForwardMetrics(spans)
        on_commit = partial(_count_commit, options=options, source=source, spans=forwarding, metrics=metrics)
        try:
            if options.once:
                forward_once(source, landing, spans=forwarding, flush=True, on_commit=on_commit)
            else:
                forward_until(
                    opened.enter_context(_stopped_by_signals(source)),
                    source,
                    landing,
                    spans=forwarding,
                    pause_ms=_PAUSE_MS,
                    on_commit=on_commit,
                    on_pass=partial(_print_pass, source=source, spans=forwarding),
                )
            if forwarding is not None:
                forwarding.hold()  # of what is committed nothing is remembered: positions may be moved back
        except MqTraceError as error:
            if not isinstance(error, PeerError) and not source.has_committed:
                raise
            typer.echo(f"mqtrace: error: {visible(str(error), limit=None)}", err=True)
            have_answered = source.has_answered and (forwarding is None or forwarding.has_delivered)
            if not (source.has_committed or have_answered):
                return _NEVER_ANSWERED
            code = _STOPPED_ON_ERROR
        else:
            code = 0
        if as_json:
            typer.echo(visible(_as_json(metrics.moved, source, forwarding), limit=None))
        elif not code:
            typer.echo(visible(_as_text(metrics.moved, source, forwarding, options), limit=None))
    return code


def _check_delivery(options: ForwardOptions) -> None:
    """Refuse an empty group, no target, and options that exclude or need each other."""
    if not options.group.strip():
        raise UsageError("--group is empty: name a consumer group")  # librdkafka would end the process
    others = (options.landing, options.otlp_endpoint) != (None, None)
    if options.native is None and not others:
        raise UsageError(
            "nowhere to forward to: give --otlp-endpoint URL, --landing DIR or both, or --native URL for spans"
        )
    if options.native is not None and others:
        raise UsageError(
            "--native takes spans from --source, --landing and --otlp-endpoint native records: run them apart"
        )
    check_client_config(options.client_config, [options.source, options.native or options.source])
    if options.dialect is not None and options.native is None:
        raise UsageError(f"--dialect {options.dialect} is for --native, which writes records; leave it out")
    if options.native is not None and parse_address(options.source).kind is Kind.ROCKETMQ:
        raise UsageError(
            "--native takes spans: give --source kafka://BOOTSTRAP/TOPIC of a Collector, or a DIR of its files"
        )


def _check_places(options: ForwardOptions) -> None:
    """Refuse an unknown store, a file for a directory, and a landing that each pass would read again."""
    check_stores(
        {
            "--source": [options.source],
            "--native": [options.native],
            "--landing": [options.landing],
            "--state": [options.state],
        }
    )
    target = None if options.native is None else parse_address(options.native)
    native = as_path(target.path) if target is not None and target.kind is Kind.FILES else None
    for option, place in {"--landing": options.landing, "--native": native, "--state": options.state}.items():
        if isinstance(place, Path) and place.is_file():
            raise UsageError(f"{option} {place} is a file: name a directory")
    source = parse_address(options.source)
    if source.kind is not Kind.FILES:
        return
    read, is_tree = root_of(source.path).resolve(), reads_tree(source.path)
    for option, landing in {"--landing": options.landing, "--native": native}.items():
        if landing is None:
            continue
        written = native_directory(landing).resolve()
        if read.is_relative_to(written) or (is_tree and written.is_relative_to(read)):
            raise UsageError(
                f"{option} {landing} and --source {options.source} overlap: what is written would be read again "
                "without end; land somewhere else, or name the files to read, as in '*.jsonl'"
            )


def _open_source(options: ForwardOptions) -> TraceSource:
    """Return the source at the position of its group; with ``--native`` files hold OTLP messages, else native bodies.

    Raises:
        UsageError: not a file, a directory, a glob or a topic.
        MissingExtraError: a client that is not installed.
        PeerError: the source does not answer.
    """
    address = parse_address(options.source, readable=(Kind.KAFKA, Kind.ROCKETMQ, Kind.FILES))
    client_config = _client_config(options)
    if address.kind is Kind.FILES:
        warn_of_orphans([options.source])
        files = FilesTraceSource if options.native is None else SpanFilesSource
        return files(address.path, group=options.group, state=_state_directory(options) or _user_state_directory())
    common: dict[str, Any] = {
        "group": options.group,
        "accept_trimmed": options.accept_trimmed,
        "timeout_ms": options.timeout_ms,
    }
    if address.kind is Kind.KAFKA:
        from bridge.forwarder.kafka_source import KafkaTraceSource  # noqa: PLC0415 - optional extra

        return KafkaTraceSource(address.servers, address.topic, kafka_config=client_config or None, **common)
    from bridge.forwarder.rocketmq_source import RemotingTraceSource  # noqa: PLC0415 - one kind is used, at most

    unknown = client_config.keys() - _ROCKETMQ_KEYS.keys()
    if unknown:
        raise UsageError(
            f"--client-config: {', '.join(sorted(unknown))} is not known; give {', '.join(_ROCKETMQ_KEYS)}"
        )
    keys: dict[str, Any] = {_ROCKETMQ_KEYS[name]: value for name, value in client_config.items()}
    return RemotingTraceSource(address.servers, address.topic, **keys, **common)


def _client_config(options: ForwardOptions) -> dict[str, str]:
    return {} if options.client_config is None else read_properties(options.client_config)


def _open_native(opened: ExitStack, options: ForwardOptions, target: str) -> NativeForwarding:
    dialect = options.dialect or DEFAULT_DIALECT
    native = open_native(
        target,
        dialect=dialect,
        landing_format=options.landing_format,
        client_config=_client_config(options),
        timeout_ms=options.timeout_ms,
    )
    settings = Settings.from_env({})
    return NativeForwarding(
        opened.enter_context(native),
        dialect=dialect,
        max_message_bytes=settings.max_message_bytes,
        trace_topics={settings.trace_topic, parse_address(target).topic} - {""},
    )


def _open_spans(opened: ExitStack, options: ForwardOptions, endpoint: str, decoder: BodyDecoder) -> SpanForwarding:
    state = _state_directory(options)
    delivery = OtlpDelivery(endpoint, timeout_s=options.otlp_timeout_ms / 1e3)
    opened.callback(delivery.close)
    return SpanForwarding(
        delivery,
        pairing=Pairing(timeout_ms=options.pair_timeout_ms, max_pending=options.max_pending),
        rules=SpanRules(
            service_name=options.service_name, system=options.messaging_system, stamped_after=options.stamped_after
        ),
        decoder=decoder,
        resume_file=ResumeFile(state and state / f"{_name_state(options)}.json"),
    )


@contextmanager
def _lock_state(options: ForwardOptions) -> Iterator[None]:
    """Refuse a second forwarder of the same source and group in the same state; a store locks nothing.

    Raises:
        UsageError: there is one, or the directory cannot be written.
    """
    directory = _state_directory(options)
    if not isinstance(directory, Path):
        yield
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / f"{_name_state(options)}.lock").open("ab")
    except OSError as error:
        fix = CANNOT_WRITE if options.state or not options.landing else "give a --landing that can be written"
        raise not_written(directory, error, fix) from error
    with lock:
        if not claim(lock):
            raise UsageError(
                f"another mqtrace forward of {without_password(options.source)} with --group {options.group} is "
                f"running in {directory}: wait for it, or give another --group"
            )
        yield


def _name_state(options: ForwardOptions) -> str:
    """Return the name of what is remembered, however the source's path is spelled or its servers are ordered."""
    address = parse_address(options.source)
    if address.kind is Kind.FILES:
        return state_name(options.group, str(as_path(address.path).resolve()))
    servers = ",".join(sorted({*re.split("[,;]", address.servers.lower())} - {""}))  # RocketMQ's have either between
    return state_name(options.group, f"{address.kind.name.lower()}://{servers}/{address.topic}")


def _state_directory(options: ForwardOptions) -> AnyPath | None:
    """Return ``--state``, else a folder of the landing; of files without a landing one of the user's own."""
    if options.state is not None:
        return options.state
    if options.landing is not None:
        return options.landing / _MEMORY_DIRECTORY
    return _user_state_directory() if parse_address(options.source).kind is Kind.FILES else None


def _user_state_directory() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "mqtrace" / "forward"


@contextmanager
def _stopped_by_signals(source: TraceSource) -> Iterator[threading.Event]:
    """Give what SIGINT, SIGTERM and SIGHUP set while the block runs; a SIGHUP that nohup ignores stays ignored.

    Before ``source`` has answered they do what they did before the block: nothing is to be committed yet.
    """
    stopped = threading.Event()

    def stop(number: int, _frame: object) -> None:
        stopped.set()
        if not source.has_answered and before[signal.Signals(number)] is not signal.SIG_IGN:
            restore()
            signal.raise_signal(number)

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    numbers = [signal.SIGINT, signal.SIGTERM]  # a shell ignores SIGINT in the background of a script
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        signal.signal(number, stop)
    try:
        yield stopped
    finally:
        restore()


# -- the summary --------------------------------------------------------------------------------------------------
_Forwarding = SpanForwarding | NativeForwarding | None


def _count_commit(
    moved: ForwardCounts, *, options: ForwardOptions, source: TraceSource, spans: _Forwarding, metrics: ForwardMetrics
) -> None:
    is_first, is_native = moved.messages > 0 and not metrics.moved.messages, isinstance(spans, NativeForwarding)
    metrics.add(moved)
    if is_first and not is_native and not source.holds_records:
        read, place = plural(moved.messages, "message"), without_password(options.source)
        typer.echo(f"mqtrace: warning: no trace record in {read} of --source {place}: name a trace topic", err=True)
    if metrics.rejected and isinstance(spans, SpanForwarding):
        rejected = f"{plural(metrics.rejected, 'span')} {_describe_rejection(spans)}"
        typer.echo(f"mqtrace: warning: {rejected}", err=True)


def _print_pass(passed: ForwardCounts, *, source: TraceSource, spans: _Forwarding) -> None:
    if source.new_bad:
        typer.echo(f"mqtrace: warning: not forwarded: {visible(source.new_bad, limit=None)}", err=True)
        source.new_bad = ""
    if passed.messages or passed.spans:
        typer.echo(f"mqtrace: {_describe_pass(passed, spans)}", err=True)


def _describe_pass(passed: ForwardCounts, spans: _Forwarding) -> str:
    if isinstance(spans, NativeForwarding):
        return f"{plural(passed.messages, 'OTLP message')} committed, {plural(passed.spans, 'record')} written"
    messages = plural(passed.messages, "trace message")
    if spans is None:
        return f"{messages} committed"
    read = f"{messages} read, {plural(passed.spans, 'span')} accepted"
    return f"{read}, {plural(spans.counts.pending, 'record')} {_PENDING}"


def _as_json(counts: ForwardCounts, source: TraceSource, spans: _Forwarding) -> str:
    document: dict[str, Any] = {
        "messages": counts.messages,
        "body_bytes": counts.body_bytes,
        "trimmed_offsets": source.trimmed,
        "unreadable_bodies": source.bad_bodies + len(source.changed_files),
        **({} if spans is None else spans.counts.as_dict()),
        "parts": counts.files,
    }
    return json.dumps(document)


def _as_text(counts: ForwardCounts, source: TraceSource, spans: _Forwarding, options: ForwardOptions) -> str:
    notes = (f"; {plural(number, noun)} {what}" for number, noun, what in _notes(source, spans) if number)
    return _describe_totals(counts, spans, options) + "".join(notes) + _nothing_new(counts, source, options)


def _describe_totals(counts: ForwardCounts, spans: _Forwarding, options: ForwardOptions) -> str:
    if isinstance(spans, NativeForwarding):
        native = spans.counts
        read = f"{plural(native.spans, 'span')} ({plural(counts.messages, 'OTLP message')})"
        written = f"{plural(native.records, 'record')} in {plural(native.trace_messages, 'trace message')}"
        return f"{read} as {written} to {options.native}"
    text = f"{plural(counts.messages, 'trace message')} ({plural(counts.body_bytes, 'byte')})"
    if options.landing is not None:
        text += f" in {plural(counts.parts, 'part')} of {options.landing}"
    if spans is not None:
        records, made = plural(spans.counts.records, "record"), plural(spans.counts.spans, "span")
        text += f"; {records} as {made} to {without_password(options.otlp_endpoint or '')}"
    return text


_Note = tuple[int, str, str]
"""A number, the noun for what it counts, and words that follow the noun of one or of several."""
_PENDING: Final = "waiting for the other half, uncommitted"


def _notes(source: TraceSource, spans: _Forwarding) -> list[_Note]:
    """Return what the summary mentions where it is not 0."""
    notes: list[_Note] = []
    unreadable, wanted = source.bad_bodies, "a trace message"
    if isinstance(spans, SpanForwarding):
        notes = [
            (spans.counts.halves, "span", "with one half only"),
            (spans.counts.overflowed, "record", "sent without waiting longer because too many waited"),
            (spans.counts.pending, "record", _PENDING),
            (spans.counts.repeated, "record", "repeating another"),
            (spans.counts.bad_records, "bad record", "without a span"),
            (spans.counts.rejected, "span", _describe_rejection(spans)),
        ]
    elif spans is not None:
        native = spans.counts
        unreadable, wanted = unreadable + native.unreadable, "OTLP traces"
        notes = [(each, "span", f"without a record: {scope}") for scope, each in sorted(native.without_record.items())]
        notes += [
            (each, "record", f"refused: {reason}{_first(native.first_refused[reason])}")
            for reason, each in sorted(native.refused.items())
        ]
        notes += [
            (native.bad_spans, "span", f"that could not be read{_first(native.first_bad)}"),
            (native.replaced, "separator character", "written as _"),
        ]
    cut = ":".join(map(str, min(source.cut_files.items(), default=())))
    changed = min(source.changed_files, default="")
    return [
        *notes,
        (unreadable, "piece", f"of input without {wanted}{_first(source.first_bad)}"),
        (len(source.cut_files), "file", f"cut inside a message{_first(cut)}: run again when it is complete"),
        (
            len(source.changed_files),
            "file",
            f"changed after forwarding and not read again{_first(changed)}: give new content a new file name",
        ),
        (source.trimmed, "offset", "trimmed before"),
    ]


def _describe_rejection(spans: SpanForwarding) -> str:
    return f"rejected by the receiver{f' ({visible(spans.rejection)})' if spans.rejection else ''}"


def _first(place: str) -> str:
    return f"; first: {place}" if place else ""


def _nothing_new(counts: ForwardCounts, source: TraceSource, options: ForwardOptions) -> str:
    if counts.messages or counts.spans or source.bad_bodies or source.changed_files:  # spans alone: they had waited
        return ""
    if not source.has_been_read:
        wanted = "trace messages" if options.native is None else "OTLP messages"
        return f"; --source {without_password(options.source)} holds no {wanted}"
    read = f"it has forwarded all of --source {without_password(options.source)}, wherever that went"
    return f"; nothing new for group {options.group}: {read}; use another --group to start over"
