"""This module knows the Arrow batches of events that both sides are mapped to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.types import ArrayType, BooleanType, IntegerType, LongType, StringType, StructField, StructType

from spark_jobs.spark_schemas import BAD, LEDGER, NORMALISED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import DataType

    from spark_jobs.normalise.columns import Column

__all__ = ["BAD_TYPE", "READ_EVENT", "event_batch"]

READ_EVENT: Final = StructType([*NORMALISED.fields, StructField("extra", LongType()), *LEDGER.fields])
"""What is written of either side: ``NORMALISED``; ``extra``, rows that stand for no record of their own; ``LEDGER``."""

_PLAIN_TYPES: Final[dict[type[DataType], Any]] = {
    StringType: pa.string(),
    LongType: pa.int64(),
    IntegerType: pa.int32(),
    BooleanType: pa.bool_(),
}


def event_batch(columns: Mapping[str, Column], rows: int) -> pa.RecordBatch:
    """Return ``columns`` as a batch of ``READ_EVENT``; those not given are null."""
    arrays = [columns[one.name] if one.name in columns else pa.nulls(rows, one.type) for one in _ARROW]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW)


def _arrow_type(kind: DataType) -> Any:
    if isinstance(kind, StructType):
        return pa.struct([(field.name, _arrow_type(field.dataType)) for field in kind.fields])
    if isinstance(kind, ArrayType):
        return pa.list_(_arrow_type(kind.elementType))
    return _PLAIN_TYPES[type(kind)]


_ARROW: Final = pa.schema([(field.name, _arrow_type(field.dataType)) for field in READ_EVENT.fields])
BAD_TYPE: Final = _arrow_type(BAD)
"""``schemas.BAD`` as Arrow knows it."""
