"""`mqtrace reconcile` and `mqtrace graph` as a user calls them: exit codes, one line per error, what is printed and written."""

import json
import re
import shutil
from pathlib import Path

import pytest

from bridge.addresses import parse_instant_ms
from otel_mqtrace._errors import UsageError
from otel_mqtrace.cli import main
from otel_mqtrace.landing import manifest_path, native_directory
from spark_jobs.commands import parse_settings, repeat_options
from spark_jobs.jobs.options import OWN_TEXT

DUAL = Path(__file__).parents[1] / "vectors" / "dual" / "app-4.9.8-dup"
SIDES = ["--native", str(DUAL / "native.jsonl"), "--otlp", str(DUAL / "otlp.jsonl")]
AGENT = ["--profile", "java-agent", "--native-writer", "rocketmq-4.9.8", "--grace", "0", "--engine", "local"]
NO_JAEGER = "jaeger://127.0.0.1:1?service=s"
NOT_WRITABLE = "/proc/self/fdinfo"  # not even by root
DAY = "native/date=2026-11-21"
WRONG = {
    "reconcile": [
        (["--native", "x", "--out", "o"], "--otlp"),
        (["--native", "x", " ", "--otlp", "y", "--out", "o"], "--native is empty: name a file or a directory"),
        (["--native", "x", "--otlp=", "--out", "o"], "--otlp is empty: name a file or a directory"),
        ([*SIDES, "--out", "o", "--begin", "5", "--end", "4"], "--begin is later than --end"),
        ([*SIDES, "--out", "o", "--policy", "none.toml"], "none.toml cannot be read"),
        ([*SIDES, "--out", "taken"], "cannot create --out taken"),
        ([*SIDES, "--out", NOT_WRITABLE], f"cannot write to --out {NOT_WRITABLE}: No such file or directory; choose"),
        ([*SIDES, "--out", "o", "--history", NOT_WRITABLE], f"cannot write to --history {NOT_WRITABLE}"),
        ([*SIDES, "--out", "o", "--history", "taken/h"], "cannot create --history taken/h: "),
        ([*SIDES, "--out", "o", "--history", "o/"], "--out and --history both name o"),
        ([*SIDES, "--out", "o", "--history", "o/verdicts/x"], "o/verdicts/x is in o/verdicts, which a run replaces"),
        ([*SIDES, "--out", "landing"], "--out landing is a landing"),
        ([*SIDES, "--out", "landing/native/o"], "--out landing/native/o is a landing"),
        ([*SIDES, "--out", "landing", "--stream"], "--out landing is a landing"),
        *(([*SIDES, "--out", out], f"--out {out} is a landing") for out in ("bare", "bare/native/o", f"bare/{DAY}/o")),
        ([*SIDES, "--out", "o", "--history", "landing/native"], "--history landing/native is a landing"),
        ([*SIDES, "--out", ""], "--out is empty: name a directory"),
        *(
            ([*SIDES, "--out", "o", option, value], f"{option} {problem}")
            for option in ("--policy", "--history", "--ledger")
            for value, problem in (
                ("", "is empty: name a file or a directory, or leave it out"),
                ("kafka://a/b", "kafka://a/b: kafka:// is not a store; give a path or"),
            )
        ),
        ([*SIDES, "--out", "o" * 256], f"cannot create --out {'o' * 256}: File name too long; choose another"),
        ([*SIDES, "--out", "o", "--master", "sc://127.0.0.1:1"], "answers at sc://127.0.0.1:1: Connection refused"),
        ([*SIDES, "--out", "o", "--master", "spark://[::1]:1,127.0.0.1:1"], "answers at spark://[::1]:1,127.0.0.1:1: "),
        ([*SIDES, "--out", "o", "--master", "spark://master"], "unknown Spark master 'spark://master'"),
        (["--native", "gone", *SIDES[2:], "--out", "o"], "no such file, directory or match: gone"),
        (["--native", SIDES[3], *SIDES[2:], "--out", "o"], "not native"),
        ([*SIDES, "--out", "o", "--otlp-format", "xml"], "unknown OTLP format 'xml'"),
        ([*SIDES, "--out", "o", "--msg-type-map", "c"], "unknown message type map 'c'"),
        ([*SIDES, "--out", "o", "--charset", "klingon"], "--charset: unknown charset 'klingon'"),
        ([*SIDES, "--out", "o", "--ledger", "l.json"], "--ledger l.json: no such file, directory or match"),
        ([*SIDES[:2], "--otlp", SIDES[3]], "missing option --out"),
        (["--otlp", SIDES[3], "--out", "o"], "missing option --native"),
        ([*SIDES, "--out", "o", "--client-config", "f"], "--client-config f is for topics, and none is given"),
        ([*SIDES, "--out", "o", "--complete", "--grace", "5m"], "--complete and --grace exclude each other"),
        ([*SIDES, "--out", "o", "--complete", "--stream", "--every", "5m"], "leave out one of them"),
        ([*SIDES[:2], "--otlp", NO_JAEGER, "--out", "o"], "no Jaeger answers at 127.0.0.1:1"),
        (["--native", NO_JAEGER, *SIDES[2:], "--out", "o"], "or kafka://HOST:PORT[,HOST:PORT]/TOPIC"),
        ([*SIDES[:2], "--otlp", NO_JAEGER, "--out", "o", "--stream"], "--stream does not take jaeger://"),
    ],
    "graph": [
        (["--out", "o"], "give --native SRC, --otlp SRC, or both"),
        (["--otlp", SIDES[3]], "--out"),
        (["--otlp", SIDES[3], "--out", "o", "--begin", "5", "--end", "4"], "--begin is later than --end"),
        (["--otlp", SIDES[3], "--out", "taken"], "cannot create --out taken"),
        (["--otlp", SIDES[3], "--out", "o", "--master", ""], "unknown Spark master ''"),
        (["--otlp", SIDES[3], "--out", "o", "--driver-memory", "lots"], "invalid driver memory 'lots'"),
        (["--otlp", SIDES[3], "--out", "landing"], "--out landing is a landing"),
        (["--otlp", NO_JAEGER, "--out", "o"], "no Jaeger answers at 127.0.0.1:1"),
    ],
    "inspect": [([NO_JAEGER], "no Jaeger answers at 127.0.0.1:1: Connection refused; give")],
}


@pytest.mark.parametrize(
    ("command", "arguments", "message"), [(command, *row) for command, rows in WRONG.items() for row in rows]
)
def test_wrong_usage_is_one_line_and_exit_2(capsys, monkeypatch, tmp_path, command, arguments, message):
    monkeypatch.chdir(tmp_path)
    Path("taken").write_text("a file")
    landing = Path("landing")
    native_directory(landing).mkdir(parents=True)
    manifest_path(landing).touch()
    Path("bare", DAY).mkdir(parents=True)
    Path("bare", DAY, "part-1795262479661-0123456789ab-0.jsonl").touch()  # its manifest was not copied
    assert main([command, *arguments]) == 2
    captured = capsys.readouterr()
    assert re.fullmatch(f"mqtrace: error: .*{re.escape(message)}.*\n", captured.err)
    assert captured.out == ""
    assert not Path("o").exists()
    assert [*landing.rglob("*")] == [native_directory(landing), manifest_path(landing)]


def test_printed_policy_has_its_options_but_no_tolerance_that_depends_on_the_input(capsys, tmp_path):
    (tmp_path / "changed.toml").write_text('[fields.tags]\nseverity = "ignore"\n')
    options = ["--native-writer", "rocketmq-5.3.3", "--policy", str(tmp_path / "changed.toml"), "--grace", "5m"]
    assert main(["reconcile", "--print-policy", "--profile", "mqtrace", *options]) == 0
    text = capsys.readouterr().out
    assert text.startswith('# --profile mqtrace --native-writer rocketmq-5.3.3\ngrace = "5m"')
    assert '[fields.tags]\nseverity = "ignore"' in text
    assert main(["reconcile", "--print-policy"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("# --profile auto --native-writer auto\n")
    assert "\ntolerance_ms =" not in text
    assert main(["reconcile", "--print-policy", "--profile", "java-agent", "--complete"]) == 0
    text = capsys.readouterr().out
    assert text.startswith('# --profile java-agent --native-writer auto\ngrace = "0s"')
    assert text.count("\ntolerance_ms = 500") == 3


def test_two_empty_sides_are_inconclusive_and_an_unknown_release_is_a_warning(capsys, tmp_path):
    native, otlp, out = tmp_path / "native.jsonl", tmp_path / "otlp.jsonl", tmp_path / "out"
    native.touch()
    otlp.touch()
    sides = ["--native", str(native), "--otlp", str(otlp)]
    assert main(["reconcile", *sides, "--out", str(out), "--native-writer", "rocketmq-9.9", "--engine", "local"]) == 4
    plain = json.loads((out / "result.json").read_text())
    assert (plain["verdict"], plain["exit_code"]) == ("INCONCLUSIVE", 4)
    captured = capsys.readouterr()
    assert captured.out.startswith("INCONCLUSIVE: native trace against OTLP spans\n")
    judged = "judged by the rules of 5.5.0, the newest known release"
    assert captured.err == f"mqtrace: warning: --native-writer rocketmq-9.9 is {judged}\n"


def test_files_that_hold_neither_side_are_named(capsys, tmp_path):
    out = ["--out", str(tmp_path / "out")]
    (tmp_path / "in").mkdir()
    for name in ("b.txt", "a\n.txt"):
        (tmp_path / "in" / name).write_text("hello")
    for name in ("native.jsonl", "otlp.jsonl"):
        (tmp_path / "in" / name).touch()
    assert main(["reconcile", "--native", f"{tmp_path}/in", "--otlp", f"{tmp_path}/in/*.*", *out, *AGENT]) == 4
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"mqtrace: warning: passed over, neither a native landing nor spans: {tmp_path}/in/a⟨U+000A⟩.txt and 1 more; "
        "mqtrace inspect names all"
    )
    assert main(["graph", "--otlp", f"{tmp_path}/in/[bo]*", *out]) == 0
    assert f"passed over, neither a native landing nor spans: {tmp_path}/in/b.txt\n" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["reconcile", "graph"])
def test_reports_among_the_sources_are_not_named(capsys, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    for name in ("native.jsonl", "otlp.jsonl"):
        Path(name).touch()
    chosen = [*AGENT, "--history", "days"] if command == "reconcile" else []
    for _ in range(2):
        main([command, "--native", ".", "--otlp", ".", "--out", "out", *chosen])
        assert "passed over" not in capsys.readouterr().err
    assert any(Path("out").iterdir())


def test_loss_is_exit_1_unless_the_policy_tolerates_it_and_json_prints_the_result_only(capsys, tmp_path):
    lossy, policy, out = (tmp_path / name for name in ("native.jsonl", "policy.toml", "out"))
    lines = (DUAL / "native.jsonl").read_text().splitlines(keepends=True)
    lossy.write_text("".join(lines[:6] + lines[7:]))  # without one of its bodies, which held two records
    policy.write_text("[gates.unexplained_loss_native]\nthreshold = 2\n")
    command = ["reconcile", "--native", str(lossy), *SIDES[2:], "--out", str(out), *AGENT]
    assert main(command) == 1
    assert "unexplained_loss_native" in capsys.readouterr().out
    assert main([*command, "--policy", str(policy), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((out / "result.json").read_text())


def test_reports_of_an_earlier_run_are_replaced_and_files_of_others_are_refused(capsys, tmp_path):
    out = tmp_path / "out"
    commands = [["reconcile", *SIDES, "--out", str(out), *AGENT], ["graph", *SIDES, "--out", str(out)]]
    assert [main(command) for command in commands * 2] == [0, 0] * 2
    (out / "junit.xml").write_text("")
    assert main(commands[0]) == 0
    shutil.rmtree(out / "verdicts")
    capsys.readouterr()
    for name in (*OWN_TEXT, "verdicts", "verdicts/thesis.txt", "report.html/"):
        foreign = out / name
        if name == "verdicts/thesis.txt":
            foreign.parent.mkdir()
        foreign.unlink(missing_ok=True)
        foreign.mkdir() if name.endswith("/") else foreign.write_text("of another program")
        assert main(commands[name.startswith("graph")]) == 2
        assert f"--out {out}: {foreign} would be replaced and is not of an earlier run" in capsys.readouterr().err
        foreign.rmdir() if name.endswith("/") else foreign.unlink()  # fails if it was replaced


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--native a b --otlp c", "--native a --native b --otlp c"),
        ("--native a --native b --otlp c d --out o", "--native a --native b --otlp c --otlp d --out o"),
        ("--out o --strict --native a b", "--out o --strict --native a --native b"),
        ("--native=a b --otlp c", "--native=a --native b --otlp c"),
        ("--native - b --otlp c", "--native - --native b --otlp c"),
        ("--ledger a b --otlp c", "--ledger a --ledger b --otlp c"),
        ("--help", "--help"),
        ("--out o stray --native a", "--out o stray --native a"),
    ],
)
def test_option_is_repeated_before_each_value_of_a_shell_expanded_list(words, expected):
    assert repeat_options(words.split()) == expected.split()


def test_last_setting_of_a_name_wins():
    assert parse_settings(["spark.a=1", "spark.b=x=y", "spark.a=2"]) == {"spark.a": "2", "spark.b": "x=y"}


@pytest.mark.parametrize(
    "text", ["spark.a", "shuffle.partitions=2", "spark.master=local", "spark.driver.memory=2g", "="]
)
def test_invalid_setting_and_one_with_its_own_option_are_refused(text):
    with pytest.raises(UsageError, match=r"^--conf '"):
        parse_settings([text])


@pytest.mark.parametrize("text", ["-1", "253402300800000", "9" * 5_000, "10" + "0" * 22, "0001-01-01", "--5", "1e400"])
def test_instant_out_of_range_is_refused(text):
    with pytest.raises(UsageError, match=r"--begin( '.*' is not between the years 1970 and 9999|: invalid time)"):
        parse_instant_ms(text, name="--begin")
