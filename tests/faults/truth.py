"""The verdict that each event of a corpus must get: the truth that verdicts are compared with."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Event(NamedTuple):
    """What tells an event from all others: a message id, or the span id where there is none, and a delivery's group."""

    kind: str
    message: str
    group: str | None = None


@dataclass(frozen=True, kw_only=True)
class Expected:
    """The verdict one key must get. ``also`` names further columns of a verdict, ``fields`` verdicts of fields."""

    status: str
    reason: str | None = None
    also: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, str] = field(default_factory=dict)

    @property
    def word(self) -> str:
        return self.status if self.reason is None else f"{self.status} {self.reason}"


EXACT = Expected(status="MATCHED_EXACT")
NORMALISED = Expected(status="MATCHED_NORMALISED")
LOST = "UNEXPLAINED"
UNHARMED = "nothing happens"


def one_sided(side: str, reason: str | None, **also: Any) -> Expected:
    """Return the verdict of an event that only ``side`` (native, otlp) shows, settled."""
    return Expected(status=f"{side.upper()}_ONLY", reason=reason, also=also)


def by_design(side: str, rule: str) -> Expected:
    """Return the verdict of an event that the other side leaves out by a rule of its profile."""
    return one_sided(side, "BY_DESIGN", reason_detail=rule)


@dataclass
class Truth:
    """What is expected of every event, and by which fault; what is expected of input that is no event, as counts."""

    keys: dict[Event, tuple[Expected, ...]] = field(default_factory=dict)
    faults: dict[Event, str] = field(default_factory=dict)
    among: list[tuple[str, tuple[Event, ...], tuple[Expected, ...]]] = field(default_factory=list)
    scopes: Counter[str] = field(default_factory=Counter)
    malformed: Counter[str] = field(default_factory=Counter)  # by side

    def expect(self, event: Event, fault: str, *expected: Expected) -> None:
        """Expect exactly these keys of ``event``, in any order."""
        if event in self.keys:
            raise ValueError(f"{event} is expected twice: {self.faults[event]} and {fault}")
        self.keys[event] = expected
        self.faults[event] = fault

    def expect_among(self, events: list[Event], fault: str, *expected: Expected) -> None:
        """Expect these verdicts among the events, one each, no matter which gets which: a ledger only counts."""
        self.among.append((fault, tuple(events), expected))
