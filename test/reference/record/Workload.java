import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.ScramCredentialInfo;
import org.apache.kafka.clients.admin.ScramMechanism;
import org.apache.kafka.clients.admin.UserScramCredentialUpsertion;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaEntity;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Fills a fresh node with one of everything that a data directory can hold, so that the directory can be
 * kept as a fixture. Each step prints one line saying what a reader of the directory should find.
 * Argument: the bootstrap server.
 */
public class Workload {
    static final String[] CODECS = {"none", "gzip", "snappy", "lz4", "zstd"};
    static String server;
    static Admin admin;

    public static void main(String[] args) throws Exception {
        server = args[0];
        try (Admin a = Admin.create(Map.of("bootstrap.servers", server))) {
            admin = a;
            codecs();
            shapes();
            rolled();
            compacted();
            idempotent();
            transactions();
            deleted();
            classicGroup();
            consumerGroup();
            metadata();
            openTransaction();
        }
        // The open transaction has to stay open: no close, no abort.
        Runtime.getRuntime().halt(0);
    }

    static void say(String format, Object... args) {
        System.out.println(String.format(format, args));
    }

    static byte[] bytes(String s) {
        return s == null ? null : s.getBytes(StandardCharsets.UTF_8);
    }

    /** Topics keep everything forever: the fixture is older than any retention when it is read. */
    static void topic(String name, int partitions, String... settings) throws Exception {
        Map<String, String> configs = new HashMap<>();
        configs.put("retention.ms", "-1");
        for (int i = 0; i < settings.length; i += 2) {
            configs.put(settings[i], settings[i + 1]);
        }
        admin.createTopics(List.of(new NewTopic(name, partitions, (short) 1).configs(configs))).all().get();
    }

    static Producer<byte[], byte[]> producer(String... settings) {
        Properties p = new Properties();
        p.put("bootstrap.servers", server);
        p.put("linger.ms", "10000");
        p.put("batch.size", "65536");
        for (int i = 0; i < settings.length; i += 2) {
            p.put(settings[i], settings[i + 1]);
        }
        return new KafkaProducer<>(p, new ByteArraySerializer(), new ByteArraySerializer());
    }

    static Consumer<byte[], byte[]> consumer(String... settings) {
        Properties p = new Properties();
        p.put("bootstrap.servers", server);
        p.put("auto.offset.reset", "earliest");
        p.put("enable.auto.commit", "false");
        for (int i = 0; i < settings.length; i += 2) {
            p.put(settings[i], settings[i + 1]);
        }
        return new KafkaConsumer<>(p, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static ProducerRecord<byte[], byte[]> record(String topic, int partition, String key, String value) {
        return new ProducerRecord<>(topic, partition, bytes(key), bytes(value));
    }

    static void codecs() throws Exception {
        topic("codecs", 1);
        for (String codec : CODECS) {
            try (Producer<byte[], byte[]> p = producer("compression.type", codec, "enable.idempotence", "false")) {
                for (int i = 0; i < 20; i++) {
                    p.send(record("codecs", 0, codec + "-key-" + i, codec + "-value-" + i + "-" + "x".repeat(40)));
                }
                p.flush();
            }
        }
        say("codecs-0: 100 records, offsets 0..99: one batch of 20 of each of %s, without a producer id;"
            + " keys CODEC-key-I, values CODEC-value-I- and forty x", Arrays.toString(CODECS));
    }

    static void shapes() throws Exception {
        topic("shapes", 3, "message.timestamp.type", "CreateTime");
        try (Producer<byte[], byte[]> p = producer("enable.idempotence", "false")) {
            p.send(record("shapes", 0, null, "null key"));
            p.send(record("shapes", 0, "null value", null));
            p.send(record("shapes", 0, null, null));
            p.send(record("shapes", 0, "", ""));
            ProducerRecord<byte[], byte[]> r = record("shapes", 0, "headers", "h");
            r.headers().add("a", bytes("1"));
            r.headers().add("a", bytes("2"));
            r.headers().add("empty", new byte[0]);
            r.headers().add(new RecordHeader("null", (byte[]) null));
            r.headers().add("", bytes("empty name"));
            r.headers().add("\u00e9\u4e16", new byte[] {0, (byte) 0xff});
            p.send(r);
            p.flush();
            // Timestamps out of order within one batch, in the year 2001.
            for (long t : new long[] {1000000002000L, 1000000000000L, 1000000001000L}) {
                p.send(new ProducerRecord<>("shapes", 1, t, bytes("t"), bytes(Long.toString(t))));
            }
            p.flush();
        }
        say("shapes-0: 5 records in one batch: null key; null value; both null; both empty; six headers"
            + " (a=1, a=2, empty=, null=null, an empty name, and a name of two non-ASCII letters with bytes 00 ff)");
        say("shapes-1: 3 records in one batch whose timestamps are not in order");
        say("shapes-2: empty");
    }

    static void rolled() throws Exception {
        topic("rolled", 1, "segment.ms", "60000", "index.interval.bytes", "200");
        long start = System.currentTimeMillis() - 3_600_000L;
        try (Producer<byte[], byte[]> p = producer("enable.idempotence", "true")) {
            for (int segment = 0; segment < 4; segment++) {
                for (int batch = 0; batch < 6; batch++) {
                    long t = start + segment * 600_000L + batch * 1000L;
                    for (int i = 0; i < 5; i++) {
                        p.send(new ProducerRecord<>("rolled", 0, t, bytes("k" + i), bytes("segment " + segment + " batch " + batch + " record " + i)));
                    }
                    p.flush();
                }
            }
        }
        say("rolled-0: 120 records, 4 segments (base offsets 0, 30, 60, 90) of 6 batches of 5, with entries in"
            + " the offset and time indexes; idempotent producer, sequences 0..119");
    }

    static void compacted() throws Exception {
        topic("compacted", 1, "cleanup.policy", "compact", "segment.ms", "60000",
            "min.cleanable.dirty.ratio", "0.01", "delete.retention.ms", "0");
        long start = System.currentTimeMillis() - 3_600_000L;
        try (Producer<byte[], byte[]> p = producer()) {
            for (int round = 0; round < 3; round++) {
                for (int i = 0; i < 10; i++) {
                    String value = round == 1 && i == 3 ? null : "round " + round;
                    p.send(new ProducerRecord<>("compacted", 0, start + round * 600_000L, bytes("key " + i), bytes(value)));
                }
                p.flush();
            }
        }
        say("compacted-0: keys 'key 0'..'key 9' written in three rounds (key 3 deleted in round 1); the first two"
            + " rounds were cleaned: cleaner-offset-checkpoint names the third segment");
    }

    static void idempotent() throws Exception {
        topic("idempotent", 1);
        try (Producer<byte[], byte[]> p = producer("enable.idempotence", "true", "acks", "all")) {
            for (int batch = 0; batch < 7; batch++) {
                for (int i = 0; i < 3; i++) {
                    p.send(record("idempotent", 0, "k", "batch " + batch + " record " + i));
                }
                p.flush();
            }
        }
        say("idempotent-0: 21 records, 7 batches of 3 of one producer id, sequences 0..20");
    }

    static void transactions() throws Exception {
        topic("transactions", 1);
        try (Producer<byte[], byte[]> p = producer("transactional.id", "tx-1");
                Consumer<byte[], byte[]> c = consumer("group.id", "tx-group")) {
            p.initTransactions();
            p.beginTransaction();
            p.send(record("transactions", 0, "a", "committed 1"));
            p.send(record("transactions", 0, "b", "committed 2"));
            p.commitTransaction();
            p.beginTransaction();
            p.send(record("transactions", 0, "c", "aborted 1"));
            p.send(record("transactions", 0, "d", "aborted 2"));
            p.flush();
            p.abortTransaction();
            p.beginTransaction();
            p.send(record("transactions", 0, "e", "committed 3"));
            p.sendOffsetsToTransaction(
                Map.of(new TopicPartition("codecs", 0), new OffsetAndMetadata(42, Optional.of(0), "by tx-1")),
                c.groupMetadata());
            p.commitTransaction();
        }
        try (Producer<byte[], byte[]> p = producer("transactional.id", "tx-2")) {
            p.initTransactions();
            p.beginTransaction();
            p.send(record("transactions", 0, "f", "aborted 3"));
            p.flush();
            p.abortTransaction();
        }
        say("transactions-0: tx-1 commits 'committed 1' and '2', aborts 'aborted 1' and '2', commits 'committed 3'"
            + " together with offset 42 (leader epoch 0, metadata 'by tx-1') of codecs-0 for group tx-group;"
            + " tx-2 aborts 'aborted 3'");
    }

    static void deleted() throws Exception {
        topic("deleted", 1);
        try (Producer<byte[], byte[]> p = producer("enable.idempotence", "false")) {
            for (int i = 0; i < 30; i++) {
                p.send(record("deleted", 0, "k" + i, "v" + i));
                p.flush();
            }
        }
        TopicPartition tp = new TopicPartition("deleted", 0);
        admin.deleteRecords(Map.of(tp, RecordsToDelete.beforeOffset(12))).all().get();
        say("deleted-0: 30 records in 30 batches, log start offset raised to 12 by DeleteRecords");
        topic("gone", 1);
        try (Producer<byte[], byte[]> p = producer("enable.idempotence", "false")) {
            p.send(record("gone", 0, "k", "v"));
            p.flush();
        }
        admin.deleteTopics(List.of("gone")).all().get();
        say("gone: created, written to and deleted again");
    }

    static void drain(Consumer<byte[], byte[]> c, int records) {
        long deadline = System.currentTimeMillis() + 30_000;
        int seen = 0;
        while (seen < records) {
            if (System.currentTimeMillis() > deadline) {
                throw new IllegalStateException("only " + seen + " of " + records + " records came");
            }
            seen += c.poll(Duration.ofMillis(100)).count();
        }
    }

    static void classicGroup() throws Exception {
        try (Consumer<byte[], byte[]> c = consumer("group.id", "classic-group", "group.protocol", "classic", "client.id", "classic-client")) {
            c.subscribe(List.of("codecs", "shapes"));
            drain(c, 108);
            c.commitSync(Map.of(
                new TopicPartition("codecs", 0), new OffsetAndMetadata(100, Optional.of(0), "codecs done"),
                new TopicPartition("shapes", 0), new OffsetAndMetadata(3, Optional.empty(), ""),
                new TopicPartition("shapes", 1), new OffsetAndMetadata(1, Optional.of(0), "")));
        }
        say("classic-group: commits codecs-0 at 100 (leader epoch 0, metadata 'codecs done'), shapes-0 at 3 (no"
            + " leader epoch), shapes-1 at 1 (leader epoch 0); its one member left");
        try (Consumer<byte[], byte[]> c = consumer("group.id", "deleted-group", "group.protocol", "classic")) {
            c.subscribe(List.of("codecs"));
            drain(c, 100);
            c.commitSync();
        }
        admin.deleteConsumerGroups(List.of("deleted-group")).all().get();
        say("deleted-group: committed, then deleted: tombstones");
    }

    static void consumerGroup() throws Exception {
        try (Consumer<byte[], byte[]> c = consumer("group.id", "consumer-group", "group.protocol", "consumer", "client.id", "consumer-client")) {
            c.subscribe(List.of("shapes", "idempotent"));
            drain(c, 8 + 21);
            c.commitSync();
        }
        say("consumer-group: a group of the consumer protocol; commits shapes-0 at 5, shapes-1 at 3, shapes-2 at 0,"
            + " idempotent-0 at 21; its one member left");
    }

    static Collection<AlterConfigOp> set(String name, String value) {
        return List.of(new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET));
    }

    static void metadata() throws Exception {
        admin.createPartitions(Map.of("deleted", NewPartitions.increaseTo(2))).all().get();
        say("deleted: a second partition, added later");
        Map<ConfigResource, Collection<AlterConfigOp>> configs = new HashMap<>();
        configs.put(new ConfigResource(ConfigResource.Type.TOPIC, "idempotent"), set("max.message.bytes", "1000000"));
        configs.put(new ConfigResource(ConfigResource.Type.BROKER, "1"), set("log.cleaner.threads", "2"));
        configs.put(new ConfigResource(ConfigResource.Type.BROKER, ""), set("message.max.bytes", "1100000"));
        configs.put(new ConfigResource(ConfigResource.Type.GROUP, "consumer-group"), set("consumer.session.timeout.ms", "50000"));
        configs.put(new ConfigResource(ConfigResource.Type.CLIENT_METRICS, "metrics-1"), set("interval.ms", "10000"));
        admin.incrementalAlterConfigs(configs).all().get();
        admin.incrementalAlterConfigs(Map.of(new ConfigResource(ConfigResource.Type.TOPIC, "shapes"),
            List.of(new AlterConfigOp(new ConfigEntry("message.timestamp.type", ""), AlterConfigOp.OpType.DELETE)))).all().get();
        say("configs: topic idempotent max.message.bytes=1000000; broker 1 log.cleaner.threads=2; every broker"
            + " message.max.bytes=1100000; group consumer-group consumer.session.timeout.ms=50000; client metrics"
            + " metrics-1 interval.ms=10000; topic shapes message.timestamp.type set and deleted again");
        Map<String, String> user = new HashMap<>();
        user.put("user", "alice");
        Map<String, String> anyClient = new HashMap<>();
        anyClient.put("client-id", null);
        List<ClientQuotaAlteration> quotas = new ArrayList<>();
        quotas.add(new ClientQuotaAlteration(new ClientQuotaEntity(user),
            List.of(new ClientQuotaAlteration.Op("producer_byte_rate", 1048576.0))));
        quotas.add(new ClientQuotaAlteration(new ClientQuotaEntity(anyClient),
            List.of(new ClientQuotaAlteration.Op("request_percentage", 50.0))));
        admin.alterClientQuotas(quotas).all().get();
        say("quotas: user alice producer_byte_rate=1048576; default client id request_percentage=50");
        admin.alterUserScramCredentials(List.of(new UserScramCredentialUpsertion("alice",
            new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), bytes("alice-secret"), bytes("salt-of-alice")))).all().get();
        say("scram: user alice, SCRAM-SHA-256, 4096 iterations, password alice-secret, salt salt-of-alice");
        AclBinding keep = new AclBinding(new ResourcePattern(ResourceType.TOPIC, "shapes", PatternType.PREFIXED),
            new AccessControlEntry("User:alice", "*", AclOperation.READ, AclPermissionType.ALLOW));
        AclBinding drop = new AclBinding(new ResourcePattern(ResourceType.GROUP, "g", PatternType.LITERAL),
            new AccessControlEntry("User:bob", "10.0.0.1", AclOperation.ALL, AclPermissionType.DENY));
        admin.createAcls(List.of(keep, drop)).all().get();
        admin.deleteAcls(List.of(drop.toFilter())).all().get();
        say("acls: alice may read topics that start with shapes; one more was made and deleted again");
    }

    static void openTransaction() throws Exception {
        topic("open", 1);
        Producer<byte[], byte[]> p = producer("transactional.id", "tx-open", "transaction.timeout.ms", "600000");
        p.initTransactions();
        p.beginTransaction();
        p.send(record("open", 0, "a", "never decided"));
        p.flush();
        say("open-0: one record of tx-open, whose transaction was neither committed nor aborted when the node stopped");
    }
}
