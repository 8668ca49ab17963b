"""Bodies made for a test: rows of ``BODY`` as an Arrow batch, the events made of them, and any bodies."""

import pyarrow as pa
from hypothesis import strategies as st

from otel_mqtrace.model import TraceType
from otel_mqtrace.wire.native.layout import CLOUD_SUB_AFTER, FIELDS, FORMS, FieldKind
from spark_jobs.normalise.native import native_batches
from spark_jobs.schemas import BODY, InputCounts

ID = "C000020262BB60E53B936993952C0000"


def batch(*bodies):
    """Return bodies, or whole rows, as one batch; the first stands in line 1."""
    rows = [
        body if isinstance(body, dict) else {"path": "made", "line": line, "arrival_ms": 1, "body": body}
        for line, body in enumerate(bodies, start=1)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=BODY)


def read_bodies(*bodies, **options):
    counts = InputCounts()
    made = native_batches([batch(*bodies)], counts, writer="mqtrace", **options)
    return [event for some in made for event in some.to_pylist()], counts.expected


USUAL = {
    FieldKind.TEXT: ("null", "", ID, ID.lower(), f"{ID},{ID[:-1]}1", "k1 k2", "订单", "dKey", "REQ1", "REQ2"),
    FieldKind.LONG: ("1795262479661", "-5", "0017", "999999999999999999"),
    FieldKind.INT: ("0", "-3", "12", "999999999"),
    FieldKind.BOOL: ("true", "false"),
    FieldKind.MESSAGE_TYPE: ("0", "1", "2", "3", "4"),
    FieldKind.CONTEXT_CODE: ("0", "1", "2", "3", "4"),
    FieldKind.TRANSACTION_STATE: ("COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"),
}
ODD = (
    *("", "TRUE", "+7", "01", "5", "٣", "0x1F", "1e3", " 1", "1 ", "1_0", "-", "--1", "\n", "x\r", "😀", "a b a"),
    *("2147483647", "2147483648", "9223372036854775807", "99999999999999999999"),
    *("Pub", "SubBefore", "SubAfter", "Recall", "COMMIT_MESSAGE"),
)
ENDS = st.sampled_from(["\x01\x02", "\x01", "", "\x02\x02", "\x01\x01\x02"])


@st.composite
def records(draw, *, most_spoilt):
    trace_type = draw(st.sampled_from(TraceType))
    form = draw(st.sampled_from(FORMS[trace_type]))
    fields = [trace_type.value, *(draw(st.sampled_from(USUAL[FIELDS[name]])) for name in form.fields)]
    for _ in range(draw(st.integers(0, most_spoilt))):
        fields[draw(st.integers(0, len(fields) - 1))] = draw(st.sampled_from(ODD) | st.text(max_size=4))
    is_over_cloud = form == CLOUD_SUB_AFTER and draw(st.booleans())
    end = draw(ENDS) if most_spoilt and draw(st.integers(0, 3)) == 0 else "\x01\x02" if is_over_cloud else "\x02"
    return "\x01".join(fields) + end


@st.composite
def bodies(draw):
    """A body: of ordinary records, of spoilt ones, cut off, or of bytes that are no text."""
    most_spoilt = draw(st.sampled_from([0, 0, 0, 1, 2]))
    text = "".join(draw(st.lists(records(most_spoilt=most_spoilt), min_size=1, max_size=6)))
    body = text.encode(draw(st.sampled_from(["utf-8", "utf-8", "gb18030"])), "replace")
    return body[: draw(st.integers(0, len(body)))] if most_spoilt and draw(st.booleans()) else body
