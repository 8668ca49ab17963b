"""One message's life as lanes: each sender and consumer group, by the native trace and by OTLP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bridge.page.lanes import Bar, Lane, drawn, packed, scale_of
from bridge.page.markup import Markup
from bridge.page.palette import RED, SIDE_COLOUR, SLATE
from spark_jobs.report.wording import ABSENT, duration, utc, visible
from spark_jobs.taxonomy import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from spark_jobs.report.measured import Life, Stay

__all__ = ["swimlane"]

_SAID_OF: Final = {
    Kind.PUBLISH.value: "sent by",
    Kind.TRANSACTION_END.value: "transaction of",
    Kind.RECALL.value: "recalled by",
    Kind.CONSUME.value: "consumed by",
}
_SIDES: Final = (("native", "native"), ("otlp", "OTLP"))
_BROKER: Final = "broker"


def swimlane(lives: Sequence[Life], this: Life | None = None) -> Markup:
    """Return every event of a message by both sides, ``this`` one outlined; nothing where no side tells a time.

    What only one side recorded leaves a dotted box in the other one's row; a failure has a red outline.
    """
    placed = {name: bars for name, bars in _lanes(lives, this).items() if any(bars.values())}
    every = [bar for rows in placed.values() for bars in rows.values() for bar in bars]
    if not every:
        return Markup("")
    scale = scale_of(every, words_at_left=True)
    lanes = [
        Lane(name, tuple((word, row) for word, bars in rows.items() for row in packed(bars, scale)))
        for name, rows in placed.items()
    ]
    return drawn(lanes, scale, says=_says(lives))


def _lanes(lives: Sequence[Life], this: Life | None) -> dict[str, dict[str, list[Bar]]]:
    """Return lane → row → bars: what was sent, then the broker's answer, then who consumed."""
    lanes: dict[str, dict[str, list[Bar]]] = {}
    rank = {kind: at for at, kind in enumerate(_SAID_OF)}
    for life in sorted(lives, key=lambda each: rank.get(each.kind, len(rank))):
        rows = lanes.setdefault(_name(life), {word: [] for _, word in _SIDES})
        for side, word in _SIDES:
            rows[word] += _bars(life, side, outlined=life is this)
        if life.kind == Kind.PUBLISH.value:
            lanes.setdefault(_BROKER, {"stored": []})["stored"] += _stored(life)
    return lanes


def _name(life: Life) -> str:
    return f"{_SAID_OF.get(life.kind, visible(life.kind, limit=40))} {visible(life.group or ABSENT, limit=60)}"


def _bars(life: Life, side: str, *, outlined: bool) -> Iterator[Bar]:
    own, other = (life.native, life.otlp) if side == "native" else (life.otlp, life.native)
    if own and (known := _known(own)):
        red = RED if own.success is False else None
        yield Bar(
            from_ms=known[0],
            until_ms=own.end_ms,
            colour=SIDE_COLOUR[side],
            words=f"{'≠ ' if other and _differ(own, other) else ''}{_words(own)}",
            told=_told(life, own),
            instant=own.start_ms is None,
            outline=red or ("currentColor" if outlined else None),
        )
    elif not own and other and (known := _known(other)):
        yield Bar(
            from_ms=known[0],
            until_ms=known[-1],
            colour="currentColor",
            words="not recorded",
            told=f"not recorded by this side: {life.status}",
            ghost=True,
        )


def _known(stay: Stay) -> list[int]:
    return [ms for ms in (stay.start_ms, stay.end_ms) if ms is not None]


def _differ(one: Stay, other: Stay) -> bool:
    pairs = ((one.start_ms, other.start_ms), (one.end_ms, other.end_ms), (one.success, other.success))
    return any(None not in pair and pair[0] != pair[1] for pair in pairs)


def _words(stay: Stay) -> str:
    failed = ", failed" if stay.success is False else ""
    if stay.start_ms is None:
        return f"end only{failed}"
    return f"{'no end' if stay.end_ms is None else duration(stay.end_ms - stay.start_ms)}{failed}"


def _told(life: Life, stay: Stay) -> str:
    outcome = {True: ", success", False: ", failed", None: ""}[stay.success]
    attempt = f"\nattempt {visible(life.attempt_id, limit=60)}" if life.attempt_id else ""
    retry = f"\nretry {life.retry_times}" if life.retry_times else ""
    return f"{utc(stay.start_ms)} to {utc(stay.end_ms)}{outcome}{attempt}{retry}"


def _stored(life: Life) -> Iterator[Bar]:
    """Yield when the broker had answered the send, by the side that knows it."""
    end_ms = next((stay.end_ms for stay in (life.native, life.otlp) if stay and stay.end_ms is not None), None)
    failed = any(stay.success is False for stay in (life.native, life.otlp) if stay)
    if end_ms is not None and life.store_host and not failed:
        host = visible(life.store_host, limit=60)
        yield Bar(from_ms=end_ms, until_ms=end_ms, colour=SLATE, words=host, told=f"stored by {host}", instant=True)


def _says(lives: Sequence[Life]) -> str:
    told = []
    for life in lives:
        sides = [word for word, stay in (("native", life.native), ("OTLP", life.otlp)) if stay]
        told.append(f"{_name(life)}: recorded by {' and '.join(sides) or 'neither side'}")
    return "; ".join(told)
