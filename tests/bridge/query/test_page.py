"""The page of an answer stands alone, shows everything, and lets nothing of the trace become markup."""

import io
import re

import pytest
from rich.console import Console

from bridge.forwarder.span_fields import trace_id_of
from bridge.page.lanes import Bar, pack_rows, scale_spans
from bridge.page.markup import content_policy
from bridge.query.html import page, swimlane
from bridge.query.search import Answer, Searched
from bridge.query.terminal import print_answer
from bridge.query.timeline import events
from otel_mqtrace.model import TraceType
from tests.support.archives import ID, LIFE, T0, again, answer_of, consume, context, landed, pub, story_of
from tests.support.html_page import Page

EVIL = "\"><script>alert(1)</script><img src=x onerror=y>&amp;'\x1b\u202e"


def _page(*stories, left_off=0, remarks=(), **of_answer):
    text = page(Answer(stories, left_off, Searched(where="a shelf", messages=9, remarks=remarks), **of_answer))
    assert [tag for tag, _ in Page(text).elements].count("h1") == 1
    return text


@pytest.mark.parametrize("stories", [[], [story_of(*LIFE)]], ids=["no message", "a message"])
def test_page_has_one_first_heading_and_loads_nothing(stories):
    text = _page(*stories)
    written = Page(text)
    assert written.scripts == []
    assert not [tag for tag, _ in written.elements if tag in {"script", "img", "iframe", "object", "base", "form"}]
    links = [value for _, attrs in written.elements for name, value in attrs.items() if name in {"href", "src"}]
    assert all(link.startswith(("#", "data:,")) for link in links)
    assert "url(" not in text
    assert "@import" not in text
    policy = next(attrs for tag, attrs in written.elements if tag == "meta" and "http-equiv" in attrs)
    assert policy["content"].startswith("default-src 'none'")


def test_every_event_is_in_the_table_and_in_the_picture():
    story = story_of(*LIFE)
    timeline = events(story)
    table = Page(_page(story)).table("Every event in order")
    assert len(table.rows) - 1 == len(timeline)
    assert [row[5] for row in table.rows[1:]] == [event.outcome for event in timeline]
    assert len(re.findall("<title>", swimlane(timeline))) == len(timeline) + swimlane(timeline).count("not to scale")
    assert f"{len(timeline)} events over " in swimlane(timeline)
    assert "begin ≈ 2026-11-21 11:20:09.012 UTC" in swimlane(timeline)
    assert "1 event over " in swimlane(events(story_of(pub())))


def test_card_shows_every_fact():
    text = Page(_page(story_of(*LIFE))).text
    assert re.search(r"delivery 2: success .*? retry 1 request id R2 ", text)
    for phrase in (
        *("broker-a:10911", "Trans_Msg_Half", "EXCEPTION", "TIME_OUT", "committed on check", "COMMIT_MESSAGE", "R2"),
        *("delivery 2: success", "no SubAfter in the trace", "no SubBefore in the trace", "DefaultRegion"),
        "RMQ_SYS_TRACE_TOPIC 0@4 #0",
    ):
        assert phrase in text


@pytest.mark.parametrize("field", ["topic", "tags", "keys", "store_host", "group_name", "offset_msg_id", "msg_id"])
def test_hostile_text_stays_text(field):
    value = "x" + EVIL
    delivery = consume("R", T0, group=EVIL)[:1] if field == "group_name" else []
    messages = landed(pub(**{field: value}), *delivery, extra=f"{EVIL}\x02".encode())
    written = page(answer_of(messages, value if field == "msg_id" else ID))
    assert "alert(1)" in Page(written).text
    assert Page(written).scripts == []
    assert not [tag for tag, _ in Page(written).elements if tag in {"script", "img"}]
    assert not set(written) & {"\x1b", "\u202e"}


def test_several_messages_are_listed_with_links_to_them():
    stories = [story_of(pub(msg_id=msg_id), msg_id=msg_id) for msg_id in ("A1", "B2", "C3")]
    written = Page(_page(*stories, left_off=2, remarks=("something could not be read",), pages=2, total=5))
    assert len(written.ids) == len(set(written.ids))
    targets = {attrs["href"][1:] for tag, attrs in written.elements if tag == "a"}
    assert targets == {"main", "m0", "m1", "m2"}
    assert targets <= set(written.ids)
    assert "3 messages" in written.text
    assert "Page 1 of 2, 5 messages; 2 older messages: --page 2" in written.text
    assert "something could not be read" in written.text


def _both(answer):
    written = io.StringIO()
    print_answer(answer, console=Console(file=written, width=200))
    return " ".join(written.getvalue().split()), " ".join(Page(page(answer)).text.split())


def test_message_is_told_in_the_same_words_on_a_terminal_and_on_a_page():
    late = context(TraceType.SUB_AFTER, None, request_id="R", success=False)
    sent, *others = [*landed(*LIFE, extra=b"x\x02"), *landed(late, dialect="4.4.0")]
    for told in _both(answer_of([sent, again(sent, offset=99), *others], ID)):
        for phrase in (
            *(f"trace id of mqtrace forward {trace_id_of(ID)}", "Timeline from 2026-11-21 11:20:00.000 UTC"),
            *("transaction committed after 1 check", "The last delivery to an unknown group failed."),
            *("14 bad records beside this message's: their content is lost.", "14 records and 1 repeat of them"),
            *("undecided", "committed on check", "≈ +9,012 ms", "Sent by shop", "Consumed by an unknown group"),
        ):
            assert phrase in told
        assert told.count("14 bad records beside this message's") > 1


def test_list_has_the_same_heads_and_rows_on_a_terminal_and_on_a_page():
    answer = answer_of(landed(pub(), *consume("R1", T0 + 50, success=False), pub(T0 + 9, msg_id="OTHER")), ID, "OTHER")
    terminal, _ = _both(answer)
    heads, *rows = Page(page(answer)).table("Messages, newest first").rows
    assert terminal.lower().startswith(" ".join(heads).lower())
    assert [row[4] for row in rows] == ["send success", "send success", "consume failed"]
    for row in rows:
        assert " ".join(row) in terminal


def test_message_without_any_time_has_a_page():
    story = story_of(context(TraceType.SUB_AFTER, None, request_id="R", success=True), dialect="4.4.0")
    assert [told.count("Timeline from") for told in _both(Answer((story,), 0, Searched(where="a shelf")))] == [0, 0]
    written = Page(_page(story))
    assert "lanes" not in [attrs.get("class") for tag, attrs in written.elements if tag == "svg"]
    assert len(written.table("Every event in order").rows) == 2


def test_long_pause_is_cut_short_and_labelled():
    scale = scale_spans([(0, 20), (600_000, 600_030)], left=0, width=800)
    assert len(scale.gaps) == 1
    assert scale.x(20) - scale.x(0) > 200
    assert "10 min" in swimlane(events(story_of(pub(), *consume("R", T0 + 600_010))))


def test_bars_and_their_words_never_overlap():
    def bar(from_ms, words=""):
        return Bar(from_ms=from_ms, until_ms=from_ms + 100, colour="", words=words, title="")

    bars = [bar(0, "billing"), bar(50), bar(120), bar(300)]
    rows = pack_rows(bars, scale_spans((bar.span for bar in bars), left=0, width=400))
    assert [[bar.from_ms for bar in row] for row in rows] == [[0, 300], [50], [120]]


def test_content_policy_allows_only_the_digests_of_the_page():
    policy = content_policy("a{}", "go()")
    assert policy != content_policy("a{}", "gone()")
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert "script-src" not in content_policy("a{}")
