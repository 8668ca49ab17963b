"""Applications test their loops with consumers that hand over pretended messages: nothing of ours may stumble over one."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from confluent_kafka import cimpl

from otel_mqtrace.clients.confluent_kafka.messages import error_type


class Pretending(cimpl.Consumer):
    """An application's consumer whose poll hands over what its test wants."""

    def poll(self, *_args):
        return Mock()


def test_a_pretended_message_passes_through_unchanged(instrument, spans):
    """The application gets it; ``spans`` fails when anything of ours failed on the way."""
    instrument()
    consumer = Pretending({"bootstrap.servers": "127.0.0.1:1", "group.id": "billing", "log_level": 0})
    assert isinstance(consumer.poll(1), Mock)
    consumer.close()


@pytest.mark.parametrize(("failure", "name"), [(Mock(), "Mock"), (BufferError("full"), "_QUEUE_FULL"), (5, "int")])
def test_whatever_is_no_failure_is_named_by_its_class(failure, name):
    assert error_type(failure) == name
