"""The options of a run, and every check of them that needs no reading of the input."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from otel_mqtrace._errors import UsageError
from otel_mqtrace.client_properties import read_properties
from spark_jobs.jobs.reading import ReadOptions, check_inputs
from spark_jobs.jobs.writers import find_writers
from spark_jobs.judging import evidence
from spark_jobs.policy.policy import Policy, read_open_policy, with_grace
from spark_jobs.policy.profiles import AUTO
from spark_jobs.session import DEFAULT_DRIVER_MEMORY, check_start, choose_engine, configure_stores

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from bridge.storage import AnyPath
    from spark_jobs.exchange.engine import Engine
    from spark_jobs.report.result import Result
    from spark_jobs.schemas import LedgerRead


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileOptions:
    """The options of a run, or of a graph.

    Attributes:
        native, otlp, ledger: sources as on the command line.
        grace_ms: ``None`` takes that of the policy.
        is_complete: nothing more will arrive.
        begin_ms, end_ms: the window in epoch milliseconds, both included; a key belongs to it if its start does.
        samples: events in the report, at most.
        engine: ``spark`` or ``local``; ``None`` takes Spark where it can run.
        master: ``None`` takes that of ``spark-submit`` or ``SPARK_REMOTE``, else this machine.
        conf: further settings of Spark.
        history: the directory that carries open keys from run to run; ``None`` keeps none.
    """

    native: tuple[str, ...] = ()
    otlp: tuple[str, ...] = ()
    out: AnyPath
    policy: AnyPath | None = None
    profile: str = AUTO
    native_writer: str = AUTO
    grace_ms: int | None = None
    is_complete: bool = False
    begin_ms: int | None = None
    end_ms: int | None = None
    strict: bool = False
    engine: str | None = None
    master: str | None = None
    driver_memory: str = DEFAULT_DRIVER_MEMORY
    conf: Mapping[str, str] = field(default_factory=dict)
    msg_type_map: str = "a"
    otlp_format: str | None = None
    charset: str = "utf-8"
    client_config: Path | None = None
    samples: int = evidence.TOTAL
    history: AnyPath | None = None
    ledger: tuple[str, ...] = ()

    def choose_engine(self, *, stream: bool = False, has_session: bool = False) -> tuple[str, str | None]:
        """Return the engine of a run with these options, as :func:`spark_jobs.session.choose_engine`."""
        return choose_engine(
            self.engine,
            master=self.master,
            conf=self.conf,
            driver_memory=self.driver_memory,
            stream=stream,
            has_session=has_session,
        )

    def configure_stores(self) -> None:
        """Open stores with the settings of ``conf``; an unknown one is refused by its option."""
        sources = {"--native": self.native, "--otlp": self.otlp, "--ledger": self.ledger}
        places: dict[str, list[Any]] = {"--policy": [self.policy], "--out": [self.out], "--history": [self.history]}
        configure_stores(self.conf, {**sources, **places})


def no_progress(_stage: str) -> None:
    """Report no progress."""


def no_report(_result: Result, _engine: Engine) -> None:
    """Write no report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The options of a run with both writers, its policy, and the reason for each detected writer.

    ``is_settled`` is false while a writer is a default that further input may prove wrong.
    """

    options: ReconcileOptions
    policy: Policy
    reasons: Mapping[str, str]
    is_settled: bool


def check_options(options: ReconcileOptions, known: Mapping[str, tuple[str, str]] = MappingProxyType({})) -> Chosen:
    """Check the options and sources before Spark starts, and choose the writers.

    Args:
        options: what to reconcile, and how.
        known: see :func:`choose`.
    """
    _policy(options)
    if options.engine != "local":
        check_start(master=options.master, driver_memory=options.driver_memory)
    return choose(options, known)


def choose(options: ReconcileOptions, known: Mapping[str, tuple[str, str]] = MappingProxyType({})) -> Chosen:
    """Check the sources, and detect the writers that the options leave open.

    ``known`` are writers chosen before, each with its reason, by ``profile`` and ``native_writer``.

    Raises:
        UsageError: a source or an option is wrong, or the input does not show a writer.
        UnreadableInputError, PeerError: as :func:`spark_jobs.jobs.reading.check_inputs`.
    """
    given = {"profile": options.profile, "native_writer": options.native_writer}
    left = [name for name, value in given.items() if value == AUTO]
    kept = {name: known[name] for name in left if name in known}
    named = {**given, **{name: value for name, (value, _) in kept.items()}}
    how = read_options_of(options)
    native, otlp = check_inputs(options.native, options.otlp, how)
    found = find_writers(native, otlp, how, **named)
    reasons = {**{name: why for name, (_, why) in kept.items()}, **found.reasons}
    settled = replace(options, profile=found.profile, native_writer=found.native_writer)
    policy = replace(_policy(settled), writer_evidence=tuple(reasons[name] for name in left if name in reasons))
    return Chosen(options=settled, policy=policy, reasons=reasons, is_settled=reasons.keys() >= set(left))


def read_losses(options: ReconcileOptions) -> LedgerRead | None:
    """Read the ledgers the options name; ``None`` when they name none."""
    if not options.ledger:
        return None
    from spark_jobs.sources.ledger import read_ledgers  # noqa: PLC0415  (prometheus_client: every worker loads this module)

    return read_ledgers(options.ledger)


def read_options_of(options: ReconcileOptions) -> ReadOptions:
    """Return how to read both sides."""
    return ReadOptions(
        native_writer=options.native_writer,
        msg_type_map=options.msg_type_map,
        charset=options.charset,
        otlp_format=options.otlp_format,
        client_config={} if options.client_config is None else read_properties(options.client_config),
    )


def _policy(options: ReconcileOptions) -> Policy:
    policy, _ = read_open_policy(options.policy, profile=options.profile, native_writer=options.native_writer)
    return apply_options(policy, options)


def apply_options(policy: Policy, options: ReconcileOptions) -> Policy:
    """Return the policy with the grace, window and strictness of the options.

    Raises:
        UsageError: the options contradict one another.
    """
    if None not in (options.begin_ms, options.end_ms) and options.begin_ms > options.end_ms:  # type: ignore[operator]
        raise UsageError("--begin is later than --end: swap them")
    policy = with_grace(policy, options.grace_ms, is_complete=options.is_complete)
    return replace(policy, begin_ms=options.begin_ms, end_ms=options.end_ms, strict=options.strict)
