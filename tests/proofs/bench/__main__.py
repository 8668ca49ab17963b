"""The command ``python -m tests.proofs.bench`` (``make bench``).

``--page`` merges ``build/bench.json`` into ``docs/performance.json`` and writes ``docs/performance.md``.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from tests.proofs.bench import record
from tests.proofs.bench.page import format_row, make_page
from tests.proofs.bench.rows import Effort, Row
from tests.proofs.bench.sections import SECTIONS
from tests.support.source_tree import ROOT

FIGURES = ROOT / "build" / "bench.json"
KEPT, PAGE = ROOT / "docs" / "performance.json", ROOT / "docs" / "performance.md"
_QUICK = Effort(rounds=2, share=0.05, messages=2_000)


def main(words: Sequence[str] | None = None) -> int:
    """Measure and write ``build/bench.json``, or write the page from it; return 0."""
    chosen = _arguments(words)
    if chosen.page:
        kept, measured = record.read(KEPT), record.read(FIGURES)
        figures = record.merge_figures(kept, measured)
        for name in sorted(name for name in measured if figures[name] is not measured[name]):
            sys.stdout.write(f"not taken: {name}, a quick run, and a full one was measured before\n")
        record.write(KEPT, figures)
        PAGE.write_text(make_page(figures), encoding="utf-8")
        sys.stdout.write("written: docs/performance.json, docs/performance.md\n")
        return 0
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else every measured process compiles our modules again
    _measure(chosen)
    return 0


def _measure(chosen: argparse.Namespace) -> None:
    effort = _QUICK if chosen.quick else Effort(chosen.rounds, messages=chosen.messages)
    commit = record.commit()
    for name in chosen.only or [name for name, section in SECTIONS.items() if section.is_default]:
        sys.stdout.write(f"\n{SECTIONS[name].title}\n")
        sys.stdout.flush()
        limited = SECTIONS[name].limit_effort(effort)
        rows = SECTIONS[name].measure(limited)
        if rows:  # from-kafka returns none where no Kafka can be had
            code = commit if commit == record.commit() else f"{commit}, changed meanwhile"
            record.write(FIGURES, record.add_section(record.read(FIGURES), name, rows, limited, code))
        _print(rows)


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.proofs.bench", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, help="these sections, usual or not")
    parser.add_argument("--rounds", type=int, default=Effort().rounds)
    parser.add_argument(
        "--messages",
        type=int,
        default=0,
        help="of the day that the sections on Spark read (a multiple of 1000), or of the topics of from-kafka",
    )
    parser.add_argument("--quick", action="store_true", help="show that every section runs, with little work")
    parser.add_argument("--page", action="store_true", help="write docs/performance.md from what was measured")
    return parser.parse_args(words)


def _print(rows: Sequence[Row]) -> None:
    for row in rows:
        cells = format_row(row)
        sys.stdout.write(f"  {cells[0]} | {' | '.join(cell or '-' for cell in cells[1:])}\n")


if __name__ == "__main__":
    raise SystemExit(main())
