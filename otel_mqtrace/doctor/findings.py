"""This module knows what the doctor hands over: facts, and findings that each say what, where and how to mend it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from otel_mqtrace.settings_text import without_password

__all__ = ["NO_PROPAGATOR", "Checkup", "Finding"]

NO_PROPAGATOR: Final = "no trace context is written into messages: senders and handlers end up in separate traces"


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
    """What was seen: ``facts`` by subject, ``findings`` in the order they were made, the same one once."""

    facts: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def error(self, code: str, what: str, *, where: str, mend: str) -> None:
        """Note that messages go unrecorded."""
        self._note(Finding(code, "error", what, where, mend))

    def warning(self, code: str, what: str, *, where: str, mend: str) -> None:
        """Note that some messages may go unrecorded, or be recorded twice."""
        self._note(Finding(code, "warning", what, where, mend))

    def _note(self, finding: Finding) -> None:
        if all((finding.code, finding.what) != (each.code, each.what) for each in self.findings):
            self.findings.append(finding)

    def as_dict(self) -> dict[str, Any]:
        """Return ``healthy``, ``findings`` and ``facts``, as ``--json`` prints them; no address shows a password."""
        report = {"healthy": self.healthy, "findings": [asdict(each) for each in self.findings], "facts": self.facts}
        shown: dict[str, Any] = _without_passwords(report)
        return shown


def _without_passwords(report: Any) -> Any:
    if isinstance(report, str):
        return without_password(report)
    if isinstance(report, dict):
        return {without_password(str(name)): _without_passwords(each) for name, each in report.items()}
    return [_without_passwords(each) for each in report] if isinstance(report, list | tuple) else report
