"""What the tests of several clients share."""

import sys
from types import ModuleType

import confluent_kafka
import pytest


@pytest.fixture
def application():
    """A module that has taken the names before instrumentation."""
    module = ModuleType("application")
    module.Producer = confluent_kafka.Producer
    module.Consumer = confluent_kafka.Consumer
    sys.modules["application"] = module
    yield module
    del sys.modules["application"]
