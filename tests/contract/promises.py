"""Every public promise, line by line, and the tests that prove it.

``section row -> file::test``, several tests with commas; a file without a folder is one of this folder. The promises are
those of the public contract: Python API, configuration, and what a span and a record carry. Nothing here is a test;
``test_promises.py`` fails for a promise whose test does not exist.
"""

from typing import Final, NamedTuple

_KAFKA: Final = "tests/otel_mqtrace/exporters/test_native_kafka.py"
_CONFIG: Final = "tests/otel_mqtrace/test_config.py"
_SWITCH: Final = "tests/otel_mqtrace/test_instrumentor.py"
_CLIENTS: Final = "tests/otel_mqtrace/clients"
_BLOCKS: Final = "tests/otel_mqtrace/clients/test_explicit_process.py"
_FORMS: Final = "tests/otel_mqtrace/hooks/test_process_forms.py"
_SPANS: Final = "tests/otel_mqtrace/spans"
_PYTHON_API: Final = f"""
the five public names -> test_public_names
instrument(tracer_provider, **config) -> {_SWITCH}::test_our_processor_is_attached_with_the_exporters_given
instrument(meter_provider) -> {_CLIENTS}/test_statistics.py::test_the_lag_is_what_the_group_has_not_committed
configuration is a dataclass -> {_SWITCH}::test_the_configuration_is_a_dataclass_of_every_setting
entry point mqtrace_confluent_kafka -> test_entry_point_of_the_instrumentor
_instrument() never raises -> {_SWITCH}::test_wrong_options_never_raise, {_SWITCH}::test_an_object_that_cannot_do_what_it_is_for_is_one_sentence
works whether the client was imported before or after -> {_CLIENTS}/test_patching.py::test_names_taken_before_are_traced
uninstrument() is complete -> {_CLIENTS}/test_patching.py::test_ten_times_on_and_off_leaves_no_trace
steps back with a warning -> {_CLIENTS}/test_patching.py::test_ours_steps_back_with_a_warning
on_conflict -> {_CLIENTS}/test_patching.py::test_ours_traces_as_well_if_configured
process: context manager, current inside -> {_BLOCKS}::test_a_block_takes_the_automatic_span_over
process: baggage restored -> {_FORMS}::test_baggage_is_restored_inside_and_gone_outside
process: decorator -> {_BLOCKS}::test_a_decorated_function_is_a_block
process: exceptions recorded -> {_BLOCKS}::test_an_exception_is_recorded_and_goes_on
process: outcome to contextCode -> {_BLOCKS}::test_handle_sets_the_outcome
process.each -> {_FORMS}::test_each_message_is_current_in_the_body_and_nothing_after
automatic mode needs no call -> {_CLIENTS}/test_consumer.py::test_a_message_is_in_process_until_the_next_poll
MqTraceSpanProcessor: signature, a SpanProcessor -> test_processor_signature
MqTraceSpanProcessor: defaults -> {_SPANS}/test_mapping.py::test_the_defaults_are_those_of_the_contract
one queue and one worker per exporter -> {_SPANS}/test_processor.py::test_a_stuck_exporter_does_not_delay_its_neighbour
preset rocketmq4, rocketmq5 -> {_SPANS}/test_mapping.py::test_a_preset_is_a_rocketmq_generation
stats() adds up at every instant -> {_SPANS}/test_processor.py::test_the_account_balances_at_every_instant_under_eight_threads
tunables from MQTRACE_*, then OTEL_BSP_* -> {_SPANS}/test_mapping.py::test_environment_is_used_without_arguments
exporters mqtrace_native, mqtrace_native_file, mqtrace_native_rocketmq -> test_exporters_are_entry_points_with_plain_keywords
SendHook, ConsumeHook -> tests/otel_mqtrace/hooks/test_manual_hooks.py::test_a_message_goes_through_both_doors
codec -> tests/otel_mqtrace/wire/test_codec.py::test_what_is_written_is_read_back
otel_mqtrace.testing -> tests/otel_mqtrace/testing/test_cluster.py::test_a_broker_comes_with_the_kit
"""
_CONFIGURATION: Final = f"""
MQTRACE_ENABLED -> {_SWITCH}::test_switched_off_by_the_environment_nothing_happens
MQTRACE_TRACE_TOPIC -> {_KAFKA}::test_the_environment_names_broker_topic_and_properties
MQTRACE_EXPORTERS -> {_SWITCH}::test_exporters_are_loaded_by_name_and_a_bad_one_is_one_warning, {_CONFIG}::test_none_as_the_only_exporter_means_no_exporter
MQTRACE_BOOTSTRAP_SERVERS -> {_KAFKA}::test_the_environment_names_the_brokers, {_KAFKA}::test_application_broker_is_the_default
MQTRACE_KAFKA_CONFIG -> {_KAFKA}::test_the_environment_names_broker_topic_and_properties
MQTRACE_LANDING_DIR -> {_SWITCH}::test_the_environment_alone_is_enough
MQTRACE_DIALECT -> {_KAFKA}::test_the_encoder_can_be_wrapped
MQTRACE_REGION_ID -> {_CLIENTS}/test_consumer.py::test_a_message_is_in_process_until_the_next_poll
MQTRACE_PRESET -> {_SPANS}/test_mapping.py::test_a_preset_is_a_rocketmq_generation
MQTRACE_QUEUE_SIZE -> {_SWITCH}::test_our_processor_is_attached_with_the_exporters_given
MQTRACE_BATCH_SIZE -> {_SWITCH}::test_our_processor_is_attached_with_the_exporters_given
MQTRACE_LINGER_MS -> {_SWITCH}::test_our_processor_is_attached_with_the_exporters_given
MQTRACE_MAX_MESSAGE_BYTES -> {_KAFKA}::test_the_size_bound_splits_batches_and_the_broker_accepts_each
MQTRACE_PROCESS_CONTEXT -> {_CLIENTS}/test_consumer.py::test_parent_and_links_follow_the_option
MQTRACE_RECEIVE_SPANS -> {_CLIENTS}/test_consumer.py::test_a_poll_that_returned_something_is_a_client_span
MQTRACE_TOPIC_EXCLUDE -> {_CLIENTS}/test_producer.py::test_the_trace_topic_and_excluded_topics_are_never_traced
MQTRACE_CREATE_TRACE_TOPIC -> {_KAFKA}::test_a_topic_that_cannot_be_created_is_sent_to_all_the_same
each variable sets its setting -> {_CONFIG}::test_the_environment_sets_every_setting
the defaults of the table -> {_CONFIG}::test_the_defaults_are_those_of_the_contract
code wins -> {_CONFIG}::test_code_wins_over_the_environment
wrong values warn once and never break start-up -> {_CONFIG}::test_a_wrong_value_warns_once_with_its_name_its_value_and_the_default, {_SWITCH}::test_wrong_options_never_raise
passwords never appear -> {_CONFIG}::test_no_password_is_ever_printed, {_KAFKA}::test_a_password_never_appears_in_a_log, {_SWITCH}::test_no_password_gets_into_a_span, tests/otel_mqtrace/doctor/test_environment.py::test_no_password_is_ever_shown
"""
_SPAN_AND_RECORD: Final = f"""
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
the caller's header object is never mutated -> {_CLIENTS}/test_producer.py::test_the_callers_headers_are_never_touched
registry attributes of 1.44 -> test_registry_attributes_of_kafka
what is equal on the span, the rest on the links -> test_what_is_equal_stands_on_the_span_the_rest_on_its_links
span names and kinds -> test_span_names_and_kinds, {_SPANS}/test_mapping.py::test_names_and_kinds_are_those_of_the_contract
the four messaging metrics -> test_the_four_messaging_metrics
self-metrics -> test_self_metrics_of_the_processor
messaging.rocketmq.* -> tests/otel_mqtrace/hooks/test_send.py::test_a_rocketmq_send_has_the_registry_s_rocketmq_names
SubBefore leaves at the start -> test_sub_before_leaves_when_the_handler_starts
U+0001 and U+0002 become underscores, counted -> test_separators_inside_values_are_written_as_underscores_and_counted
one topic a trace message, header KEYS -> test_a_trace_message_is_of_one_topic_and_names_its_keys
header mqtrace.dialect -> test_the_dialect_header
batches are split, never refused -> {_KAFKA}::test_the_size_bound_splits_batches_and_the_broker_accepts_each
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
    *_read("configuration", "", _CONFIGURATION),
    *_read("spans and records", "test_span_and_record.py", _SPAN_AND_RECORD),
)
"""Every promise, in the order of the contract."""
