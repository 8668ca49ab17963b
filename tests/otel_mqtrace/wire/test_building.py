"""Objects that are made fast are objects of the model like any other."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, asdict, astuple, fields, replace

import pytest
from hypothesis import given

from otel_mqtrace.model import TraceBean, TraceContext
from otel_mqtrace.wire.native.decode import maker_of
from tests.support.strategies import sayable

new_bean, new_context = maker_of(TraceBean), maker_of(TraceContext)


def _again(said):
    return new_context(*(getattr(said, field.name) for field in fields(said)))


@given(sayable())
def test_an_object_made_of_its_values_is_the_same(drawn):
    trace_ctx, _, _ = drawn
    again = _again(trace_ctx)
    assert type(again) is TraceContext
    assert (again, trace_ctx) == (trace_ctx, again)
    assert (hash(again), repr(again)) == (hash(trace_ctx), repr(trace_ctx))


def test_it_cannot_be_changed_and_holds_nothing_else():
    """Frozen and with slots, as the model says."""
    bean = new_bean(*range(len(fields(TraceBean))))
    with pytest.raises(FrozenInstanceError):
        bean.topic = "other"
    assert not hasattr(bean, "__dict__")
    assert astuple(bean) == tuple(range(len(fields(TraceBean))))


def test_it_can_be_copied_replaced_and_sent():
    bean = new_bean(*map(str, range(len(fields(TraceBean)))))
    assert pickle.loads(pickle.dumps(bean)) == copy.deepcopy(bean) == replace(bean) == TraceBean(**asdict(bean))


def test_every_value_is_needed():
    with pytest.raises(TypeError):
        new_bean("orders")
