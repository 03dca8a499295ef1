"""A member of a cooperative group: prints how many partitions it has, each time that changes.

    cooperative.py BOOTSTRAP TOPIC GROUP
"""

import sys

from confluent_kafka import Consumer

consumer = Consumer({
    "bootstrap.servers": sys.argv[1],
    "group.id": sys.argv[3],
    "partition.assignment.strategy": "cooperative-sticky",
    "heartbeat.interval.ms": 100,
    "session.timeout.ms": 10000,
    "auto.offset.reset": "earliest",
})


def changed(_consumer, _partitions):
    """With no callback the assignment changes all the same; this one wakes the loop below."""


consumer.subscribe([sys.argv[2]], on_assign=changed, on_revoke=changed)
had = -1
while True:
    consumer.poll(0.02)
    has = len(consumer.assignment())
    if has != had:
        had = has
        print(has, flush=True)
