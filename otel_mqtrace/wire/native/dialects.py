"""Every known writer of the native format: Java's dialects, and the clients that imitate them.

We write Java's (``DIALECTS``) and read all. The wire carries no version: ``writer_of`` names the newest writer whose
records have a given number of fields.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_mqtrace._errors import UsageError
from otel_mqtrace.model import TraceType
from otel_mqtrace.wire.native.layout import (
    CLOUD_SUB_AFTER,
    DEFAULT_DIALECT,
    DIALECTS,
    MESSAGE_TYPE_MAPS,
    NULL_TEXT,
    CloudSubAfter,
    Dialect,
    FieldCounts,
    parse_release,
)

if TYPE_CHECKING:
    from otel_mqtrace.model import TraceContext


_RELEASE: Final = re.compile(r"\d{1,3}(?:\.\d{1,3}){2}", re.ASCII)
CLOUD_SUFFIX: Final = "/CLOUD"
"""Ends the name of a dialect whose ``SubAfter`` was written over the CLOUD access channel."""


class Shape(NamedTuple):
    """What the wire shows of a record's writer: type, fields with the type name, what its channel did to it."""

    trace_type: TraceType
    fields: int
    quirk: CloudSubAfter = CloudSubAfter.SAME


@dataclass(frozen=True, slots=True, kw_only=True)
class Imitator(FieldCounts):
    """A client in another language that writes a form of Java's format.

    ``absent_keys``: its text for a message of a listener call without keys.
    """

    quirks: str
    absent_keys: str = NULL_TEXT


IMITATORS: Final[tuple[Imitator, ...]] = (
    Imitator(
        name="go-2.1.1",
        releases="Go 2.1.1 and later",
        pub=15,
        sub_before=9,
        quirks="Pub time is taken after the send; cost is not divided; keys empty on Pub, null on Sub; codes 0 and 4",
    ),
    Imitator(name="go-2.1.0", releases="Go up to 2.1.0", sub_after=7, quirks="Pub time is taken after the send"),
    Imitator(
        name="cpp-2",
        releases="C++ 2.x, and Python on top of it",
        sub_after=6,
        absent_keys="dKey",
        quirks="no context code; absent keys are dKey; SubAfter of the first message only",
    ),
    Imitator(name="ons", releases="ONS Java 2019", sub_after=8, quirks="field 7 of SubAfter is exactlyOnceStatus"),
    Imitator(
        name="rust",
        releases="rocketmq-rust 2026",
        pub=15,
        end_transaction=13,
        recall=7,
        cloud_sub_after=CloudSubAfter.TRAILING,
        absent_keys="",
        quirks="absent keys are empty, which the Java reader of SubBefore cannot read",
    ),
)
"""Known from their sources (apache/rocketmq-client-go, -client-cpp, rocketmq-ons, mxsm/rocketmq-rust)."""
GO: Final = frozenset({"go-2.1.1", "go-2.1.0"})
_GO_ID: Final = re.compile("[0-9A-F]{12}0{8}[0-9a-f]{12}")
"""Address and process id, no class loader, then time and counter in lower case: Go's ``primitive.CreateUniqID``."""


def dialect_named(name: str) -> Dialect:
    """Return the writable dialect of that name, or of the RocketMQ release of that name.

    ``UsageError`` names the nearest release, or all dialects.
    """
    if name in DIALECTS:
        return DIALECTS[name]
    if not _RELEASE.fullmatch(name):
        raise UsageError(f"no dialect {name!r} can be written; name a release of RocketMQ, as {', '.join(DIALECTS)}")
    release, nearest = parse_release(name), "4.4.0"
    for row in DIALECTS.values():
        first, last = row.first_and_last
        if first <= release <= last:
            return row
        nearest = ".".join(map(str, last)) if last < release else nearest
    raise UsageError(f"no release {name} of RocketMQ is known; the nearest is {nearest}")


def nearest_dialect(name: str | None) -> str:
    """Return the name to write a record under again: the default's for a form that only other clients write."""
    with suppress(UsageError):
        dialect_named((name or "").removesuffix(CLOUD_SUFFIX))
        return name or DEFAULT_DIALECT
    return DEFAULT_DIALECT


@lru_cache(maxsize=256)
def writers_of(shape: Shape, dialect: str | None, *, by_go: bool = False) -> tuple[str, ...]:
    """Return every known writer of such a record, in words: ``("Java client 4.4.0 to 4.8.0", "Go up to 2.1.0")``.

    ``dialect`` is the one that the decoder named. Bodies read under message type map B have writers of that map only.
    ``by_go`` is what ``is_by_go`` returns.
    """
    go = tuple(each.releases for each in IMITATORS if each.name in GO and shape in shapes_of(each))
    if by_go and go:
        return go
    is_map_b = dialect in DIALECTS and DIALECTS[dialect].message_type_map == "b"
    ranges: list[list[str]] = []
    follows = False
    for each in DIALECTS.values():
        fits = shape in shapes_of(each) and (each.message_type_map == "b" or not is_map_b)
        releases = each.releases.split("-")
        if fits and follows:
            ranges[-1][1] = releases[-1]
        elif fits:
            ranges.append([releases[0], releases[-1]])
        follows = fits
    java = [f"Java client {first}" if first == last else f"Java client {first} to {last}" for first, last in ranges]
    others = () if is_map_b else (each.releases for each in IMITATORS if shape in shapes_of(each))
    return (*java, *others)


def quirks_of(dialect: Dialect) -> str:
    """Return a description of a dialect's quirks beyond its field counts."""
    quirks = []
    if dialect.message_type_map == "b":
        quirks.append("message type ordinals are map B")
    if not dialect.splits_keys:
        quirks.append("the key set holds the keys unsplit")
    if dialect.cloud_sub_after is not CloudSubAfter.SAME:
        quirks.append(f"SubAfter over CLOUD: {dialect.cloud_sub_after.value}")
    return "; ".join(quirks)


def is_by_go(trace_ctx: TraceContext) -> bool:
    """Return whether a ``Pub`` is of Go's client: by its id, and Java would write ``null`` for no text."""
    bean = trace_ctx.beans[0]
    is_own = trace_ctx.trace_type is TraceType.PUB and _GO_ID.fullmatch(bean.msg_id or "") is not None
    return is_own and NULL_TEXT not in {bean.tags, bean.keys}


def started_ms(trace_ctx: TraceContext) -> int | None:
    """Return when a send began, in ms since the Unix epoch: Go's clients stamp a ``Pub`` when it is over."""
    stamp_ms = trace_ctx.timestamp_ms
    return stamp_ms - (trace_ctx.cost_ms or 0) if stamp_ms is not None and is_by_go(trace_ctx) else stamp_ms


def shapes_of(writer: FieldCounts) -> frozenset[Shape]:
    """Return every shape that ``writer`` can have written, over either channel."""
    shapes = {Shape(trace_type, count) for trace_type in TraceType if (count := writer.count(trace_type)) is not None}
    return frozenset({*shapes, cloud_shape_of(writer)})


def cloud_shape_of(writer: FieldCounts) -> Shape:
    """Return the shape of the ``SubAfter`` that ``writer`` writes over CLOUD."""
    quirk = writer.cloud_sub_after
    count = writer.sub_after if quirk is CloudSubAfter.SAME else CLOUD_SUB_AFTER.count
    return Shape(TraceType.SUB_AFTER, count, quirk)


def writer_of(
    trace_type: TraceType, count: int, quirk: CloudSubAfter = CloudSubAfter.SAME, *, msg_type_map: str = "a"
) -> str | None:
    """Return the newest known writer of records of this shape, ``None`` when no released client writes it.

    ``count`` includes the type name, without the empty field that ``quirk`` stands for. A writer by the named map of
    message types wins over the others, and Java over its imitators.
    """
    return _WRITERS[msg_type_map].get(Shape(trace_type, count, quirk))


def _index_writers(msg_type_map: str) -> dict[Shape, str]:
    newest_first = tuple(reversed(DIALECTS.values()))
    of_map = tuple(row for row in newest_first if row.message_type_map == msg_type_map)
    writers: tuple[FieldCounts, ...] = (*of_map, *newest_first, *IMITATORS)
    known: dict[Shape, str] = {}
    for writer in writers:
        for shape in shapes_of(writer):
            channel = "" if shape.quirk is CloudSubAfter.SAME else CLOUD_SUFFIX
            known.setdefault(shape, writer.name + channel)
    return known


_WRITERS: Final = {map_name: _index_writers(map_name) for map_name in MESSAGE_TYPE_MAPS}
