"""The runner of a foreign suite reports what an instrumentation broke, on a small known suite."""

from collections import Counter

import pytest

from tests.proofs.foreign.confluent_kafka import Outcome, broken, main, verdict

_SUITE = '''
import os
import signal
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

class Silent(Producer):
    """A user's class."""

def _send(cls):
    producer = cls({"bootstrap.servers": "127.0.0.1:1", "message.timeout.ms": 50, "log_level": 0})
    producer.produce("orders", b"x")
    assert producer.flush(10) == 0

def test_send_by_a_name_taken_early():
    _send(Producer)

def test_send_of_a_subclass():
    _send(Silent)

def test_no_configuration_is_refused():
    with pytest.raises(TypeError, match="expected configuration dict"):
        Producer()

def test_that_raises_what_is_no_exception():
    raise KafkaError(KafkaError._ALL_BROKERS_DOWN)

def test_that_takes_its_process_along():
    os.kill(os.getpid(), signal.SIGKILL)

_kept = Silent({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})

def test_after_it():
    _send(Producer)
    _kept.produce("orders", b"ends when the process exits")

def test_that_only_tracing_breaks():
    assert Producer.__mro__[1] is object
'''


@pytest.fixture
def checkout(tmp_path):
    """A repository that looks like the client's, with seven tests."""
    (tmp_path / "src" / "confluent_kafka").mkdir(parents=True)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "__init__.py").touch()
    (tmp_path / "tests" / "test_Sends.py").write_text(_SUITE)
    (tmp_path / "tests" / "test_lost.py").write_text("import no_such_package_anywhere")
    return tmp_path


def test_only_tests_broken_by_tracing_are_reported(checkout, capsys):
    modes = ["early", "records-late"]
    assert main([str(checkout), *(word for mode in modes for word in ("--mode", mode))]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line[36:].split() for line in lines[1:4]] == [
        ["7", "5", "2", "0", "-", "0"],
        *[["7", "4", "3", "0", "1", "4"]] * 2,
    ]
    assert sum("test_that_only_tracing_breaks" in line for line in lines) == 2
    assert "not collected (what it imports is missing): tests/test_lost.py" in lines
    assert [line for line in lines if line.startswith("WRONG")] == [f"WRONG: {mode}: 1 tests broken" for mode in modes]


def test_suite_that_takes_too_long_is_ended(checkout, capsys):
    assert main([str(checkout), "--mode", "early", "--within-s", "0"]) == 2
    assert "not done in time" in capsys.readouterr().err


def test_fewer_spans_late_than_early_are_wrong():
    """So is a span that never ended, and a test that vanished counts as broken."""
    bare = Outcome(outcomes={"a": "passed", "b": "failed", "c": "passed"})
    early = Outcome(outcomes={"a": "passed", "b": "passed", "c": "passed"}, spans=Counter(a=2, flood=900, b=1))
    late = Outcome(
        outcomes={"a": "passed", "b": "failed"},
        spans=Counter(a=2, flood=700),
        unended=Counter(send=1),
        failed=Counter(x=1),
    )
    assert (broken(bare, early), broken(bare, late)) == ([], ["c"])
    wrong = verdict({"bare": bare, "early": early, "late": late}, {"early": [], "late": ["c"]})
    assert wrong == [
        "late: 1 tests broken",
        "b: 1 spans early, 0 late",
        "late: spans that never ended: {'send': 1}",
        "late: failures of ours: {'x': 1}",
    ]
    assert verdict({"bare": bare, "early": early}, {"early": []}) == []


def test_folder_that_is_no_checkout_is_refused(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("foreign suite: error: ")
