// kafkajs, with the codecs that it leaves to plug-ins: snappy from kafkajs-snappy, lz4 from
// the library that platformatic's client has, zstd from node.

import { randomUUID } from 'node:crypto'
import zlib from 'node:zlib'

export default function ({ require, plain, pairs, object, decode, until, sleep, byPartition, Cannot }) {
  const { Kafka, CompressionTypes, CompressionCodecs, ConfigResourceTypes, logLevel } = require('kafkajs')
  const lz4 = require('@platformatic/wasm-utils')
  CompressionCodecs[CompressionTypes.Snappy] = require('kafkajs-snappy')
  CompressionCodecs[CompressionTypes.LZ4] = () => ({
    compress: async encoder => lz4.lz4Compress(encoder.buffer),
    decompress: async buffer => lz4.lz4Decompress(buffer),
  })
  CompressionCodecs[CompressionTypes.ZSTD] = () => ({
    compress: async encoder => zlib.zstdCompressSync(encoder.buffer),
    decompress: async buffer => zlib.zstdDecompressSync(buffer),
  })
  const codecs = { none: 'None', gzip: 'GZIP', snappy: 'Snappy', lz4: 'LZ4', zstd: 'ZSTD' }

  const kafka = request =>
    new Kafka({
      clientId: 'kafkajs',
      brokers: [request.bootstrap],
      logLevel: logLevel.WARN,
      retry: { initialRetryTime: 100, retries: 5 },
    })

  const record = (partition, m) => plain({ ...m, partition, headers: pairs(m.headers) })

  async function produce(request) {
    const producer = kafka(request).producer({
      ...(request.transaction ? { transactionalId: request.transactional_id, maxInFlightRequests: 1 } : {}),
      idempotent: Boolean(request.idempotent || request.transaction),
    })
    await producer.connect()
    try {
      const transaction = request.transaction ? await producer.transaction() : null
      for (const records of byPartition(request.records)) {
        await (transaction ?? producer).send({
          topic: request.topic,
          acks: -1,
          compression: CompressionTypes[codecs[request.codec]],
          messages: records.map(r => ({
            key: decode(r.key),
            value: decode(r.value),
            partition: r.partition,
            headers: object(r.headers),
            ...(r.timestamp ? { timestamp: String(r.timestamp) } : {}),
          })),
        })
      }
      if (request.transaction === 'commit') await transaction.commit()
      if (request.transaction === 'abort') await transaction.abort()
    } finally {
      await producer.disconnect()
    }
  }

  async function consumer(request, groupId, more = {}) {
    const c = kafka(request).consumer({
      groupId,
      sessionTimeout: 10000,
      heartbeatInterval: 300,
      maxWaitTimeInMs: 200,
      ...(request.max_bytes ? { maxBytesPerPartition: request.max_bytes, maxBytes: 2 * request.max_bytes } : {}),
      ...more,
    })
    await c.connect()
    await c.subscribe({ topics: [request.topic], fromBeginning: true })
    return c
  }

  // Reads a topic from its beginning until it has as many records as there are. kafkajs has no consumer without a
  // group, and does not tell of the end when control records are there.
  async function consume(request) {
    const isolation = request.config?.['isolation.level']
    const c = await consumer(request, 'unused-' + randomUUID(), { readUncommitted: isolation === 'read_uncommitted' })
    const records = []
    try {
      await c.run({
        autoCommit: false,
        eachBatch: async ({ batch }) => {
          for (const m of batch.messages) records.push(record(batch.partition, m))
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
        autoCommit: false,
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
    c.on(c.events.CRASH, e => {
      if (!e.payload.restart) m.failure = e.payload.error
    })
    await c.run({
      autoCommitThreshold: 1,
      eachMessage: async ({ partition, message }) => {
        m.seen.push(record(partition, message))
      },
    })
    return m
  }

  async function admin(request, q) {
    const a = kafka(request).admin()
    await a.connect()
    const resource = { type: ConfigResourceTypes.TOPIC, name: q.topic }
    try {
      switch (q.do) {
        case 'create-topic': {
          const configEntries = Object.entries(q.configs).map(([name, value]) => ({ name, value }))
          const topic = { topic: q.topic, numPartitions: q.partitions, replicationFactor: 1, configEntries }
          // It tells of a topic that is there already by its answer.
          if (!(await a.createTopics({ topics: [topic], waitForLeaders: false }))) throw new Error('the topic exists')
          return
        }
        case 'list-topics':
          return { names: await a.listTopics() }
        case 'describe-topic': {
          const { topics } = await a.fetchTopicMetadata({ topics: [q.topic] })
          return { partitions: topics[0].partitions.length }
        }
        case 'create-partitions':
          await a.createPartitions({ topicPartitions: [{ topic: q.topic, count: q.partitions }] })
          return
        case 'describe-configs': {
          const { resources } = await a.describeConfigs({ resources: [resource], includeSynonyms: true })
          return { configs: Object.fromEntries(resources[0].configEntries.map(e => [e.configName, e.configValue])) }
        }
        case 'alter-configs': {
          const configEntries = Object.entries(q.configs).map(([name, value]) => ({ name, value }))
          await a.alterConfigs({ resources: [{ ...resource, configEntries }] })
          return
        }
        case 'list-offsets': {
          const partitions = await a.fetchTopicOffsets(q.topic)
          return { offset: Number(partitions.find(p => p.partition === q.partition).high) }
        }
        case 'delete-records':
          // Which tells it where the partition is; deleteTopicRecords alone does not ask.
          await a.fetchTopicOffsets(q.topic)
          await a.deleteTopicRecords({ topic: q.topic, partitions: [{ partition: q.partition, offset: String(q.offset) }] })
          return
        case 'list-groups':
          return { names: (await a.listGroups()).groups.map(g => g.groupId) }
        case 'describe-group':
          return { state: (await a.describeGroups([q.group])).groups[0].state }
        case 'group-offset': {
          const [{ partitions }] = await a.fetchOffsets({ groupId: q.group, topics: [q.topic] })
          return { offset: Number(partitions.find(p => p.partition === q.partition).offset) }
        }
        case 'set-group-offset':
          await a.setOffsets({
            groupId: q.group,
            topic: q.topic,
            partitions: [{ partition: q.partition, offset: String(q.offset) }],
          })
          return
        case 'delete-group':
          await a.deleteGroups([q.group])
          return
        case 'delete-topic':
          await a.deleteTopics({ topics: [q.topic] })
          return
        default: // incremental-configs, delete-group-offset
          throw new Cannot(q.do)
      }
    } finally {
      await a.disconnect()
    }
  }

  return { produce, consume, group, member, admin }
}
