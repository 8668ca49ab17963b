"""An application's password is not among what a crash report shows of its clients."""

from __future__ import annotations

import confluent_kafka
import pytest

from tests.support.shown import shown

_PASSWORD = "open-sesame"
_CONF = {
    "bootstrap.servers": "127.0.0.1:1",
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "ali",
    "sasl.password": _PASSWORD,
    "log_level": 0,
}


@pytest.mark.parametrize(("kind", "more"), [("Producer", {}), ("Consumer", {"group.id": "billing"})])
def test_a_client_does_not_show_its_password(instrument, kind, more):
    instrument()
    client = getattr(confluent_kafka, kind)({**_CONF, **more})
    seen = shown(client)
    assert "Leaders object" in seen
    assert "127.0.0.1" in seen
    assert _PASSWORD not in seen
