"""Files wherever they lie: on this machine, in an object store, in HDFS."""

from bridge.storage.locks import LOCK_FILE, hold
from bridge.storage.paths import (
    ZSTD_MAGIC,
    AnyPath,
    DamagedInputError,
    InaccessibleInputError,
    StorePath,
    as_path,
    committed,
    list_files,
    make_directory,
    naming_damage,
    open_parquet,
    read_row_groups,
    refuse_compressed,
    remove_tree,
    replace_tree,
    sorted_glob,
)
from bridge.storage.stores import SCHEMES, can_use_hadoop, current_settings, javas, open_store, use_settings

__all__ = [
    "LOCK_FILE",
    "SCHEMES",
    "ZSTD_MAGIC",
    "AnyPath",
    "DamagedInputError",
    "InaccessibleInputError",
    "StorePath",
    "as_path",
    "can_use_hadoop",
    "committed",
    "current_settings",
    "hold",
    "javas",
    "list_files",
    "make_directory",
    "naming_damage",
    "open_parquet",
    "open_store",
    "read_row_groups",
    "refuse_compressed",
    "remove_tree",
    "replace_tree",
    "sorted_glob",
    "use_settings",
]
