"""This module knows what is promised in public, line by line, and which test holds it to that.

``section row -> file::test``, several tests with commas; a file without a folder is one of this folder. The promises are
those of the public contract: Python API, configuration, and what a span and a record carry. Nothing here is a test;
``test_promises.py`` fails for a promise whose test does not exist.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["PROMISES", "Promise"]

_EXPORTER: Final = "tests/otel_mqtrace/exporters/test_native_kafka.py"
_PYTHON_API: Final = """
the five public names -> test_public_names
instrument(tracer_provider, meter_provider, **config) -> test_instrument_takes_providers_and_settings
configuration is a dataclass -> test_configuration_is_a_dataclass_type
entry point mqtrace_confluent_kafka -> test_entry_point_of_the_instrumentor
_instrument() never raises -> test_instrument_never_raises
works whether the client was imported before or after -> test_a_client_imported_before_or_after_is_traced
uninstrument() is complete -> test_uninstrument_is_complete
steps back with a warning, on_conflict -> test_another_instrumentation_makes_us_step_back_or_wrap
process: context manager, current inside, baggage restored -> test_process_as_a_block
process: decorator -> test_process_as_a_decorator
process: exceptions recorded -> test_exceptions_are_recorded_and_go_on
process: outcome to contextCode -> test_outcome_becomes_the_context_code
process.each -> test_process_each_is_an_iterator
automatic mode needs no call -> test_automatic_mode_needs_no_call
MqTraceSpanProcessor: signature and defaults, a SpanProcessor -> test_processor_signature_and_defaults
one queue and one worker per exporter -> test_processor_has_a_lane_for_each_exporter
preset rocketmq4, rocketmq5 -> test_processor_presets
stats() adds up at every instant -> test_stats_add_up
tunables from MQTRACE_*, then OTEL_BSP_* -> test_tunables_come_from_ours_then_from_opentelemetrys
exporters mqtrace_native, mqtrace_native_file, mqtrace_native_rocketmq -> test_exporters_are_entry_points_with_plain_keywords
SendHook, ConsumeHook -> test_send_hook_and_consume_hook_are_the_manual_door
codec -> test_codec_is_standard_library_only
otel_mqtrace.testing -> test_the_test_kit
"""
_CONFIGURATION: Final = f"""
MQTRACE_ENABLED -> test_enabled
MQTRACE_TRACE_TOPIC -> test_trace_topic_and_the_applications_own_bootstrap
MQTRACE_EXPORTERS -> test_exporters
MQTRACE_BOOTSTRAP_SERVERS -> test_dedicated_trace_broker
MQTRACE_KAFKA_CONFIG -> test_dedicated_trace_broker
MQTRACE_LANDING_DIR -> test_landing_dir
MQTRACE_DIALECT -> test_dialect
MQTRACE_REGION_ID -> test_region_id
MQTRACE_PRESET -> test_preset_queue_batch_and_linger
MQTRACE_QUEUE_SIZE -> test_preset_queue_batch_and_linger
MQTRACE_BATCH_SIZE -> test_preset_queue_batch_and_linger
MQTRACE_LINGER_MS -> test_preset_queue_batch_and_linger
MQTRACE_MAX_MESSAGE_BYTES -> test_max_message_bytes
MQTRACE_PROCESS_CONTEXT -> test_process_context
MQTRACE_RECEIVE_SPANS -> test_receive_spans
MQTRACE_TOPIC_EXCLUDE -> test_topic_exclude
MQTRACE_CREATE_TRACE_TOPIC -> {_EXPORTER}::test_a_topic_that_cannot_be_created_is_sent_to_all_the_same
the defaults of the table, the lower-case options -> test_default_is_as_written
code wins -> test_code_wins_over_the_environment
wrong values warn once and never break start-up -> test_a_wrong_value_warns_once_and_the_start_goes_on
passwords never appear -> test_secrets_are_never_shown, tests/otel_mqtrace/doctor/test_environment.py::test_no_password_is_ever_shown
"""
_SPAN_AND_RECORD: Final = """
traceType -> test_trace_type_kind_and_operation
topic -> test_topic
msgId -> test_msg_id
offsetMsgId -> test_offset_msg_id
tags, keys -> test_tags_and_keys
groupName -> test_group_name
storeHost, clientHost -> test_hosts_and_server
storeTime -> test_store_time
bodyLength -> test_body_length
retryTimes -> test_retry_times
msgType -> test_msg_type
timeStamp, costTime -> test_time_stamp_and_cost_time
success, contextCode -> test_success_and_context_code
requestId, regionId, regionName -> test_request_id_region_id_and_region_name
transactionId, transactionState, fromTransactionCheck -> test_transaction_fields
message headers written, one of each -> test_headers_written_by_the_producer_hook
the caller's header object is never mutated -> tests/otel_mqtrace/clients/test_producer.py::test_the_callers_headers_are_never_touched
registry attributes of 1.44 -> test_registry_attributes_of_kafka
what is equal on the span, the rest on the links -> test_what_is_equal_stands_on_the_span_the_rest_on_its_links
span names and kinds -> test_span_names_and_kinds, tests/otel_mqtrace/spans/test_mapping.py::test_names_and_kinds_are_those_of_the_contract
the four messaging metrics -> test_the_four_messaging_metrics
self-metrics -> test_self_metrics_of_the_processor
messaging.rocketmq.* -> tests/otel_mqtrace/hooks/test_sending.py::test_a_rocketmq_send_has_the_registry_s_rocketmq_names
SubBefore leaves at the start -> test_sub_before_leaves_when_the_handler_starts
U+0001 and U+0002 become underscores, counted -> test_separators_inside_values_are_written_as_underscores_and_counted
one topic a trace message, header KEYS -> test_a_trace_message_is_of_one_topic_and_names_its_keys
header mqtrace.dialect -> test_the_dialect_header
batches are split, never refused -> test_batches_that_would_exceed_the_bound_are_split_never_refused
"""


class Promise(NamedTuple):
    """One line: its section, the row of the contract, the files and names of its tests."""

    section: str
    row: str
    tests: tuple[tuple[str, str], ...]


def _read(section: str, home: str, text: str) -> list[Promise]:
    promises = []
    for line in text.strip().splitlines():
        row, _, tests = line.partition(" -> ")
        named = (each.strip().rpartition("::")[::2] for each in tests.split(","))
        promises.append(Promise(section, row, tuple((file or f"tests/contract/{home}", test) for file, test in named)))
    return promises


PROMISES: Final = (
    *_read("Python API", "test_python_api.py", _PYTHON_API),
    *_read("configuration", "test_configuration.py", _CONFIGURATION),
    *_read("spans and records", "test_span_and_record.py", _SPAN_AND_RECORD),
)
"""Every promise, in the order of the contract."""
