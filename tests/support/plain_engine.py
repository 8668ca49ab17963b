"""An engine that runs every task in this process, one after the other, through pickle as a real one does."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


class PlainEngine:
    """``spark_jobs.exchange.engine.Engine`` without processes."""

    name = "plain"
    bucket_rows = 32_000

    def __init__(self, parallelism: int = 2) -> None:
        self.parallelism = parallelism

    def prepare(self, module: str, tasks: int) -> None:
        assert tasks >= 0, module

    def map(self, function: Callable[[Any], Any], tasks: Sequence[Any], *, merge: Any = None) -> list[Any]:
        return [sent(sent(function)(sent(task))) for task in tasks]

    def exchange(
        self,
        pack: Callable[[Any], Iterable[tuple[int, bytes]]],
        tasks: Sequence[Any],
        receive: Callable[[int, Iterator[bytes]], Any],
        buckets: int,
    ) -> list[Any]:
        held: dict[int, list[bytes]] = {}
        for task in tasks:
            for bucket, blob in sent(pack)(sent(task)):
                assert 0 <= bucket < buckets
                held.setdefault(bucket, []).append(blob)
        return [sent(sent(receive)(bucket, iter(held[bucket]))) for bucket in sorted(held)]


def sent(value: Any) -> Any:
    """Return a value as the other side of a pipe has it."""
    return pickle.loads(pickle.dumps(value))
