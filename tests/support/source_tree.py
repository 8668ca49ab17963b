"""The repository as text: which files are ours, and how each function in them measures."""

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("otel_mqtrace", "bridge", "spark_jobs")
_LEFT_OUT = {
    *(".git", ".venv", "build", "dist", "__pycache__", ".hypothesis", ".mypy_cache", ".ruff_cache", ".pytest_cache"),
    *(".import_linter_cache", "spark-warehouse", "metastore_db", "mqtrace-landing", "mqtrace-demo"),
}


@dataclass(frozen=True, slots=True)
class Function:
    """One function or method as it stands in the source; ``qualified`` is ``module.py:Class.name``."""

    path: Path
    qualified: str
    lines: int
    public: bool
    documented: bool
    unannotated: tuple[str, ...]


@cache
def all_files() -> tuple[Path, ...]:
    """Every file of the repository that is neither made nor installed."""
    found = (path for path in ROOT.rglob("*") if not _LEFT_OUT & set(path.relative_to(ROOT).parts))
    return tuple(sorted(path for path in found if path.is_file() and ".egg-info" not in str(path)))


@cache
def shipped() -> tuple[Path, ...]:
    """Every Python file of the three packages."""
    return tuple(path for path in all_files() if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in PACKAGES)


@cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def name_of(path: Path) -> str:
    """A file as its path in the repository."""
    return path.relative_to(ROOT).as_posix()


def line_count(path: Path) -> int:
    """Lines of a file, blank ones included."""
    return len(path.read_text(encoding="utf-8").splitlines())


@cache
def functions_of(path: Path) -> list[Function]:
    """Every function in a file, nested ones included."""
    return list(_walk(path, tree_of(path), prefix="", public=True))


def _walk(path: Path, node: ast.AST, *, prefix: str, public: bool):
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            shown = public and not child.name.startswith("_")
            if not isinstance(child, ast.ClassDef):
                yield _measure(path, child, f"{prefix}{child.name}", public=shown)
                shown = False
            yield from _walk(path, child, prefix=f"{prefix}{child.name}.", public=shown)
        else:
            yield from _walk(path, child, prefix=prefix, public=public)


def _measure(path: Path, node: ast.FunctionDef | ast.AsyncFunctionDef, name: str, *, public: bool) -> Function:
    every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    every += [extra for extra in (node.args.vararg, node.args.kwarg) if extra]
    bare = [argument.arg for argument in every if argument.annotation is None and argument.arg not in {"self", "cls"}]
    bare += [] if node.returns else ["return"]
    decorators = {ast.unparse(decorator).split(".")[-1] for decorator in node.decorator_list}
    return Function(
        path=path,
        qualified=f"{name_of(path)}:{name}",
        lines=(node.end_lineno or node.lineno) - node.lineno + 1,
        public=public and not decorators & {"overload", "override"},
        documented=ast.get_docstring(node) is not None,
        unannotated=tuple(bare),
    )
