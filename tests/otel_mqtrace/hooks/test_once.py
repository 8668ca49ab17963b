"""What only one thread may do, when all come at the same moment."""

from __future__ import annotations

import threading

from otel_mqtrace.hooks.guard import OnceFlag


def test_of_many_threads_one_takes_it():
    taken = []
    rounds = [OnceFlag() for _ in range(200)]
    ready = threading.Barrier(4)

    def take_all():
        ready.wait()
        taken.extend(number for number, once in enumerate(rounds) if once.try_set())

    threads = [threading.Thread(target=take_all) for _ in range(4)]
    assert not any(once.is_set for once in rounds)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(200))
    assert all(once.is_set and not once.try_set() for once in rounds)
