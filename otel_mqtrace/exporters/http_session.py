"""A ``requests.Session`` for an exporter, which sends to one URL again and again: it prepares that request once.

Proxies, certificates and netrc of the environment are resolved at the first request, where ``requests`` reads the
environment and ``~/.netrc`` for each one. Needs the ``otlp`` extra.
"""

from __future__ import annotations

from typing import Any, Final

import requests

_REPEATED: Final = {"headers", "data", "json", "timeout", "allow_redirects", "verify", "cert"}
"""What releases of OpenTelemetry's exporter pass with each request; only the body and the time-out differ."""


class RepeatingSession(requests.Session):
    """Prepares the request to a URL once, and then exchanges its body; any other request is sent as usual."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[Any, tuple[Any, requests.PreparedRequest, Any]] = {}

    def request(self, method: Any, url: Any, *args: Any, **named: Any) -> requests.Response:
        """Send a request and return the response with its content read.

        A redirect is a failure unless the body was sent again: OpenTelemetry's exporter takes any other for success.
        """
        reply = self._exchange(method, url, *args, **named)
        if 300 <= reply.status_code < 400 or reply.request.method != method.upper():  # noqa: PLR2004 - redirects
            place = reply.headers.get("location") or reply.url
            is_named = place != url
            reply.reason = (
                f"redirected to {place!r}: give that as the endpoint" if is_named else "redirected to no place"
            )
            reply._content = reply.reason.encode()  # noqa: SLF001 - older exporters log the text
            reply.status_code = 400
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
