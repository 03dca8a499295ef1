import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Apache Kafka's Java client behind a line protocol: one JSON request a line on standard input, one JSON answer
 * a line on standard output. The requests are those of test/interop/driver_test.go; bytes are base64, null is null.
 */
public class Driver {
    static final ObjectMapper JSON = new ObjectMapper();
    static final Map<String, Member> MEMBERS = new HashMap<>();

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            ObjectNode answer;
            try {
                answer = handle(JSON.readTree(line));
            } catch (Throwable e) {
                answer = JSON.createObjectNode();
                answer.put("error", e.toString());
            }
            out.println(JSON.writeValueAsString(answer));
        }
    }

    static ObjectNode handle(JsonNode r) throws Exception {
        switch (r.get("op").asText()) {
            case "produce":
                return produce(r);
            case "consume":
                return consume(r);
            case "group":
                return group(r);
            case "admin":
                return admin(r.get("bootstrap").asText(), r.get("admin"));
            case "join":
                MEMBERS.put(r.get("member").asText(), new Member(r));
                return JSON.createObjectNode();
            case "records":
                return MEMBERS.get(r.get("member").asText()).records();
            case "leave":
                return MEMBERS.remove(r.get("member").asText()).leave();
            default:
                throw new IllegalArgumentException("unknown op " + r.get("op"));
        }
    }

    static byte[] bytes(JsonNode n) {
        return n == null || n.isNull() ? null : Base64.getDecoder().decode(n.asText());
    }

    static Properties config(JsonNode r, String... settings) {
        Properties p = new Properties();
        p.put("bootstrap.servers", r.get("bootstrap").asText());
        for (int i = 0; i < settings.length; i += 2) {
            p.put(settings[i], settings[i + 1]);
        }
        JsonNode config = r.get("config");
        if (config != null && !config.isNull()) {
            config.fields().forEachRemaining(f -> p.put(f.getKey(), f.getValue().asText()));
        }
        return p;
    }

    /** Sends the records in their order; all of them in one transaction when "transaction" is commit or abort. */
    static ObjectNode produce(JsonNode r) throws Exception {
        Properties p = config(r, "acks", "all", "linger.ms", "50", "delivery.timeout.ms", "30000",
            "request.timeout.ms", "10000", "max.block.ms", "20000", "compression.type", r.get("codec").asText());
        String transaction = r.path("transaction").asText("");
        if (!transaction.isEmpty()) {
            p.put("transactional.id", r.get("transactional_id").asText());
        }
        if (r.path("max_bytes").asInt() > 0) {
            p.put("max.request.size", r.get("max_bytes").asText());
        }
        ArrayNode offsets = JSON.createArrayNode();
        Producer<byte[], byte[]> producer = new KafkaProducer<>(p, new ByteArraySerializer(), new ByteArraySerializer());
        try {
            if (!transaction.isEmpty()) {
                producer.initTransactions();
                producer.beginTransaction();
            }
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (JsonNode n : r.get("records")) {
                List<Header> headers = new ArrayList<>();
                for (JsonNode h : n.path("headers")) {
                    headers.add(new RecordHeader(h.get("name").asText(), bytes(h.get("value"))));
                }
                int partition = n.path("partition").asInt(-1);
                long timestamp = n.path("timestamp").asLong(0);
                sent.add(producer.send(new ProducerRecord<>(r.get("topic").asText(), partition < 0 ? null : partition,
                    timestamp == 0 ? null : timestamp, bytes(n.get("key")), bytes(n.get("value")), headers)));
            }
            producer.flush();
            for (Future<RecordMetadata> f : sent) {
                offsets.add(f.get().offset());
            }
            if (transaction.equals("commit")) {
                producer.commitTransaction();
            } else if (transaction.equals("abort")) {
                producer.abortTransaction();
            }
        } finally {
            // Not for ever, when the broker does not answer.
            producer.close(Duration.ofSeconds(5));
        }
        ObjectNode answer = JSON.createObjectNode();
        answer.set("offsets", offsets);
        return answer;
    }

    static Consumer<byte[], byte[]> consumer(JsonNode r, String... settings) {
        Properties p = config(r, settings);
        p.put("enable.auto.commit", "false");
        p.put("auto.offset.reset", "earliest");
        return new KafkaConsumer<>(p, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static ObjectNode json(ConsumerRecord<byte[], byte[]> c) {
        ObjectNode n = JSON.createObjectNode();
        n.put("partition", c.partition());
        n.put("offset", c.offset());
        n.put("timestamp", c.timestamp());
        n.put("key", c.key());
        n.put("value", c.value());
        ArrayNode headers = n.putArray("headers");
        for (Header h : c.headers()) {
            headers.addObject().put("name", h.key()).put("value", h.value());
        }
        return n;
    }

    static long deadline(JsonNode r) {
        return System.currentTimeMillis() + r.path("timeout_ms").asLong(30_000);
    }

    /** Reads every partition of a topic from its beginning to the end that it has now. */
    static ObjectNode consume(JsonNode r) {
        ObjectNode answer = JSON.createObjectNode();
        ArrayNode records = answer.putArray("records");
        long deadline = deadline(r);
        try (Consumer<byte[], byte[]> c = consumer(r)) {
            List<TopicPartition> partitions = new ArrayList<>();
            c.partitionsFor(r.get("topic").asText()).forEach(p -> partitions.add(new TopicPartition(p.topic(), p.partition())));
            c.assign(partitions);
            c.seekToBeginning(partitions);
            Map<TopicPartition, Long> ends = c.endOffsets(partitions);
            while (!ends.entrySet().stream().allMatch(e -> c.position(e.getKey()) >= e.getValue())) {
                if (System.currentTimeMillis() > deadline) {
                    answer.put("error", "timed out after " + records.size() + " records; ends are " + ends);
                    return answer;
                }
                c.poll(Duration.ofMillis(100)).forEach(x -> records.add(json(x)));
            }
        }
        return answer;
    }

    /** Joins a group, reads exactly "count" records, commits the position after the last one, leaves. */
    static ObjectNode group(JsonNode r) {
        ObjectNode answer = JSON.createObjectNode();
        ArrayNode records = answer.putArray("records");
        int count = r.get("count").asInt();
        long deadline = deadline(r);
        try (Consumer<byte[], byte[]> c = consumer(r, "group.id", r.get("group").asText(), "max.poll.records", "1")) {
            c.subscribe(List.of(r.get("topic").asText()));
            while (records.size() < count) {
                if (System.currentTimeMillis() > deadline) {
                    answer.put("error", "timed out after " + records.size() + " of " + count + " records");
                    return answer;
                }
                c.poll(Duration.ofMillis(100)).forEach(x -> records.add(json(x)));
            }
            c.commitSync();
        }
        return answer;
    }

    /** Does one administrative thing; see test/interop/admin_test.go for what is asked. */
    static ObjectNode admin(String bootstrap, JsonNode q) throws Exception {
        ObjectNode answer = JSON.createObjectNode();
        ObjectNode a = answer.putObject("admin");
        String topic = q.path("topic").asText(), group = q.path("group").asText();
        TopicPartition at = new TopicPartition(topic, q.path("partition").asInt());
        long offset = q.path("offset").asLong();
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        Map<String, String> configs = new HashMap<>();
        q.path("configs").fields().forEachRemaining(f -> configs.put(f.getKey(), f.getValue().asText()));
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            switch (q.get("do").asText()) {
                case "create-topic":
                    admin.createTopics(List.of(new NewTopic(topic, q.get("partitions").asInt(), (short) 1).configs(configs))).all().get();
                    break;
                case "list-topics":
                    admin.listTopics().names().get().forEach(a.putArray("names")::add);
                    break;
                case "describe-topic":
                    a.put("partitions", admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size());
                    break;
                case "create-partitions":
                    admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(q.get("partitions").asInt()))).all().get();
                    break;
                case "describe-configs":
                    ObjectNode values = a.putObject("configs");
                    admin.describeConfigs(List.of(resource)).all().get().get(resource).entries().forEach(e -> values.put(e.name(), e.value()));
                    break;
                case "incremental-configs":
                    List<AlterConfigOp> changes = new ArrayList<>();
                    configs.forEach((k, v) -> changes.add(new AlterConfigOp(new ConfigEntry(k, v), AlterConfigOp.OpType.SET)));
                    admin.incrementalAlterConfigs(Map.of(resource, changes)).all().get();
                    break;
                case "list-offsets":
                    a.put("offset", admin.listOffsets(Map.of(at, OffsetSpec.latest())).partitionResult(at).get().offset());
                    break;
                case "delete-records":
                    admin.deleteRecords(Map.of(at, RecordsToDelete.beforeOffset(offset))).all().get();
                    break;
                case "list-groups":
                    ArrayNode names = a.putArray("names");
                    admin.listGroups().all().get().forEach(g -> names.add(g.groupId()));
                    break;
                case "describe-group":
                    a.put("state", admin.describeConsumerGroups(List.of(group)).all().get().get(group).groupState().toString());
                    break;
                case "group-offset":
                    a.put("offset", admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().get(at).offset());
                    break;
                case "set-group-offset":
                    admin.alterConsumerGroupOffsets(group, Map.of(at, new OffsetAndMetadata(offset))).all().get();
                    break;
                case "delete-group-offset":
                    admin.deleteConsumerGroupOffsets(group, Set.of(at)).all().get();
                    break;
                case "delete-group":
                    admin.deleteConsumerGroups(List.of(group)).all().get();
                    break;
                case "delete-topic":
                    admin.deleteTopics(List.of(topic)).all().get();
                    break;
                default: // alter-configs: it is gone from this client
                    answer.put("error", "there is no " + q.get("do"));
                    answer.put("cannot", true);
            }
        }
        return answer;
    }

    /** A member of a group that polls and commits in a thread of its own until it is told to leave. */
    static class Member implements Runnable {
        final Consumer<byte[], byte[]> consumer;
        final ArrayNode seen = JSON.createArrayNode();
        final Thread thread = new Thread(this);
        volatile boolean leaving;
        volatile Throwable failure;

        Member(JsonNode r) {
            consumer = consumer(r, "group.id", r.get("group").asText());
            consumer.subscribe(List.of(r.get("topic").asText()));
            thread.start();
        }

        @Override
        public void run() {
            try (Consumer<byte[], byte[]> c = consumer) {
                while (!leaving) {
                    Collection<ObjectNode> batch = new ArrayList<>();
                    c.poll(Duration.ofMillis(50)).forEach(x -> batch.add(json(x)));
                    if (batch.isEmpty()) {
                        continue;
                    }
                    synchronized (seen) {
                        seen.addAll(batch);
                    }
                    // Asynchronously: in the middle of a rebalance it may fail, which costs nothing.
                    c.commitAsync((Map<TopicPartition, OffsetAndMetadata> o, Exception e) -> { });
                }
                c.commitSync();
            } catch (Throwable e) {
                failure = e;
            }
        }

        ObjectNode records() throws Exception {
            ObjectNode answer = JSON.createObjectNode();
            synchronized (seen) {
                answer.set("records", seen.deepCopy());
            }
            if (failure != null) {
                answer.put("error", failure.toString());
            }
            return answer;
        }

        ObjectNode leave() throws Exception {
            leaving = true;
            thread.join(30_000);
            return records();
        }
    }
}
