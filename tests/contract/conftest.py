"""The one story that the promises about spans and records are read from."""

import pytest

from otel_mqtrace.testing.embedded.cluster import EmbeddedKafka
from tests.contract.story import told


@pytest.fixture(scope="session")
def story():
    """Sends, polls, a failure, a batch, a transaction, with both outputs, on a broker of its own."""
    with EmbeddedKafka() as broker:
        return told(broker)
