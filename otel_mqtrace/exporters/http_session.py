"""Sessions for an exporter: one prepares the request to a URL once, one checks replies. Needs the ``otlp`` extra."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import requests
from requests.adapters import HTTPAdapter

from otel_mqtrace._clock import SystemClock, compute_deadline

if TYPE_CHECKING:
    from collections.abc import Callable

_REPEATED: Final = {"headers", "data", "json", "timeout", "allow_redirects", "stream", "verify", "cert"}
"""What releases of OpenTelemetry's exporter, and we, pass with each request; only body and time-out differ."""
_MOST_BYTES: Final = 1 << 16  # of a reply; those of OTLP have tens
_CLOCK: Final = SystemClock()


class RepeatingSession(requests.Session):
    """Prepares the request to a URL once, and then exchanges its body; any other request is sent as usual.

    Proxies, certificates and netrc of the environment are resolved at the first request, where ``requests`` reads the
    environment and ``~/.netrc`` for each one.
    """

    def __init__(self) -> None:
        super().__init__()
        self._pid = os.getpid()
        self._known: dict[Any, tuple[Any, requests.PreparedRequest, Any]] = {}

    def request(self, method: Any, url: Any, *args: Any, **named: Any) -> requests.Response:
        """Send a request as :class:`requests.Session` does."""
        if self._pid != os.getpid():  # on one connection a parent and its child would read each other's replies
            self._pid = os.getpid()
            for prefix in [*self.adapters]:
                self.mount(prefix, HTTPAdapter())
        body, headers = named.get("data"), named.get("headers") or {}
        if args or not named.keys() <= _REPEATED or named.get("json") or self.cookies or type(body) is not bytes:
            return super().request(method, url, *args, **named)
        settings = named.get("stream"), named.get("verify"), named.get("cert")
        if url not in self._known or self._known[url][0] != (method, headers, settings):
            first = self.prepare_request(requests.Request(method, url, headers=headers, data=body))
            environment = self.merge_environment_settings(first.url or url, {}, *settings)
            self._known[url] = (method, dict(headers), settings), first, environment
        _, first, environment = self._known[url]
        repeated = first.copy()
        repeated.body = body
        repeated.headers["Content-Length"] = str(len(body))
        sending = {"timeout": named.get("timeout"), "allow_redirects": named.get("allow_redirects", True)}
        return self.send(repeated, **sending, **environment)


class CheckingSession(requests.Session):
    """Sends by ``sender``, a session that may be the application's, and reads each reply within the time-out.

    A redirect becomes a failure unless the body was sent again, and so does a web page: to OpenTelemetry's exporter
    both are success. ``on_reply`` gets the body of each good reply, ``on_error`` the error or status of each other one.
    """

    def __init__(
        self,
        sender: requests.Session,
        on_reply: Callable[[bytes], object] = bytes,
        on_error: Callable[[str], object] = str,
    ) -> None:
        super().__init__()
        self.headers = sender.headers
        self._sender, self._on_reply, self._on_error = sender, on_reply, on_error

    def request(self, method: Any, url: Any, *args: Any, **named: Any) -> requests.Response:
        """Send a request and return the response with its content read."""
        if self.verify is not True:  # the exporter's certificate, instead of which requests takes REQUESTS_CA_BUNDLE
            named.setdefault("verify", self.verify)
        if self.cert is not None:
            named.setdefault("cert", self.cert)
        timeout = named.get("timeout")
        deadline_ns = compute_deadline(_CLOCK, timeout * 1e3) if isinstance(timeout, int | float) else None
        try:
            reply = self._sender.request(method, url, *args, **{**named, "stream": True})
            _read_content(reply, deadline_ns)
        except OSError as error:  # one of requests', or a certificate that is not there
            self._on_error(_describe_innermost(error))
            raise
        if misdirection := _find_misdirection(reply, method, url):
            reply.reason = misdirection
            reply._content = misdirection.encode()  # noqa: SLF001 - older exporters log the text
            reply.status_code = 400
            self._on_error(misdirection)
        elif reply.ok:
            self._on_reply(reply.content)
        else:
            self._on_error(f"{reply.status_code} {reply.reason}")
        return reply

    def close(self) -> None:
        """Close the other session, as OpenTelemetry's exporter does with its own."""
        self._sender.close()


def _find_misdirection(reply: requests.Response, method: str, url: str) -> str:
    """Return why the endpoint must be another although the reply is not an error, else an empty text."""
    if 300 <= reply.status_code < 400 or reply.request.method != method.upper():  # noqa: PLR2004 - redirects
        place = reply.headers.get("location") or reply.url
        return f"redirected to {place!r}: give that as the endpoint" if place != url else "redirected to no place"
    content_type = reply.headers.get("content-type", "").partition(";")[0].strip().lower()
    if reply.ok and content_type == "text/html":
        return "it answers with a web page, not as an OTLP receiver: check the endpoint"
    return ""


def _read_content(reply: requests.Response, deadline_ns: int | None) -> None:
    """Read the content until the deadline: to ``requests`` a time-out is one of each read, and a reply may drip."""
    content = bytearray()
    for byte in reply.iter_content(1):
        content += byte
        if deadline_ns is not None and _CLOCK.monotonic_ns() > deadline_ns:
            reply.close()
            raise requests.ReadTimeout("the reply did not end within the time-out")
        if len(content) >= _MOST_BYTES:
            reply.close()
            break
    reply._content = bytes(content)  # noqa: SLF001 - where its property keeps it


def _describe_innermost(error: Exception) -> str:
    """Return what is at the bottom of an error of requests or urllib3, as one line."""
    inner = next((each for each in (getattr(error, "reason", None), *error.args) if isinstance(each, Exception)), None)
    return f"{type(error).__name__}: {' '.join(str(error).split())}" if inner is None else _describe_innermost(inner)
