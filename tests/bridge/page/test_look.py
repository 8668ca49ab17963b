"""The look every page shares: contrast of its texts and hues, as WCAG 2.1 AA asks for it."""

from importlib.resources import files

import pytest

from bridge.page import markup

HUES = [name for name, hue in vars(markup).items() if name.isupper() and str(hue).startswith("#")]


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


def _themes():
    style = (files("bridge.page") / "templates" / "style.css").read_text(encoding="utf-8").replace("\n", "")
    blocks = (block.split("}")[0] for block in style.split(":root{")[1:3])
    return [dict(pair.split(":") for pair in block.split(";") if pair.startswith("--")) for block in blocks]


THEMES = _themes()


@pytest.mark.parametrize("name", HUES)
@pytest.mark.parametrize("theme", THEMES, ids=("light", "dark"))
def test_hue_is_visible(name, theme):
    assert contrast(getattr(markup, name), theme["--page"]) >= 3


@pytest.mark.parametrize("theme", THEMES, ids=("light", "dark"))
def test_text_is_legible(theme):
    for ink in ("--ink", "--quiet", "--link", "--pass", "--warn", "--fail", "--inconclusive"):
        for ground in ("--page", "--card", "--tint"):
            assert contrast(theme[ink], theme[ground]) >= 4.5, (ink, ground)
    assert contrast(theme["--ink"], theme["--mark"]) >= 4.5
