"""aiokafka behind the line protocol of lines.py, with an event loop in a thread of its own."""

import asyncio
import logging
import threading

import lines
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource
from aiokafka.errors import KafkaError, for_code

loop = asyncio.new_event_loop()


def wait(coroutine, timeout=45):
    return asyncio.run_coroutine_threadsafe(coroutine, loop).result(timeout)


async def produce(request):
    """Sends the records in their order; all of them in one transaction when "transaction" is commit or abort."""
    transaction = request.get("transaction")
    settings = {}
    if transaction:
        settings["transactional_id"] = request["transactional_id"]
    elif request.get("idempotent"):
        settings["enable_idempotence"] = True
    if request.get("max_bytes"):
        settings.update(max_request_size=request["max_bytes"], max_batch_size=request["max_bytes"])
    p = AIOKafkaProducer(
        bootstrap_servers=request["bootstrap"],
        compression_type=None if request["codec"] == "none" else request["codec"],
        acks="all",
        linger_ms=50,
        request_timeout_ms=20000,
        **settings,
    )
    # With a transactional id, start asks for a producer id, and goes on asking for as long as it is let.
    try:
        await asyncio.wait_for(p.start(), 15)
        if transaction:
            await p.begin_transaction()
        sent = []
        for r in request["records"]:
            kwargs = {"partition": r["partition"]} if r.get("partition", -1) >= 0 else {}
            if r.get("timestamp"):
                kwargs["timestamp_ms"] = r["timestamp"]
            sent.append(
                await p.send(
                    request["topic"], key=lines.decode(r["key"]), value=lines.decode(r["value"]), headers=lines.headers(r), **kwargs
                )
            )
        offsets = [(await f).offset for f in sent]
        if transaction == "commit":
            await p.commit_transaction()
        elif transaction == "abort":
            await p.abort_transaction()
        return {"offsets": offsets}
    finally:
        await asyncio.wait_for(p.stop(), 10)


def consumer(request, *topics, **settings):
    return AIOKafkaConsumer(
        *topics,
        bootstrap_servers=request["bootstrap"],
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=200,
        **settings,
    )


def plain(r):
    return lines.plain(r.partition, r.offset, r.timestamp, r.key, r.value, r.headers)


async def poll(c, limit=None):
    batches = await c.getmany(timeout_ms=100, max_records=limit)
    return [plain(r) for batch in batches.values() for r in batch]


async def consume(request):
    """Reads every partition of a topic from its beginning to the end that it has now."""
    settings = {"max_partition_fetch_bytes": request["max_bytes"]} if request.get("max_bytes") else {}
    c = consumer(request, isolation_level=request["config"]["isolation.level"], **settings)
    await c.start()
    try:
        # It knows the partitions of topics that it was asked about.
        await c._client._wait_on_metadata(request["topic"])
        partitions = [TopicPartition(request["topic"], p) for p in c.partitions_for_topic(request["topic"])]
        c.assign(partitions)
        await c.seek_to_beginning(*partitions)
        ends = await c.end_offsets(partitions)
        records = []

        async def read():
            while any([await c.position(p) < ends[p] for p in partitions]):
                records.extend(await poll(c))

        try:
            await asyncio.wait_for(read(), 30)
        except asyncio.TimeoutError:
            raise RuntimeError("timed out after %d records; ends are %s" % (len(records), ends))
        return {"records": records}
    finally:
        await c.stop()


async def group(request):
    """Joins a group, reads exactly "count" records, commits the position after the last one, leaves."""
    c = consumer(request, request["topic"], group_id=request["group"])
    await c.start()
    try:
        records = []

        async def read():
            while len(records) < request["count"]:
                records.extend(await poll(c, request["count"] - len(records)))

        try:
            await asyncio.wait_for(read(), 30)
        except asyncio.TimeoutError:
            raise RuntimeError("timed out after %d of %d records" % (len(records), request["count"]))
        await c.commit()
        return {"records": records}
    finally:
        await c.stop()


class Member:
    """A member of a group that polls and commits in a task of its own until it is told to leave."""

    def __init__(self, request):
        self.seen, self.failure, self.leaving = [], None, False
        self.task = asyncio.run_coroutine_threadsafe(self.run(request), loop)

    async def run(self, request):
        c = consumer(request, request["topic"], group_id=request["group"], heartbeat_interval_ms=500)
        try:
            await c.start()
            while not self.leaving:
                batch = await poll(c)
                if batch:
                    self.seen += batch
                    try:
                        await c.commit()
                    except KafkaError:
                        pass  # in the middle of a rebalance it may fail, which costs nothing
            await c.commit()
        except Exception as e:
            self.failure = "%s: %s" % (type(e).__name__, e)
        finally:
            await c.stop()

    def records(self):
        answer = {"records": list(self.seen)}
        if self.failure is not None:
            answer["error"] = self.failure
        return answer

    def leave(self):
        self.leaving = True
        self.task.result(30)
        return self.records()


def check(answer):
    """Raises the first error of a broker's answer, which most of the admin client's methods hand out as it came."""
    answer = answer.to_object() if hasattr(answer, "to_object") else answer
    if isinstance(answer, dict):
        if answer.get("error_code"):
            raise RuntimeError("%s: %s" % (for_code(answer["error_code"]).__name__, answer.get("error_message")))
        for v in answer.values():
            check(v)
    elif isinstance(answer, (list, tuple)):
        for v in answer:
            check(v)
    return answer


async def admin(request):
    """Does one administrative thing; see test/interop/admin_test.go for what is asked."""
    client = AIOKafkaAdminClient(bootstrap_servers=request["bootstrap"])
    await client.start()
    try:
        return await administer(client, request, request["admin"])
    finally:
        await client.close()


async def administer(client, request, q):
    do, topic, group = q["do"], q.get("topic"), q.get("group")
    at = TopicPartition(topic, q["partition"]) if topic else None
    if do == "create-topic":
        check(await client.create_topics([NewTopic(topic, q["partitions"], 1, topic_configs=q["configs"])]))
    elif do == "list-topics":
        return {"names": await client.list_topics()}
    elif do == "describe-topic":
        (t,) = await client.describe_topics([topic])
        return {"partitions": len(check(t)["partitions"])}
    elif do == "create-partitions":
        check(await client.create_partitions({topic: NewPartitions(q["partitions"])}))
    elif do == "describe-configs":
        (answer,) = await client.describe_configs([ConfigResource("TOPIC", topic)])
        (of,) = check(answer)["resources"]
        return {"configs": {e["config_names"]: e["config_value"] for e in of["config_entries"]}}
    elif do == "alter-configs":
        for answer in await client.alter_configs([ConfigResource("TOPIC", topic, q["configs"])]):
            check(answer)
    elif do == "list-offsets":
        c = consumer(request)
        await c.start()
        try:
            return {"offset": (await c.end_offsets([at]))[at]}
        finally:
            await c.stop()
    elif do == "delete-records":
        await client.delete_records({at: RecordsToDelete(q["offset"])})
    elif do == "list-groups":
        return {"names": [g[0] for g in await client.list_consumer_groups()]}
    elif do == "describe-group":
        (answer,) = await client.describe_consumer_groups([group])
        (g,) = check(answer)["groups"]
        return {"state": g["state"]}
    elif do == "group-offset":
        return {"offset": (await client.list_consumer_group_offsets(group, partitions=[at]))[at].offset}
    elif do == "set-group-offset":
        c = consumer(request, group_id=group)
        await c.start()
        try:
            c.assign([at])
            await c.commit({at: q["offset"]})
        finally:
            await c.stop()
    elif do == "delete-topic":
        check(await client.delete_topics([topic]))
    else:
        raise lines.Cannot("there is no " + do)
    return {}


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    threading.Thread(target=loop.run_forever, daemon=True).start()
    lines.serve(lambda r: wait(produce(r)), lambda r: wait(consume(r)), lambda r: wait(group(r)), lambda r: wait(admin(r)), Member)
