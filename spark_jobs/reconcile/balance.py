"""This module knows the books: every record that was read must be found again, on each side and across the two.

The left side of the identity is counted by the readers before anything is parsed; the right side by the verdicts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_jobs.report.result import Conservation, Inputs, SideInputs
from spark_jobs.taxonomy import Status

if TYPE_CHECKING:
    from spark_jobs.judging.counts import Tally
    from spark_jobs.judging.facts import Facts
    from spark_jobs.report.result import Offsets

__all__ = ["SideRead", "balanced"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SideRead:
    """What the reader of one side says of itself; ``records_read`` was counted before the parse."""

    sources: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()
    records_read: int = 0
    exploded: int = 0
    truncated_tails: int = 0
    last_event_ms: int | None = None
    offsets: tuple[Offsets, ...] = ()
    offsets_without_message: int = 0
    carried: int = 0
    read_again: int = 0


def balanced(native: SideRead, otlp: SideRead, tally: Tally, facts: Facts) -> tuple[Inputs, Conservation]:
    """Return both sides' books and whether they balance."""
    books = {"native": _books("native", native, tally, facts), "otlp": _books("otlp", otlp, tally, facts)}
    holds, sentences = True, {}
    for side, book in books.items():
        read, found = book.records_read + book.exploded + book.carried, _found(book)
        holds = holds and read == found
        sentences[side] = _sentence(book, read, found)
    native_both = tally.keys["native"] - tally.status[Status.NATIVE_ONLY.value] - tally.pending["native"]
    otlp_both = tally.keys["otlp"] - tally.status[Status.OTLP_ONLY.value] - tally.pending["otlp"]
    holds = holds and native_both == otlp_both == tally.keys["both"]
    return Inputs(**books), Conservation(
        holds=holds,
        native=f"{sentences['native']}; {native_both} keys on both sides",
        otlp=f"{sentences['otlp']}; {otlp_both} keys on both sides",
    )


def _books(side: str, read: SideRead, tally: Tally, facts: Facts) -> SideInputs:
    return SideInputs(
        sources=read.sources,
        layouts=read.layouts,
        records_read=read.records_read,
        exploded=read.exploded,
        malformed=facts.malformed.get(side, 0),
        out_of_scope=sum(facts.scopes.get(side, {}).values()) + tally.outside[side],
        half_merged=tally.sums["half_merged"] if side == "native" else 0,
        exact_duplicates=tally.sums[f"{side}_exact_duplicates"],
        other_duplicates=tally.sums[f"{side}_other_duplicates"],
        canonical_keys=tally.keys[side],
        truncated_tails=read.truncated_tails,
        last_event_ms=read.last_event_ms,
        carried=read.carried,
        read_again=read.read_again,
        offsets=read.offsets,
        offsets_without_message=read.offsets_without_message,
    )


def _found(book: SideInputs) -> int:
    duplicates = book.exact_duplicates + book.other_duplicates
    return book.malformed + book.out_of_scope + book.half_merged + duplicates + book.read_again + book.canonical_keys


def _sentence(book: SideInputs, read: int, found: int) -> str:
    carried = f" + {book.carried} carried" if book.carried else ""
    again = f"{book.read_again} read again + " if book.carried else ""
    return (
        f"{book.records_read} read + {book.exploded} exploded{carried} {'=' if read == found else '≠'} {again}"
        f"{book.malformed} malformed + {book.out_of_scope} out of scope + {book.half_merged} halves merged + "
        f"{book.exact_duplicates} exact and {book.other_duplicates} other duplicates + {book.canonical_keys} keys"
    )
