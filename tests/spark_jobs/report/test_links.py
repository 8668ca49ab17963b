"""Links from a sample to another tool: what a template may say, and that no id breaks out of its place."""

import pytest

from bridge.page.links import check_template
from otel_mqtrace._errors import UsageError
from spark_jobs.report.links import LINK_FIELDS, link_of
from tests.support.results import otlp_fields, sample


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("javascript:alert('{trace_id}')", "begin it with http"),
        ("jaeger/{trace_id}", "begin it with http"),
        ("https://", "begin it with http"),
        ("https://jaeger.example/trace", "nothing in it changes"),
        ("https://jaeger.example/{trace}", "{trace} is unknown; use {trace_id}"),
    ],
)
def test_a_template_that_makes_no_link_is_refused(template, said):
    """Before any Spark starts, with the names it may use."""
    with pytest.raises(UsageError, match=said.replace("{", r"\{")):
        check_template(template, LINK_FIELDS)


def test_ids_are_quoted_into_the_address():
    """A hostile topic stays one part of the path."""
    hostile = sample(1, topic="a/b?c=d&e#f\"'> <", otlp=otlp_fields(span_id="00ff"))
    template = check_template("https://x.example/{topic}/{span_id}/{msg_id}", LINK_FIELDS)
    msg_id = hostile.verdict["msg_id"]
    assert link_of(template, hostile) == f"https://x.example/a%2Fb%3Fc%3Dd%26e%23f%22%27%3E%20%3C/00ff/{msg_id}"


def test_what_an_event_lacks_makes_no_link():
    """A native record alone has no trace id."""
    assert link_of("https://x.example/{trace_id}", sample(1, otlp=None)) is None
