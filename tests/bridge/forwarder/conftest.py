import pytest

from tests.support.otlp_receiver import OtlpReceiver


@pytest.fixture
def receiver():
    """An OTLP receiver of the test's own."""
    with OtlpReceiver() as running:
        yield running
