"""The corpora themselves: made anew they are the same, and they hold what the proof needs."""

import pytest

from spark_jobs.taxonomy import Reason, Status
from tests.faults.corpora import CORPORA


def expected(corpus):
    among = (want for _, _, wanted in corpus.truth.among for want in wanted)
    return [*(want for wanted in corpus.truth.keys.values() for want in wanted), *among]


@pytest.mark.parametrize("name", CORPORA)
def test_seed_decides_the_order_of_a_corpus_and_nothing_else(corpora, name):
    again, other = CORPORA[name](0), CORPORA[name](1)
    assert again.recording == corpora[name].recording
    assert again.truth == corpora[name].truth
    assert other.recording.lines != again.recording.lines
    assert sorted(want.word for want in expected(other)) == sorted(want.word for want in expected(again))


def test_corpora_expect_every_status_and_every_reason(corpora):
    wanted = [want for corpus in corpora.values() for want in expected(corpus)]
    truths = [corpus.truth for corpus in corpora.values()]
    statuses = {want.status for want in wanted} | {"MALFORMED" for truth in truths if truth.malformed}
    reasons = {want.reason for want in wanted} | {scope for truth in truths for scope in truth.scopes}
    assert statuses == {status.value for status in Status}
    assert {reason.value for reason in Reason} <= reasons


def test_ids_of_the_corpus_cross_a_month_and_a_clock_change(corpora):
    """Our producer's ids begin anew at its midnight and repeat an hour when its clocks are set back."""
    bodies = sorted(corpora["mqtrace"].truth.keys, key=lambda event: event.message)
    of_orders = {event.message for event in bodies if event.kind == "publish" and event.message.startswith("0A010001")}
    in_month_ms = sorted(int(message[20:28], 16) for message in of_orders)
    hour_ms = 3_600_000
    assert in_month_ms[0] < hour_ms, "made after midnight of the first"
    assert in_month_ms[-1] > 30 * 24 * hour_ms, "made on the thirty-first"
