"""Whatever stands in a key, a topic or a path is shown, and obeyed by nothing."""

import json
import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.report.files import render_junit
from spark_jobs.report.html import render_page
from spark_jobs.report.prometheus import render_metrics
from spark_jobs.report.result import Field, Gate, MalformedSample, Writers
from spark_jobs.report.summary import cell, render_summary
from spark_jobs.report.wording import visible
from tests.support.html_page import Page
from tests.support.results import groups, otlp_fields, result, sample, side_fields

HOSTILE = {
    "script": "<script>alert(1)</script>",
    "closing": "</script></style></title><img src=x onerror=alert(1)>",
    "quotes": "\"' onmouseover='alert(1)' x=\"",
    "comment": "<!-- --> ]]> <![CDATA[ &amp; &lt;",
    "line separator": "a\u2028b\u2029c",
    "right to left": "invoice\u202efdp.exe \u05d0\u05d1",
    "nul": "a\x00b\x01c\x1b[31m",
    "surrogate": "half \ud83d pair",
    "long": "x" * 10_240,
    "chinese": "订单-4711",
    "emoji": "🧾👩‍👩‍👧",
    "jinja": "{{ 7 * 7 }}{% raw %}",
    "markdown": "| a | [x](javascript:alert(1)) `code` @team #1 **b** _c_",
    "metrics": 'x"} 1\nforged{a="b\\',
}


def poisoned(text):
    """A result with ``text`` wherever text from outside may stand."""
    base = result()
    side, other = side_fields(topic=text, keys=[text, text], path=text), otlp_fields(topic=text, tags=text, path=text)
    verdicts = {"topic": "DIFFERENT", "keys": "DIFFERENT", text: "DIFFERENT"}
    evil = sample(
        1, topic=text, group=text, msg_id=text, reason_detail=text, native=side, otlp=other, field_verdicts=verdicts
    )
    return replace(
        base,
        writers=Writers(profile=text, native_writer=text, evidence=(text,)),
        reason_detail={text: 3},
        status_by_kind={**base.status_by_kind, text: {"MISMATCHED": 1}},
        fields=(Field(name=text, verdicts={"DIFFERENT": 2}, differing_pairs=((text, text, 2),)),),
        gates=(Gate(name=text, op="<=", threshold=0, value=1, outcome="fail", explanation=text),),
        conservation=replace(base.conservation, native=text, otlp=text),
        groups=tuple(replace(group, topic=text, group=text) for group in groups()),
        malformed=(
            MalformedSample(side="native", path=text, line=1, record_index=0, field=text, reason=text, text=text),
        ),
        samples=(evil,),
        versions={text: text},
        inputs=replace(base.inputs, native=replace(base.inputs.native, sources=(text,), layouts=(text,))),
        latency={text: base.latency["queue"]},
    )


@pytest.fixture(scope="module")
def harmless():
    return Page(render_page(poisoned("harmless")))


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_page_shows_untrusted_text_without_odd_characters_and_gains_no_element(harmless, text):
    written = render_page(poisoned(text))
    assert not re.search("[\x00-\x08\x0b-\x1f\u2028-\u202e\u2066-\u2069\ud800-\udfff]", written)
    hostile = Page(written)
    assert [tag for tag, _ in hostile.elements if tag not in {"mark", "tspan"}] == [
        tag for tag, _ in harmless.elements if tag not in {"mark", "tspan"}
    ]
    assert [sorted(attrs) for _, attrs in hostile.elements] == [sorted(attrs) for _, attrs in harmless.elements]
    assert hostile.scripts == harmless.scripts
    assert " ".join(visible(text, limit=80).split()) in hostile.text


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_files_stay_well_formed_with_untrusted_text(text):
    made = poisoned(text)
    suite = ET.fromstring(render_junit(made).encode())
    assert [case.get("name") for case in suite.iter("testcase")] == [visible(text)]
    for block in re.findall(r"(?:^\|.*\n)+", render_summary(made), re.MULTILINE):
        assert len({row.count("|") for row in block.splitlines()}) == 1, block
    written = made.dumps().encode("utf-8", "backslashreplace").decode()
    assert json.loads(written)["groups"][0]["topic"] == text
    lines = render_metrics(made).splitlines()
    label = r'[a-z_]+="(?:[^"\\\n]|\\["\\n])*"'
    sample_line = re.compile(rf"mqtrace_reconcile_\w+(?:\{{{label}(?:,{label})*\}})? -?[\d.e+-]+")
    assert len(lines) == len(render_metrics(poisoned("harmless")).splitlines())
    for line in lines:
        assert line.startswith("# ") or sample_line.fullmatch(line), line


@given(st.text(max_size=60))
def test_markdown_cell_has_no_markup(text):
    written = cell(text)
    assert not re.search(r"[|`*\[\]!~\\@\n]|:(?! )|<(?!=)|^>|>(?!=)", written)
    assert not re.search(r"&(?!#\d+;)", written)


def test_markdown_cell_leaves_a_plain_sentence_as_it_is():
    sentence = (
        'Is "a-b_c" late? Look up the samples\' positions; fix the clocks: the rate is 2 % (must be <= 0, or >= 1).'
    )
    assert cell(sentence) == sentence


@given(st.text(max_size=60))
def test_visible_text_is_legal_xml(text):
    element = ET.Element("t")
    element.text = visible(text)
    assert (ET.fromstring(ET.tostring(element)).text or "") == element.text
