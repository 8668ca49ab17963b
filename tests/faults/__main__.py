"""The command ``python -m tests.faults``: play the corpora, print the proof, write it into the docs."""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.faults.baselines import baselines, tables
from tests.faults.confusion import compared, disagreements
from tests.faults.corpora import CORPORA
from tests.faults.runs import reconciled
from tests.faults.tables import filled_in, proof_blocks, rivals_table

PROOF = Path(__file__).resolve().parents[2] / "docs" / "reconciliation" / "proof.md"


def main() -> int:
    """Return 1 when a verdict is not what it should be."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="in which order the faults are played")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/reconciliation/proof.md")
    wanted = parser.parse_args()
    worlds, rivals = {}, {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, corpus in CORPORA.items():
            made = corpus(wanted.seed)
            worlds[name] = compared(made.truth, reconciled(made, Path(scratch) / name).rows)
            rivals[name] = baselines(*tables(made, Path(scratch) / f"{name}-tables"), made)
    blocks = {
        **proof_blocks(worlds),
        **{f"rivals-{name}": rivals_table(cells, rivals[name]) for name, cells in worlds.items()},
    }
    sys.stdout.write("\n".join(blocks.values()))
    wrong = [f"{name}: {line}" for name, cells in worlds.items() for line in disagreements(cells)]
    sys.stderr.writelines(f"{line}\n" for line in wrong)
    if wanted.write:
        PROOF.write_text(filled_in(PROOF.read_text(encoding="utf-8"), blocks), encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
