"""The repository as text: which files are ours, and their syntax trees."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("otel_mqtrace", "bridge", "spark_jobs")
_LEFT_OUT = {
    *(".git", "build", "dist", "__pycache__", ".hypothesis", ".mypy_cache", ".ruff_cache", ".pytest_cache"),
    *(".import_linter_cache", "spark-warehouse", "metastore_db", "mqtrace-landing", "mqtrace-demo"),
}


@cache
def all_files() -> tuple[Path, ...]:
    tops = (path for path in ROOT.iterdir() if not path.name.startswith(".venv"))  # make VENV=.venv312 makes another
    paths = (path for top in tops for path in (top, *top.rglob("*")) if not _LEFT_OUT & {*path.relative_to(ROOT).parts})
    return tuple(sorted(path for path in paths if path.is_file() and ".egg-info" not in str(path)))


@cache
def shipped() -> tuple[Path, ...]:
    return tuple(path for path in all_files() if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in PACKAGES)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def line_count(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())
