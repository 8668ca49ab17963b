"""Fetch the spans of services from Jaeger's query API (``/api/v3``) into a file of OTLP/JSON lines."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlencode, urlsplit

from bridge.addresses import Kind, parse_address
from bridge.otlp.values import long_or_none
from otel_mqtrace._clock import SystemClock
from otel_mqtrace._errors import PeerError, UnreadableInputError, UsageError, describe_reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_ANSWER_SECONDS: Final = 30
_TRACES_PER_PAGE: Final = 500
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_CLOCK_SKEW_US: Final = 3_600_000_000
_SHORTEST_PAGE_US: Final = 1_000
_SPANS_PER_TRACE: Final = 3  # so many for each trace of a page Jaeger looks at in Cassandra
_NS_PER_US: Final = 1_000
_SEARCH: Final = ("serviceName", "searchDepth", "startTimeMin", "startTimeMax", "rawTraces")
_OLDER_SEARCH: Final = ("service_name", "num_traces", "start_time_min", "start_time_max", "raw_traces")
"""The parameters of a search: older releases know the second names alone, and newer ones drop them."""
_MOST_NAMES: Final = 5
_NOT_FOUND: Final = 404
_UNSAFE_IN_NAMES: Final = re.compile(r"[^\w.-]+")
_DIRECTORY: Final = "mqtrace-jaeger-"
_FETCHED: Final = re.compile(rf".*/{_DIRECTORY}[^/]+/\d+/([^/]+)")


@dataclass(frozen=True, slots=True)
class JaegerAddress:
    """A Jaeger's query port (16686 by default) and the services whose traces are wanted."""

    server: str
    services: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> JaegerAddress:
        """Return what ``jaeger://HOST:PORT?service=NAME[&service=NAME]`` names.

        Raises:
            UsageError: it has another form.
        """
        form = f"invalid source {text}: write {Kind.JAEGER.value}, with service= once for each service"
        try:
            parts = urlsplit(text)
            port, query = parts.port, parse_qs(parts.query, strict_parsing=True)
        except ValueError:
            raise UsageError(form) from None
        services = tuple(dict.fromkeys(query.pop("service", [])))
        if not (parts.hostname and services) or port == 0 or "@" in parts.netloc or parts.path.strip("/") or query:
            raise UsageError(form)
        return cls(parts.netloc if port else f"{parts.netloc.rstrip(':')}:16686", services)


@contextmanager
def local_sources(srcs: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Yield the sources with each Jaeger replaced by a temporary file of its spans.

    Raises:
        UsageError: the address of a Jaeger has the wrong form.
        PeerError: a Jaeger does not answer.
        UnreadableInputError: a Jaeger has no traces of a service.
    """
    given = tuple(srcs)
    kinds = [parse_address(src).kind for src in given]
    if Kind.JAEGER not in kinds:
        yield given
        return
    with TemporaryDirectory(prefix=_DIRECTORY) as directory:
        yield tuple(
            _fetch(src, Path(directory) / str(at)) if kind is Kind.JAEGER else src
            for at, (src, kind) in enumerate(zip(given, kinds, strict=True))
        )


def _fetch(src: str, directory: Path) -> str:
    address = JaegerAddress.parse(src)
    directory.mkdir()
    path = directory / f"{_UNSAFE_IN_NAMES.sub('-', f'jaeger-{address.server}')}.jsonl"  # the report shows this name
    fetch_spans(address, path)
    return str(path)


def name_fetched(path: str) -> str | None:
    """Return the name of a file that ``local_sources`` made, the same in every run; ``None`` for any other path."""
    found = _FETCHED.fullmatch(path)
    return found and found[1]


def fetch_spans(address: JaegerAddress, path: Path, *, traces_per_page: int = _TRACES_PER_PAGE) -> None:
    """Write every trace in which one of the services has a span, each trace once, into a new file.

    A page of ``traces_per_page`` may be cut off: it is requested again in two halves of its time. So is one of three
    times as many spans, which is Cassandra's limit.
    """
    answer = _get(address, "services", {})
    known = answer.get("services") if answer else []  # an empty Jaeger answers {}
    if not isinstance(known, list):
        raise PeerError(f"{address.server} is not the query API of Jaeger (/api/v3); give the port of its page")
    for service in address.services:
        if service not in known:
            more = ", ".join(sorted(map(str, known))[:_MOST_NAMES]) or "none"
            raise UnreadableInputError(f"the Jaeger at {address.server} has no service {service!r}; it has: {more}")
    end_us = SystemClock().wall_ns() // _NS_PER_US + _CLOCK_SKEW_US
    seen: set[str] = set()
    with path.open("x", encoding="utf-8") as file:
        for service in address.services:
            for page in _pages(address, service, end_us, traces_per_page):
                # A trace is in the page of each of its spans, whole every time.
                new = _trace_ids(page) - seen
                if new:
                    file.write(json.dumps({"resourceSpans": _keep_traces(page, new)}) + "\n")
                seen |= new


def _pages(address: JaegerAddress, service: str, until_us: int, limit: int) -> Iterator[list[dict[str, Any]]]:
    """Yield the resource spans of every trace of a service, the earliest window first."""
    waiting = [(0, until_us)]
    while waiting:
        begin_us, end_us = waiting.pop()
        page = _page(address, service, (begin_us, end_us), limit)
        is_shortest, is_full = end_us - begin_us <= _SHORTEST_PAGE_US, len(_trace_ids(page)) >= limit
        if not is_full and (is_shortest or _count_starts(page, begin_us, end_us) < _SPANS_PER_TRACE * limit):
            yield page
            continue
        if is_shortest:
            raise PeerError(
                f"the Jaeger at {address.server} has {limit} or more traces of {service!r} in the millisecond of "
                f"{_iso(begin_us)}, more than one page holds: export them to files instead"
            )
        middle_us = (begin_us + end_us) // 2
        waiting += [(middle_us, end_us), (begin_us, middle_us)]


def _page(address: JaegerAddress, service: str, window_us: tuple[int, int], limit: int) -> list[dict[str, Any]]:
    begin_us, end_us = window_us
    # a microsecond earlier, because Cassandra leaves out both ends; raw: without Jaeger's own corrections of times
    values = (service, limit, _iso(max(begin_us - 1, 0)), _iso(end_us), "true")
    query = dict(zip((*_SEARCH, *_OLDER_SEARCH), values * 2, strict=True))
    answer = _get(address, "traces", {f"query.{name}": value for name, value in query.items()})
    result = answer.get("result", {})
    found = result.get("resourceSpans", []) if isinstance(result, dict) else None
    if not isinstance(found, list) or "error" in result or "error" in answer:
        raise PeerError(f"the Jaeger at {address.server} answered something other than traces")
    return found


def _iso(time_us: int) -> str:
    return (_EPOCH + timedelta(microseconds=time_us)).isoformat()


def _get(address: JaegerAddress, what: str, parameters: dict[str, Any]) -> dict[str, Any]:
    from http.client import HTTPException  # noqa: PLC0415  (as below)
    from urllib.error import HTTPError  # noqa: PLC0415  (most runs read no Jaeger)
    from urllib.request import urlopen  # noqa: PLC0415  (an HTTP client)

    url = f"http://{address.server}/api/v3/{what}?{urlencode(parameters)}"
    try:
        with urlopen(url, timeout=_ANSWER_SECONDS) as answer:
            found = json.load(answer)
    except HTTPError as refusal:
        if refusal.code == _NOT_FOUND and what == "traces":
            return {}  # the answer of /api/v3 for no traces
        fix = "give the port of its page" if refusal.code == _NOT_FOUND else "see its log"
        raise PeerError(f"the Jaeger at {address.server} refused /api/v3/{what}: {refusal}; {fix}") from refusal
    except (OSError, ValueError, HTTPException, RecursionError) as error:  # such as a port of gRPC, a cut answer
        reason = describe_reason(getattr(error, "reason", None) or error)
        raise PeerError(f"no Jaeger answers at {address.server}: {reason}; give the port of its page") from error
    if not isinstance(found, dict):
        raise PeerError(f"{address.server} is not the query API of Jaeger (/api/v3); give the port of its page")
    return found


def _spans(page: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    scopes = (scope for each in page for scope in each.get("scopeSpans") or ())
    return (span for scope in scopes for span in scope.get("spans") or ())


def _trace_ids(page: list[dict[str, Any]]) -> set[str]:
    return {str(span.get("traceId")) for span in _spans(page)}


def _count_starts(page: list[dict[str, Any]], begin_us: int, end_us: int) -> int:
    starts = ((long_or_none(span.get("startTimeUnixNano")) or 0) // _NS_PER_US for span in _spans(page))
    return sum(begin_us <= start_us < end_us for start_us in starts)


def _keep_traces(page: list[dict[str, Any]], ids: set[str]) -> list[dict[str, Any]]:
    return [{**one, "scopeSpans": [_keep_spans(scope, ids) for scope in one.get("scopeSpans") or ()]} for one in page]


def _keep_spans(scope: dict[str, Any], ids: set[str]) -> dict[str, Any]:
    return {**scope, "spans": [span for span in scope.get("spans") or () if str(span.get("traceId")) in ids]}
