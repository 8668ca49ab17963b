"""A ``requests.Session`` for an exporter, which sends to one URL again and again: it prepares that request once.

Proxies, certificates and netrc of the environment are resolved at the first request, where ``requests`` reads the
environment and ``~/.netrc`` for each one. A time-out bounds the whole request. Needs the ``otlp`` extra.
"""

from __future__ import annotations

import http.client
import io
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import requests
from requests.adapters import HTTPAdapter
from urllib3 import Timeout

from otel_mqtrace._clock import SystemClock, compute_deadline

if TYPE_CHECKING:
    from collections.abc import Callable

_REPEATED: Final = {"headers", "data", "json", "timeout", "allow_redirects", "verify", "cert"}
"""What releases of OpenTelemetry's exporter pass with each request; only the body and the time-out differ."""


class RepeatingSession(requests.Session):
    """Prepares the request to a URL once, and then exchanges its body; any other request is sent as usual.

    ``on_reply`` gets the body of each good reply, ``on_error`` the error or status of each other request.
    """

    def __init__(self, on_reply: Callable[[bytes], object] = bytes, on_error: Callable[[str], object] = str) -> None:
        super().__init__()
        self._on_reply, self._on_error = on_reply, on_error
        self.mount("http://", _Adapter())
        self.mount("https://", _Adapter())
        self._known: dict[Any, tuple[Any, requests.PreparedRequest, Any]] = {}

    def request(self, method: Any, url: Any, *args: Any, **named: Any) -> requests.Response:
        """Send a request and return the response with its content read.

        A redirect is a failure unless the body was sent again: OpenTelemetry's exporter takes any other for success.
        """
        if isinstance(named.get("timeout"), int | float):  # to requests it is one of connecting and one of each read
            named["timeout"] = Timeout(total=named["timeout"])
        if self.verify is not True:  # the exporter's certificate, instead of which requests takes REQUESTS_CA_BUNDLE
            named.setdefault("verify", self.verify)
        try:
            reply = self._exchange(method, url, *args, **named)
        except requests.RequestException as error:
            self._on_error(_innermost(error))
            raise
        if 300 <= reply.status_code < 400 or reply.request.method != method.upper():  # noqa: PLR2004 - redirects
            place = reply.headers.get("location") or reply.url
            is_named = place != url
            reply.reason = (
                f"redirected to {place!r}: give that as the endpoint" if is_named else "redirected to no place"
            )
            reply._content = reply.reason.encode()  # noqa: SLF001 - older exporters log the text
            reply.status_code = 400
        if reply.ok:
            self._on_reply(reply.content)
        else:
            self._on_error(f"{reply.status_code} {reply.reason}")
        return reply

    def _exchange(self, method: Any, url: Any, *args: Any, **named: Any) -> requests.Response:
        body, headers = named.get("data"), named.get("headers") or {}
        if args or not named.keys() <= _REPEATED or named.get("json") or self.cookies or type(body) is not bytes:
            return super().request(method, url, *args, **named)
        given = method, headers, named.get("verify"), named.get("cert")
        if url not in self._known or self._known[url][0] != given:
            first = self.prepare_request(requests.Request(method, url, headers=headers, data=body))
            environment = self.merge_environment_settings(first.url or url, {}, None, *given[2:])
            self._known[url] = (method, dict(headers), *given[2:]), first, environment
        _, first, environment = self._known[url]
        repeated = first.copy()
        repeated.body = body
        repeated.headers["Content-Length"] = str(len(body))
        sending = {"timeout": named.get("timeout"), "allow_redirects": named.get("allow_redirects", True)}
        return self.send(repeated, **sending, **environment)


def _innermost(error: Exception) -> str:
    """Return what is at the bottom of an error of requests or urllib3, as one line."""
    inner = next((each for each in (getattr(error, "reason", None), *error.args) if isinstance(each, Exception)), None)
    return f"{type(error).__name__}: {' '.join(str(error).split())}" if inner is None else _innermost(inner)


class _Reads(io.RawIOBase):
    """Reads a connected socket for its time-out in all: each read would have as much."""

    def __init__(self, connected: Any, raw: io.RawIOBase, timeout_s: float) -> None:
        self._socket, self._raw, self._timeout_s = connected, raw, timeout_s
        self._deadline_ns = compute_deadline(_CLOCK, timeout_s * 1e3)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._socket.settimeout(max((self._deadline_ns - _CLOCK.monotonic_ns()) / 1e9, _SHORTEST_S))
        try:
            return self._raw.readinto(buffer)
        finally:
            self._socket.settimeout(self._timeout_s)  # for the next request

    def close(self) -> None:
        self._raw.close()
        super().close()


_CLOCK: Final = SystemClock()
_SHORTEST_S: Final = 0.001  # with a zero a socket never waits, and that is no time-out


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: Any, *args: Any, **named: Any) -> None:
        super().__init__(sock, *args, **named)
        timeout_s = sock.gettimeout() if hasattr(sock, "gettimeout") else None  # urllib3's of pyOpenSSL has none
        if timeout_s is not None:
            self.fp: Any = io.BufferedReader(_Reads(sock, self.fp.detach(), timeout_s))


class _Adapter(HTTPAdapter):
    def init_poolmanager(self, *args: Any, **named: Any) -> None:
        super().init_poolmanager(*args, **named)
        _read_in_time(self.poolmanager)

    def proxy_manager_for(self, *args: Any, **named: Any) -> Any:
        return _read_in_time(super().proxy_manager_for(*args, **named))


def _read_in_time(manager: Any) -> Any:
    pools = manager.pool_classes_by_scheme
    manager.pool_classes_by_scheme = {scheme: _reading_in_time(pool) for scheme, pool in pools.items()}
    return manager


@cache
def _reading_in_time(pool: Any) -> Any:
    if pool.ConnectionCls.response_class is _Response:
        return pool
    connection = type(pool.ConnectionCls.__name__, (pool.ConnectionCls,), {"response_class": _Response})
    return type(pool.__name__, (pool,), {"ConnectionCls": connection})
