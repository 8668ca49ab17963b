"""This module knows how a request is signed for a broker with access control, as RocketMQ's Java client signs.

HMAC-SHA1 under the secret key over all fields' values, in the order of their names, and the body: ``AclClientRPCHook``
of apache/rocketmq. ACL 1.x and the authentication of 5.3 and later check the same. No I/O.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from otel_mqtrace.rocketmq.frames import Command

__all__ = ["Credentials", "signed"]

_ACCESS_KEY: Final = "AccessKey"
_SIGNATURE: Final = "Signature"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who asks. The secret key shows nowhere."""

    access_key: str
    secret_key: str = field(repr=False)


def signed(command: Command, credentials: Credentials | None) -> Command:
    """Return ``command`` with the access key and its signature among the fields; as it is without credentials."""
    if credentials is None:
        return command
    fields = {**command.fields, _ACCESS_KEY: credentials.access_key}
    fields.pop(_SIGNATURE, None)
    said = "".join(fields[name] for name in sorted(fields, key=_java_order))
    content = said.encode("utf-8", "replace") + command.body
    digest = hmac.new(credentials.secret_key.encode(), content, hashlib.sha1).digest()
    return replace(command, fields={**fields, _SIGNATURE: base64.b64encode(digest).decode()})


def _java_order(name: str) -> bytes:
    """Java sorts by UTF-16 units."""
    return name.encode("utf-16-be", "surrogatepass")
