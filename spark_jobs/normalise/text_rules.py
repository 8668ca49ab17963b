"""Bring the texts of both sides to one form, so only real differences remain."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from otel_mqtrace.wire.native.layout import ABSENT_TEXTS, KEY_SEPARATOR
from spark_jobs.distinct import each
from spark_jobs.normalise.columns import where
from spark_jobs.normalise.json_arrays import json_texts
from spark_jobs.whole_numbers import whole_number

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spark_jobs.normalise.columns import Column

__all__ = ["first_text", "folded_id", "integer", "key_set", "key_sets", "present"]

_ABSENT: Final = pa.array(sorted(ABSENT_TEXTS))
_HEX: Final = r"\A[0-9A-Fa-f]+\z"
_ONE_KEY: Final = r'\A\["[^"\\\x00-\x20]+"\]\z'


def present(texts: Column) -> Column:
    """Return the texts, null where a writer says "nothing" (``otel_mqtrace.wire.native.layout.absent``)."""
    return where(pc.invert(pc.is_in(texts, _ABSENT)), texts)


def folded_id(texts: Column) -> Column:
    """Return ids in upper case where they are hexadecimal, as they are otherwise, null where absent."""
    known = present(pc.utf8_trim(texts, " "))
    upper = pc.ascii_upper(known)
    if known.equals(upper):  # as nearly all ids are written; matching is most of the cost
        return known
    return pc.if_else(pc.match_substring_regex(known, _HEX), upper, known)


def integer(texts: Column, kind: Any) -> Column:
    """Return the numbers that Spark's ``try_cast`` sees in the texts, null where it sees none of type ``kind``."""
    return each(texts, partial(whole_number, bits=kind.bit_width), kind)


def first_text(texts: Column) -> Column:
    """Return of each JSON array of texts the first, null where there is none."""
    return each(texts, _first_text, pa.string())


def key_set(texts: Column) -> Column:
    """Return of each JSON array of texts the keys in it: blanks out, distinct, sorted; null where it is no array."""
    if not pc.any(pc.invert(pc.match_substring_regex(texts, _ONE_KEY))).as_py():
        keys = pc.utf8_slice_codeunits(texts, len('["'), -len('"]'))
        if not pc.any(pc.is_in(keys, _ABSENT)).as_py():
            return _alone(keys)
    return each(texts, _key_set, pa.list_(pa.string()))


def key_sets(texts: Column) -> Column:
    """Return of each text of keys, as native records have it, the keys in it: as ``key_set`` does."""
    if pc.any(pc.match_substring(texts, KEY_SEPARATOR)).as_py():
        return each(texts, _keys_of_text, pa.list_(pa.string()))
    return _alone(present(texts))


def _alone(keys: Column) -> Column:
    """Return each key as the only one of its set."""
    return pa.ListArray.from_arrays(pa.array(np.arange(len(keys) + 1), pa.int32()), keys, mask=keys.is_null())


def _first_text(text: str) -> str | None:
    return next(iter(json_texts(text) or ()), None)


def _key_set(text: str) -> list[str] | None:
    keys = json_texts(text)
    return None if keys is None else _distinct(joined for joined in keys if joined)


def _keys_of_text(text: str) -> list[str] | None:
    return _distinct((text,)) or None


def _distinct(joined: Iterable[str]) -> list[str]:
    return sorted({key for keys in joined for key in keys.split(KEY_SEPARATOR)} - ABSENT_TEXTS)
