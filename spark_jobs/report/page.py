"""This module knows how ``report.html`` is put together: one file, no request, readable without script and style."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from markupsafe import Markup

from bridge.page.palette import SLATE
from bridge.page.sheet import content_policy, style_sheet
from spark_jobs.report import palette
from spark_jobs.report.headline import headline
from spark_jobs.report.samples import NONE_SHOWN, by_turns, fitting, once
from spark_jobs.report.sections import parts, swatch_of
from spark_jobs.report.svg.shapes import sign
from spark_jobs.report.templating import environment, template_text

if TYPE_CHECKING:
    from spark_jobs.report.result import Result
    from spark_jobs.report.samples import Shown

__all__ = ["HEAVY_PAGE_BYTES", "MOST_SAMPLES", "PageOptions", "render_page"]

HEAVY_PAGE_BYTES: Final = 5_000_000
"""From here on browsers take seconds to open a page: whoever asked for so much is warned."""

_MOST_BYTES, _MOST_BYTES_EVER = 1_500_000, 10_000_000
MOST_SAMPLES: Final = 400
"""Samples laid open unless more are asked for."""

_STRATA: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOptions:
    """How large a page may be, and where its samples link to.

    Attributes:
        samples: events laid open at most; what does not fit into the page is left out and counted.
        link_template: an address with ``links.LINK_FIELDS`` in braces, or ``None``.
    """

    samples: int = MOST_SAMPLES
    link_template: str | None = None

    @property
    def most_bytes(self) -> int:
        """What a browser opens at once and a mail still takes; more only where more samples were asked for."""
        return _MOST_BYTES if self.samples <= MOST_SAMPLES else _MOST_BYTES_EVER


def render_page(result: Result, options: PageOptions | None = None, *, most_bytes: int | None = None) -> str:
    """Return the whole page, at most ``most_bytes`` of UTF-8 as long as its fixed part fits in them.

    Samples give way, numbers never do.
    """
    asked = options or PageOptions()
    bare = _page(result, NONE_SHOWN)
    per_stratum = max(asked.samples // _STRATA, 1)
    chosen = by_turns(once(result.samples), at_most=asked.samples, per_stratum=per_stratum)
    room = (most_bytes or asked.most_bytes) - len(bare.encode("utf-8", "backslashreplace")) - 10_000
    shown = fitting(chosen, result.lives, room_bytes=room, swatch=swatch_of, link_template=asked.link_template)
    return _page(result, shown) if shown.count else bare


def _page(result: Result, shown: Shown) -> str:
    style, script = style_sheet("spark_jobs.report", "templates/style.css"), template_text("page.js")
    return (
        environment()
        .get_template("page.html.j2")
        .render(
            head=headline(result),
            sign=sign(result.verdict, palette.VERDICT_COLOUR.get(result.verdict, SLATE)),
            style=Markup(style),  # noqa: S704 - our own file
            script=Markup(script),  # noqa: S704 - our own file
            policy=content_policy(style, script),
            parts=parts(result, shown),
        )
    )
