"""The application of the documents: two orders sent and handled; where its brokers are, the environment tells."""

import os

from confluent_kafka import Consumer, Producer

servers = os.environ["APPLICATION_SERVERS"]
producer = Producer({"bootstrap.servers": servers, "client.id": "shop"})
for key in ("order-1", "order-7"):
    producer.produce("orders", "paid", key=key, headers={"TAGS": "paid", "KEYS": key})
assert producer.flush(20) == 0
# A group of its own each time: the embedded broker makes a second member wait for the first one's session to end.
settings = {"bootstrap.servers": servers, "group.id": f"billing-{os.getpid()}", "auto.offset.reset": "earliest"}
consumer = Consumer(settings)
consumer.subscribe(["orders"])
handled = 0
while handled < 2:
    handled += consumer.poll(1) is not None
consumer.close()
