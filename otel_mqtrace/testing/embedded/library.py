"""confluent-kafka's librdkafka, and the C signatures of its mock cluster.

The Python client reaches the mock only through the property ``test.mock.num.brokers``, which can neither create topics
nor inject faults. The C functions (``rdkafka_mock.h``) can, and they are exported by the very library the wheel ships.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from ctypes import POINTER, c_char_p, c_int, c_int16, c_int32, c_size_t, c_void_p
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import confluent_kafka

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["find_librdkafka", "load_mock_api"]

_SIGNATURES: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "rd_kafka_conf_new": (c_void_p, ()),
    "rd_kafka_conf_set": (c_int, (c_void_p, c_char_p, c_char_p, c_char_p, c_size_t)),
    "rd_kafka_new": (c_void_p, (c_int, c_void_p, c_char_p, c_size_t)),
    "rd_kafka_destroy": (None, (c_void_p,)),
    "rd_kafka_err2str": (c_char_p, (c_int,)),
    "rd_kafka_mock_cluster_new": (c_void_p, (c_void_p, c_int)),
    "rd_kafka_mock_cluster_destroy": (None, (c_void_p,)),
    "rd_kafka_mock_cluster_bootstraps": (c_char_p, (c_void_p,)),
    "rd_kafka_mock_group_initial_rebalance_delay_ms": (None, (c_void_p, c_int32)),
    "rd_kafka_mock_topic_create": (c_int, (c_void_p, c_char_p, c_int, c_int)),
    "rd_kafka_mock_topic_set_error": (None, (c_void_p, c_char_p, c_int)),
    "rd_kafka_mock_push_request_errors_array": (None, (c_void_p, c_int16, c_size_t, POINTER(c_int))),
    "rd_kafka_mock_clear_request_errors": (None, (c_void_p, c_int16)),
    "rd_kafka_mock_broker_set_down": (c_int, (c_void_p, c_int32)),
    "rd_kafka_mock_broker_set_up": (c_int, (c_void_p, c_int32)),
    "rd_kafka_mock_broker_set_rtt": (c_int, (c_void_p, c_int32, c_int)),
}

_BUNDLE_PATTERNS: Final = (
    "../confluent_kafka.libs/librdkafka*.so*",  # Linux wheels
    "../confluent_kafka.libs/librdkafka*.dll",  # Windows wheels
    ".dylibs/librdkafka*.dylib",  # macOS wheels
)


def find_librdkafka() -> Iterator[str]:
    """Yield where librdkafka may be, best first: the wheel's copy, what this process has mapped, the system's."""
    package = Path(confluent_kafka.__file__).parent
    for pattern in _BUNDLE_PATTERNS:
        # Not resolved first: a virtual environment may link its packages from elsewhere.
        yield from (str(path) for path in sorted(package.parent.joinpath(package.name).glob(pattern)))
    mapped = Path("/proc/self/maps")
    if mapped.exists():
        lines = mapped.read_text(encoding="utf-8", errors="replace").splitlines()
        yield from sorted({line.split(maxsplit=5)[5] for line in lines if "/librdkafka" in line})
    system = ctypes.util.find_library("rdkafka")
    if system:
        yield system


def load_mock_api(paths: Iterable[str] | None = None) -> ctypes.CDLL | None:
    """Return the first librdkafka of ``paths`` that exports the whole mock interface, declared, else ``None``.

    Without ``paths``, everything that :func:`find_librdkafka` yields is tried.
    """
    for path in find_librdkafka() if paths is None else paths:
        try:
            library = ctypes.CDLL(path)
            for name, (result, arguments) in _SIGNATURES.items():
                function = getattr(library, name)
                function.restype, function.argtypes = result, list(arguments)
        except (OSError, AttributeError):
            continue
        return library
    return None
