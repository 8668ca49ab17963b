"""The properties file of a Kafka client: ``name=value`` lines, which may hold passwords."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_mqtrace._errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["read_properties"]


def read_properties(path: Path) -> dict[str, str]:
    """Return the ``name=value`` lines of a librdkafka or Kafka client properties file; ``#`` and ``!`` start comments.

    Raises:
        UsageError: the file cannot be read, or a line is no ``name=value``; the message names the line, not its text.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the Kafka properties file {path}: {error}") from error
    properties: dict[str, str] = {}
    for number, line in enumerate(map(str.strip, lines), start=1):
        if not line or line.startswith(("#", "!")):
            continue
        name, separator, value = line.partition("=")
        if not separator or not name.strip():
            raise UsageError(f"line {number} of {path} is not name=value")
        properties[name.strip()] = value.strip()
    return properties
