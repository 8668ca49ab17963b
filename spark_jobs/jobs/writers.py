"""Choose the profile and the native writer of a run from the first spans and records of its sources."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from bridge.otlp.detect import Side
from bridge.page.wording import visible
from otel_mqtrace._errors import UsageError
from spark_jobs.policy.profiles import AUTO, MIXED
from spark_jobs.sources.files import find_inputs
from spark_jobs.sources.writers import (
    RecordSigns,
    SpanSigns,
    sample_record_topic,
    sample_records,
    sample_span_topic,
    sample_spans,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from spark_jobs.jobs.reading import ReadOptions
    from spark_jobs.sources.files import Inputs, SourceFile

MOST_FILES: Final = 200
"""Files of a side that are looked into, at most; each takes some milliseconds."""
_MOST_NAMES: Final = 3
_OWN_IDS: Final = "sends with ids that only mqtrace records"
_GIVE_WRITER: Final = "give --native-writer mqtrace or --native-writer rocketmq"
_LONGEST_NAME: Final = 80


class SpanSample(NamedTuple):
    """The first spans of one source: the path of a file, or the address of a topic."""

    source: str
    signs: SpanSigns


class RecordSample(NamedTuple):
    """The first native records of one source: the path of a file, or the address of a topic."""

    source: str
    signs: RecordSigns


class Choice(NamedTuple):
    """The profile and the native writer of a run.

    ``reasons`` has a sentence for each of the two that the input shows, by its name here. One that was left to the
    input and has no reason is a default: the input holds nothing that shows it.
    """

    profile: str
    native_writer: str
    reasons: Mapping[str, str]


def find_writers(native: Inputs, otlp: Inputs, how: ReadOptions, *, profile: str, native_writer: str) -> Choice:
    """Return the writers of both sides: those of the options (unless ``auto``), else of the heads of the sources.

    Raises:
        UsageError: the writer is ambiguous; the message names the option to give.
        UnreadableInputError, PeerError: from reading the sources.
    """
    spans = _sample_spans(otlp, how) if AUTO in {profile, native_writer} else ()
    records = _sample_records(native, how) if native_writer == AUTO else ()
    return choose_writers(tuple(spans), tuple(records), profile=profile, native_writer=native_writer)


def choose_writers(
    spans: Sequence[SpanSample],
    records: Sequence[RecordSample],
    *,
    profile: str = AUTO,
    native_writer: str = AUTO,
) -> Choice:
    """Return who wrote both sides: what is named, else what the samples show; see :func:`find_writers`."""
    reasons: dict[str, str | None] = {}
    if profile == AUTO:
        profile, reasons["profile"] = _choose_profile(spans)
    if native_writer == AUTO:
        has_own_spans = "mqtrace" in profile and any(one.signs.are_own for one in spans)
        native_writer, reasons["native_writer"] = _choose_native_writer(records, profile, has_own_spans=has_own_spans)
    return Choice(profile, native_writer, {name: why for name, why in reasons.items() if why is not None})


def _sample_spans(given: Inputs, how: ReadOptions) -> Iterator[SpanSample]:
    for file in _spread(given.files):
        yield SpanSample(str(file.path), sample_spans(file))
    for address, ranges in given.topics.items():
        yield SpanSample(str(address), sample_span_topic(ranges, how.client_config))


def _spread(files: Sequence[SourceFile]) -> list[SourceFile]:
    return [files[at * len(files) // MOST_FILES] for at in range(MOST_FILES)] if len(files) > MOST_FILES else [*files]


def _sample_records(given: Inputs, how: ReadOptions, *, each: bool = False) -> Iterator[RecordSample]:
    for file in given.files if each else _spread(given.files):
        yield RecordSample(str(file.path), sample_records(file, charset=how.charset))
    for address, ranges in given.topics.items():
        yield RecordSample(str(address), sample_record_topic(ranges, how.client_config, charset=how.charset))


def _choose_profile(samples: Sequence[SpanSample]) -> tuple[str, str | None]:
    """Return the profile, and why; spans that show no writer are taken for ours."""
    scopes: dict[str, Counter[str]] = {}
    for one in samples:
        for writer, count in one.signs.writers.items():
            scopes.setdefault(writer.name, Counter())[writer.scope] += count
    known = {name: found for name, found in scopes.items() if name != "other"}
    if len(known) > 1:
        scope_names = " and of ".join(_listed(known[name]) for name in ("mqtrace", "java-agent"))
        profile = f"mqtrace{MIXED}java-agent"
        return profile, f"profile {profile}: spans of {scope_names} in {_sources(samples)}"
    for name, found in known.items():
        where = _sources(one for one in samples if name in one.signs.names)
        return name, f"profile {name}: spans of {_listed(found)} in {where}"
    if scopes:
        raise UsageError(
            f"cannot detect who wrote the spans in {_sources(samples)}, of the unknown {_listed(scopes['other'])}: "
            "give --profile mqtrace or --profile java-agent"
        )
    return "mqtrace", None


def _choose_native_writer(
    samples: Sequence[RecordSample], profile: str, *, has_own_spans: bool
) -> tuple[str, str | None]:
    """Return the native writer, and why; records that do not show it are of the writer that goes with the spans.

    Where our instrumentation wrote the spans it wrote the records as well, whatever ids a broker gave.
    """
    names = {name for one in samples for name in one.signs.names}
    where = _sources(one for one in samples if one.signs.names)
    if names == {"mqtrace"}:
        return "mqtrace", f"native writer mqtrace: {_OWN_IDS} in {where}"
    if names and has_own_spans and MIXED not in profile:
        return "mqtrace", "native writer mqtrace: it goes with spans of this instrumentation"
    if len(names) > 1:
        return _choose_of_each_source(samples)
    has_records = any(one.signs.records for one in samples)
    if not names and MIXED in profile and has_records:
        raise UsageError(f"cannot detect who wrote the native records in {_sources(samples)}: {_GIVE_WRITER}")
    if not has_records or (not names and profile != "java-agent"):
        return ("rocketmq" if profile == "java-agent" else "mqtrace"), None
    theirs, signs = _choose_release(samples, where)
    native_writer = f"mqtrace{MIXED}{theirs}" if has_own_spans else theirs
    return native_writer, f"native writer {native_writer}: {signs}"


def _choose_of_each_source(samples: Sequence[RecordSample]) -> tuple[str, str]:
    """Return both native writers, each source having one of them."""
    unclear = [one for one in samples if one.signs.records and len(one.signs.names) != 1]
    if unclear:
        what = "records of both" if unclear[0].signs.names else "no sign of either"
        raise UsageError(
            f"the native records are of mqtrace and of RocketMQ, and {_sources(unclear)} has {what}: {_GIVE_WRITER}"
        )
    own, others = ([one for one in samples if name in one.signs.names] for name in ("mqtrace", "rocketmq"))
    theirs, signs = _choose_release(others, _sources(others))
    native_writer = f"mqtrace{MIXED}{theirs}"
    return native_writer, f"native writer {native_writer}: {_OWN_IDS} in {_sources(own)}, {signs}"


def name_native_writers(srcs: Sequence[str], how: ReadOptions) -> ReadOptions:
    """Return how to read a native side that mixes writers: each file and topic with its own; else ``how`` as it is."""
    own, mixed, others = how.native_writer.partition(MIXED)
    if not mixed:
        return how
    given = find_inputs(Side.NATIVE, srcs, how.client_config)
    samples = [one for one in _sample_records(given, how, each=True) if one.signs.names == {"rocketmq"}]
    theirs = [one.source.rpartition("/")[2] if "://" in one.source else one.source for one in samples]
    return replace(how, native_writer=own, native_writers=dict.fromkeys(theirs, others))


def _choose_release(samples: Sequence[RecordSample], where: str) -> tuple[str, str]:
    """Return RocketMQ with the release to judge by, and the signs of it."""
    broker_ids = sum(one.signs.broker_ids for one in samples)
    without_region = sum(one.signs.without_region for one in samples)
    signs = [
        *(["sends with offset ids of a RocketMQ broker"] if broker_ids else []),
        *(["deliveries without a region"] if without_region else []),
    ]
    releases = [release for one in samples if (release := one.signs.release()) is not None]
    writer = f"rocketmq-{'.'.join(map(str, min(releases)))}" if releases else "rocketmq"
    return writer, f"{' and '.join(signs)} in {where}" if signs else "it goes with the Java agent's spans"


def _listed(names: Counter[str]) -> str:
    shown = [visible(name, limit=_LONGEST_NAME) for name, _ in names.most_common(_MOST_NAMES)]
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"scope{'s' if len(names) > 1 else ''} {', '.join(shown)}{more}"


def _name(source: str) -> str:
    return source if "://" in source else source.rpartition("/")[2]


def _sources(samples: Iterable[SpanSample | RecordSample]) -> str:
    names = [visible(_name(one.source), limit=_LONGEST_NAME) for one in samples]
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more" if names else "the sources"
