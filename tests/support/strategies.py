"""Make up trace contexts and bodies; hypothesis derives them from the layout table."""

from typing import Any, get_args, get_type_hints

from hypothesis import strategies as st

from otel_mqtrace.model import AccessChannel, ContextCode, TraceBean, TraceContext, TraceType, TransactionState
from otel_mqtrace.wire.native import layout

SEPARATORS = layout.FIELD_SEPARATOR + layout.RECORD_TERMINATOR

texts = st.text(st.characters(exclude_categories=("Cs",), exclude_characters=SEPARATORS), max_size=12)
"""What a field can carry unchanged: no separators, no lone surrogates."""


def values(name: str, dialect: layout.Dialect) -> st.SearchStrategy[Any]:
    """Values of one field, as the dialect can say them; absent ones only where the format has a text for "nothing"."""
    kind = layout.FIELDS[name]
    return {
        layout.FieldKind.TEXT: lambda: st.none() | texts,
        layout.FieldKind.LONG: lambda: st.integers(-(1 << 63), (1 << 63) - 1),
        layout.FieldKind.INT: lambda: st.integers(-(1 << 31), (1 << 31) - 1),
        layout.FieldKind.BOOL: st.booleans,
        layout.FieldKind.MESSAGE_TYPE: lambda: st.sampled_from(dialect.message_types),
        layout.FieldKind.CONTEXT_CODE: lambda: st.sampled_from(ContextCode),
        layout.FieldKind.TRANSACTION_STATE: lambda: st.sampled_from(TransactionState),
    }[kind]()


def fields_of(
    kind: type, texts: st.SearchStrategy[str], numbers: st.SearchStrategy[int], **own: st.SearchStrategy[Any]
) -> st.SearchStrategy[Any]:
    """Make beans or contexts: each field is absent or of its type, unless ``own`` says what it is."""
    drawn: dict[Any, Any] = {str: texts, int: numbers, bool: st.booleans()}
    types = {name: get_args(hint)[0] for name, hint in get_type_hints(kind).items() if name not in own}
    others = {
        name: st.none() | (drawn[each] if each in drawn else st.sampled_from(each)) for name, each in types.items()
    }
    return st.builds(kind, **others, **own)


@st.composite
def sayable(draw: st.DrawFn) -> tuple[TraceContext, str, AccessChannel]:
    """Draw a context, a dialect and a channel that can say it: every field of the form filled, one to three beans."""
    channel = draw(st.sampled_from(AccessChannel))
    trace_type = draw(st.sampled_from(TraceType))
    able = [
        dialect
        for dialect in layout.DIALECTS.values()
        if dialect.form(trace_type) and dialect.cloud_quirk(trace_type, channel) is not layout.CloudSubAfter.GLUED
    ]
    dialect = draw(st.sampled_from(able))
    form = dialect.form(trace_type, channel)
    assert form is not None
    of_context = {name: draw(values(name, dialect)) for name in form.fields if name not in layout.BEAN_FIELDS}
    beans = draw(st.integers(1, 3))
    trace_ctx = TraceContext(
        trace_type=trace_type,
        beans=tuple(
            TraceBean(**{name: draw(values(name, dialect)) for name in form.fields if name in layout.BEAN_FIELDS})
            for _ in range(beans)
        ),
        **of_context,
    )
    return trace_ctx, dialect.name, channel


_words = st.sampled_from(
    [
        *(trace_type.value for trace_type in TraceType),
        *("", "null", "0", "1", "4", "9", "-5", "+7", "true", "FALSE", "1700000000000", "٣", "1_0", " 1", "UNKNOW"),
        *("COMMIT_MESSAGE", "pub", "订单", "99999999999999999999"),
    ]
)
pieces = st.lists(
    _words, min_size=1, max_size=1 + max(form.count for forms in layout.FORMS.values() for form in forms)
).map(layout.FIELD_SEPARATOR.join)
"""Pieces that look like records: type names, numbers and nonsense between field separators."""

bodies = st.one_of(
    st.binary(max_size=200),
    st.lists(pieces, max_size=6).map(lambda parts: layout.RECORD_TERMINATOR.join(parts).encode()),
    st.lists(st.sampled_from([b"\x01", b"\x02", b"SubAfter", b"Pub", b"\xff", b"7", b"null"]), max_size=60).map(
        b"".join
    ),
)
"""Anything that may be found in a trace message, from noise to near-records."""
