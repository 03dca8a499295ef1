// @confluentinc/kafka-javascript: librdkafka behind kafkajs' interface.

import { randomUUID } from 'node:crypto'

export default function ({ require, plain, pairs, object, decode, until, sleep, Cannot }) {
  const { Kafka, logLevel } = require('@confluentinc/kafka-javascript').KafkaJS

  const kafka = request =>
    new Kafka({ kafkaJS: { clientId: 'confluent-js', brokers: [request.bootstrap], logLevel: logLevel.ERROR } })

  const record = (partition, m) => plain({ ...m, partition, headers: pairs(m.headers) })

  async function produce(request) {
    const producer = kafka(request).producer({
      kafkaJS: {
        acks: -1,
        compression: request.codec,
        idempotent: Boolean(request.idempotent || request.transaction),
        ...(request.transaction ? { transactionalId: request.transactional_id, transactionTimeout: 30000 } : {}),
      },
      'linger.ms': 50,
      'message.timeout.ms': 30000,
      ...(request.max_bytes ? { 'message.max.bytes': request.max_bytes } : {}),
    })
    await producer.connect()
    try {
      const transaction = request.transaction ? await producer.transaction() : null
      await (transaction ?? producer).send({
        topic: request.topic,
        messages: request.records.map(r => ({
          key: decode(r.key),
          value: decode(r.value),
          partition: r.partition,
          headers: object(r.headers),
          ...(r.timestamp ? { timestamp: String(r.timestamp) } : {}),
        })),
      })
      if (request.transaction === 'commit') await transaction.commit()
      if (request.transaction === 'abort') await transaction.abort()
    } finally {
      await producer.disconnect()
    }
  }

  async function consumer(request, groupId, more = {}) {
    const protocol = request.config?.['group.protocol'] ?? 'classic'
    const c = kafka(request).consumer({
      kafkaJS: { groupId, fromBeginning: true, autoCommit: false, ...more },
      'group.protocol': protocol,
      ...(protocol === 'classic' ? { 'session.timeout.ms': 10000, 'heartbeat.interval.ms': 300 } : {}),
      'fetch.wait.max.ms': 200,
      ...(request.max_bytes ? { 'fetch.message.max.bytes': request.max_bytes } : {}),
    })
    await c.connect()
    await c.subscribe({ topics: [request.topic] })
    return c
  }

  // Reads a topic from its beginning until it has as many records as there are: this interface does not tell of the
  // end.
  async function consume(request) {
    const isolation = request.config?.['isolation.level']
    const c = await consumer({ ...request, config: {} }, 'unused-' + randomUUID(), {
      readUncommitted: isolation === 'read_uncommitted',
    })
    const records = []
    try {
      await c.run({
        eachMessage: async ({ partition, message }) => {
          records.push(record(partition, message))
        },
      })
      await until(request, () => records.length >= request.count, () => `${records.length} of ${request.count} records`)
      await sleep(100)
      return { records }
    } finally {
      await c.disconnect()
    }
  }

  async function group(request) {
    const c = await consumer(request, request.group)
    const records = []
    let last
    try {
      await c.run({
        eachMessage: async ({ partition, message }) => {
          if (records.length === request.count) return
          records.push(record(partition, message))
          last = { topic: request.topic, partition, offset: String(BigInt(message.offset) + 1n) }
        },
      })
      await until(request, () => records.length === request.count, () => `${records.length} of ${request.count} records`)
      await c.commitOffsets([last])
      return { records }
    } finally {
      await c.disconnect()
    }
  }

  async function member(request) {
    const c = await consumer(request, request.group)
    const m = { seen: [], failure: null, close: () => c.disconnect() }
    await c.run({
      eachMessage: async ({ topic, partition, message }) => {
        m.seen.push(record(partition, message))
        try {
          await c.commitOffsets([{ topic, partition, offset: String(BigInt(message.offset) + 1n) }])
        } catch (e) {
          // In the middle of a rebalance it may fail, which costs nothing.
          console.error('commit', e)
        }
      },
    })
    return m
  }

  async function admin(request, q) {
    const a = kafka(request).admin()
    await a.connect()
    try {
      switch (q.do) {
        case 'create-topic': {
          const configEntries = Object.entries(q.configs).map(([name, value]) => ({ name, value }))
          const topic = { topic: q.topic, numPartitions: q.partitions, replicationFactor: 1, configEntries }
          // It tells of a topic that is there already by its answer.
          if (!(await a.createTopics({ topics: [topic] }))) throw new Error('the topic exists')
          return
        }
        case 'list-topics':
          return { names: await a.listTopics() }
        case 'describe-topic':
          return { partitions: (await a.fetchTopicMetadata({ topics: [q.topic] }))[0].partitions.length }
        case 'list-offsets': {
          const partitions = await a.fetchTopicOffsets(q.topic)
          return { offset: Number(partitions.find(p => p.partition === q.partition).high) }
        }
        case 'delete-records':
          await a.deleteTopicRecords({ topic: q.topic, partitions: [{ partition: q.partition, offset: String(q.offset) }] })
          return
        case 'list-groups':
          return { names: (await a.listGroups()).groups.map(g => g.groupId) }
        case 'describe-group': {
          const { ConsumerGroupStates } = require('@confluentinc/kafka-javascript').KafkaJS
          const { state } = (await a.describeGroups([q.group])).groups[0]
          return { state: Object.keys(ConsumerGroupStates).find(name => ConsumerGroupStates[name] === state) }
        }
        case 'group-offset': {
          const [{ partitions }] = await a.fetchOffsets({ groupId: q.group, topics: [q.topic] })
          return { offset: Number(partitions.find(p => p.partition === q.partition).offset) }
        }
        case 'set-group-offset': {
          // A consumer's business here, as in librdkafka.
          const c = kafka(request).consumer({ kafkaJS: { groupId: q.group, autoCommit: false } })
          await c.connect()
          try {
            await c.commitOffsets([{ topic: q.topic, partition: q.partition, offset: String(q.offset) }])
          } finally {
            await c.disconnect()
          }
          return
        }
        case 'delete-group':
          await a.deleteGroups([q.group])
          return
        case 'delete-topic':
          await a.deleteTopics({ topics: [q.topic] })
          return
        default: // create-partitions, configs, delete-group-offset
          throw new Cannot(q.do)
      }
    } finally {
      await a.disconnect()
    }
  }

  return { produce, consume, group, member, admin }
}
