"""A story is readable in a terminal of any width."""

import io

import pytest
from rich.console import Console

from bridge.page.wording import duration, offset, utc, visible
from bridge.query.search import Answer, Searched
from bridge.query.terminal import nothing_found, print_answer
from otel_mqtrace.model import ContextCode
from tests.support.archives import ID, T0, answer_of, consume, landed, pub, story_of

STORY = story_of(
    pub(success=False, offset_msg_id="", cost_ms=3000, group_name="the-producer-group"),
    pub(T0 + 3000, group_name="the-producer-group"),
    *consume("R1", T0 + 3050, group="the-consumer-group", success=False, code=ContextCode.EXCEPTION),
    *consume("R2", T0 + 603_050, group="the-consumer-group", retry=1),
)


def _printed(width, *stories, terminal=True, **of_answer):
    written = io.StringIO()
    searched = Searched(where="a shelf", messages=4, remarks=of_answer.pop("remarks", ()))
    answer = Answer(stories, of_answer.pop("left_off", 0), searched, **of_answer)
    options = {"force_terminal": True, "color_system": None} if terminal else {}
    print_answer(answer, console=Console(file=written, width=width, **options))
    return written.getvalue()


@pytest.mark.parametrize("width", [40, 60, 76, 100, 140])
def test_no_line_is_wider_than_the_terminal_and_nothing_is_cut(width):
    out = _printed(width, STORY)
    assert max(map(len, out.splitlines())) <= width
    assert "…" not in out
    packed = "".join(out.replace("│", "").split())
    for word in ("failed,EXCEPTION", "+10.1min", "the-consumer-group", "broker:10911"):
        assert word in packed or width < 100


def test_at_a_hundred_columns_every_event_is_one_line():
    lines = [" ".join(line.split()) for line in _printed(100, STORY).splitlines()]
    assert "0 send the-producer-group 3,000 ms ✗ failed" in lines
    assert "+3,050 ms consume the-consumer-group 5 ms ✗ failed, EXCEPTION" in lines
    assert "+10.1 min consume (delivery 2) the-consumer-group 5 ms ✓ success" in lines


def test_omitted_and_unreadable_records_are_reported():
    remarks = ("part-1.jsonl, line 2: no landed message",)
    out = _printed(100, STORY, terminal=False, left_off=3, remarks=remarks, pages=4, total=4)
    assert "Page 1 of 4, 4 messages; 3 older messages: --page 2" in out
    assert "part-1.jsonl, line 2" in out


def test_bad_records_beyond_ten_are_counted_and_where_they_are_is_said():
    (story,) = answer_of(landed(pub(), extra=b"x\x02" * 13), ID).stories
    assert "and 3 more: --html and --json have them" in _printed(100, story)


def test_invisible_characters_are_escaped_and_long_texts_marked():
    assert visible("a\x1b\n\u202e\u200b\U000e0041b") == "a⟨U+001B⟩⟨U+000A⟩⟨U+202E⟩⟨U+200B⟩⟨U+E0041⟩b"
    assert visible("x" * 9, limit=5) == "xxxxx… (9 characters)"


def test_times_are_formatted_for_people():
    assert [duration(ms) for ms in (None, 0, 31, 9_110, 12_000, 90_000, 5_400_000, 200_000_000)] == [
        *("—", "< 1 ms", "31 ms", "9,110 ms", "12 s", "1.5 min", "1.5 h", "2.3 d")
    ]
    assert [offset(ms) for ms in (None, 0, 31)] == ["—", "0", "+31 ms"]
    dates = ["1969-12-31 23:59:59.999 UTC", "2026-11-21 11:20:00.000 UTC"]
    assert [utc(ms) for ms in (None, -1, T0, 10**18)] == ["—", *dates, f"{10**18} ms"]


def test_pipe_gets_no_frames_and_whole_lines():
    out = _printed(40, STORY, terminal=False)
    assert not set("│├└─") & set(out)
    [delivery] = [line for line in out.splitlines() if line.startswith("    delivery 2")]
    assert "request id R2" in delivery


def test_nothing_found_counts_the_remarks_it_leaves_out():
    searched = Searched(where="a landing", messages=4, remarks=("one file was cut off", "other", "other"))
    assert " one file was cut off, and 2 more remarks; " in nothing_found(Answer((), 0, searched))
