"""``report.html``: one file, no request, readable without script and style."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from markupsafe import Markup

from bridge.page.palette import SLATE
from bridge.page.sheet import content_policy, style_sheet
from spark_jobs.report import palette
from spark_jobs.report.headline import describe_scope, figures, meaning, parts
from spark_jobs.report.samples import NONE_SHOWN, by_turns, fitting, once
from spark_jobs.report.sections import anchor_of, sections
from spark_jobs.report.svg.shapes import sign
from spark_jobs.report.templating import environment, template_text
from spark_jobs.taxonomy import Status, Verdict

if TYPE_CHECKING:
    from collections.abc import Container

    from spark_jobs.report.result import Finding, Result
    from spark_jobs.report.samples import Shown

__all__ = ["HEAVY_PAGE_BYTES", "MOST_SAMPLES", "PageOptions", "render_page"]

HEAVY_PAGE_BYTES: Final = 5_000_000
"""From here on browsers take seconds to open a page; the command warns."""

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
    shown = fitting(chosen, result.lives, room_bytes=room, link_template=asked.link_template)
    return _page(result, shown) if shown.count else bare


def _page(result: Result, shown: Shown) -> str:
    style, script = style_sheet("spark_jobs.report", "templates/style.css"), template_text("page.js")
    written, found = sections(result, shown), parts(result)
    ids = {section.id for section in written}
    hrefs = [_href(part.target, shown, ids) for part in found]
    steps = {part.label: (href, part.step) for part, href in zip(found, hrefs, strict=True) if part.step}
    return (
        environment()
        .get_template("page.html.j2")
        .render(
            result=result,
            lead="" if found and result.verdict == Verdict.FAIL.value else meaning(result),
            parts=found,
            hrefs=hrefs,
            steps=steps,
            figures=figures(result),
            scope=describe_scope(result),
            sign=sign(result.verdict, palette.VERDICT_COLOUR.get(result.verdict, SLATE)),
            style=Markup(style),  # noqa: S704 - our own file
            script=Markup(script),  # noqa: S704 - our own file
            policy=content_policy(style, script),
            sections=written,
        )
    )


def _href(target: str | Finding, shown: Shown, ids: Container[str]) -> str:
    """Return the id of a section, or of the samples of a finding; without samples, of the table of findings."""
    if isinstance(target, str):
        return target
    if target[0] == Status.MALFORMED.value and "malformed" in ids:
        return "malformed"
    like = [found for found in shown.findings if found[0] == target[0] and target[1] in {None, found[1]}]
    return anchor_of(*like[0]) if like else "statuses"
