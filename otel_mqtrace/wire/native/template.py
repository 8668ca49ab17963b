"""A record of the native format with its unchanging fields written already."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace.wire.native.dialects import dialect_named
from otel_mqtrace.wire.native.encode import record_plan
from otel_mqtrace.wire.native.layout import FIELD_SEPARATOR, RECORD_TERMINATOR

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_mqtrace.model import TraceType

__all__ = ["RecordTemplate", "record_template"]

RecordTemplate = tuple[str, "Callable[[tuple[Any, ...]], tuple[Any, ...]]"]

_SEPARATORS: Final = (FIELD_SEPARATOR, RECORD_TERMINATOR)


def record_template(
    dialect: str, trace_type: TraceType, constants: Mapping[str, Any], varying: tuple[str, ...]
) -> RecordTemplate | None:
    """Return a ``%`` template of one record, and what picks from the values of ``varying`` those it takes, in order.

    The values of ``varying`` are to be given as text, as the encoder writes them, with no separator in them.

    Returns:
        ``None`` where the record of this dialect has a field that is in neither, or a constant cannot be written as it
        is: then :func:`~otel_mqtrace.wire.native.encode.encode_context` is to be used.
    """
    plan = record_plan(dialect_named(dialect).name, trace_type)
    pieces, order = [], []
    for name, _, write in plan.writers:
        if name in varying:
            pieces.append("%s")
            order.append(varying.index(name))
        elif name in constants:
            text = write(constants[name])
            if any(each in text for each in _SEPARATORS) or not text:
                return None
            pieces.append(text.replace("%", "%%"))
        else:
            return None
    return plan.head + FIELD_SEPARATOR.join(pieces) + plan.tail, itemgetter(*order)
