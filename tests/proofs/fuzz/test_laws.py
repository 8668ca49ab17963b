"""The fuzzer starts from inputs that keep its laws, and its laws can be broken."""

from dataclasses import replace

import pytest

from otel_mqtrace.wire.native import decode_body
from tests.proofs.fuzz import laws
from tests.proofs.fuzz.native_codec import seeds

GOOD = b"SubAfter\x01R\x01I\x011\x01true\x01k\x010\x02"


def test_every_seed_keeps_the_laws():
    assert sum(len(laws.hold_for(seed).contexts) for seed in seeds()) > 1_500


@pytest.mark.parametrize(
    "broken",
    [
        lambda whole: replace(whole, record_indexes=(0, 2)),
        lambda whole: replace(whole, contexts=whole.contexts[:1]),
        lambda whole: replace(whole, dialects=()),
    ],
)
def test_body_with_a_gap_breaks_the_law(broken):
    whole = decode_body(GOOD * 2)
    laws.every_piece_is_accounted_for(whole)
    with pytest.raises(AssertionError):
        laws.every_piece_is_accounted_for(broken(whole))


def test_stream_with_other_records_breaks_the_law():
    body = GOOD * 3
    laws.parts_equal_the_whole(body, decode_body(body), "utf-8", "a", part_bytes=7)
    with pytest.raises(AssertionError):
        laws.parts_equal_the_whole(body, decode_body(GOOD * 2), "utf-8", "a", part_bytes=7)
