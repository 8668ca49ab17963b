"""Signatures, against what Java's client writes."""

from __future__ import annotations

from otel_mqtrace.rocketmq.commands import Credentials, signed
from otel_mqtrace.rocketmq.frames import Command

FIELDS = {"queueId": "3", "setZeroIfNotFound": "false", "topic": "topic", "consumerGroup": "group"}


def test_a_request_is_signed_as_java_signs():
    """The signature is what AclClientRPCHook of RocketMQ 5.5.0 makes of these fields, body and keys."""
    said = signed(Command(14, FIELDS, "body é".encode()), Credentials("access", "secret key"))
    assert said.fields == {**FIELDS, "AccessKey": "access", "Signature": "+34AIoYMsXJFS5guPjBXWnT1xyE="}


def test_signing_again_changes_nothing():
    credentials = Credentials("access", "secret key")
    once = signed(Command(14, FIELDS), credentials)
    assert signed(once, credentials) == once


def test_without_credentials_nothing_is_added():
    command = Command(14, FIELDS)
    assert signed(command, None) is command


def test_a_secret_shows_nowhere():
    assert "hidden" not in repr(Credentials("access", "hidden"))
