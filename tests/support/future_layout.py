"""The layout table of a release that does not exist: the real one, two lines longer."""

from pathlib import Path

from otel_mqtrace.wire.native import layout

NAME = "9.9.9"
_FORM = '        Form((*_PUB_14, "client_host")),  # 4.8.0, Go, Rust\n'
_ROWS_END = ")\nDIALECTS: Final"


def source() -> str:
    """Return the text of ``layout.py`` with a longer form of ``Pub`` and a dialect that writes it."""
    text = Path(layout.__file__).read_text(encoding="utf-8")
    longer = '        Form((*_PUB_14, "client_host", "retry_times", "request_id")),\n'
    row = f'    Dialect(name="{NAME}", releases="{NAME}", pub=17, recall=7, cloud_sub_after=CloudSubAfter.TRAILING),\n'
    assert text.count(_FORM) == text.count(_ROWS_END) == 1
    return text.replace(_FORM, _FORM + longer).replace(_ROWS_END, row + _ROWS_END)
