"""The pages in a real browser: with and without script, offline, dark, narrow, printed, under a CI viewer's policy."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from bridge.query.html import page
from bridge.query.search import Answer, Searched
from spark_jobs.report.glossary import OUTCOME_COLOUR, VERDICT_COLOUR
from spark_jobs.report.graph_files import render_graph_page
from spark_jobs.report.html import render_page
from tests.support.archives import LIFE, story_of
from tests.support.html_page import Page
from tests.support.programs import run_program
from tests.support.results import graph, result

CHROMIUM: Final = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chromium-headless-shell"))), None
)
_OPTIONS: Final = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
    *("--remote-debugging-pipe", "--host-resolver-rules=MAP * ~NOTFOUND", "about:blank"),
)
_AXE_VERSION: Final = "4.14.1"
_KEPT: Final = Path(__file__).parents[2] / "build" / "npm"
_RULES: Final = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")


@contextmanager
def chromium(profile: Path) -> Iterator[DevTools]:
    """Start a browser that can reach no host at all, and end it behind the block."""
    commands, say = os.pipe()
    hear, answers = os.pipe()
    on_pipe = f'exec "$@" 3</dev/fd/{commands} 4>/dev/fd/{answers}'  # where Chromium expects the two ends of the pipe
    started = ["/bin/sh", "-c", on_pipe, "sh", CHROMIUM, f"--user-data-dir={profile}", *_OPTIONS]
    quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    with subprocess.Popen(started, pass_fds=(commands, answers), **quiet):
        os.close(commands)
        os.close(answers)
        with os.fdopen(say, "wb", buffering=0) as speaking, os.fdopen(hear, "rb") as listening:
            browser = DevTools(speaking, messages_of(listening))
            try:
                yield browser
            finally:
                browser.call("Browser.close")


def messages_of(listening: Any) -> Iterator[dict[str, Any]]:
    rest = b""
    while True:
        while b"\0" not in rest:
            piece = listening.read1(1 << 20)
            assert piece, "Chromium has gone"
            rest += piece
        whole, _, rest = rest.partition(b"\0")
        yield json.loads(whole)


@dataclass
class DevTools:
    """A browser, or with a ``session`` one open page of it; all share the pipe and the ``events`` that came over it."""

    speaking: Any
    messages: Iterator[dict[str, Any]]
    session: str | None = None
    events: list[dict[str, Any]] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        own = {"sessionId": self.session} if self.session else {}
        asked = {"id": next(self.numbers), "method": method, "params": params, **own}
        self.speaking.write(json.dumps(asked).encode() + b"\0")
        while (message := next(self.messages)).get("id") != asked["id"]:
            self.events.append(message)
        assert "error" not in message, f"{method}: {message['error']}"
        return message["result"]

    def events_of(self, method: str) -> list[dict[str, Any]]:
        named = {"method": method, "sessionId": self.session}
        return [event["params"] for event in self.events if event.items() >= named.items()]

    @contextmanager
    def tab(self, url: str, *, width: int = 1280, script: bool = True) -> Iterator[DevTools]:
        """Open ``url`` offline, in light colours, and close it after the block."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        tab = replace(self, session=self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        for domain in ("Page", "Runtime", "Log", "Network"):
            tab.call(f"{domain}.enable")
        tab.call("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0)
        tab.call("Emulation.setScriptExecutionDisabled", value=not script)
        tab.show_as()
        tab.resize(width)
        tab.call("Page.navigate", url=url)
        while not tab.events_of("Page.loadEventFired"):
            self.events.append(next(self.messages))
        try:
            yield tab
        finally:
            self.call("Target.closeTarget", targetId=target)

    def show_as(self, *, dark: bool = False, media: str = "screen") -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        still = {"name": "prefers-reduced-motion", "value": "reduce"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme, still])

    def resize(self, width: int) -> None:
        """Give the window this width; a narrow one is a phone."""
        phone = {"deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, **phone)

    def ask(self, expression: str) -> Any:
        """Return what a JavaScript expression (or promise) comes to; works where the page's scripts are off, too."""
        asked = {"expression": expression, "returnByValue": True, "awaitPromise": True, "userGesture": True}
        reply = self.call("Runtime.evaluate", **asked)
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    def colour(self, selector: str, style: str) -> str:
        painted = self.ask(f"getComputedStyle(document.querySelector({json.dumps(selector)})).{style}")
        return "#" + bytes(map(int, re.findall(r"\d+", painted)[:3])).hex()

    def press(self, key: str, *, code: int, text: str = "") -> None:
        named = {"key": key, "code": key, "windowsVirtualKeyCode": code, **({"text": text} if text else {})}
        self.call("Input.dispatchKeyEvent", type="keyDown", **named)
        self.call("Input.dispatchKeyEvent", type="keyUp", **named)

    def requests(self) -> list[str]:
        self.ask("1")
        asked = self.events_of("Network.requestWillBeSent")
        urls = [each["request"]["url"] for each in asked if each["type"] != "Document"]
        return [url for url in urls if not url.startswith("data:")]

    def complaints(self) -> list[str]:
        self.ask("1")
        methods = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")
        return [str(event) for method in methods for event in self.events_of(method)]


def axe_source() -> str:
    """Return axe-core, fetched once by npm into ``build/``; skip loudly without it."""
    package = _KEPT / f"axe-core-{_AXE_VERSION}.tgz"
    if not package.exists():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("no npm on PATH: NO PAGE WAS JUDGED by axe-core")
        _KEPT.mkdir(parents=True, exist_ok=True)
        fetched = [npm, "pack", f"axe-core@{_AXE_VERSION}", "--silent", "--pack-destination", str(_KEPT)]
        done = run_program(*fetched)
        if done.returncode or not package.exists():
            pytest.skip(f"npm could not fetch axe-core, NO PAGE WAS JUDGED: {done.stderr.strip()[-200:]}")
    with tarfile.open(package) as archive:
        return archive.extractfile("package/axe.min.js").read().decode()


def findings(tab: DevTools, source: str) -> list[str]:
    tab.ask(f"{source};0")
    asked = json.dumps({"runOnly": {"type": "tag", "values": _RULES}, "resultTypes": ["violations"]})
    violations = tab.ask(f"axe.run(document, {asked}).then(found => JSON.stringify(found.violations))")
    return [
        f"{each['impact']} {each['id']}: {each['help']}: {[node['html'][:160] for node in each['nodes'][:3]]}"
        for each in json.loads(violations)
        if each["impact"] in {"serious", "critical"}
    ]


pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="NO CHROMIUM ON PATH: NO PAGE WAS OPENED IN A BROWSER"),
]
SECTIONS = set(re.findall(r'<section id="(\w+)"', render_page(result())))
TEXT = "document.body.innerText"
SEARCHED = Searched(where="a landing", messages=9, remarks=("one file was cut off",))
PAGES = {
    "report": lambda: render_page(result()),
    "query": lambda: page(Answer((story_of(*LIFE),), 0, SEARCHED)),
    "graph": lambda: render_graph_page(graph()),
}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
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
        assert Page(tab.ask("document.documentElement.outerHTML")).text == whole
        assert tab.ask("document.getElementById('filters').hidden") is True
        assert tab.colour("body", "backgroundColor") == "#fcfcfb"


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
        assert tab.colour("body", "backgroundColor") == "#000000"  # transparent: the style sheet is off
        fills = {
            tab.colour(f"svg [fill='{colour}']", "fill") for colour in (VERDICT_COLOUR["FAIL"], OUTCOME_COLOUR["pass"])
        }
    assert fills == {VERDICT_COLOUR["FAIL"], OUTCOME_COLOUR["pass"]}


@pytest.mark.parametrize("name", PAGES)
def test_page_is_accessible_and_legible_in_light_dark_narrow_and_print(browser, pages, name):
    source = axe_source()
    with browser.tab(pages[name]) as tab:
        tab.ask("document.querySelectorAll('details').forEach(one => { one.open = true })")
        assert findings(tab, source) == []
        tab.show_as(dark=True)
        assert findings(tab, source) == []
        assert tab.colour("body", "backgroundColor") == "#14181d"
        tab.show_as(dark=True, media="print")
        assert tab.colour("body", "backgroundColor") == "#ffffff"
        tab.show_as()
        tab.resize(375)
        assert tab.ask("document.documentElement.scrollWidth") <= 375
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
