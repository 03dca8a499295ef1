#!/usr/bin/python3
"""confluent-kafka (librdkafka), of Debian or newer, behind the line protocol of lines.py."""

import threading
import time

import lines
from confluent_kafka import OFFSET_BEGINNING, TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka import admin as adm


def config(request, **settings):
    c = {"bootstrap.servers": request["bootstrap"]}
    c.update({k.replace("_", "."): v for k, v in settings.items()})
    c.update(request.get("config") or {})
    return c


def produce(request):
    """Sends the records in their order; all of them in one transaction when "transaction" is commit or abort."""
    transaction = request.get("transaction")
    c = config(request, compression_type=request["codec"], linger_ms=50, acks="all", message_timeout_ms=30000)
    if transaction:
        c["transactional.id"] = request["transactional_id"]
        c["transaction.timeout.ms"] = 30000
    if request.get("idempotent"):
        c["enable.idempotence"] = True
    if request.get("max_bytes"):
        c["message.max.bytes"] = request["max_bytes"]
    failures, offsets = [], []

    def delivered(err, msg):
        if err is not None:
            failures.append(str(err))
        else:
            offsets.append(msg.offset())

    p = Producer(c)
    if transaction:
        p.init_transactions(15)
        p.begin_transaction()
    for r in request["records"]:
        kwargs = {}
        if r.get("partition", -1) >= 0:
            kwargs["partition"] = r["partition"]
        if r.get("timestamp"):
            kwargs["timestamp"] = r["timestamp"]
        if r.get("headers"):
            kwargs["headers"] = lines.headers(r)
        p.produce(request["topic"], key=lines.decode(r["key"]), value=lines.decode(r["value"]), on_delivery=delivered, **kwargs)
    left = p.flush(30)
    if left:
        failures.append("%d records were not sent" % left)
    if transaction == "commit":
        p.commit_transaction(30)
    elif transaction == "abort":
        p.abort_transaction(30)
    if failures:
        raise RuntimeError("; ".join(failures))
    return {"offsets": offsets}


def plain(msg):
    kind, timestamp = msg.timestamp()
    timestamp = -1 if kind == TIMESTAMP_NOT_AVAILABLE else timestamp
    return lines.plain(msg.partition(), msg.offset(), timestamp, msg.key(), msg.value(), msg.headers())


def poll(consumer, timeout):
    """The next record, None when there was none in time; errors are raised."""
    msg = consumer.poll(timeout)
    if msg is None:
        return None
    if msg.error():
        raise RuntimeError(str(msg.error()))
    return msg


def consume(request):
    """Reads every partition of a topic from its beginning to the end that it has now."""
    settings = {"fetch_message_max_bytes": request["max_bytes"]} if request.get("max_bytes") else {}
    c = Consumer(config(request, group_id="unused", enable_auto_commit=False, enable_partition_eof=True, **settings))
    try:
        deadline = time.time() + request.get("timeout_ms", 30000) / 1000
        topic = c.list_topics(request["topic"], 10).topics[request["topic"]]
        if topic.error is not None:
            raise RuntimeError(str(topic.error))
        left, records = set(topic.partitions), []
        c.assign([TopicPartition(request["topic"], p, OFFSET_BEGINNING) for p in left])
        while left:
            if time.time() > deadline:
                raise RuntimeError("timed out after %d records; partitions not at their end: %s" % (len(records), left))
            msg = c.poll(0.1)
            if msg is None:
                continue
            if msg.error() is None:
                records.append(plain(msg))
            elif msg.error().code() == KafkaError._PARTITION_EOF:
                left.discard(msg.partition())
            else:
                raise RuntimeError(str(msg.error()))
        return {"records": records}
    finally:
        c.close()


def group(request):
    """Joins a group, reads exactly "count" records, commits the position after the last one, leaves."""
    c = Consumer(config(request, group_id=request["group"], enable_auto_commit=False, auto_offset_reset="earliest"))
    try:
        deadline = time.time() + request.get("timeout_ms", 30000) / 1000
        c.subscribe([request["topic"]])
        records = []
        while len(records) < request["count"]:
            if time.time() > deadline:
                raise RuntimeError("timed out after %d of %d records" % (len(records), request["count"]))
            msg = poll(c, 0.1)
            if msg is not None:
                records.append(plain(msg))
                c.commit(message=msg, asynchronous=False)
        return {"records": records}
    finally:
        c.close()


class Member:
    """A member of a group that polls and commits in a thread of its own until it is told to leave."""

    def __init__(self, request):
        self.consumer = Consumer(
            config(request, group_id=request["group"], auto_offset_reset="earliest", enable_auto_commit=False)
        )
        self.consumer.subscribe([request["topic"]])
        self.seen, self.failure, self.leaving = [], None, False
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        try:
            while not self.leaving:
                msg = poll(self.consumer, 0.05)
                if msg is not None:
                    self.seen.append(plain(msg))
                    self.consumer.commit(message=msg, asynchronous=False)
        except Exception as e:
            self.failure = str(e)
        finally:
            self.consumer.close()

    def records(self):
        answer = {"records": list(self.seen)}
        if self.failure is not None:
            answer["error"] = self.failure
        return answer

    def leave(self):
        self.leaving = True
        self.thread.join(30)
        return self.records()


def need(client, method):
    """A method that not every release has."""
    if not hasattr(client, method):
        raise lines.Cannot("there is no " + method)
    return getattr(client, method)


def only(futures):
    """The outcome of the one thing that was asked for."""
    (future,) = futures.values()
    return future.result(30)


def admin(request):
    """Does one administrative thing; see test/interop/admin_test.go for what is asked."""
    q = request["admin"]
    do, topic, group = q["do"], q.get("topic"), q.get("group")
    client = adm.AdminClient({"bootstrap.servers": request["bootstrap"]})
    at = TopicPartition(topic, q["partition"], q["offset"]) if topic else None

    def resource(**kwargs):
        return adm.ConfigResource(adm.ConfigResource.Type.TOPIC if hasattr(adm.ConfigResource, "Type") else "topic", topic, **kwargs)

    if do == "create-topic":
        only(client.create_topics([adm.NewTopic(topic, q["partitions"], 1, config=q["configs"])]))
    elif do == "list-topics":
        return {"names": list(client.list_topics(timeout=10).topics)}
    elif do == "describe-topic":
        return {"partitions": len(client.list_topics(topic, 10).topics[topic].partitions)}
    elif do == "create-partitions":
        only(client.create_partitions([adm.NewPartitions(topic, q["partitions"])]))
    elif do == "describe-configs":
        return {"configs": {name: e.value for name, e in only(client.describe_configs([resource()])).items()}}
    elif do == "alter-configs":
        only(client.alter_configs([resource(set_config=q["configs"])]))
    elif do == "incremental-configs":
        alter = need(client, "incremental_alter_configs")
        entries = [adm.ConfigEntry(k, v, incremental_operation=adm.AlterConfigOpType.SET) for k, v in q["configs"].items()]
        only(alter([resource(incremental_configs=entries)]))
    elif do in ("list-offsets", "group-offset", "set-group-offset"):
        # The older releases have these only in the consumer.
        c = Consumer(config(request, group_id=group or "unused", enable_auto_commit=False))
        try:
            if do == "list-offsets":
                return {"offset": c.get_watermark_offsets(at, 10)[1]}
            if do == "group-offset":
                return {"offset": c.committed([at], 10)[0].offset}
            c.commit(offsets=[at], asynchronous=False)
        finally:
            c.close()
    elif do == "delete-records":
        only(need(client, "delete_records")([at]))
    elif do == "list-groups":
        if hasattr(client, "list_consumer_groups"):
            return {"names": [g.group_id for g in client.list_consumer_groups().result(30).valid]}
        return {"names": [g.id for g in client.list_groups(timeout=10)]}
    elif do == "describe-group":
        if hasattr(client, "describe_consumer_groups"):
            return {"state": only(client.describe_consumer_groups([group])).state.name}
        return {"state": client.list_groups(group, 10)[0].state}
    elif do == "delete-group":
        only(need(client, "delete_consumer_groups")([group]))
    elif do == "delete-topic":
        only(client.delete_topics([topic]))
    else:
        raise lines.Cannot("there is no " + do)
    return {}


if __name__ == "__main__":
    lines.serve(produce, consume, group, admin, Member)
