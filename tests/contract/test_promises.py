"""Every public promise of the contract, line by line, and its tests; here are those of names and signatures."""

import ast
import inspect
import re
import sys
from importlib.metadata import entry_points

import pytest
from opentelemetry.sdk.trace import SpanProcessor

import otel_mqtrace
from otel_mqtrace import MqTraceInstrumentor, MqTraceSpanProcessor
from otel_mqtrace.config import Settings
from tests.support.programs import run_program
from tests.support.source_tree import ROOT, tree_of

KAFKA = "tests/otel_mqtrace/exporters/test_native_kafka.py"
CONFIG = "tests/otel_mqtrace/test_config.py"
SWITCH = "tests/otel_mqtrace/test_instrumentor.py"
CLIENTS = "tests/otel_mqtrace/clients"
BLOCKS = "tests/otel_mqtrace/clients/test_explicit_process.py"
FORMS = "tests/otel_mqtrace/hooks/test_process.py"
SPANS = "tests/otel_mqtrace/spans"
HOOKS = "tests/otel_mqtrace/hooks"
METRICS = f"{HOOKS}/test_metrics.py"
CODEC = "tests/otel_mqtrace/wire/test_codec.py"
FILE = "tests/otel_mqtrace/exporters/test_native_file.py"
OTLP = "tests/otel_mqtrace/exporters/test_otlp.py"
PACKING = "tests/otel_mqtrace/exporters/test_packing.py"
TABLE_OF_SEND = f"{CLIENTS}/test_producer.py::test_delivered_message_has_every_field_of_the_table"
TABLE_OF_PROCESS = f"{CLIENTS}/test_consumer.py::test_handled_message_has_every_field_of_the_table"
PYTHON_API = f"""
the five public names -> test_public_names
instrument(tracer_provider, **config) -> {SWITCH}::test_processor_is_attached_with_the_given_exporters
instrument(meter_provider) -> {CLIENTS}/test_statistics.py::test_lag_is_the_uncommitted_messages_of_the_group
configuration is a dataclass -> {SWITCH}::test_configuration_is_the_dataclass_of_every_setting
entry point mqtrace_confluent_kafka -> test_entry_point_of_the_instrumentor
_instrument() never raises -> {SWITCH}::test_option_of_a_wrong_type_is_one_warning
works whether the client was imported before or after -> {CLIENTS}/test_patching.py::test_instrumenting_again_makes_one_span_each
uninstrument() is complete -> {CLIENTS}/test_patching.py::test_uninstrument_restores_every_name_ten_times
steps back with a warning -> {CLIENTS}/test_classes.py::test_instrument_steps_back_for_another_instrumentation
on_conflict -> {CLIENTS}/test_patching.py::test_client_of_another_instrumentation_is_traced_by_both_if_configured
process: context manager, current inside -> {CLIENTS}/aiokafka/test_consumer.py::test_block_uses_the_automatic_span
process: baggage restored -> {FORMS}::test_baggage_is_restored_inside_only
process: decorator -> {FORMS}::test_message_is_found_among_all_arguments
process: types, py.typed -> test_type_checker_sees_what_process_returns
process: exceptions recorded -> {BLOCKS}::test_exception_of_a_block_is_recorded_and_raised
process: outcome to contextCode -> {HOOKS}/test_manual_hooks.py::test_handler_sets_its_outcome_from_anywhere
process.each -> {FORMS}::test_each_message_is_current_in_the_body_of_the_loop_only
automatic mode needs no call -> {CLIENTS}/test_consumer.py::test_message_is_current_until_the_next_poll
MqTraceSpanProcessor: signature, a SpanProcessor -> test_processor_signature
MqTraceSpanProcessor: defaults -> {SPANS}/test_mapping.py::test_default_settings_are_those_of_the_contract
one queue and one worker per exporter -> {SPANS}/test_processor.py::test_flush_or_shutdown_of_a_lane_does_not_wait_for_a_stuck_one
preset rocketmq4, rocketmq5 -> {SPANS}/test_mapping.py::test_preset_has_the_settings_of_its_rocketmq_generation
stats() adds up at every instant -> {SPANS}/test_queue.py::test_account_balances_and_the_bound_holds_while_threads_offer
tunables from MQTRACE_*, then OTEL_BSP_* -> {SPANS}/test_mapping.py::test_environment_is_used_without_arguments
exporters mqtrace_native, mqtrace_native_file, mqtrace_native_rocketmq, mqtrace_otlp -> test_exporters_are_entry_points_with_plain_keywords
mqtrace_otlp: plain values -> {OTLP}::test_http_compresses_spans_as_code_or_the_environment_sets
stock exporters keep working -> {OTLP}::test_stock_exporter_keeps_its_encoder
SendHook, ConsumeHook -> {HOOKS}/test_manual_hooks.py::test_message_has_its_id_and_times_in_both_formats
codec -> {CODEC}::test_written_context_is_read_back
otel_mqtrace.testing -> tests/otel_mqtrace/testing/test_cluster.py::test_topic_error_fails_its_sends_until_it_is_cleared
"""
CONFIGURATION = f"""
MQTRACE_ENABLED -> {SWITCH}::test_disabled_instrumentation_imports_no_client_and_is_reported
MQTRACE_TRACE_TOPIC -> {KAFKA}::test_environment_names_broker_topic_and_properties
MQTRACE_EXPORTERS -> {SWITCH}::test_exporter_of_a_second_instrumentor_alone_is_refused_with_the_fix, {CONFIG}::test_none_as_the_only_exporter_means_no_exporter
MQTRACE_BOOTSTRAP_SERVERS -> {KAFKA}::test_broker_is_that_of_the_environment_or_the_application
MQTRACE_KAFKA_CONFIG -> {KAFKA}::test_environment_names_broker_topic_and_properties
MQTRACE_LANDING_DIR -> tests/flow/test_applications.py::test_application_with_its_own_bridge_keeps_both_formats
MQTRACE_DIALECT -> {KAFKA}::test_encoder_can_be_wrapped
MQTRACE_REGION_ID -> {TABLE_OF_PROCESS}
MQTRACE_PRESET -> {SPANS}/test_mapping.py::test_preset_has_the_settings_of_its_rocketmq_generation
MQTRACE_QUEUE_SIZE -> {SWITCH}::test_processor_is_attached_with_the_given_exporters
MQTRACE_BATCH_SIZE -> {SWITCH}::test_processor_is_attached_with_the_given_exporters
MQTRACE_LINGER_MS -> {SWITCH}::test_processor_is_attached_with_the_given_exporters
MQTRACE_MAX_MESSAGE_BYTES -> {KAFKA}::test_batch_is_split_into_messages_the_broker_accepts
MQTRACE_PROCESS_CONTEXT -> {HOOKS}/test_process.py::test_parent_and_links_follow_the_option
MQTRACE_RECEIVE_SPANS -> {HOOKS}/test_client_spans.py::test_poll_span_has_the_times_of_the_poll
MQTRACE_TOPIC_EXCLUDE -> {CLIENTS}/test_producer.py::test_message_of_an_excluded_topic_is_sent_as_it_is
MQTRACE_CREATE_TRACE_TOPIC -> {KAFKA}::test_topic_that_cannot_be_created_is_sent_to
each variable sets its setting -> {CONFIG}::test_variable_sets_its_setting_which_has_the_default_of_the_contract
the defaults of the table -> {CONFIG}::test_variable_sets_its_setting_which_has_the_default_of_the_contract
code wins -> {CONFIG}::test_code_wins_over_the_environment
wrong values warn once and never break start-up -> {CONFIG}::test_wrong_value_is_one_warning_with_name_value_and_default, {SWITCH}::test_option_of_a_wrong_type_is_one_warning
passwords never appear -> {CONFIG}::test_password_is_not_logged, {KAFKA}::test_password_is_neither_logged_nor_shown_by_the_exporter, {SWITCH}::test_password_is_not_on_a_span, tests/otel_mqtrace/doctor/test_doctor.py::test_password_is_not_shown_by_the_doctor
"""
SPANS_AND_RECORDS = f"""
traceType, span names and kinds -> {SPANS}/test_mapping.py::test_span_names_and_kinds_are_those_of_the_contract, {TABLE_OF_SEND}, {TABLE_OF_PROCESS}
every field of a send -> {TABLE_OF_SEND}, {CLIENTS}/rocketmq/test_producer.py::test_sent_message_has_every_field_of_the_table
every field of a process -> {TABLE_OF_PROCESS}, {CLIENTS}/rocketmq/test_consumer.py::test_message_is_processed_from_receive_to_ack
every field in the record -> {SPANS}/test_mapping.py::test_trace_context_on_a_span_is_read_back_unchanged, {CODEC}::test_written_context_is_read_back
msgId: one on the wire, on both spans, in all records -> {HOOKS}/test_manual_hooks.py::test_message_has_its_id_and_times_in_both_formats, {FILE}::test_spans_become_records_in_the_landing
offsetMsgId: an id where the message has none -> {HOOKS}/test_attributes.py::test_message_without_an_id_has_its_offset_as_id
storeHost: the leader of the partition -> {CLIENTS}/test_leaders.py::test_send_span_and_record_have_the_leader_of_the_partition
bodyLength: a tombstone has none -> {CLIENTS}/test_producer.py::test_tombstone_is_marked_and_binary_key_is_left_out_of_the_span
retryTimes -> {HOOKS}/test_attributes.py::test_retry_header_is_a_setting, {HOOKS}/test_attributes.py::test_retry_count_other_than_a_32_bit_number_is_zero
msgType -> {CLIENTS}/rocketmq/test_producer.py::test_fifo_and_delayed_messages_have_their_type, {CLIENTS}/test_settlement.py::test_every_message_of_a_transaction_has_an_end_linked_to_its_send
timeStamp, costTime -> {HOOKS}/test_manual_hooks.py::test_message_has_its_id_and_times_in_both_formats
success, contextCode -> {HOOKS}/test_manual_hooks.py::test_handler_sets_its_outcome_from_anywhere, {BLOCKS}::test_exception_of_a_block_is_recorded_and_raised
requestId: one for both halves -> {CLIENTS}/rocketmq/test_consumer.py::test_message_has_the_records_of_a_native_client
transactionId, transactionState, fromTransactionCheck -> {CLIENTS}/test_settlement.py::test_every_message_of_a_transaction_has_an_end_linked_to_its_send
message headers written, one of each -> {CLIENTS}/test_producer.py::test_send_is_a_child_of_the_current_span_and_its_context_is_in_the_headers, {HOOKS}/test_send.py::test_replace_writes_the_send_span_and_links_to_the_earlier_one
the caller's header object is never mutated -> {CLIENTS}/test_producer.py::test_headers_of_the_caller_are_not_changed
what is equal on the span, the rest on the links -> {SPANS}/test_mapping.py::test_values_equal_for_all_messages_are_on_the_span_only, {CLIENTS}/test_consumer.py::test_batch_is_one_span_with_a_link_for_each_message
poll T, commit T -> {HOOKS}/test_client_spans.py::test_poll_span_has_the_times_of_the_poll, {HOOKS}/test_client_spans.py::test_settlement_is_a_client_span_named_as_the_client_does
the four messaging metrics -> {METRICS}::test_sent_messages_counts_every_attempt_and_names_the_error, {METRICS}::test_poll_has_its_duration_and_counts_once_for_each_delivered_message, {METRICS}::test_operation_duration_of_a_send_is_its_span_s_in_seconds, {METRICS}::test_process_duration_is_reported_for_every_process_span
self-metrics -> {SPANS}/test_processor.py::test_processor_metrics_equal_the_stats
messaging.rocketmq.* -> {CLIENTS}/rocketmq/test_producer.py::test_sent_message_has_every_field_of_the_table, {CLIENTS}/rocketmq/test_producer.py::test_fifo_and_delayed_messages_have_their_type, {CLIENTS}/rocketmq/test_consumer.py::test_message_is_processed_from_receive_to_ack
SubBefore leaves at the start -> {KAFKA}::test_spans_reach_the_trace_topic_as_rocketmq_would_write_them
U+0001 and U+0002 become underscores, counted -> {CODEC}::test_separators_and_lone_surrogates_are_replaced_and_counted
one topic a trace message, headers KEYS and mqtrace.dialect -> {PACKING}::test_limits_hold_and_every_record_that_is_not_too_large_is_sent_once, {KAFKA}::test_spans_reach_the_trace_topic_as_rocketmq_would_write_them
batches are split, never refused -> {PACKING}::test_limits_hold_and_every_record_that_is_not_too_large_is_sent_once
"""
"""``row -> file::test``, several tests with commas; a file without a folder is one of this folder."""
PROMISES = {
    row: [test if "::" in test else f"tests/contract/test_promises.py::{test}" for test in tests.split(", ")]
    for section in (PYTHON_API, CONFIGURATION, SPANS_AND_RECORDS)
    for row, tests in (line.split(" -> ") for line in section.strip().splitlines())
}


@pytest.mark.parametrize("row", PROMISES)
def test_promise_has_a_test(row):
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    for file, _, name in (test.partition("::") for test in PROMISES[row]):
        assert name in {node.name for node in ast.walk(tree_of(ROOT / file)) if isinstance(node, functions)}


def test_every_promised_variable_is_a_setting():
    names = {row.removeprefix("MQTRACE_").lower() for row in PROMISES if row.startswith("MQTRACE_")}
    assert names <= set(Settings.__dataclass_fields__)
    assert len(names) == 17


# -- names and signatures that no behaviour shows -------------------------------------------------------------------------


def test_public_names():
    for name in ("MqTraceInstrumentor", "MqTraceSpanProcessor", "process", "SendHook", "ConsumeHook"):
        assert name in otel_mqtrace.__all__
        assert getattr(otel_mqtrace, name) is not None


def test_entry_point_of_the_instrumentor():
    """Another name than the incumbent's, so that disabling one does not disable the other."""
    (point,) = entry_points(group="opentelemetry_instrumentor", name="mqtrace_confluent_kafka")
    assert point.load() is MqTraceInstrumentor


def test_processor_signature():
    assert issubclass(MqTraceSpanProcessor, SpanProcessor)
    for method in ("on_start", "_on_ending", "on_end", "shutdown", "force_flush"):
        theirs = list(inspect.signature(getattr(SpanProcessor, method)).parameters)
        assert list(inspect.signature(getattr(MqTraceSpanProcessor, method)).parameters)[: len(theirs)] == theirs
    named = inspect.signature(MqTraceSpanProcessor).parameters
    assert {"drop_policy", "meter_provider", "clock", "export_timeout_millis", "shutdown_timeout_millis"} <= set(named)
    assert inspect.signature(MqTraceSpanProcessor.force_flush).parameters["timeout_millis"].default == 30_000


@pytest.mark.parametrize("name", ["mqtrace_native", "mqtrace_native_file", "mqtrace_native_rocketmq", "mqtrace_otlp"])
def test_exporters_are_entry_points_with_plain_keywords(name):
    """Declarative configuration calls them with the YAML mapping."""
    (point,) = entry_points(group="opentelemetry_traces_exporter", name=name)
    named = [each for each in inspect.signature(point.load()).parameters.values() if each.kind is not each.VAR_KEYWORD]
    assert {each.kind for each in named} == {inspect.Parameter.KEYWORD_ONLY}
    assert all(each.default is not inspect.Parameter.empty for each in named)


APPLICATION = """
from otel_mqtrace import process

@process
def handle(message: object, attempt: int = 1) -> str: return ""

@process(consumer=None)
async def handle_later(message: object) -> int: return 1

def poll(message: object) -> None:
    with process(message) as handling:
        reveal_type(handling)

reveal_type(handle)
reveal_type(handle_later)
"""


def test_type_checker_sees_what_process_returns(tmp_path, pytestconfig):
    """A decorator without types would make every handler of a strict application untyped."""
    (tmp_path / "application.py").write_text(APPLICATION)
    options = "--strict", "--follow-imports=silent", f"--cache-dir={pytestconfig.cache.mkdir('mypy')}"
    done = run_program(sys.executable, "-m", "mypy", *options, tmp_path / "application.py")
    assert done.returncode == 0, done.stdout
    assert re.findall(r'Revealed type is "(.*)"', done.stdout) == [
        "otel_mqtrace.hooks.outcome.Handling",
        "def (message: object, attempt: int =) -> str",
        "def (message: object) -> typing.Coroutine[Any, Any, int]",
    ]
