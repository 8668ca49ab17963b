"""Whether a consumer's messages are left to their blocks: said by the setting, seen of a consumer, given up again."""

from __future__ import annotations

import pytest

from otel_mqtrace.hooks.in_flight import ExplicitMode


def test_the_setting_is_never_given_up():
    blocks = ExplicitMode("explicit")
    assert [blocks.expect_blocks(5_000) for _ in range(3)] == [True] * 3


def test_a_consumer_of_which_nothing_is_seen_is_automatic():
    assert not ExplicitMode("auto").expect_blocks(1)


def test_a_backlog_of_workers_is_waited_for_up_to_a_thousand_messages():
    blocks = ExplicitMode("auto")
    blocks.record_late_block("billing")
    for _ in range(5_000):
        assert blocks.expect_blocks(1)
        blocks.record_block()
    assert all(blocks.expect_blocks(1) for _ in range(1_000))
    assert not blocks.expect_blocks(1)


def test_one_message_of_ten_in_a_block_is_not_enough():
    blocks = ExplicitMode("auto")
    blocks.record_shared_batch()
    assert blocks.expect_blocks(10)
    blocks.record_block()
    assert not blocks.expect_blocks(10)


@pytest.mark.parametrize("seen", [1, 3])
def test_it_is_said_once(seen, caplog):
    blocks = ExplicitMode("auto")
    for _ in range(seen):
        blocks.record_late_block("billing")
        blocks.expect_blocks(1_000)
        assert not blocks.expect_blocks(1)
    assert caplog.text.count("group billing") == 1
