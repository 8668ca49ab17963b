"""The pages in a real browser: with and without script, offline, dark, narrow, printed, under a CI viewer's policy."""

import re
from pathlib import Path

import pytest

from bridge.page.markup import DARK_PAGE, LIGHT_PAGE
from bridge.query.html import page
from bridge.query.search import Answer, Searched
from spark_jobs.report.glossary import OUTCOME_COLOUR, VERDICT_COLOUR
from spark_jobs.report.graph_files import render_graph_page
from spark_jobs.report.html import render_page
from tests.spark_jobs.report.browser import CHROMIUM, axe_source, chromium, findings
from tests.support.archives import LIFE, story_of
from tests.support.html_page import Page
from tests.support.results import graph, result

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="NO CHROMIUM ON PATH: NO PAGE WAS OPENED IN A BROWSER"),
]
PICTURES = Path(__file__).parents[3] / "build" / "screenshots"
SECTIONS = set(re.findall(r'<section id="(\w+)"', render_page(result())))
TEXT = "document.body.innerText"


def answered():
    return page(
        Answer((story_of(*LIFE),), 0, Searched(where="a landing", messages=9, remarks=("one file was cut off",)))
    )


PAGES = {
    "report": lambda: render_page(result()),
    "query": answered,
    "graph": lambda: render_graph_page(graph()),
}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    PICTURES.mkdir(parents=True, exist_ok=True)
    with chromium(tmp_path_factory.mktemp("chromium")) as started:
        yield started


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    directory = tmp_path_factory.mktemp("pages")
    for name, text in PAGES.items():
        (directory / f"{name}.html").write_text(text(), encoding="utf-8")
    return {name: (directory / f"{name}.html").as_uri() for name in PAGES}


@pytest.fixture
def report(pages):
    return pages["report"]


def opened(tab):
    return tab.ask("[...document.querySelectorAll('.sample[open]')].map(sample => sample.dataset.id)")


def shown(tab):
    return tab.ask("document.querySelectorAll('.sample:not([hidden])').length")


def type_in(tab, selector, text):
    tab.ask(f"document.querySelector('{selector}').focus()")
    tab.call("Input.insertText", text=text)


def test_report_opens_offline_with_a_search(browser, report):
    with browser.tab(report) as tab:
        assert tab.ask("document.querySelector('h1').innerText").strip() == "FAIL"
        assert set(tab.ask("[...document.querySelectorAll('section')].map(one => one.id)")) == SECTIONS
        assert tab.ask("document.getElementById('filters').hidden") is False
        assert tab.ask("document.querySelector('#samples .more').open") is False
        assert "9 of 9" in tab.ask(TEXT)
        assert (tab.requests(), tab.complaints()) == ([], [])


def test_report_is_complete_without_script(browser, report):
    whole = Page(render_page(result())).text
    with browser.tab(report, script=False) as tab:
        dom = tab.ask("document.documentElement.outerHTML")
        assert Page(dom).text == whole
        assert tab.ask("document.getElementById('filters').hidden") is True
        seen = tab.colours(PICTURES / "report-no-script.png", most_height=300)
    assert seen[LIGHT_PAGE] > 200_000
    assert seen[VERDICT_COLOUR["FAIL"]] > 500


def test_link_opens_the_sample_of_its_message(browser, report):
    wanted = result().samples[2].verdict["msg_id"]
    with browser.tab(f"{report}#msg={wanted}") as tab:
        assert opened(tab) == [wanted]
        assert tab.ask("document.querySelector('.sample[open] .here').getAttribute('href')") == f"#msg={wanted}"
    with browser.tab(report) as tab:
        tab.ask("document.querySelector('#latency a').click()")
        tab.ask("new Promise(done => setTimeout(done))")
        assert opened(tab) == [wanted]


def test_search_and_filters_show_matching_samples(browser, report):
    with browser.tab(report) as tab:
        type_in(tab, "#find", "4bf92f3577b34da6")
        assert shown(tab) == 6  # three have no span
        tab.ask("document.querySelector('[data-by=finding]').value = 'Differs'")
        tab.ask("document.querySelector('[data-by=finding]').dispatchEvent(new Event('input', {bubbles: true}))")
        assert shown(tab) == 1
        tab.ask("document.querySelector('[type=reset]').click()")
        tab.ask("new Promise(done => setTimeout(done))")
        assert shown(tab) == 9
        assert tab.ask("[...document.querySelector('[data-by=group]').options].map(one => one.text)") == [
            *("all", "billing", "orders-out")
        ]
        type_in(tab, "#find", "nobody")
        assert "0 of 9: not among the samples" in tab.ask("document.getElementById('found').innerText")


def test_report_can_be_used_without_a_mouse(browser, report):
    with browser.tab(report) as tab:
        tab.press("Tab", code=9)
        assert tab.ask("document.activeElement.innerText") == "Skip to the report"
        assert tab.ask("document.activeElement.getBoundingClientRect().left") >= 0
        tab.ask("document.querySelector('.sample summary').focus()")
        tab.press("Enter", code=13, text="\r")
        assert len(opened(tab)) == 1
        tab.press("Tab", code=9)
        assert tab.ask("document.activeElement.innerText") in {"Copy message id", "Link to this event"}
        assert tab.ask("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_drawings_keep_their_colours_without_script_and_style(browser, tmp_path):
    """Jenkins' default: nothing inline. The words stay, and the picture still has green and red in it."""
    policy = "<meta http-equiv=\"Content-Security-Policy\" content=\"sandbox; default-src 'none'; img-src 'self';\">"
    strict = re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', policy, render_page(result()))
    bare = tmp_path / "strict.html"
    bare.write_text(strict, encoding="utf-8")
    with browser.tab(bare.as_uri(), script=False, width=700) as tab:
        assert Page(tab.ask("document.documentElement.outerHTML")).text == Page(strict).text
        seen = tab.colours(PICTURES / "report-blocked.png", most_height=1900)
    assert seen["#ffffff"] > 300_000  # the style sheet is off
    assert seen[VERDICT_COLOUR["FAIL"]] > 500
    assert seen[OUTCOME_COLOUR["pass"]] > 50


@pytest.mark.parametrize("name", PAGES)
def test_page_is_accessible_and_legible_in_light_dark_narrow_and_print(browser, pages, name):
    source = axe_source()
    with browser.tab(pages[name]) as tab:
        tab.picture(PICTURES / f"{name}-light.png", most_height=5000)
        tab.ask("document.querySelectorAll('details').forEach(one => { one.open = true })")
        assert findings(tab, source) == []
        tab.show_as(dark=True)
        assert findings(tab, source) == []
        assert tab.colours(PICTURES / f"{name}-dark.png", most_height=260)[DARK_PAGE] > 150_000
        tab.show_as(dark=True, media="print")
        assert tab.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert tab.pdf(PICTURES / f"{name}.pdf").read_bytes().startswith(b"%PDF-")
        tab.show_as()
        tab.resize(375)
        assert tab.ask("document.documentElement.scrollWidth") <= 375
        tab.picture(PICTURES / f"{name}-narrow.png", most_height=4000)
        assert (tab.requests(), tab.complaints()) == ([], [])


def test_axe_reports_known_faults(browser, tmp_path):
    """A judge that cannot say no proves nothing: a picture without words and grey on grey are both told."""
    poor = tmp_path / "poor.html"
    poor.write_text("<title>t</title><img src='data:,'><p style='color:#999;background:#aaa'>grey", encoding="utf-8")
    with browser.tab(poor.as_uri()) as tab:
        report = " ".join(findings(tab, axe_source()))
    assert "image-alt" in report
    assert "color-contrast" in report


@pytest.mark.parametrize("name", ["report", "graph"])
def test_section_is_at_most_ten_screens_of_a_phone(browser, pages, name):
    with browser.tab(pages[name], width=390) as tab:
        heights = "[...document.querySelectorAll('header,section')].map(one => one.getBoundingClientRect().height)"
        assert max(tab.ask(heights)) < 8000
        assert tab.ask("Math.max(0, ...[...document.querySelectorAll('nav')].map(one => one.offsetHeight))") <= 50
        assert tab.ask("getComputedStyle(document.querySelector('.scroll')).backgroundImage").count("gradient") == 4


def test_first_screen_has_the_counts_and_the_timeline(browser, report):
    with browser.tab(report, width=1280) as tab:
        ends = "['.meaning', '.steps', '#timeline svg.wide'].map(one => document.querySelector(one).getBoundingClientRect())"
        assert tab.ask(f"{ends}.map(one => one.bottom)") == sorted(tab.ask(f"{ends}.map(one => one.bottom)"))
        assert tab.ask(f"{ends}.pop().bottom") <= 900


def test_injected_script_does_not_run(browser, tmp_path):
    """Even if escaping failed, the page's own policy knows the digest of one script only."""
    evil = tmp_path / "evil.html"
    broken = render_page(result()).replace("</main>", "<script>document.title='OWNED'</script></main>")
    evil.write_text(broken, encoding="utf-8")
    with browser.tab(evil.as_uri()) as tab:
        assert tab.ask("document.title").startswith("FAIL")
        assert any("Content Security Policy" in complaint for complaint in tab.complaints())
