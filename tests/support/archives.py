"""Archives of trace messages for the query's tests: recorded ones, and ones made of contexts."""

import base64
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from bridge.codec.files import BodyDecoder
from bridge.query.landing_archive import FilesArchive
from bridge.query.matching import Query, may_mention
from bridge.query.rocketmq_archive import BrokerArchive
from bridge.query.search import Answer, Archive, Searched, search
from bridge.query.timeline import MessageTimeline
from otel_mqtrace.landing import LandedMessage, LandedPart, LandingWriter
from otel_mqtrace.model import ContextCode, MessageType, TraceContext, TraceType, TransactionState
from otel_mqtrace.wire.native import encode_context
from tests.support import native_vectors

TOPIC = "RMQ_SYS_TRACE_TOPIC"
T0 = 1_795_260_000_000
ID = "C00002027A9A4E0E2F2A6972872E01E4"


class Shelf:
    """An archive in memory: the smallest thing that is one."""

    decoder = FilesArchive.decoder

    def __init__(self, messages: Iterable[LandedMessage]) -> None:
        self.messages = list(messages)

    def find_messages(self, texts: Collection[str]) -> Iterator[LandedMessage]:
        needles = [text.encode("utf-8", "replace") for text in texts]
        return (message for message in self.messages if may_mention(message, needles))

    @property
    def searched(self) -> Searched:
        return Searched(where="a shelf", messages=len(self.messages))


def _message(offset: int, keys: str | None, body: bytes) -> LandedMessage:
    return LandedMessage(source=TOPIC, partition=0, offset=offset, arrival_ms=T0 + offset, keys=keys, body=body)


def recorded_messages(stem: str) -> list[LandedMessage]:
    items = native_vectors.json_lines(native_vectors.RECORDED / f"{stem}.jsonl")
    return [_message(at, item["keys"], base64.b64decode(item["body_base64"])) for at, item in enumerate(items)]


def landed(*contexts: TraceContext, dialect: str = "5.5.0", extra: bytes = b"") -> list[LandedMessage]:
    encoded = [encode_context(each, dialect=dialect) for each in contexts]
    return [_message(at, " ".join(sorted(each.keys)), each.body + extra) for at, each in enumerate(encoded)]


def land(root: Path | str, messages: Sequence[LandedMessage], *, suffix: str = "jsonl") -> tuple[LandedPart, ...]:
    writer = LandingWriter(root, format=suffix)
    writer.write(messages)
    return writer.finish()


def context(trace_type: TraceType, at_ms: int | None, **fields: object) -> TraceContext:
    known = {"msg_id": ID, "topic": "orders", "tags": "paid", "keys": "order-1", "region_id": "DefaultRegion"}
    return native_vectors.context(trace_type, at_ms, **{**known, **fields})


def pub(at_ms: int = T0, **fields: object) -> TraceContext:
    """Return a send that took 10 ms and succeeded, unless ``fields`` say otherwise."""
    call = {"group_name": "shop", "cost_ms": 10, "success": True}
    message = {"msg_type": MessageType.NORMAL, "body_length": 5, "store_host": "broker:10911"}
    return context(TraceType.PUB, at_ms, **{**call, **message, "offset_msg_id": f"orders-0@{at_ms - T0}", **fields})


def consume(
    request_id: str,
    at_ms: int,
    took_ms: int = 5,
    *,
    group: str = "billing",
    success: bool = True,
    code: ContextCode = ContextCode.SUCCESS,
    retry: int = 0,
    **fields: object,
) -> list[TraceContext]:
    who = {"group_name": group, "request_id": request_id, **fields}
    return [
        context(TraceType.SUB_BEFORE, at_ms, retry_times=retry, **who),
        context(TraceType.SUB_AFTER, at_ms + took_ms, cost_ms=took_ms, success=success, context_code=code, **who),
    ]


def end(at_ms: int, state: TransactionState, *, check: bool = False) -> TraceContext:
    message = {"msg_type": MessageType.TRANS_COMMIT, "store_host": "broker:10911"}
    ended = {"transaction_id": "TX", "transaction_state": state, "from_transaction_check": check}
    return context(TraceType.END_TRANSACTION, at_ms, group_name="shop", **message, **ended)


def recall(at_ms: int, *, success: bool = True) -> TraceContext:
    return context(TraceType.RECALL, at_ms, group_name="shop", success=success, keys=None, tags=None)


# A message with two sends, a transaction, a redelivery, a late group, two half deliveries and a recall in vain.
LIFE = [
    pub(success=False, cost_ms=3000, store_host="broker-a:10911", offset_msg_id=""),
    pub(T0 + 3000, msg_type=MessageType.TRANS_HALF, store_host="broker-b:10911"),
    end(T0 + 3010, TransactionState.UNKNOW),
    end(T0 + 9000, TransactionState.COMMIT_MESSAGE, check=True),
    *consume("R1", T0 + 9010, success=False, code=ContextCode.EXCEPTION),
    *consume("R2", T0 + 619_010, retry=1),
    *consume("R3", T0 + 9011, group="stock", code=ContextCode.TIME_OUT),
    *consume("R4", T0 + 9012, group="mail")[:1],
    *consume("R5", T0 + 9012, group="audit")[1:],
    recall(T0 + 20_000, success=False),
]


def answer_of(
    messages: Iterable[LandedMessage], *msg_ids: str, key: str | None = None, limit: int = 64, **how: str
) -> Answer:
    return search(Shelf(messages), Query(frozenset(msg_ids), key), BodyDecoder(**how), limit=limit)


def story_of(*contexts: TraceContext, msg_id: str = ID, **how: str) -> MessageTimeline:
    (story,) = answer_of(landed(*contexts, **how), msg_id).stories
    return story


def again(message: LandedMessage, *, offset: int) -> LandedMessage:
    """Return the same trace message at another offset, as a producer's retry leaves it."""
    return replace(message, offset=offset, arrival_ms=message.arrival_ms + 1)


def find_by_key(namesrv: str, topic: str, key: str) -> list[LandedMessage]:
    with closing(BrokerArchive(namesrv, [topic])) as archive:
        return list(archive.find_messages([key]))


def search_once(archive: Archive, *msg_ids: str, key: str | None = None) -> Answer:
    with closing(archive):
        return search(archive, Query(frozenset(msg_ids), key), BodyDecoder(), limit=100)
