"""This module knows what a failure of the client is called: the broker's code, gRPC's, or the exception's class."""

from __future__ import annotations

from typing import Final

from grpc import RpcError
from rocketmq.grpc_protocol import Code

__all__ = ["error_type"]

_NAMES: Final[dict[int, str]] = {number: name for name, number in Code.items()}


def error_type(exception: BaseException) -> str:
    """Return a name of few values: ``TOPIC_NOT_FOUND``, ``UNAVAILABLE``, or the class of ``exception``."""
    code = getattr(exception, "code", None)
    if isinstance(code, int) and code in _NAMES:
        return _NAMES[code]
    if isinstance(exception, RpcError) and callable(code):
        return str(code().name)
    return type(exception).__qualname__
