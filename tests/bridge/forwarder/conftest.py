import pytest

from tests.support.otlp_receiver import OtlpReceiver


@pytest.fixture
def receiver():
    with OtlpReceiver() as running:
        yield running
