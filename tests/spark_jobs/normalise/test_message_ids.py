"""A place on a broker is called by the message that a native send names for it."""

import pyarrow as pa

from spark_jobs.jobs.naming import claims_in, resolve_message_ids
from spark_jobs.schemas import EVENT


def test_position_that_one_send_names_is_resolved_to_its_message():
    sends = [
        *(("publish", "A", "t-0@7"), ("publish", "B", "t-0@9"), ("publish", "C", "t-0@9")),  # a topic created anew
        *(("recall", "D", "t-0@1"), ("publish", "E", "C0A8000100002A9F0000000000000042"), ("publish", None, "t-0@2")),
        ("publish", "t-0@3", "t-0@3"),  # by its place itself
    ]
    made = [{"side": "native", "kind": kind, "msg_id": msg_id, "offset_msg_id": place} for kind, msg_id, place in sends]
    made.append({"side": "otlp", "kind": "publish", "msg_id": "F", "offset_msg_id": "t-0@4"})
    events = pa.Table.from_pylist(made, schema=EVENT)
    claims = claims_in({name: events[name].combine_chunks() for name in events.column_names})
    places = ["t-0@7", "t-0@9", "t-0@1", "C0A8000100002A9F0000000000000042", "t-0@2", "t-0@3", "t-0@4", "A", None]
    resolved = resolve_message_ids(pa.array(places), claims).to_pylist()
    assert resolved == ["A", "t-0@9", "t-0@1", "E", "t-0@2", "t-0@3", "t-0@4", "A", None]
