"""This module knows what the doctor hands over: facts, and findings that each say what, where and how to mend it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

__all__ = ["Checkup", "Finding"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong; ``code`` is stable.

    ``error`` means that messages go unrecorded, ``warning`` that some may, or that they are recorded twice.
    No text of a finding may hold the value of a setting that can be a secret.
    """

    code: str
    severity: Literal["error", "warning"]
    what: str
    where: str
    mend: str


@dataclass(slots=True)
class Checkup:
    """What was seen: ``facts`` by subject, ``findings`` in the order they were made."""

    facts: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def error(self, code: str, what: str, *, where: str, mend: str) -> None:
        """Note that messages go unrecorded."""
        self.findings.append(Finding(code, "error", what, where, mend))

    def warning(self, code: str, what: str, *, where: str, mend: str) -> None:
        """Note that some messages may go unrecorded, or be recorded twice."""
        self.findings.append(Finding(code, "warning", what, where, mend))

    def as_dict(self) -> dict[str, Any]:
        """Return ``healthy``, ``findings`` and ``facts``, as ``--json`` prints them."""
        return {"healthy": self.healthy, "findings": [asdict(each) for each in self.findings], "facts": self.facts}
