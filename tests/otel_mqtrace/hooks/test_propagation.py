"""Headers read by hand say what OpenTelemetry's own propagator reads in them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import baggage, propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext

from otel_mqtrace.hooks.propagation import HEADER_GETTER, creation_of, propagator_in_force

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NEARLY = st.builds(
    lambda text, at, put, cut: text[:at] + put + text[at + cut :],
    st.just(PARENT),
    st.integers(0, len(PARENT)),
    st.text("0123456789abcdefF-_ \t\n٣x", max_size=3),
    st.integers(0, 3),
)
PARENTS = st.one_of(
    st.just(PARENT),
    NEARLY,
    st.just(f"00-{'0' * 32}-b7ad6b7169203331-01"),
    st.just(f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-00"),
    st.from_regex(r"\A[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[a-z]*)?\Z"),
)
TEXTS = st.one_of(PARENTS, PARENTS.map(str.encode), st.binary(max_size=60))
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "traceparent": TEXTS,
        "Traceparent": TEXTS,
        "tracestate": st.sampled_from(["", "a=1", "a=1,b=2", "no state"]),
        "baggage": st.sampled_from(["", "customer=42", "no baggage"]),
        "TAGS": st.just(b"paid"),
    },
)
OUTSIDE = trace.set_span_in_context(NonRecordingSpan(SpanContext(1, 2, is_remote=False)), Context())


@given(found=HEADERS, base=st.sampled_from([Context(), OUTSIDE]))
def test_what_travelled_is_what_the_propagator_reads(found, base):
    theirs, ours = propagate.extract(found, base, HEADER_GETTER), propagator_in_force().extract(found, base)
    told, expected = (trace.get_current_span(each).get_span_context() for each in (ours, theirs))
    assert (told, told.is_remote, told.trace_flags, told.trace_state) == (
        expected,
        expected.is_remote,
        expected.trace_flags,
        expected.trace_state,
    )
    assert baggage.get_all(ours) == baggage.get_all(theirs)


@given(found=HEADERS)
def test_a_creation_context_is_what_the_propagator_reads(found):
    expected = trace.get_current_span(propagate.extract(found, Context(), HEADER_GETTER)).get_span_context()
    assert creation_of(found) == expected or not (creation_of(found).is_valid or expected.is_valid)
