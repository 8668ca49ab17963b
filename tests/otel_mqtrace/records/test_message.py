"""Ids read from W3C's headers, one by one and many at once."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from otel_mqtrace.records.message import read_origins, read_traceparent

_hexadecimal = st.sampled_from(["0", "1", "9", "a", "f"])
_plain = st.builds(
    "00-{}-{}-0{}".format,
    st.text(_hexadecimal, min_size=32, max_size=32),
    st.text(_hexadecimal, min_size=16, max_size=16),
    st.sampled_from(["0", "1", "2", "3"]),
)
_zeros = st.sampled_from(
    ["00-" + "0" * 32 + "-b7ad6b7169203331-01", "00-" + "0" * 16 + "a" * 16 + "-b7ad6b7169203331-01"]
)


_changes = st.tuples(
    st.sampled_from([0, 1, 2, 35, 52, 53, 54]) | st.integers(0, 54),
    st.sampled_from(["", "-", "0", "1", "4", "A", "g", " "]),
)


@st.composite
def _headers(draw):
    """Draw a ``traceparent``, some of them with one or two characters exchanged or left out."""
    text = draw(_plain | _zeros)
    for at, change in draw(st.lists(_changes, max_size=2)):
        text = text[:at] + change + text[at + 1 :]
    return text.encode()


@given(st.lists(st.none() | _headers(), max_size=3))
@example([b"00-" + b"a" * 33 + b"-" + b"b" * 15 + b"-01"])
@example([b"00-" + b"a" * 14 + b"--" + b"a" * 16 + b"-" + b"b" * 16 + b"-01"])
@settings(max_examples=200)
def test_headers_read_at_once_equal_those_read_one_by_one(headers):
    read = [header if header is None else read_traceparent(header) for header in headers]
    is_plain = all(one is not None for header, one in zip(headers, read, strict=True) if header is not None)
    assert read_origins(headers) == ([one and (one[0][:16], one[0][16:]) for one in read] if is_plain else None)
