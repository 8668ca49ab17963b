"""File systems that only Hadoop knows: a mount table of it over a directory of this machine, through a real JVM."""

from __future__ import annotations

import pytest

from bridge.addresses import Kind, parse_address
from bridge.storage import as_path, copy_files, list_files, move_tree, remove_tree, replace_tree, use_settings
from bridge.storage.stores import open_store
from otel_mqtrace._errors import UsageError


@pytest.fixture(scope="module")
def mounted(tmp_path_factory):
    """A directory under a name of Hadoop's, and where it really is."""
    real = tmp_path_factory.mktemp("mounted")
    use_settings({"fs.viewfs.mounttable.nowhere.link./traces": real.as_uri()})
    yield as_path("viewfs://nowhere/traces"), real
    use_settings({})


def test_file_is_written_whole_read_by_ranges_and_replaced(mounted):
    root, real = mounted
    content = bytes(range(256)) * 40_000  # 10 MB: several pieces
    (root / "a" / "file").write_bytes(content)
    assert (real / "a" / "file").read_bytes() == content == (root / "a" / "file").read_bytes()
    with (root / "a" / "file").open() as file:
        file.seek(5_000_000)
        assert file.read(10) == content[5_000_000:5_000_010]
    (root / "a" / "file").write_text("less")
    assert (root / "a" / "file").read_text() == "less"
    assert [path.name for path in (root / "a").iterdir()] == ["file"]


def test_directories_are_listed_copied_moved_and_removed(mounted):
    root, _ = mounted
    (root / "b" / "x" / "one").write_text("1")
    copy_files({root / "b" / "x" / "one": root / "b" / "two"})
    assert sorted(str(path) for path in (root / "b").rglob("*")) == [
        f"{root}/b/{name}" for name in ("two", "x", "x/one")
    ]
    assert ((root / "b").is_dir(), (root / "b" / "two").is_file(), (root / "b" / "two").stat().st_size) == (
        True,
        True,
        1,
    )
    move_tree(root / "b", root / "c")
    assert sorted(path.name for path in root.glob("c/**/*") if path.is_file()) == ["one", "two"]
    remove_tree(root / "c")
    assert not (root / "c").exists()
    with pytest.raises(FileNotFoundError):
        (root / "c" / "two").read_bytes()


def test_replaced_tree_is_what_the_last_run_wrote(mounted):
    root, _ = mounted
    for name in ("first", "second"):
        (root / "work" / f"{name}.parquet").write_text(name)
        replace_tree(root / "work", root / "verdicts", spare=root / "spare")
        remove_tree(root / "work")
        (file,) = list_files(root / "verdicts")
        assert as_path(file).read_text() == name


def test_unknown_scheme_is_refused_in_one_line(mounted):
    assert parse_address("nowhere://host/x").kind is Kind.FILES  # Hadoop is asked once it is opened
    with pytest.raises(UsageError, match=r'Hadoop cannot open nowhere://host .*No FileSystem for scheme "nowhere"'):
        open_store("nowhere", "host")
