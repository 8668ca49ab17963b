"""Paths as the user gave them, without the folders of the machine that ran the job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spark_jobs.report.result import Result, SideInputs

__all__ = ["shorten_path", "shorten_paths"]

_MAGIC = frozenset("*?[")


def shorten_paths(result: Result, sources: Iterable[str]) -> Result:
    """Return ``result`` for readers: every path of its inputs relative to ``sources``, the user's own arguments."""
    roots = _find_roots(sources)

    def shorten_side(fields: Any) -> Any:
        return {**fields, "path": shorten_path(fields["path"], roots)} if fields and fields.get("path") else fields

    def shorten_inputs(side: SideInputs) -> SideInputs:
        return replace(side, sources=tuple(shorten_path(source, roots) for source in side.sources))

    native, otlp = result.inputs.native, result.inputs.otlp
    ledger = result.ledger
    return replace(
        result,
        inputs=replace(result.inputs, native=shorten_inputs(native), otlp=shorten_inputs(otlp)),
        malformed=tuple(replace(bad, path=shorten_path(bad.path, roots)) for bad in result.malformed),
        samples=tuple(
            replace(one, native=shorten_side(one.native), otlp=shorten_side(one.otlp)) for one in result.samples
        ),
        ledger=ledger and replace(ledger, files=tuple(shorten_path(file, roots) for file in ledger.files)),
    )


def shorten_path(path: str, roots: Iterable[tuple[str, str]]) -> str:
    """Return ``path`` from the argument on that it was found under; a path under none of them keeps its last two parts.

    ``roots`` are (absolute path, what to write for it). A relative argument stays as the user wrote it, of an absolute
    one the last part remains. Addresses such as ``kafka://`` and ``s3a://`` are returned unchanged.
    """
    local = path.removeprefix("file://")
    if not local.startswith("/"):
        return path
    for root, shown in roots:
        if local == root or local.startswith(f"{root.rstrip('/')}/"):
            return str(Path(shown, local[len(root) :].lstrip("/")))
    return str(Path("…", *Path(local).parts[1:][-2:]))


def _find_roots(sources: Iterable[str]) -> list[tuple[str, str]]:
    """Return the folder or file of each local argument, resolved as the reader resolves it, the longest first."""
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
