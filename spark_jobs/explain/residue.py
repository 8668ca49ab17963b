"""The narrow columns of verdicts without a final reason: all that explaining and budgets need of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.judging.columns import equals, flatten_sides
from spark_jobs.schemas import SIDE_FIELDS, VERDICT
from spark_jobs.taxonomy import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_jobs.judging.columns import Column, Mask

__all__ = ["RESIDUE", "is_residue", "narrow", "own_field"]

_OF_VERDICT: Final = (
    *("kind", "msg_id", "topic", "group", "attempt_id", "status", "reason", "reason_detail", "event_ms"),
    "first_seen_run",
)
_OF_BOTH_SIDES: Final = (
    *("group_name", "client_host", "service", "start_ms", "end_ms", "batch_size", "path", "record_index", "raw_hash"),
    *("first_seen_run", "left_as"),
)
_OF_NATIVE: Final = (*_OF_BOTH_SIDES, "attempt_id")
_OF_OTLP: Final = (*_OF_BOTH_SIDES, "trace_id", "span_id", "parent_span_id", "writer")

_TYPES: Final[Mapping[str, Any]] = {
    **{name: VERDICT.field(name).type for name in _OF_VERDICT},
    **{f"native.{name}": SIDE_FIELDS[name] for name in _OF_NATIVE},
    **{f"otlp.{name}": SIDE_FIELDS[name] for name in _OF_OTLP},
}
RESIDUE: Final = pa.schema([*_TYPES.items(), ("on_native", pa.bool_())])
"""The residue, one flat row a key. ``on_native`` (never null) tells on which of the two sides the key is."""


def is_residue(verdicts: pa.Table) -> Mask:
    """Tell which rows of ``VERDICT`` have no reason yet: one-sided keys that their own message does not explain."""
    return equals(flatten_sides(verdicts.select(["reason"]))["reason"], Reason.UNEXPLAINED.value)


def narrow(verdicts: pa.Table) -> pa.Table:
    """Return the residue among ``VERDICT`` as ``RESIDUE``, in the order of its rows."""
    columns = flatten_sides(verdicts.filter(pa.array(is_residue(verdicts))))
    return pa.table([columns[field.name].cast(field.type) for field in RESIDUE], schema=RESIDUE)


def own_field(rows: Mapping[str, Column], name: str) -> Column:
    """Return a field of the one side that each residue row is on."""
    return pc.coalesce(rows[f"native.{name}"], rows[f"otlp.{name}"])
