"""The closed lists of a verdict: statuses, reasons, field verdicts, outcomes of gates."""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Final


class Kind(str, Enum):
    """The kind of an event of a message."""

    PUBLISH = "publish"
    CONSUME = "consume"
    TRANSACTION_END = "transaction_end"
    RECALL = "recall"


class Status(str, Enum):
    """Exactly one per canonical key."""

    MATCHED_EXACT = "MATCHED_EXACT"
    MATCHED_NORMALISED = "MATCHED_NORMALISED"
    MISMATCHED = "MISMATCHED"
    DUPLICATED_NATIVE = "DUPLICATED_NATIVE"
    DUPLICATED_OTLP = "DUPLICATED_OTLP"
    DUPLICATED_BOTH = "DUPLICATED_BOTH"
    NATIVE_ONLY = "NATIVE_ONLY"
    OTLP_ONLY = "OTLP_ONLY"
    PENDING = "PENDING"
    OUT_OF_SCOPE = "OUT_OF_SCOPE"
    MALFORMED = "MALFORMED"


class Reason(str, Enum):
    """Why a key is one-sided, half recorded or out of scope; the first that applies wins, in this order."""

    TRACE_TRAFFIC = "TRACE_TRAFFIC"
    BY_DESIGN = "BY_DESIGN"
    IN_FLIGHT = "IN_FLIGHT"
    ABANDONED = "ABANDONED"
    HALF_RECORD = "HALF_RECORD"
    COUNTERPART_MALFORMED = "COUNTERPART_MALFORMED"
    NOT_SAMPLED = "NOT_SAMPLED"
    WRITER_SILENT = "WRITER_SILENT"
    SHUTDOWN_WINDOW = "SHUTDOWN_WINDOW"
    LATE_BEYOND_RETENTION = "LATE_BEYOND_RETENTION"
    KEY_DEGRADED = "KEY_DEGRADED"
    DROP_ATTRIBUTED = "DROP_ATTRIBUTED"
    UNEXPLAINED = "UNEXPLAINED"


CALLED_LOST: Final = frozenset({Reason.UNEXPLAINED.value, Reason.DROP_ATTRIBUTED.value})
"""Reasons of a key that a run of a history calls lost: it has judged the key and found no reason but a counted loss."""


class Lifecycle(str, Enum):
    """The state of a key that is open, or that an earlier run of the history left open."""

    NEW = "new"
    STILL_OPEN = "still_open"
    REGRESSED = "regressed"
    RESOLVED = "resolved"
    EXPLAINED = "explained"
    EXPIRED = "expired"


class FieldVerdict(str, Enum):
    """The comparison of one field of both sides, mildest first."""

    EQUAL = "EQUAL"
    EQUAL_NORMALISED = "EQUAL_NORMALISED"
    WITHIN_TOLERANCE = "WITHIN_TOLERANCE"
    TRUNCATED = "TRUNCATED"
    SANITISED = "SANITISED"
    REDACTED = "REDACTED"
    MISSING_NATIVE = "MISSING_NATIVE"
    MISSING_OTLP = "MISSING_OTLP"
    NOT_COMPARABLE = "NOT_COMPARABLE"
    DIFFERENT = "DIFFERENT"


class Outcome(str, Enum):
    """The outcome of a gate."""

    PASS = "pass"  # noqa: S105
    WARN = "warn"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


class Verdict(str, Enum):
    """The verdict of a run."""

    PASS = "PASS"  # noqa: S105
    WARN = "WARN"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"


class ExitCode(IntEnum):
    """The exit codes of the public contract."""

    PASS = 0
    GATE_FAILED = 1
    USAGE = 2
    IDENTITY_BROKEN = 3
    INCONCLUSIVE = 4
    INTERRUPTED = 130
