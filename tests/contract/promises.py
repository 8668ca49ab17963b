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
_HOOKS: Final = "tests/otel_mqtrace/hooks"
_METRICS: Final = f"{_HOOKS}/test_metrics.py"
_CODEC: Final = "tests/otel_mqtrace/wire/test_codec.py"
_FILE: Final = "tests/otel_mqtrace/exporters/test_native_file.py"
_PACKING: Final = "tests/otel_mqtrace/exporters/test_packing.py"
_TABLE_OF_SEND: Final = f"{_CLIENTS}/test_producer.py::test_delivered_message_has_every_field_of_the_table"
_TABLE_OF_PROCESS: Final = f"{_CLIENTS}/test_consumer.py::test_handled_message_has_every_field_of_the_table"
_PYTHON_API: Final = f"""
the five public names -> test_public_names
instrument(tracer_provider, **config) -> {_SWITCH}::test_processor_is_attached_with_the_given_exporters
instrument(meter_provider) -> {_CLIENTS}/test_statistics.py::test_lag_is_the_uncommitted_messages_of_the_group
configuration is a dataclass -> {_SWITCH}::test_configuration_is_the_dataclass_of_every_setting
entry point mqtrace_confluent_kafka -> test_entry_point_of_the_instrumentor
_instrument() never raises -> {_SWITCH}::test_wrong_options_never_raise, {_SWITCH}::test_option_of_a_wrong_type_is_one_warning
works whether the client was imported before or after -> {_CLIENTS}/test_patching.py::test_instrumenting_again_makes_one_span_each
uninstrument() is complete -> {_CLIENTS}/test_patching.py::test_uninstrument_restores_every_name_ten_times
steps back with a warning -> {_CLIENTS}/test_classes.py::test_instrument_steps_back_for_another_instrumentation
on_conflict -> {_CLIENTS}/test_patching.py::test_client_of_another_instrumentation_is_traced_by_both_if_configured
process: context manager, current inside -> {_CLIENTS}/aiokafka/test_consumer.py::test_block_uses_the_automatic_span
process: baggage restored -> {_FORMS}::test_baggage_is_restored_inside_only
process: decorator -> {_FORMS}::test_message_is_found_among_all_arguments
process: types, py.typed -> test_type_checker_sees_what_process_returns
process: exceptions recorded -> {_BLOCKS}::test_exception_of_a_block_is_recorded_and_raised
process: outcome to contextCode -> {_HOOKS}/test_manual_hooks.py::test_handler_sets_its_outcome_from_anywhere
process.each -> {_FORMS}::test_each_message_is_current_in_the_body_of_the_loop_only
automatic mode needs no call -> {_CLIENTS}/test_consumer.py::test_message_is_current_until_the_next_poll
MqTraceSpanProcessor: signature, a SpanProcessor -> test_processor_signature
MqTraceSpanProcessor: defaults -> {_SPANS}/test_mapping.py::test_default_settings_are_those_of_the_contract
one queue and one worker per exporter -> {_SPANS}/test_processor.py::test_flush_of_a_lane_does_not_wait_for_a_stuck_one
preset rocketmq4, rocketmq5 -> {_SPANS}/test_mapping.py::test_preset_has_the_settings_of_its_rocketmq_generation
stats() adds up at every instant -> {_SPANS}/test_processor.py::test_account_balances_at_every_instant_under_eight_threads
tunables from MQTRACE_*, then OTEL_BSP_* -> {_SPANS}/test_mapping.py::test_environment_is_used_without_arguments
exporters mqtrace_native, mqtrace_native_file, mqtrace_native_rocketmq -> test_exporters_are_entry_points_with_plain_keywords
SendHook, ConsumeHook -> {_HOOKS}/test_manual_hooks.py::test_message_has_its_id_and_times_in_both_formats
codec -> {_CODEC}::test_written_context_is_read_back
otel_mqtrace.testing -> tests/otel_mqtrace/testing/test_cluster.py::test_embedded_broker_comes_with_the_kit
"""
_CONFIGURATION: Final = f"""
MQTRACE_ENABLED -> {_SWITCH}::test_disabled_instrumentation_changes_nothing
MQTRACE_TRACE_TOPIC -> {_KAFKA}::test_environment_names_broker_topic_and_properties
MQTRACE_EXPORTERS -> {_SWITCH}::test_exporters_are_loaded_by_name_and_an_unknown_one_is_one_warning, {_CONFIG}::test_none_as_the_only_exporter_means_no_exporter
MQTRACE_BOOTSTRAP_SERVERS -> {_KAFKA}::test_environment_names_the_brokers, {_KAFKA}::test_application_broker_is_the_default
MQTRACE_KAFKA_CONFIG -> {_KAFKA}::test_environment_names_broker_topic_and_properties
MQTRACE_LANDING_DIR -> tests/flow/test_applications.py::test_application_with_its_own_bridge_keeps_both_formats
MQTRACE_DIALECT -> {_KAFKA}::test_encoder_can_be_wrapped
MQTRACE_REGION_ID -> {_TABLE_OF_PROCESS}
MQTRACE_PRESET -> {_SPANS}/test_mapping.py::test_preset_has_the_settings_of_its_rocketmq_generation
MQTRACE_QUEUE_SIZE -> {_SWITCH}::test_processor_is_attached_with_the_given_exporters
MQTRACE_BATCH_SIZE -> {_SWITCH}::test_processor_is_attached_with_the_given_exporters
MQTRACE_LINGER_MS -> {_SWITCH}::test_processor_is_attached_with_the_given_exporters
MQTRACE_MAX_MESSAGE_BYTES -> {_KAFKA}::test_batch_is_split_into_messages_the_broker_accepts
MQTRACE_PROCESS_CONTEXT -> {_HOOKS}/test_process_span.py::test_parent_and_links_follow_the_option
MQTRACE_RECEIVE_SPANS -> {_HOOKS}/test_client_spans.py::test_poll_span_has_the_times_of_the_poll
MQTRACE_TOPIC_EXCLUDE -> {_CLIENTS}/test_producer.py::test_message_of_an_excluded_topic_is_sent_as_it_is
MQTRACE_CREATE_TRACE_TOPIC -> {_KAFKA}::test_topic_that_cannot_be_created_is_sent_to
each variable sets its setting -> {_CONFIG}::test_environment_sets_every_setting
the defaults of the table -> {_CONFIG}::test_default_settings_are_those_of_the_contract
code wins -> {_CONFIG}::test_code_wins_over_the_environment
wrong values warn once and never break start-up -> {_CONFIG}::test_wrong_value_is_one_warning_with_name_value_and_default, {_SWITCH}::test_wrong_options_never_raise
passwords never appear -> {_CONFIG}::test_password_is_not_logged, {_KAFKA}::test_password_is_neither_logged_nor_shown_by_the_exporter, {_SWITCH}::test_password_is_not_on_a_span, tests/otel_mqtrace/doctor/test_environment.py::test_password_is_not_shown_by_the_doctor
"""
_SPAN_AND_RECORD: Final = f"""
traceType, span names and kinds -> {_SPANS}/test_mapping.py::test_span_names_and_kinds_are_those_of_the_contract, {_TABLE_OF_SEND}, {_TABLE_OF_PROCESS}
every field of a send -> {_TABLE_OF_SEND}, {_CLIENTS}/rocketmq/test_producer.py::test_sent_message_has_every_field_of_the_table
every field of a process -> {_TABLE_OF_PROCESS}, {_CLIENTS}/rocketmq/test_consumer.py::test_message_is_processed_from_receive_to_ack
every field in the record -> {_SPANS}/test_mapping.py::test_trace_context_on_a_span_is_read_back_unchanged, {_CODEC}::test_written_context_is_read_back
msgId: one on the wire, on both spans, in all records -> {_HOOKS}/test_manual_hooks.py::test_message_has_its_id_and_times_in_both_formats, {_FILE}::test_spans_become_records_in_the_landing
offsetMsgId: an id where the message has none -> {_HOOKS}/test_attributes.py::test_message_without_an_id_has_its_offset_as_id
storeHost: the leader of the partition -> {_CLIENTS}/test_leaders.py::test_send_span_and_record_have_the_leader_of_the_partition
bodyLength: a tombstone has none -> {_CLIENTS}/test_producer.py::test_tombstone_is_marked_and_binary_key_is_left_out_of_the_span
retryTimes -> {_HOOKS}/test_attributes.py::test_retry_header_is_a_setting, {_HOOKS}/test_attributes.py::test_retry_count_other_than_a_32_bit_number_is_zero
msgType -> {_CLIENTS}/rocketmq/test_producer.py::test_fifo_and_delayed_messages_have_their_type, {_CLIENTS}/test_settlement.py::test_every_message_of_a_transaction_has_an_end_linked_to_its_send
timeStamp, costTime -> {_HOOKS}/test_manual_hooks.py::test_message_has_its_id_and_times_in_both_formats
success, contextCode -> {_HOOKS}/test_manual_hooks.py::test_handler_sets_its_outcome_from_anywhere, {_BLOCKS}::test_exception_of_a_block_is_recorded_and_raised
requestId: one for both halves -> {_CLIENTS}/rocketmq/test_consumer.py::test_message_has_the_records_of_a_native_client
transactionId, transactionState, fromTransactionCheck -> {_CLIENTS}/test_settlement.py::test_every_message_of_a_transaction_has_an_end_linked_to_its_send
message headers written, one of each -> {_CLIENTS}/test_producer.py::test_send_is_a_child_of_the_current_span_and_its_context_is_in_the_headers, {_HOOKS}/test_send.py::test_replace_writes_the_send_span_and_links_to_the_earlier_one
the caller's header object is never mutated -> {_CLIENTS}/test_producer.py::test_headers_of_the_caller_are_not_changed
what is equal on the span, the rest on the links -> {_SPANS}/test_mapping.py::test_values_equal_for_all_messages_are_on_the_span_only, {_CLIENTS}/test_consumer.py::test_batch_is_one_span_with_a_link_for_each_message
poll T, commit T -> {_HOOKS}/test_client_spans.py::test_poll_span_has_the_times_of_the_poll, {_HOOKS}/test_client_spans.py::test_settlement_is_a_client_span_named_as_the_client_does
the four messaging metrics -> {_METRICS}::test_sent_messages_counts_every_attempt_and_names_the_error, {_METRICS}::test_consumed_messages_counts_once_for_each_delivered_message, {_METRICS}::test_operation_duration_of_a_send_is_its_span_s_in_seconds, {_METRICS}::test_process_duration_is_reported_for_every_process_span
self-metrics -> {_SPANS}/test_processor.py::test_processor_metrics_equal_the_stats
messaging.rocketmq.* -> {_HOOKS}/test_send.py::test_rocketmq_send_has_the_registered_rocketmq_attributes
SubBefore leaves at the start -> {_KAFKA}::test_started_span_is_delivered_before_it_ends
U+0001 and U+0002 become underscores, counted -> {_CODEC}::test_separators_in_a_value_become_underscores_and_are_counted
one topic a trace message, headers KEYS and mqtrace.dialect -> {_PACKING}::test_topics_and_regions_do_not_mix, {_KAFKA}::test_spans_reach_the_trace_topic_as_rocketmq_would_write_them
batches are split, never refused -> {_KAFKA}::test_batch_is_split_into_messages_the_broker_accepts
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
    *_read("spans and records", "", _SPAN_AND_RECORD),
)
"""Every promise, in the order of the contract."""
