"""This module knows where the code of a client's method comes from: the client, us, or another instrumentation."""

from __future__ import annotations

from types import FunctionType
from typing import Any

__all__ = ["home_of"]


def home_of(method: Any) -> str:
    """Return the module a method's outermost code is from; its ``__module__`` is that of what is wrapped."""
    wrapper = getattr(method, "_self_wrapper", None)  # wrapt's, which most instrumentations are made with
    if wrapper is not None:
        return str(getattr(wrapper, "__module__", type(wrapper).__module__))
    if type(method) is FunctionType:
        return str(method.__globals__.get("__name__", method.__module__))
    return type(method).__module__
