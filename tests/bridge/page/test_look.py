"""The look every page shares: contrast of its texts and hues, one style sheet, one policy, and text that stays text."""

import re
from importlib.resources import files

import pytest
from markupsafe import Markup as ForeignMarkup

from bridge.page import markup
from bridge.page.markup import Markup, content_policy, element, joined, style_sheet

HUES = [
    name for name, hue in vars(markup).items() if name.isupper() and str(hue).startswith("#") and "PAGE" not in name
]


def contrast(one: str, other: str) -> float:
    """Return the ratio of two ``#rrggbb`` or ``#rgb`` colours, from 1 to 21."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    digits = colour.strip().lstrip("#")
    digits = "".join(digit * 2 for digit in digits) if len(digits) == 3 else digits
    channels = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("name", HUES)
def test_hue_can_be_seen_on_the_light_and_on_the_dark_page(name):
    for page in (markup.LIGHT_PAGE, markup.DARK_PAGE):
        assert contrast(getattr(markup, name), page) >= 3


def test_text_has_the_contrast_of_wcag_aa_in_light_and_dark():
    style = (files("bridge.page") / "templates" / "style.css").read_text(encoding="utf-8")
    light, dark = (
        dict(pair.split(":") for pair in block.split("}")[0].replace("\n", "").split(";") if pair.startswith("--"))
        for block in style.split(":root{")[1:3]
    )
    assert (light["--page"], dark["--page"]) == (markup.LIGHT_PAGE, markup.DARK_PAGE)
    for theme in (light, dark):
        for ink in ("--ink", "--quiet", "--link", "--pass", "--warn", "--fail", "--inconclusive"):
            for ground in ("--page", "--card", "--tint"):
                assert contrast(theme[ink], theme[ground]) >= 4.5, (ink, ground)
        assert contrast(theme["--ink"], theme["--mark"]) >= 4.5


@pytest.mark.parametrize("package", ["bridge.query", "spark_jobs.report"])
def test_page_defines_no_colour_of_its_own(package):
    whole = style_sheet(package)
    shared = (files("bridge.page") / "templates" / "style.css").read_text(encoding="utf-8")
    assert whole.startswith(shared)
    assert not re.search(
        r"#[0-9a-fA-F]{3,8}\b|rgb", whole.removeprefix(shared).replace("#filters", "").replace("#find", "")
    )
    assert not re.search(r"url\(|@import|https?:", whole)


def test_content_policy_allows_only_the_digests_of_the_page():
    policy = content_policy("a{}", "go()")
    assert policy != content_policy("a{}", "gone()")
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert "script-src" not in content_policy("a{}")


def test_markup_of_a_template_engine_is_markup():
    ours, theirs = element("b", "<x>"), ForeignMarkup("<i>y</i>")
    assert joined((ours, theirs, "<z>")) == "<b>&lt;x&gt;</b><i>y</i>&lt;z&gt;"
    assert ForeignMarkup("{}").format(ours) == "<b>&lt;x&gt;</b>"
    assert isinstance(ours, Markup)
