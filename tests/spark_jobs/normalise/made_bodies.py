"""Bodies made for a test: rows of ``BODY`` as an Arrow batch, the events made of them, and what they should be."""

import pyarrow as pa
from hypothesis import strategies as st

from otel_mqtrace.model import TraceType
from otel_mqtrace.wire.native.decode import decode_body
from otel_mqtrace.wire.native.layout import ABSENT_TEXTS, CLOUD_SUB_AFTER, FIELDS, FORMS, FieldKind
from spark_jobs.normalise.native import native_batches
from spark_jobs.schemas import BODY, InputCounts

ID = "C000020262BB60E53B936993952C0000"
SCHEMA = BODY
UNREAD = {"path": "made", "line": 9, "bad": {"field": "body", "reason": "no body", "text": "", "mentions": []}}
"""A row that holds no body."""


def batch(*bodies):
    """Return bodies, or whole rows, as one batch; the first stands in line 1."""
    rows = [
        body if isinstance(body, dict) else {"path": "made", "line": line, "arrival_ms": 1, "body": body}
        for line, body in enumerate(bodies, start=1)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def read_bodies(*bodies, **options):
    """Return the events of the bodies as mappings, and how many records were expected."""
    counts = InputCounts()
    made = native_batches([batch(*bodies)], counts, writer="mqtrace", **options)
    return [event for some in made for event in some.to_pylist()], counts.expected


def _present(text):
    return None if text is None or text in ABSENT_TEXTS else text


def _folded(text):
    known = _present(text.strip(" ")) if text is not None else None
    return known.upper() if known and all(char in "0123456789abcdefABCDEF" for char in known) else known


def _key_set(text):
    kept = {key for key in (text or "").split(" ") if _present(key)}
    return sorted(kept) or None


def expected(bodies: list[bytes]):
    events, malformed = [], []
    for line, body in enumerate(bodies, start=1):
        decoded = decode_body(body)
        malformed += [(line, error.record_index, error.field, error.reason, error.text) for error in decoded.errors]
        for index, trace in zip(decoded.record_indexes, decoded.contexts, strict=True):
            events += _events(line, index, trace)
    return sorted(events, key=repr), sorted(malformed, key=repr)


def _events(line, index, trace):
    bean = trace.beans[0]
    name = trace.trace_type.value
    ids = bean.msg_id.split(",")
    offsets = (bean.offset_msg_id or "").split(",")
    for at, one in enumerate(ids):
        cost = trace.cost_ms
        ends = {"Pub": (trace.timestamp_ms or 0) + (cost or 0), "SubAfter": trace.timestamp_ms}.get(name)
        ends = ends if ends is None or -(2**63) <= ends < 2**63 else None  # no time at all rather than a job that dies
        yield (
            *(line, index, name, _folded(one), _folded(offsets[at] if at < len(offsets) else offsets[0])),
            *(_present(bean.topic), _present(trace.group_name), _folded(trace.request_id), bean.retry_times),
            *(_present(trace.region_id), _present(bean.tags), _key_set(bean.keys), _present(bean.store_host)),
            *(_present(bean.client_host), bean.body_length, bean.msg_type and bean.msg_type.value),
            *(None if name == "SubAfter" else trace.timestamp_ms, ends, cost, trace.success),
            *(trace.context_code.name if trace.context_code is not None else None, _folded(bean.transaction_id)),
            *(bean.transaction_state and bean.transaction_state.value, bean.from_transaction_check),
        )


KINDS = {
    ("publish", "whole"): "Pub",
    ("consume", "before"): "SubBefore",
    ("consume", "after"): "SubAfter",
    ("transaction_end", "whole"): "EndTransaction",
    ("recall", "whole"): "Recall",
}
COLUMNS = (
    *("msg_id", "offset_msg_id", "topic", "group_name", "attempt_id", "retry_times", "region_id", "tags", "keys"),
    *("store_host", "client_host", "body_length", "msg_type", "start_ms", "end_ms", "cost_ms", "success"),
    *("context_code", "transaction_id", "transaction_state", "from_transaction_check"),
)


def in_words(events, malformed):
    """Return rows of ``EVENT`` and of ``MALFORMED``, sorted, in the words of ``expected``."""
    read = [
        (row["line"], row["record_index"], KINDS[row["kind"], row["half"]], *(row[name] for name in COLUMNS))
        for row in events
    ]
    bad = [tuple(row[name] for name in ("line", "record_index", "field", "reason", "text")) for row in malformed]
    return sorted(read, key=repr), sorted(bad, key=repr)


# -- any bodies
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
