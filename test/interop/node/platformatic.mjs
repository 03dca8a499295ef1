// @platformatic/kafka, which speaks only the newer versions of everything.

import { randomUUID } from 'node:crypto'

export default function ({ require, plain, decode, until, byPartition, Cannot }) {
  const { Admin, Consumer, ConfigResourceTypes, FetchIsolationLevels, IncrementalAlterConfigOperationTypes, ProduceAcks, Producer } = require('@platformatic/kafka')

  const base = request => ({ clientId: 'platformatic', bootstrapBrokers: [request.bootstrap], retries: 5, retryDelay: 200 })

  const record = m =>
    plain({ ...m, partition: m.partition, headers: m.headerEntries.map(([name, value]) => [String(name), value]) })

  async function produce(request) {
    const transactional = Boolean(request.transaction)
    const producer = new Producer({
      ...base(request),
      ...(transactional || request.idempotent ? { idempotent: true, retries: 5 } : {}),
      ...(transactional ? { transactionalId: request.transactional_id } : {}),
    })
    try {
      const transaction = transactional ? await producer.beginTransaction() : null
      for (const records of byPartition(request.records)) {
        await (transaction ?? producer).send({
          acks: ProduceAcks.ALL,
          compression: request.codec,
          messages: records.map(r => ({
            topic: request.topic,
            partition: r.partition,
            key: decode(r.key),
            value: decode(r.value),
            // Names as buffers: two of the same name are then two keys of the map.
            headers: new Map((r.headers ?? []).map(({ name, value }) => [Buffer.from(name), decode(value)])),
            ...(r.timestamp ? { timestamp: BigInt(r.timestamp) } : {}),
          })),
        })
      }
      if (request.transaction === 'commit') await transaction.commit()
      if (request.transaction === 'abort') await transaction.abort()
    } finally {
      await producer.close(true)
    }
  }

  function consumer(request, groupId, more = {}) {
    const protocol = request.config?.['group.protocol'] ?? 'classic'
    return new Consumer({
      ...base(request),
      retries: 50, // a coordinator loads after a start
      groupId,
      ...(protocol === 'consumer' ? { groupProtocol: 'consumer' } : { sessionTimeout: 10000, heartbeatInterval: 300 }),
      maxWaitTime: 200,
      autocommit: false,
      ...(request.max_bytes ? { maxBytes: request.max_bytes } : {}),
      ...more,
    })
  }

  // Reads every partition of a topic from its beginning to the end that it has now.
  async function consume(request) {
    const committed = request.config?.['isolation.level'] === 'read_committed'
    const isolationLevel = FetchIsolationLevels[committed ? 'READ_COMMITTED' : 'READ_UNCOMMITTED']
    const c = consumer({ ...request, config: {} }, 'unused-' + randomUUID(), { isolationLevel })
    const records = []
    try {
      const ends = (await c.listOffsets({ topics: [request.topic], isolationLevel })).get(request.topic)
      const stream = await c.consume({
        topics: [request.topic],
        mode: 'manual',
        offsets: ends.map((_, partition) => ({ topic: request.topic, partition, offset: 0n })),
      })
      let failure
      stream.on('error', e => (failure = e))
      stream.on('data', m => records.push(record(m)))
      const at = partition => stream.offsetsToFetch.get(`${request.topic}:${partition}`) ?? 0n
      await until(
        request,
        () => failure || (ends.every((end, p) => at(p) >= end) && stream.readableLength === 0),
        () => `${records.length} records, at ${ends.map((_, p) => at(p))} of ${ends}`
      )
      if (failure) throw failure
      await stream.close()
      return { records }
    } finally {
      await c.close(true)
    }
  }

  async function group(request) {
    const c = consumer(request, request.group)
    const records = []
    try {
      const stream = await c.consume({ topics: [request.topic], mode: 'committed', fallbackMode: 'earliest' })
      let last, failure
      stream.on('error', e => (failure = e))
      stream.on('data', m => {
        if (records.length === request.count) return
        records.push(record(m))
        last = { topic: m.topic, partition: m.partition, offset: m.offset + 1n, leaderEpoch: m.leaderEpoch }
      })
      await until(
        request,
        () => failure || records.length === request.count,
        () => `${records.length} of ${request.count} records`
      )
      if (failure) throw failure
      await c.commit({ offsets: [last] })
      await stream.close()
      return { records }
    } finally {
      await c.close(true)
    }
  }

  async function member(request) {
    const c = consumer(request, request.group)
    const m = { seen: [], failure: null }
    const stream = await c.consume({ topics: [request.topic], mode: 'committed', fallbackMode: 'earliest', autocommit: 100 })
    stream.on('error', e => (m.failure = e))
    stream.on('data', x => m.seen.push(record(x)))
    m.close = async () => {
      await stream.close()
      await c.close(true)
    }
    return m
  }

  async function admin(request, q) {
    const a = new Admin(base(request))
    const resource = { resourceType: ConfigResourceTypes.TOPIC, resourceName: q.topic }
    try {
      switch (q.do) {
        case 'create-topic': {
          const configs = Object.entries(q.configs).map(([name, value]) => ({ name, value }))
          await a.createTopics({ topics: [q.topic], partitions: q.partitions, replicas: 1, configs })
          return
        }
        case 'list-topics':
          return { names: await a.listTopics() }
        case 'describe-topic':
          return { partitions: (await a.metadata({ topics: [q.topic] })).topics.get(q.topic).partitionsCount }
        case 'create-partitions':
          await a.createPartitions({ topics: [{ name: q.topic, count: q.partitions, assignments: null }] })
          return
        case 'describe-configs': {
          const [{ configs }] = await a.describeConfigs({ resources: [{ ...resource, configurationKeys: null }] })
          return { configs: Object.fromEntries(configs.map(c => [c.name, c.value])) }
        }
        case 'alter-configs': {
          const configs = Object.entries(q.configs).map(([name, value]) => ({ name, value }))
          await a.alterConfigs({ resources: [{ ...resource, configs }] })
          return
        }
        case 'incremental-configs': {
          const configOperation = IncrementalAlterConfigOperationTypes.SET
          const configs = Object.entries(q.configs).map(([name, value]) => ({ name, configOperation, value }))
          await a.incrementalAlterConfigs({ resources: [{ ...resource, configs }] })
          return
        }
        case 'list-offsets': {
          const topics = [{ name: q.topic, partitions: [{ partitionIndex: q.partition, timestamp: -1n }] }]
          return { offset: Number((await a.listOffsets({ topics }))[0].partitions[0].offset) }
        }
        case 'delete-records': {
          const partitions = [{ partition: q.partition, offset: BigInt(q.offset) }]
          await a.deleteRecords({ topics: [{ name: q.topic, partitions }] })
          return
        }
        case 'list-groups':
          return { names: [...(await a.listGroups()).keys()] }
        case 'describe-group':
          return { state: (await a.describeGroups({ groups: [q.group] })).get(q.group).state }
        case 'group-offset': {
          const topics = [{ name: q.topic, partitionIndexes: [q.partition] }]
          const [g] = await a.listConsumerGroupOffsets({ groups: [{ groupId: q.group, topics }] })
          return { offset: Number(g.topics[0].partitions[0].committedOffset) }
        }
        case 'set-group-offset': {
          const partitionOffsets = [{ partition: q.partition, offset: BigInt(q.offset) }]
          await a.alterConsumerGroupOffsets({ groupId: q.group, topics: [{ name: q.topic, partitionOffsets }] })
          return
        }
        case 'delete-group-offset': {
          const topics = [{ name: q.topic, partitionIndexes: [q.partition] }]
          await a.deleteConsumerGroupOffsets({ groupId: q.group, topics })
          return
        }
        case 'delete-group':
          await a.deleteGroups({ groups: [q.group] })
          return
        case 'delete-topic':
          await a.deleteTopics({ topics: [q.topic] })
          return
        default:
          throw new Cannot(q.do)
      }
    } finally {
      await a.close()
    }
  }

  return { produce, consume, group, member, admin }
}
