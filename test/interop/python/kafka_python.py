"""kafka-python behind the line protocol of lines.py."""

import logging
import threading
import time

import lines
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigFilterType, ConfigResource, OffsetSpec
from kafka.structs import OffsetAndMetadata


def produce(request):
    """Sends the records in their order; all of them in one transaction when "transaction" is commit or abort."""
    transaction = request.get("transaction")
    settings = {}
    if transaction:
        settings.update(transactional_id=request["transactional_id"], max_block_ms=15000)
    if request.get("max_bytes"):
        settings.update(max_request_size=request["max_bytes"])
    p = KafkaProducer(
        bootstrap_servers=request["bootstrap"],
        compression_type=None if request["codec"] == "none" else request["codec"],
        acks="all",
        linger_ms=50,
        delivery_timeout_ms=30000,
        request_timeout_ms=10000,
        # Off unless it is asked for: the default depends on the broker.
        enable_idempotence=bool(transaction or request.get("idempotent")),
        max_in_flight_requests_per_connection=1,
        **settings,
    )
    try:
        if transaction:
            p.init_transactions()
            p.begin_transaction()
        sent = []
        for r in request["records"]:
            kwargs = {"partition": r["partition"]} if r.get("partition", -1) >= 0 else {}
            if r.get("timestamp"):
                kwargs["timestamp_ms"] = r["timestamp"]
            sent.append(
                p.send(request["topic"], key=lines.decode(r["key"]), value=lines.decode(r["value"]), headers=lines.headers(r), **kwargs)
            )
        p.flush(30)
        offsets = [f.get(30).offset for f in sent]
        if transaction == "commit":
            p.commit_transaction()
        elif transaction == "abort":
            p.abort_transaction()
        return {"offsets": offsets}
    finally:
        p.close(timeout=5)


def consumer(request, **settings):
    return KafkaConsumer(
        bootstrap_servers=request["bootstrap"],
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=200,
        **settings,
    )


def plain(r):
    return lines.plain(r.partition, r.offset, r.timestamp, r.key, r.value, r.headers)


def poll(c, limit=None, timeout_ms=1000):
    """The next records. A member's polls are not to be short: kafka-python 3.0 forgets a join that is under way when
    a poll ends, if it joins because it has just heard of the topic's partitions, and then waits for ever."""
    return [plain(r) for batch in c.poll(timeout_ms=timeout_ms, max_records=limit).values() for r in batch]


def consume(request):
    """Reads every partition of a topic from its beginning to the end that it has now."""
    settings = {"max_partition_fetch_bytes": request["max_bytes"]} if request.get("max_bytes") else {}
    c = consumer(request, isolation_level=request["config"]["isolation.level"], **settings)
    try:
        deadline = time.time() + 30
        partitions = [TopicPartition(request["topic"], p) for p in c.partitions_for_topic(request["topic"])]
        c.assign(partitions)
        c.seek_to_beginning(*partitions)
        ends = c.end_offsets(partitions)
        records = []
        while any(c.position(p) < ends[p] for p in partitions):
            if time.time() > deadline:
                raise RuntimeError("timed out after %d records; ends are %s" % (len(records), ends))
            records += poll(c, timeout_ms=100)
        return {"records": records}
    finally:
        c.close()


def group(request):
    """Joins a group, reads exactly "count" records, commits the position after the last one, leaves."""
    # Not 45 s: a leave that the broker's end cut short would outlast the next member's patience.
    c = consumer(request, group_id=request["group"], session_timeout_ms=10000)
    try:
        deadline = time.time() + 30
        c.subscribe([request["topic"]])
        records = []
        while len(records) < request["count"]:
            if time.time() > deadline:
                raise RuntimeError("timed out after %d of %d records" % (len(records), request["count"]))
            records += poll(c, request["count"] - len(records))
        c.commit()
        return {"records": records}
    finally:
        c.close()


class Member:
    """A member of a group that polls and commits in a thread of its own until it is told to leave."""

    def __init__(self, request):
        self.consumer = consumer(request, group_id=request["group"], session_timeout_ms=10000, heartbeat_interval_ms=500)
        self.consumer.subscribe([request["topic"]])
        self.seen, self.failure, self.leaving = [], None, False
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        try:
            while not self.leaving:
                batch = poll(self.consumer)
                if batch:
                    self.seen += batch
                    # Asynchronously: in the middle of a rebalance it may fail, which costs nothing.
                    self.consumer.commit_async()
            self.consumer.commit()
        except Exception as e:
            self.failure = "%s: %s" % (type(e).__name__, e)
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


def admin(request):
    """Does one administrative thing; see test/interop/admin_test.go for what is asked."""
    client = KafkaAdminClient(bootstrap_servers=request["bootstrap"])
    try:
        return administer(client, request["admin"])
    finally:
        client.close()


def administer(client, q):
    do, topic, group = q["do"], q.get("topic"), q.get("group")
    at = TopicPartition(topic, q["partition"]) if topic else None

    def failed(errors):
        for e in errors:
            if getattr(e, "errno", 0):
                raise RuntimeError(str(e))

    if do == "create-topic":
        client.create_topics({topic: {"num_partitions": q["partitions"], "replication_factor": 1, "configs": q["configs"]}})
    elif do == "list-topics":
        return {"names": client.list_topics()}
    elif do == "describe-topic":
        (t,) = client.describe_topics([topic])
        return {"partitions": len(t["partitions"])}
    elif do == "create-partitions":
        client.create_partitions({topic: q["partitions"]})
    elif do == "describe-configs":
        answer = client.describe_configs([ConfigResource("TOPIC", topic, None)], config_filter=ConfigFilterType.ALL)
        ((of,),) = [r.values() for r in answer.values()]
        return {"configs": {name: c["value"] for name, c in of.items()}}
    elif do == "alter-configs":
        client.alter_configs([ConfigResource("TOPIC", topic, q["configs"])], incremental=False)
    elif do == "incremental-configs":
        client.alter_configs([ConfigResource("TOPIC", topic, q["configs"])], incremental=True)
    elif do == "list-offsets":
        return {"offset": client.list_partition_offsets({at: OffsetSpec.LATEST})[at].offset}
    elif do == "delete-records":
        client.delete_records({at: q["offset"]})
    elif do == "list-groups":
        return {"names": [g["group_id"] for g in client.list_groups()]}
    elif do == "describe-group":
        return {"state": client.describe_groups([group])[group]["group_state"]}
    elif do == "group-offset":
        return {"offset": client.list_group_offsets({group: [at]})[group][at].offset}
    elif do == "set-group-offset":
        failed(client.alter_group_offsets(group, {at: OffsetAndMetadata(q["offset"], "", -1)}).values())
    elif do == "delete-group-offset":
        failed(client.delete_group_offsets(group, [at]).values())
    elif do == "delete-group":
        client.delete_groups([group])
    elif do == "delete-topic":
        client.delete_topics([topic])
    else:
        raise lines.Cannot("there is no " + do)
    return {}


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    lines.serve(produce, consume, group, admin, Member)
