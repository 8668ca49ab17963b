"""The page in a real browser: Chromium with and without script, and under the strictest policy a CI viewer sets."""

import json
import re
import shutil
import subprocess

import pytest

from spark_jobs.report.page import render_page
from spark_jobs.report.palette import LIGHT_PAGE, OUTCOME_COLOUR, VERDICT_COLOUR
from spark_jobs.report.render import write_reports
from tests.support.html_page import Page
from tests.support.png import colours
from tests.support.results import result

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH: the report was not opened in a browser"),
]
SECTIONS = (
    "balance",
    "gates",
    "statuses",
    "reasons",
    "timeline",
    "groups",
    "fields",
    "latency",
    "malformed",
    "samples",
)


@pytest.fixture
def browser(tmp_path):
    """Run Chromium on a file and return its standard output and error; ``script=False`` forbids scripts by its settings."""

    def run(target, *options, script=True):
        profile = tmp_path / f"profile-{script}"
        (profile / "Default").mkdir(parents=True, exist_ok=True)
        if not script:
            settings = {"profile": {"default_content_setting_values": {"javascript": 2}}}
            (profile / "Default" / "Preferences").write_text(json.dumps(settings))
        command = [
            *(CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
            *(
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                "--disable-dev-shm-usage",
            ),
            *(f"--user-data-dir={profile}", "--enable-logging=stderr", *options, target),
        ]
        done = subprocess.run(command, capture_output=True, timeout=120, check=True)
        return done.stdout.decode(), done.stderr.decode()

    return run


@pytest.fixture
def report(tmp_path):
    return write_reports(result(), tmp_path / "out")["report.html"]


def console(log):
    """What the page itself complained about."""
    return [line for line in log.splitlines() if ":CONSOLE" in line]


def test_the_page_opens_and_its_script_offers_a_search(browser, report):
    """Verdict and every section are in the document; the filter shows itself; nothing is refused or thrown."""
    dom, log = browser(report.as_uri(), "--dump-dom")
    read = Page(dom)
    assert "FAIL" in read.text
    assert set(SECTIONS) <= set(read.ids)
    (form,) = [attrs for tag, attrs in read.elements if tag == "form"]
    assert "hidden" not in form
    assert "9 of 9" in read.text
    assert not console(log)


def test_without_script_the_page_is_complete(browser, report, tmp_path):
    """With scripts forbidden every word is there, the page is drawn, and no search field pretends to work."""
    dom, _ = browser(report.as_uri(), "--dump-dom", script=False)
    read = Page(dom)
    assert "hidden" in next(attrs for tag, attrs in read.elements if tag == "form")
    assert read.text == Page(report.read_text(encoding="utf-8")).text
    assert set(SECTIONS) <= set(read.ids)
    picture = tmp_path / "plain.png"
    browser(report.as_uri(), f"--screenshot={picture}", "--window-size=900,700", script=False)
    seen = colours(picture)
    assert seen[LIGHT_PAGE] > 300_000
    assert seen[VERDICT_COLOUR["FAIL"]] > 500


def test_a_link_opens_the_sample_of_its_message(browser, report):
    """report.html#msg=… leads straight to the evidence."""
    wanted = result().samples[2].verdict["msg_id"]
    dom, _ = browser(f"{report.as_uri()}#msg={wanted}", "--dump-dom")
    opened = [attrs for tag, attrs in Page(dom).elements if tag == "details" and "open" in attrs]
    assert [attrs["data-id"] for attrs in opened] == [wanted]


def test_under_a_policy_that_blocks_script_and_style_the_drawings_keep_their_colours(browser, report, tmp_path):
    """Jenkins' default: nothing inline. The words stay, and the picture still has green, red and blue in it."""
    strict = report.read_text(encoding="utf-8")
    policy = "<meta http-equiv=\"Content-Security-Policy\" content=\"sandbox; default-src 'none'; img-src 'self';\">"
    strict = re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', policy, strict)
    bare = tmp_path / "strict.html"
    bare.write_text(strict, encoding="utf-8")
    dom, _ = browser(bare.as_uri(), "--dump-dom")
    read = Page(dom)
    assert "hidden" in next(attrs for tag, attrs in read.elements if tag == "form")
    assert read.text == Page(report.read_text(encoding="utf-8")).text
    picture = tmp_path / "strict.png"
    browser(bare.as_uri(), f"--screenshot={picture}", "--window-size=700,1500")
    seen = colours(picture)
    assert seen["#ffffff"] > 300_000  # the style sheet is off
    assert seen[VERDICT_COLOUR["FAIL"]] > 500
    assert seen[OUTCOME_COLOUR["pass"]] > 50


@pytest.mark.parametrize("width", [500, 1280])
def test_the_page_never_scrolls_sideways(browser, report, tmp_path, width):
    """Wide tables scroll inside their own box; the page itself fits a phone and a desk."""
    probe = "<script>document.title='W'+document.documentElement.scrollWidth+'/'+innerWidth</script></body>"
    text = re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', "", report.read_text(encoding="utf-8"))
    text = text.replace("<details", "<details open").replace("</body>", probe)
    measured = tmp_path / "measured.html"
    measured.write_text(text, encoding="utf-8")
    dom, _ = browser(measured.as_uri(), "--dump-dom", f"--window-size={width},900")
    needed, there = map(int, re.search(r"<title>W(\d+)/(\d+)", dom).groups())
    assert needed <= there


def test_an_injected_script_does_not_run(browser, tmp_path):
    """Even if escaping failed, the page's own policy knows the digest of one script only."""
    evil = tmp_path / "evil.html"
    evil.write_text(
        render_page(result()).replace("</main>", "<script>document.title='OWNED'</script></main>"), encoding="utf-8"
    )
    dom, log = browser(evil.as_uri(), "--dump-dom")
    assert "<title>FAIL" in dom
    assert any("Content Security Policy" in line for line in console(log))
