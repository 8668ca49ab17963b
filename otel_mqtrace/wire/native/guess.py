"""Find the writers of a stream of records: which dialects fit, and which map of ordinals.

The wire carries neither. A producer or consumer group is one kind of client most of the time, so its records are
compared with each known writer together: a writer that cannot have written one of them is excluded. Several may be
left; the result names all of them, and the decoder never changes its reading by itself.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from otel_mqtrace.model import MessageType, TraceType
from otel_mqtrace.wire.native.dialects import GO, IMITATORS, Shape, is_by_go, shapes_of
from otel_mqtrace.wire.native.layout import DIALECTS, MESSAGE_TYPE_MAPS, NULL_TEXT, CloudSubAfter

if TYPE_CHECKING:
    from otel_mqtrace.model import TraceContext
    from otel_mqtrace.wire.native.decode import DecodedBody
    from otel_mqtrace.wire.native.layout import FieldCounts


_WRITERS: Final[tuple[FieldCounts, ...]] = (*DIALECTS.values(), *IMITATORS)
_SHAPES: Final = {writer.name: shapes_of(writer) for writer in _WRITERS}
_ABSENT_KEYS: Final = {
    text: {one.name for one in IMITATORS if one.absent_keys == text}
    for text in {one.absent_keys for one in IMITATORS} - {NULL_TEXT}
}
_MAP_B: Final = {name for name, dialect in DIALECTS.items() if dialect.message_type_map == "b"}
_MAX_REQUESTS: Final = 100_000
_COMMIT: Final = {map_name: known.index(MessageType.TRANS_COMMIT) for map_name, known in MESSAGE_TYPE_MAPS.items()}
_DELAY_OF_B: Final = MESSAGE_TYPE_MAPS["b"].index(MessageType.DELAY)
"""Under map A this is Order, which no released Java client has ever written."""


@dataclass(frozen=True, slots=True)
class Guess:
    """The writers that fit one group; ``writers`` is empty if no known one does: different clients share the group.

    ``message_type_map`` is ``None`` when undecided; ``evidence`` describes the basis of each conclusion.
    """

    group_name: str | None
    records: int
    writers: tuple[str, ...]
    message_type_map: str | None
    evidence: tuple[str, ...]


@dataclass(slots=True)
class _GroupCounts:
    shapes: Counter[Shape] = field(default_factory=Counter)
    absent_keys: Counter[str] = field(default_factory=Counter)
    ordinals: Counter[tuple[TraceType, int]] = field(default_factory=Counter)
    by_go: int = 0


class WriterGuesses:
    """Takes bodies decoded under ``msg_type_map`` one by one; memory grows with groups and shapes, not with records."""

    def __init__(self, *, msg_type_map: str = "a") -> None:
        self._types = MESSAGE_TYPE_MAPS[msg_type_map]
        self._seen: defaultdict[str | None, _GroupCounts] = defaultdict(_GroupCounts)
        self._groups: dict[str | None, str | None] = {}  # request id → group: a short SubAfter does not name it

    def take(self, decoded: DecodedBody) -> None:
        """Count the records of one body, or of one part of it."""
        for trace_ctx, shape in zip(decoded.contexts, decoded.shapes, strict=True):
            seen = self._seen[self._find_group(trace_ctx)]
            seen.shapes[shape] += 1
            seen.by_go += is_by_go(trace_ctx)
            bean = trace_ctx.beans[0]
            if trace_ctx.trace_type is TraceType.SUB_BEFORE and bean.keys in _ABSENT_KEYS:
                seen.absent_keys[bean.keys] += 1
            if bean.msg_type is not None:
                seen.ordinals[trace_ctx.trace_type, self._types.index(bean.msg_type)] += 1

    def guesses(self) -> tuple[Guess, ...]:
        """Return one guess for each group, in the order they were first seen."""
        return tuple(_guess(group, seen) for group, seen in self._seen.items())

    def _find_group(self, trace_ctx: TraceContext) -> str | None:
        if trace_ctx.group_name is not None:
            if trace_ctx.trace_type is TraceType.SUB_BEFORE and len(self._groups) < _MAX_REQUESTS:
                self._groups[trace_ctx.request_id] = trace_ctx.group_name
            return trace_ctx.group_name
        return self._groups.get(trace_ctx.request_id)


def _guess(group: str | None, seen: _GroupCounts) -> Guess:
    map_name, of_map = _find_map(seen)
    fitting = [name for name in _SHAPES if seen.shapes.keys() <= _SHAPES[name]]
    for keys in seen.absent_keys:
        fitting = [name for name in fitting if name in _ABSENT_KEYS[keys]]
    if seen.by_go:
        fitting = [name for name in fitting if name in GO]
    if map_name is not None:
        fitting = [name for name in fitting if (name in _MAP_B) == (map_name == "b")]
    in_order = sorted(seen.shapes.items(), key=lambda each: (each[0].trace_type.value, each[0].fields))
    evidence = [
        *(f"{count} {_describe(shape)}" for shape, count in in_order),
        *(f"{count} SubBefore whose absent keys read {keys!r}" for keys, count in seen.absent_keys.items()),
        *([f"{seen.by_go} Pub with the message id of a Go client"] if seen.by_go else []),
        *of_map,
    ]
    return Guess(group, seen.shapes.total(), tuple(fitting), map_name, tuple(evidence))


def _describe(shape: Shape) -> str:
    channel = "" if shape.quirk is CloudSubAfter.SAME else f" ({shape.quirk.name.lower()}: over CLOUD)"
    return f"{shape.trace_type.value} of {shape.fields} fields{channel}"


def _find_map(seen: _GroupCounts) -> tuple[str | None, list[str]]:
    """Return the map of message types and why: by the ordinal of an EndTransaction's commit, or 4 of a ``Pub``."""
    reasons: dict[str, str] = {}
    for map_name, commit in _COMMIT.items():
        count = seen.ordinals[TraceType.END_TRANSACTION, commit]
        if count:
            reasons[map_name] = f"{count} EndTransaction with ordinal {commit}, a commit in map {map_name.upper()} only"
    delays = seen.ordinals[TraceType.PUB, _DELAY_OF_B]
    if delays and "a" not in reasons:
        reasons.setdefault("b", f"{delays} Pub with ordinal {_DELAY_OF_B}, which under map A no released client writes")
    if len(reasons) == 1:
        ((map_name, why),) = reasons.items()
        return map_name, [why]
    return None, list(reasons.values())
