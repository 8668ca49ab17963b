"""Render the files that a finished run leaves for people and programs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from spark_jobs.report.headline import describe_verdict
from spark_jobs.report.html import render_page
from spark_jobs.report.prometheus import render_metrics
from spark_jobs.report.result import RESULT_FILE
from spark_jobs.report.summary import render_summary
from spark_jobs.report.templating import environment
from spark_jobs.report.wording import number
from spark_jobs.taxonomy import ExitCode, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spark_jobs.report.result import Gate, Result, SideInputs

_ELEMENT: Final = {Outcome.FAIL.value: "failure", Outcome.INCONCLUSIVE.value: "skipped"}


@dataclass(frozen=True, slots=True)
class _Case:
    name: str
    element: str  # failure, error, skipped, or empty for a test that passed
    message: str
    output: str


def render_junit(result: Result) -> str:
    """Return the suite: a failed gate is a failure with value and threshold, an inconclusive one is skipped.

    A run that does not balance (exit code 3) or is inconclusive (exit code 4) adds an error, so that it never looks
    green.
    """
    cases = [_case(gate) for gate in result.gates]
    if result.exit_code == ExitCode.INCONCLUSIVE:
        cases.append(_Case("conclusive", "error", "the run is inconclusive", describe_verdict(result)))
    if not result.conservation.holds or result.exit_code == ExitCode.IDENTITY_BROKEN:
        equations = f"native: {result.conservation.native}; OTLP: {result.conservation.otlp}"
        cases.append(_Case("conservation", "error", "the counts do not balance", equations))
    counts = {name: sum(case.element == name for case in cases) for name in ("failure", "error", "skipped")}
    page = environment().get_template("junit.xml.j2")
    return page.render(result=result, cases=cases, counts=counts)


def _case(gate: Gate) -> _Case:
    message = f"{gate.name} is {number(gate.value)}, must be {gate.op} {number(gate.threshold)}"
    output = f"{gate.outcome}: {message}. {gate.explanation}".strip()
    return _Case(gate.name, _ELEMENT.get(gate.outcome, ""), message, output)


def render_reports(result: Result, *, link_template: str | None = None, sources: Iterable[str] = ()) -> dict[str, str]:
    """Return the text of every report by file name, ``result.json`` last.

    ``link_template`` is that of the page. The reports for people show paths relative to ``sources``, the user's
    arguments.
    """
    readable = _shorten_paths(result, sources)
    return {
        "report.html": render_page(readable, link_template),
        "summary.md": render_summary(readable),
        "junit.xml": render_junit(readable),
        "metrics.prom": render_metrics(result),
        RESULT_FILE: result.dumps(),
    }


# -- paths as the user gave them, without the folders of this machine --------------------------------------------------
_MAGIC: Final = frozenset("*?[")


def _shorten_paths(result: Result, sources: Iterable[str]) -> Result:
    """Return ``result`` with every path relative to ``sources``, the arguments of the user."""
    roots = _find_roots(sources)

    def shorten_side(fields: Any) -> Any:
        return {**fields, "path": shorten_path(fields["path"], roots)} if fields and fields.get("path") else fields

    def shorten_inputs(side: SideInputs) -> SideInputs:
        return replace(side, sources=tuple(shorten_path(source, roots) for source in side.sources))

    def shorten_beginning(text: str) -> str:
        found = (f"{shown}{text[len(root) :]}" for root, shown in roots if text.startswith((f"{root}/", f"{root} ")))
        return next(found, text)

    native, otlp = result.inputs.native, result.inputs.otlp
    ledger = result.ledger
    return replace(
        result,
        inputs=replace(result.inputs, native=shorten_inputs(native), otlp=shorten_inputs(otlp)),
        doubt=result.doubt and shorten_beginning(result.doubt),
        malformed=tuple(replace(bad, path=shorten_path(bad.path, roots)) for bad in result.malformed),
        samples=tuple(
            replace(one, native=shorten_side(one.native), otlp=shorten_side(one.otlp)) for one in result.samples
        ),
        ledger=ledger and replace(ledger, files=tuple(shorten_path(file, roots) for file in ledger.files)),
    )


def shorten_path(path: str, roots: Iterable[tuple[str, str]]) -> str:
    """Return ``path`` below the shown name of its root; a path under no root keeps its last two parts.

    ``roots`` are (absolute path, shown name). Addresses such as ``kafka://`` and ``s3a://`` are returned unchanged.
    """
    local = path.removeprefix("file://")
    if not local.startswith("/"):
        return path
    for root, shown in roots:
        if local == root or local.startswith(f"{root.rstrip('/')}/"):
            return str(Path(shown, local[len(root) :].lstrip("/")))
    return str(Path("…", *Path(local).parts[1:][-2:]))


def _find_roots(sources: Iterable[str]) -> list[tuple[str, str]]:
    """Return each local argument resolved, with its shown name, the longest first.

    A relative argument is shown as the user wrote it, of an absolute one its last part.
    """
    roots = {}
    for source in sources:
        path = Path(source.removeprefix("file://"))
        if "://" in str(source) and not source.startswith("file://"):
            continue
        fixed = next((at for at, part in enumerate(path.parts) if _MAGIC & set(part)), None)
        if fixed is not None and not path.exists():
            path = Path(*path.parts[:fixed])
        roots[str(path.resolve())] = path.name if path.is_absolute() else str(path)
    return sorted(roots.items(), key=lambda root: -len(root[0]))
