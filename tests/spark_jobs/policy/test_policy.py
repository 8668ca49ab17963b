"""The policy file: its content, and one line for each error in it."""

import sys

import pytest

from bridge.addresses import parse_duration_ms
from otel_mqtrace._errors import MqTraceError, UsageError
from spark_jobs.policy.policy import Policy, hash_policy, print_policy, read_policy
from spark_jobs.policy.profiles import NATIVE_CARRIES, PROFILES, by_design_rules
from spark_jobs.schemas import COMPARED_FIELDS
from spark_jobs.taxonomy import FieldVerdict

POLICY = "policy.toml"
pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="the standard library reads TOML since 3.11")


@pytest.fixture
def read(tmp_path):
    def read(text: str, **writers: str) -> Policy:
        (tmp_path / POLICY).write_text(text)
        return read_policy(tmp_path / POLICY, **writers)

    return read


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [("0", 0), ("250ms", 250), ("1.5h", 5_400_000), (" 2 d ", 172_800_000), ("36500d", 36_500 * 86_400_000)],
)
def test_duration_is_a_number_and_a_unit(text, expected_ms):
    assert parse_duration_ms(text, name="--grace") == expected_ms


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((text, r"invalid duration .* use for example 60s") for text in ("", "soon", "-1s", "5 parsecs", "1e3")),
        *((text, r"duration '.*' is longer than a hundred years") for text in ("36501d", f"1{'0' * 22}ms", "9" * 400)),
    ],
)
def test_invalid_duration_is_refused_with_its_option(text, message):
    with pytest.raises(UsageError, match=f"^--grace: {message}"):
        parse_duration_ms(text, name="--grace")


def test_policy_file_changes_only_what_it_names(read):
    policy = read(
        'grace = "5m"\nwriter_silent_minimum = 9\n[fields.start_ms]\ntolerance_ms = 40\n'
        '[fields.tags]\nseverity = "fail"\n[fields.topic]\nseverity = "warn"\n'
        '[gates.malformed]\nthreshold = 3\nseverity = "warn"\n'
    )
    default = read_policy(None)
    assert (policy.grace_ms, policy.writer_silent_minimum) == (300_000, 9)
    assert (policy.tolerance("start_ms"), policy.tolerance("end_ms")) == (40, default.tolerance("end_ms"))
    severity, before = ({name: rule.severity for name, rule in one.fields.items()} for one in (policy, default))
    assert severity == {**before, "tags": "fail", "topic": "warn"}
    assert (policy.gates["malformed"].threshold, policy.gates["malformed"].severity) == (3, "warn")
    assert {**policy.gates, "malformed": None} == {**default.gates, "malformed": None}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[fields.tags]\ntolerance_ms = 3", "unknown key 'tolerance_ms'"),
        ("grase = '1m'", r"unknown key 'grase' \(did you mean 'grace'\?\)"),
        ("[fields.tag]\nseverity = 'warn'", "did you mean 'tags'"),
        ("[fields.tags]\nseverity = 'warning'", r"invalid severity .*\(did you mean 'warn'\?\)"),
        ("[fields.tags.verdicts]\nDIFFERNT = 'ok'", "did you mean 'DIFFERENT'"),
        ("[fields.tags.verdicts]\nDIFFERENT = 'fine'", "verdicts.DIFFERENT: invalid outcome 'fine'"),
        ("[fields.tags]\nverdicts = 3", r'invalid table 3; write { \w+ = "ok" }'),
        ("sampling_ratio = 0", "invalid ratio"),
        ("sampling_ratio = 1.5", "invalid ratio"),
        ("mask_keys = 'rot13'", "invalid way to mask"),
        ("mask_text = 3", "invalid text"),
        ("[gates.late]\nminimum_sample = -1", "invalid count"),
        (
            "[writers.kafka]\nnever = ['recall']",
            r"no writer of the otlp side; write mqtrace, .* \(native\), or one of .*java-agent.* \(otlp\)",
        ),
        ("[writers.java-agent]\nside = 'native'", "no writer of the native side"),
        ("[writers.rocketmq]\nnever = ['recal']", "did you mean 'recall'"),
        ("[writers.rocketmq]\nnever_fields = 'tags'", "invalid list"),
        ("writers = 3", r'writers must be tables, as in \[writers\."rocketmq-5\.3\.3"\]'),
        ("silent = 3", r"headed \[\[silent\]\]"),
        ("[[silent]]\nside = 'otlp'", "and a topic, group or service"),
        ("[[silent]]\ntopic = 'x'", "write the side"),
        ("[[silent]]\nside = 'otlp'\nservice = 'x'", "name its group"),
        ("[gates.late]\nseverity = 'loud'", "invalid severity"),
        ("[fields.end_ms]\ntolerance_ms = 9999999999", "invalid count"),
        ("[gates.late]\nthreshold = nan", "invalid number"),
        (f"sampling_ratio = 1{'0' * 400}", "invalid number"),
        ("[gates.late]\nthreshold = -1", "write a number from 0"),
        ("grace = '99999999999d'", "longer than a hundred years"),
        ("gates = 3", r"gates must be tables, as in \[gates\.malformed\]"),
        ("grace = 'later'", "invalid duration"),
        ("grace = ", "not valid TOML"),
        (f"grace = {'9' * 5000}", "not valid TOML"),
        (f"grace = {'[' * 5000}", "not valid TOML"),
    ],
)
def test_invalid_policy_is_refused_in_one_line_that_names_the_place(read, text, message):
    with pytest.raises(MqTraceError, match=message) as refused:
        read(text)
    assert POLICY in str(refused.value)
    assert "\n" not in str(refused.value)


def test_policy_file_of_a_windows_editor_is_read(tmp_path):
    (tmp_path / POLICY).write_bytes(b'\xef\xbb\xbfgrace = "5m"\r\n')
    assert read_policy(tmp_path / POLICY).grace_ms == 300_000


@pytest.mark.parametrize(
    "options",
    [
        *({"profile": "perl"}, {"native_writer": "kafka"}, {"native_writer": "rocketmq-x"}),
        *({"profile": "java-agent+mqtrace"}, {"native_writer": "mqtrace+kafka"}, {"native_writer": "mqtrace-1"}),
    ],
)
def test_unknown_writer_is_a_usage_error_that_names_the_choices(options):
    with pytest.raises(UsageError, match=r"choose one of|write mqtrace"):
        read_policy(None, **options)


def test_start_tolerance_is_zero_only_where_both_records_are_ours():
    assert read_policy(None).tolerance("start_ms") == 0
    assert read_policy(None, native_writer="rocketmq").tolerance("start_ms") > 0
    assert read_policy(None, profile="java-agent", native_writer="rocketmq").tolerance("start_ms") >= 331


def test_rule_of_a_release_holds_from_that_release_on():
    """Batch-sent messages lost their consumer records with RocketMQ 5.3.1; no version means the newest."""
    rule = "rocketmq_records_no_delivery_of_batch_sent_messages"

    def rules(writer: str) -> set[str]:
        return {rule.rule for rule in by_design_rules("java-agent", writer)}

    before, since = ("rocketmq-4.9.8", "rocketmq-5.3.0"), ("rocketmq-5.3.1", "rocketmq-5.10", "rocketmq")
    assert [rule in rules(writer) for writer in (*before, *since)] == [False] * 2 + [True] * 3
    assert rules("mqtrace").isdisjoint(rules("rocketmq")) is False
    assert not {matching.rule for matching in by_design_rules("mqtrace", "mqtrace")}


def test_profile_tables_name_compared_fields_only():
    """A name that is misspelt in a table would silently excuse a field."""
    known = set(COMPARED_FIELDS)
    assert all(fields <= known for fields in NATIVE_CARRIES.values())
    for profile in PROFILES.values():
        tables = (*profile.may_carry.values(), *profile.carries.values())
        assert all(fields <= known for fields in tables)


EVERYTHING = """
grace = "90s"
forget_after = "36h"
value_length_limit = 128
sampling_ratio = 0.25
mask_keys = "hash"
mask_text = "\\u007f hidden \\"twice\\" # no comment"
mask_salt = "🧂  # salt"
[fields.tags]
severity = "ignore"
[fields.keys]
verdicts = { TRUNCATED = "fail", MISSING_OTLP = "ok" }
[fields.cost_ms]
severity = "fail"
tolerance_ms = 70
[gates.late]
threshold = 2.5
severity = "fail"
minimum_sample = 30
[writers."rocketmq-5.3"]
never = ["recall"]
never_fields = ["region_id", "tags"]
[writers.mqtrace]
side = "otlp"
never_fields = ["keys"]
[writers.java-agent]
never = ["recall"]
[[silent]]
side = "otlp"
topic = "it's \\\\ \\"quoted\\""
group = "nightly"
[[silent]]
side = "native"
service = "cron"
"""


@pytest.mark.parametrize("native_writer", ["mqtrace", "rocketmq", "rocketmq-4.9.8"])
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("text", ["", EVERYTHING])
def test_printed_policy_reads_back_as_the_same_policy(read, profile, native_writer, text):
    writers = {"profile": profile, "native_writer": native_writer}
    policy = read(text, **writers)
    again = read(print_policy(policy), **writers)
    assert again == policy
    assert print_policy(again) == print_policy(policy)
    assert hash_policy(again) == hash_policy(policy)
    assert bool(text) is (policy != read_policy(None, **writers))


def test_hash_differs_by_setting_and_ignores_comments(read):
    texts = [f"{line}\n" for line in EVERYTHING.splitlines() if "=" in line and "[" not in line][:7]
    others = ["", "[fields.tags]\nseverity = 'fail'", "[gates.late]\nthreshold = 2"]
    hashes = {hash_policy(read(f"# a comment\n{text}")) for text in (*texts, *others)}
    assert len(hashes) == len(texts) + 3
    assert hash_policy(read_policy(None)) in hashes
    assert hash_policy(read_policy(None, native_writer="rocketmq")) not in hashes


def test_field_verdict_has_its_fields_severity_unless_the_policy_overrides_it(read):
    policy = read(EVERYTHING)
    values = {
        (name, verdict): policy.judgement(name, verdict.value)
        for name in ("topic", "store_host", "tags", "keys")
        for verdict in (FieldVerdict.EQUAL, FieldVerdict.TRUNCATED, FieldVerdict.DIFFERENT, FieldVerdict.MISSING_OTLP)
    }
    assert [values[key] for key in values if key[0] == "topic"] == ["ok", "ok", "fail", "fail"]
    assert [values[key] for key in values if key[0] == "store_host"] == ["ok", "ok", "warn", "warn"]
    assert [values[key] for key in values if key[0] == "tags"] == [None] * 4
    assert [values[key] for key in values if key[0] == "keys"] == ["ok", "fail", "warn", "ok"]
    assert policy.judgement("topic", FieldVerdict.NOT_COMPARABLE.value) is None
    agent = read_policy(None, profile="java-agent", native_writer="rocketmq")
    assert agent.judgement("topic", FieldVerdict.MISSING_OTLP.value) is None
    assert agent.judgement("topic", FieldVerdict.DIFFERENT.value) == "fail"


def test_writer_version_stands_for_all_below_it(read):
    def never(writer: str) -> tuple[frozenset[str], set[str]]:
        policy = read(EVERYTHING, native_writer=writer)
        return policy.never_recorded("native"), {rule.rule for rule in policy.declared}

    for writer in ("rocketmq-5.3", "rocketmq-5.3.3"):
        assert never(writer) == (
            {"region_id", "tags"},
            {"policy_says_rocketmq-5.3_never_records_recall", "policy_says_silent"},
        )
    for writer in ("mqtrace", "rocketmq", "rocketmq-5.5.0", "rocketmq-5.30.1"):
        assert never(writer) == (frozenset(), {"policy_says_silent"})
    assert read(EVERYTHING).never_recorded("otlp") == {"keys"}
    assert read(EVERYTHING, profile="java-agent").never_recorded("otlp") == frozenset()
