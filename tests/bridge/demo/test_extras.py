"""The demo needs one extra, and names it."""

import pytest

from bridge.demo import command
from otel_mqtrace._errors import MissingExtraError


@pytest.mark.parametrize("absent", ["confluent_kafka", "opentelemetry.exporter.otlp.json.file", "pyspark"])
def test_one_extra_is_named_whatever_is_missing(monkeypatch, tmp_path, absent):
    monkeypatch.setattr(command, "_present", lambda module: module != absent)
    with pytest.raises(MissingExtraError, match=r"otel-mqtrace\[all\]"):
        command.demo(out=tmp_path)
