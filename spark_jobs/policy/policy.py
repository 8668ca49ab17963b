"""The policy of a run: what it tolerates, read from a TOML file over the defaults, and printed."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

if sys.version_info >= (3, 11):
    import tomllib
else:  # the 'reconcile' extra brings the package the standard library's was made from
    import tomli as tomllib

from bridge.storage.paths import refuse_compressed, refuse_unconverted
from otel_mqtrace._clock import LAST_MS
from otel_mqtrace._errors import UnreadableInputError, UsageError
from spark_jobs.judging.plan import Plan, SideRule
from spark_jobs.policy.profiles import (
    AUTO,
    LACKING,
    MIXED,
    NATIVE_CARRIES,
    PROFILES,
    ByDesign,
    Profile,
    by_design_rules,
    is_kind,
    parse_native_writer,
)
from spark_jobs.policy.settings import (
    CRITICAL_FIELDS,
    DEFAULT_GATES,
    DISAGREEMENT,
    FieldRule,
    GateRule,
    SilentRule,
    Tolerances,
    WriterRule,
    settings_of,
    suggest,
    write_toml,
)
from spark_jobs.schemas import COMPARED_FIELDS, TIMED_FIELDS
from spark_jobs.taxonomy import FieldVerdict, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from bridge.storage.paths import AnyPath
    from spark_jobs.judging.facts import Facts
    from spark_jobs.judging.plan import Alone
    from spark_jobs.policy.settings import Setting

_Rule = TypeVar("_Rule", FieldRule, GateRule)
_MOST_BYTES: Final = 16 << 20
_FIELDS: Final = {name: FieldRule(severity="fail" if name in CRITICAL_FIELDS else "warn") for name in COMPARED_FIELDS}


def _is_silent(rule: SilentRule, key: Alone) -> bool:
    wanted = ((rule.topic, key.topic), (rule.group, key.group_name), (rule.service, key.service))
    return all(name is None or name == own for name, own in wanted)


def _declare(name: str, side: str, when: Callable[[Alone], bool]) -> ByDesign:
    return ByDesign(rule=f"policy_says_{name}", status=LACKING[side], when=when)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy(Tolerances):
    """Everything a run tolerates; durations in milliseconds.

    Where the sources mix writers, ``other`` holds the profile, the native writer and the tolerances for spans of the
    Java agent and records of RocketMQ; those here are then for ours.
    """

    profile: Profile = PROFILES["mqtrace"]
    native_writer: str = "mqtrace"
    writer_evidence: tuple[str, ...] = ()  # why these two were chosen, where no option named them
    fields: Mapping[str, FieldRule] = field(default_factory=lambda: dict(_FIELDS))
    gates: Mapping[str, GateRule] = field(default_factory=lambda: dict(DEFAULT_GATES))
    writers: tuple[WriterRule, ...] = ()
    silent: tuple[SilentRule, ...] = ()
    begin_ms: int | None = None
    end_ms: int | None = None
    strict: bool = False
    is_complete: bool = False  # nothing more will arrive: no key is pending
    other: Policy | None = None

    def tolerance(self, name: str) -> int:
        """Return the tolerance of a time field: the policy file's, else the profile's for this pair of writers."""
        is_one_object = name == "start_ms" and self.profile.name == self.native_writer == "mqtrace"
        given = self.fields[name].tolerance_ms
        return given if given is not None else 0 if is_one_object else self.profile.tolerance_ms

    @property
    def start_tolerance_ms(self) -> int:
        """The greatest tolerance of a start time for any pair of writers of this run."""
        return max(one.tolerance("start_ms") for one in (self, self.other) if one is not None)

    @property
    def writer_names(self) -> tuple[str, str]:
        """The names of the profile and of the native writer, two joined by ``+`` where they are mixed."""
        own = self.profile.name, self.native_writer
        if self.other is None:
            return own
        others = self.other.profile.name, self.other.native_writer
        profile, native_writer = (
            one if one == other else f"{one}{MIXED}{other}" for one, other in zip(own, others, strict=True)
        )
        return profile, native_writer

    def is_concerned_by(self, rule: ByDesign) -> bool:
        """Return whether a rule covers one of this run's pairs of writers."""
        others = self.other is not None and self.other.is_concerned_by(rule)
        return others or rule.holds(self.profile.name, self.native_writer)

    def judgement(self, name: str, verdict: str) -> str | None:
        """Return what a field's verdict means: ``ok``, ``warn``, ``fail``, or ``None`` where nothing was compared."""
        rule = self.fields[name]
        if rule.verdicts is not None and verdict in rule.verdicts:
            return rule.verdicts[verdict]
        missing = verdict == FieldVerdict.MISSING_OTLP.value and name in self.profile.tolerated
        if missing or verdict == FieldVerdict.NOT_COMPARABLE.value or rule.severity == "ignore":
            return None
        return rule.severity if verdict in DISAGREEMENT else "ok"

    def hide(self, text: str) -> str:
        """Return a text that may hold message keys, such as that of a damaged record, as it may be shown."""
        return text if self.mask_keys == "none" else self.mask_text

    def never_recorded(self, side: str) -> frozenset[str]:
        """Return the fields that this run's writer of ``side`` never records, by the file."""
        return frozenset(name for rule in self._writers() if rule.side == side for name in rule.never_fields)

    @property
    def declared(self) -> tuple[ByDesign, ...]:
        """The records that the policy file declares absent from a side, as rules of the capability matrix."""
        kinds = ((rule, kind) for rule in self._writers() for kind in rule.never)
        return (
            *(
                _declare(f"{rule.writer}_never_records_{kind}", rule.side, partial(is_kind, Kind(kind)))
                for rule, kind in kinds
            ),
            *(_declare("silent", rule.side, partial(_is_silent, rule)) for rule in self.silent),
        )

    def _writers(self) -> Iterable[WriterRule]:
        own = {"native": parse_native_writer(self.native_writer), "otlp": (self.profile.name, ())}
        for rule in self.writers:
            named, mine = parse_native_writer(rule.writer) or (rule.writer, ()), own[rule.side]
            if mine is not None and named[0] == mine[0] and mine[1][: len(named[1])] == named[1]:
                yield rule


def read_policy(path: AnyPath | None, *, profile: str = "mqtrace", native_writer: str = "mqtrace") -> Policy:
    """Return the policy in ``path`` over the defaults of ``profile``; a writer that is ``auto`` counts as ``mqtrace``.

    Raises:
        UsageError, UnreadableInputError: the file, or a name, is wrong.
    """
    profile, native_writer = ("mqtrace" if name == AUTO else name for name in (profile, native_writer))
    if MIXED in f"{profile}{native_writer}":
        return _read_mixed_policy(path, profile, native_writer)
    if profile not in PROFILES:
        raise UsageError(f"--profile '{profile}' is unknown; choose one of {', '.join(PROFILES)}, auto")
    if parse_native_writer(native_writer) is None:
        raise UsageError(
            f"--native-writer '{native_writer}' is unknown; write mqtrace, rocketmq, rocketmq-5.3.3 or auto"
        )
    policy = Policy(profile=PROFILES[profile], native_writer=native_writer)
    timed = {name: replace(policy.fields[name], tolerance_ms=policy.tolerance(name)) for name in TIMED_FIELDS}
    policy = replace(policy, fields={**policy.fields, **timed})
    return policy if path is None else _apply(policy, _load(path), str(path))


def _read_mixed_policy(path: AnyPath | None, profile: str, native_writer: str) -> Policy:
    (own_profile, _, other_profile), (own_writer, _, other_writer) = (
        text.partition(MIXED) for text in (profile, native_writer)
    )
    if (other_profile and own_profile != "mqtrace") or (other_writer and own_writer != "mqtrace"):
        raise UsageError(f"--profile '{profile}' --native-writer '{native_writer}': write mqtrace before the '{MIXED}'")
    other = read_policy(path, profile=other_profile or own_profile, native_writer=other_writer or own_writer)
    return replace(read_policy(path, profile=own_profile, native_writer=own_writer), other=other)


class OpenWriters(NamedTuple):
    """The profile and the native writer as options name them, and the time fields whose tolerance depends on them."""

    profile: str
    native_writer: str
    timed: frozenset[str]


def find_open_writers(path: AnyPath | None, *, profile: str, native_writer: str) -> OpenWriters:
    """Return what ``auto`` leaves open of the policy in ``path``; raise as :func:`read_policy`."""
    own = read_policy(path, profile=profile, native_writer=native_writer)
    other = read_policy(
        path,
        profile="java-agent" if profile == AUTO else profile,
        native_writer="rocketmq" if native_writer == AUTO else native_writer,
    )
    timed = frozenset(name for name in TIMED_FIELDS if own.tolerance(name) != other.tolerance(name))
    return OpenWriters(profile, native_writer, timed)


def with_limits(  # noqa: PLR0913 - the options of a run that override its policy
    policy: Policy,
    *,
    grace_ms: int | None = None,
    is_complete: bool = False,
    begin_ms: int | None = None,
    end_ms: int | None = None,
    strict: bool = False,
) -> Policy:
    """Return the policy with the grace, the window and the strictness that options name.

    Raises:
        UsageError: the options contradict one another.
    """
    if begin_ms is not None and end_ms is not None and begin_ms > end_ms:
        raise UsageError("--begin is later than --end: swap them")
    if is_complete and grace_ms is not None:
        raise UsageError("--complete and --grace exclude each other: --complete waits for no record; give one of them")
    grace_ms = 0 if is_complete else policy.grace_ms if grace_ms is None else grace_ms
    return replace(policy, grace_ms=grace_ms, is_complete=is_complete, begin_ms=begin_ms, end_ms=end_ms, strict=strict)


def _load(path: AnyPath) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:  # a device or pipe may have no end
            raise UsageError(f"--policy {path} has more than {_MOST_BYTES >> 20} MiB: name a TOML file")
        refuse_compressed(content, f"--policy {path}")
        refuse_unconverted(content, f"--policy {path}")
        return tomllib.loads(content.decode("utf-8-sig"))
    except OSError as error:
        raise UsageError(f"--policy {path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # TOML's and UTF-8's errors are ValueErrors, as that of 5,000 digits
        raise UnreadableInputError(f"--policy {path} is not valid TOML: {error}") from error


def _refuse_unknown(table: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    names = sorted(known)
    unknown = sorted(set(table) - set(names))
    if unknown:
        raise UsageError(f"{where}: unknown key '{unknown[0]}'{suggest(unknown[0], names)}; known: {', '.join(names)}")


def _apply(policy: Policy, wanted: Mapping[str, Any], where: str) -> Policy:
    keys = {setting.key for setting in settings_of(Tolerances)}
    _refuse_unknown(wanted, {*keys, "fields", "gates", "writers", "silent"}, where)
    scalars = {key: value for key, value in wanted.items() if key in keys}
    return replace(
        policy,
        **_read_values(scalars, settings_of(Tolerances), where, sign=":"),
        fields=_read_rules(policy.fields, "fields", wanted, where),
        gates=_read_rules(policy.gates, "gates", wanted, where),
        writers=tuple(_read_writers(wanted, where)),
        silent=tuple(_read_silences(wanted, where)),
    )


def _read_values(row: Mapping[str, Any], settings: Iterable[Setting], where: str, *, sign: str = "") -> dict[str, Any]:
    known = {setting.key: setting for setting in settings}
    _refuse_unknown(row, known, where)
    return {known[key].attribute: known[key].read(value, f"{where}{sign} {key}") for key, value in row.items()}


_EXAMPLES: Final = {"fields": "start_ms", "gates": "malformed", "writers": '"rocketmq-5.3.3"'}


def _read_tables(wanted: Mapping[str, Any], name: str, where: str) -> dict[str, dict[str, Any]]:
    table = wanted.get(name, {})
    if not isinstance(table, dict) or not all(isinstance(row, dict) for row in table.values()):
        raise UsageError(f"{where}: {name} must be tables, as in [{name}.{_EXAMPLES[name]}]")
    return table


def _read_rules(rules: Mapping[str, _Rule], table: str, wanted: Mapping[str, Any], where: str) -> dict[str, _Rule]:
    """Return the rules with what the tables ``[table.NAME]`` change of them."""
    rows = _read_tables(wanted, table, where)
    _refuse_unknown(rows, rules, f"{where}: [{table}]")
    changed: dict[str, Any] = dict(rules)
    for name, row in rows.items():
        keys = [each for each in settings_of(type(rules[name])) if name in TIMED_FIELDS or each.key != "tolerance_ms"]
        changed[name] = replace(changed[name], **_read_values(row, keys, f"{where}: [{table}.{name}]"))
    return changed


def _read_writers(wanted: Mapping[str, Any], where: str) -> Iterator[WriterRule]:
    for name, row in _read_tables(wanted, "writers", where).items():
        place = f'{where}: [writers."{name}"]'
        values = _read_values(row, settings_of(WriterRule), place)
        side = values.setdefault("side", "native" if parse_native_writer(name) else "otlp")
        if (parse_native_writer(name) is None) if side == "native" else (name not in PROFILES):
            known = f"mqtrace, rocketmq or rocketmq-5.3.3 (native), or one of {', '.join(PROFILES)} (otlp)"
            raise UsageError(f"{place}: no writer of the {side} side; write {known}")
        yield WriterRule(writer=name, **values)


def _read_silences(wanted: Mapping[str, Any], where: str) -> Iterator[SilentRule]:
    rows, place = wanted.get("silent", []), f"{where}: [[silent]]"
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UsageError(f"{where}: silent must be a list of tables, each headed [[silent]]")
    for row in rows:
        values = _read_values(row, settings_of(SilentRule), place)
        if "side" not in values or len(values) == 1:
            raise UsageError(f'{place}: write the side ("native" or "otlp") and a topic, group or service')
        if values["side"] == "otlp" and "service" in values:
            raise UsageError(f"{place}: native records, which show what otlp lacks, have no service; name its group")
        yield SilentRule(**values)


_NO_EXAMPLE: Final = ('# [writers."rocketmq-5.3.3"]', '# never = ["recall"]', '# never_fields = ["region_id"]')
_NO_SILENCE: Final = ("# [[silent]]", '# side = "otlp"', '# group = "nightly-batch"')
_COLUMN: Final = 34


def print_policy(policy: Policy, *, open_writers: OpenWriters | None = None) -> str:
    """Return the whole policy as TOML; what has no value stands as a comment with an example.

    ``open_writers`` are what a run's input decides; the policy's own writers count where it is absent.
    """
    return "\n".join(_lines(policy, open_writers=open_writers)) + "\n"


def hash_policy(policy: Policy) -> str:
    """Return SHA-256, in hex, of what decides: the policy without its comments, the writers, strictness."""
    lines = [line for line in _lines(policy, explained=False) if line and not line.startswith("#")]
    lines += [*policy.writer_names, str(policy.strict)]
    lines += ["complete"] if policy.is_complete else []
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _lines(policy: Policy, *, explained: bool = True, open_writers: OpenWriters | None = None) -> Iterator[str]:
    named = open_writers or OpenWriters(*policy.writer_names, frozenset())
    yield f"# --profile {named.profile} --native-writer {named.native_writer}"
    for setting in settings_of(Tolerances):
        yield _line(setting, getattr(policy, setting.attribute), description=explained)
    yield from _head("[fields.NAME]", FieldRule)
    for name in COMPARED_FIELDS:
        tolerance_ms = policy.tolerance(name) if name in TIMED_FIELDS and name not in named.timed else None
        yield from _table(f"[fields.{name}]", replace(policy.fields[name], tolerance_ms=tolerance_ms))
    yield from _head("[gates.NAME]", GateRule)
    for name, rule in policy.gates.items():
        yield from _table(f"[gates.{name}]", rule, description=f"{rule.explanation}: {rule.op} threshold")
    yield from _head('[writers."NAME"]', WriterRule)
    yield from () if policy.writers else _NO_EXAMPLE
    for writer in policy.writers:
        yield from _table(f"[writers.{write_toml(writer.writer)}]", writer)
    yield from _head("[[silent]]", SilentRule)
    yield from () if policy.silent else _NO_SILENCE
    for silent in policy.silent:
        yield from _table("[[silent]]", silent)


def _head(name: str, kind: type[Any]) -> Iterator[str]:
    yield ""
    yield f"# {name}"
    for setting in settings_of(kind):
        yield f"#   {setting.key}: {setting.description}"


def _table(head: str, rule: Any, *, description: str = "") -> Iterator[str]:
    yield ""
    yield f"{head}  # {description}" if description else head
    for setting in settings_of(type(rule)):
        if (value := getattr(rule, setting.attribute)) is not None:
            yield _line(setting, value)


def _line(setting: Setting, value: Any, *, description: bool = False) -> str:
    absent = value is None
    line = f"{'# ' if absent else ''}{setting.key} = {setting.example if absent else setting.write(value)}"
    return f"{line:<{_COLUMN}}  # {setting.description}" if description else line


# -- the plan of a run: its policy and what is known of its input, as plain data for the kernel ------------------------
def make_plan(policy: Policy, facts: Facts) -> Plan:
    """Return the plan of a run; if the policy calls the data complete, every believable time is before the horizon."""
    own = Plan(
        tolerance_ms={name: policy.tolerance(name) for name in TIMED_FIELDS},
        native_lacks=_find_lacking(policy, "native", NATIVE_CARRIES),
        otlp_lacks=_find_lacking(policy, "otlp", policy.profile.carries, policy.profile.may_carry),
        wrong={
            name: frozenset(
                verdict.value for verdict in FieldVerdict if policy.judgement(name, verdict.value) in {"warn", "fail"}
            )
            for name in COMPARED_FIELDS
        },
        side_rules=_side_rules(policy),
        late_after_ms=policy.late_after_ms,
        consume_timeout_ms=policy.consume_timeout_ms,
        value_length_limit=policy.value_length_limit,
        mask_keys=policy.mask_keys,
        mask_text=policy.mask_text,
        mask_salt=policy.mask_salt,
        begin_ms=policy.begin_ms,
        end_ms=policy.end_ms,
        data_end_ms=facts.data_end_ms,
        horizon_ms=LAST_MS if policy.is_complete and facts.horizon_ms is not None else facts.horizon_ms,
    )
    return own if policy.other is None else _mix(own, policy, policy.other)


def _side_rules(policy: Policy) -> tuple[SideRule, ...]:
    rules = (*by_design_rules(policy.profile.name, policy.native_writer), *policy.declared)
    return tuple(SideRule(rule.rule, rule.status.value, rule.when) for rule in rules if rule.when is not None)


def _holds_for(rule: SideRule, is_other: bool, key: Alone) -> bool:  # noqa: FBT001 - bound by partial()
    """Return whether a rule for the keys of ours, or for the others, holds."""
    return key.is_other is is_other and rule.holds(key)


def _mix(own: Plan, policy: Policy, other: Policy) -> Plan:
    """Return the plan of a run whose sources mix writers."""
    has_profiles = policy.profile is not other.profile
    # A field that the Java agent may leave out is nothing to compare: gates go by what our spans must have.
    carried = (other.profile.carries,) if has_profiles else (other.profile.carries, other.profile.may_carry)
    rules = ((each, is_other) for is_other, one in ((False, policy), (True, other)) for each in _side_rules(one))
    return replace(
        own,
        side_rules=tuple(rule._replace(holds=partial(_holds_for, rule, is_other)) for rule, is_other in rules),
        other=replace(
            own,
            tolerance_ms={name: other.tolerance(name) for name in TIMED_FIELDS},
            native_lacks=_find_lacking(other, "native", NATIVE_CARRIES),
            otlp_lacks=_find_lacking(other, "otlp", *carried),
        ),
        has_mixed_spans=has_profiles,
        are_spans_other=policy.profile.name != "mqtrace",
    )


def _find_lacking(policy: Policy, side: str, *carried: Mapping[Kind, frozenset[str]]) -> dict[str, frozenset[str]]:
    """Return per field the kinds for which this side's writer never records it."""
    never = policy.never_recorded(side)
    return {
        name: frozenset(
            kind.value for kind in Kind if name in never or not any(name in table.get(kind, ()) for table in carried)
        )
        for name in COMPARED_FIELDS
    }
