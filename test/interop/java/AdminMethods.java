import java.lang.reflect.Method;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionReplica;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.quota.*;
import org.apache.kafka.common.resource.*;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Every method of Apache Kafka's Admin against a broker, each with what it has to answer.
 *
 * <p>AdminMethods BOOTSTRAP KEY,KEY,... prints a line for each method: its name, a tab, one of "ok", "unserved" and
 * "failed", a tab, and what there is to say. The keys are the APIs that the broker advertises. A method that needs
 * others is unserved: it has to be refused at once. A method that this table does not have fails.
 */
public class AdminMethods {
    /** What is checked, and which APIs it needs beyond those of every broker that has topics and groups. */
    record Row(String why, int[] keys, Check check) { }

    interface Check {
        void run() throws Exception;
    }

    static final Map<String, Row> ROWS = new LinkedHashMap<>();
    static final Set<Integer> SERVED = new HashSet<>();
    static String bootstrap;
    static Admin admin;

    static void row(String method, Check check) {
        ROWS.put(method, new Row("", new int[0], check));
    }

    /** A method that needs APIs of its own, or of a capability that a broker may not have. */
    static void row(String method, String why, int[] keys, Check check) {
        ROWS.put(method, new Row(why, keys, check));
    }

    static int[] keys(int... k) {
        return k;
    }

    public static void main(String[] args) throws Exception {
        bootstrap = args[0];
        for (String k : args[1].split(",")) {
            SERVED.add(Integer.parseInt(k));
        }
        Properties p = new Properties();
        p.put("bootstrap.servers", bootstrap);
        p.put("request.timeout.ms", "10000");
        p.put("default.api.timeout.ms", "15000");
        p.put("enable.metrics.push", "true");
        admin = Admin.create(p);
        topics();
        configs();
        groups();
        cluster();
        transactions();
        security();
        others();

        Set<String> there = new TreeSet<>();
        for (Method m : Admin.class.getMethods()) {
            there.add(m.getName());
        }
        for (String method : there) {
            if (!ROWS.containsKey(method)) {
                say(method, "failed", "Admin has this method, the table of checks does not");
            }
        }
        for (Map.Entry<String, Row> e : ROWS.entrySet()) {
            Row r = e.getValue();
            if (!there.contains(e.getKey())) {
                say(e.getKey(), "failed", "the table of checks has this method, Admin does not");
                continue;
            }
            boolean served = Arrays.stream(r.keys).allMatch(SERVED::contains);
            try {
                r.check.run();
                say(e.getKey(), served ? "ok" : "failed", served ? "" : "it works, but the broker does not advertise " + Arrays.toString(r.keys));
            } catch (Throwable t) {
                Throwable cause = cause(t);
                if (!served && (cause instanceof UnsupportedVersionException)) {
                    say(e.getKey(), "unserved", r.why + " " + Arrays.toString(r.keys));
                } else {
                    t.printStackTrace();
                    say(e.getKey(), "failed", cause.toString());
                }
            }
        }
        admin.close(Duration.ofSeconds(5));
        System.exit(0);
    }

    static void say(String method, String status, String text) {
        System.out.println(method + "\t" + status + "\t" + text.replace('\n', ' '));
    }

    static Throwable cause(Throwable t) {
        return t instanceof ExecutionException && t.getCause() != null ? t.getCause() : t;
    }

    static <T> T get(KafkaFuture<T> f) throws Exception {
        return f.get(20, TimeUnit.SECONDS);
    }

    static void want(boolean ok, Object... what) {
        if (!ok) {
            throw new AssertionError(Arrays.toString(what));
        }
    }

    static void same(Object got, Object want, String what) {
        want(want.equals(got), what + ": " + got + " instead of " + want);
    }

    /** The call fails with one of these. */
    @SafeVarargs
    static void fails(Callable<?> call, Class<? extends Throwable>... with) throws Exception {
        try {
            call.call();
        } catch (Throwable t) {
            Throwable cause = cause(t);
            // Which is what tells that an API is not served.
            if (cause instanceof UnsupportedVersionException u) {
                throw u;
            }
            for (Class<? extends Throwable> c : with) {
                if (c.isInstance(cause)) {
                    return;
                }
            }
            throw new AssertionError("failed with " + cause + " instead of " + Arrays.toString(with));
        }
        throw new AssertionError("did not fail with " + Arrays.toString(with));
    }

    /** The call fails: a controller with static voters changes none. */
    static void refused(int key, Callable<?> call) throws Exception {
        try {
            fails(call, ApiException.class);
        } catch (UnsupportedVersionException e) {
            if (!SERVED.contains(key)) {
                throw e;
            }
        }
    }

    /** Repeats a check for a while: a broker hears of a change a moment after the controller has made it. */
    static void eventually(Check check) throws Exception {
        long deadline = System.currentTimeMillis() + 10_000;
        for (;;) {
            try {
                check.run();
                return;
            } catch (Throwable t) {
                if (System.currentTimeMillis() > deadline || cause(t) instanceof UnsupportedVersionException) {
                    throw t;
                }
                Thread.sleep(50);
            }
        }
    }

    static TopicPartition tp(String topic, int partition) {
        return new TopicPartition(topic, partition);
    }

    static Uuid make(String topic, int partitions, Map<String, String> configs) throws Exception {
        Uuid id = get(admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1).configs(configs))).topicId(topic));
        eventually(() -> get(admin.describeTopics(List.of(topic)).topicNameValues().get(topic)));
        return id;
    }

    /** Writes records to partition 0, with timestamps 1000, 2000, ... */
    static void write(String topic, int records) throws Exception {
        Map<String, Object> c = Map.of("bootstrap.servers", bootstrap, "delivery.timeout.ms", "15000", "request.timeout.ms", "10000", "linger.ms", "0");
        try (KafkaProducer<String, String> p = new KafkaProducer<>(c, new StringSerializer(), new StringSerializer())) {
            for (int i = 0; i < records; i++) {
                p.send(new ProducerRecord<>(topic, 0, 1000L * (i + 1), "k", "v" + i)).get();
            }
        }
    }

    /** Commits offset 2 of partition 0 for a group without members. */
    static void commit(String group, String topic) throws Exception {
        get(admin.alterConsumerGroupOffsets(group, Map.of(tp(topic, 0), new OffsetAndMetadata(2))).all());
    }

    /** Sets the start of a share group; its coordinator hears of a topic a moment after the others. */
    static void share(String group, String topic) throws Exception {
        eventually(() -> get(admin.alterShareGroupOffsets(group, Map.of(tp(topic, 0), 0L)).all()));
    }

    /** A member of a group that polls until it is closed. */
    static class Member implements AutoCloseable {
        final KafkaConsumer<String, String> consumer;
        final Thread thread;
        volatile boolean closing;

        Member(String group, String topic, String instance) throws Exception {
            Map<String, Object> c = new HashMap<>(Map.of("bootstrap.servers", bootstrap, "group.id", group, "client.id", "admin-methods",
                "enable.auto.commit", "false", "auto.offset.reset", "earliest", "session.timeout.ms", "10000"));
            if (instance != null) {
                c.put("group.instance.id", instance);
            }
            consumer = new KafkaConsumer<>(c, new StringDeserializer(), new StringDeserializer());
            consumer.subscribe(List.of(topic));
            thread = new Thread(() -> {
                try {
                    while (!closing) {
                        consumer.poll(Duration.ofMillis(50));
                    }
                } catch (RuntimeException e) {
                    System.err.println("member of " + group + ": " + e);
                } finally {
                    consumer.close();
                }
            });
            thread.start();
            eventually(() -> {
                ConsumerGroupDescription d = get(admin.describeConsumerGroups(List.of(group)).describedGroups().get(group));
                same(d.groupState(), GroupState.STABLE, "state");
            });
        }

        @Override
        public void close() throws Exception {
            closing = true;
            thread.join(20_000);
        }
    }

    static void topics() {
        row("createTopics", () -> {
            CreateTopicsResult r = admin.createTopics(List.of(new NewTopic("made", 3, (short) 1).configs(Map.of("retention.ms", "123456")),
                new NewTopic("made-placed", Map.of(0, List.of(1), 1, List.of(1))), new NewTopic("made-default", Optional.empty(), Optional.empty()),
                new NewTopic("made-bad", 0, (short) 1), new NewTopic("made-wide", 1, (short) 3)));
            want(!get(r.topicId("made")).equals(Uuid.ZERO_UUID), "a topic id");
            same(get(r.numPartitions("made")), 3, "partitions");
            same(get(r.replicationFactor("made")), 1, "replicas");
            ConfigEntry e = get(r.config("made")).get("retention.ms");
            same(e.value(), "123456", "retention.ms");
            same(e.source(), ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG, "source");
            same(get(r.numPartitions("made-placed")), 2, "partitions of the placed one");
            same(get(r.numPartitions("made-default")), 1, "partitions of the default one");
            fails(() -> get(r.values().get("made-bad")), InvalidPartitionsException.class);
            fails(() -> get(r.values().get("made-wide")), InvalidReplicationFactorException.class);
            fails(() -> get(admin.createTopics(List.of(new NewTopic("made", 1, (short) 1))).all()), TopicExistsException.class);
            fails(() -> get(admin.createTopics(List.of(new NewTopic("made bad", 1, (short) 1))).all()), InvalidTopicException.class);
            CreateTopicsOptions only = new CreateTopicsOptions().validateOnly(true);
            same(get(admin.createTopics(List.of(new NewTopic("not-made", 2, (short) 1)), only).numPartitions("not-made")), 2, "partitions");
            want(!get(admin.listTopics().names()).contains("not-made"), "validateOnly made a topic");
        });
        row("listTopics", () -> {
            make("listed", 1, Map.of());
            commit("listed", "listed");
            Map<String, TopicListing> plain = get(admin.listTopics().namesToListings());
            want(plain.containsKey("listed") && !plain.containsKey("__consumer_offsets"), plain.keySet());
            want(!plain.get("listed").topicId().equals(Uuid.ZERO_UUID), "a topic id");
            Map<String, TopicListing> all = get(admin.listTopics(new ListTopicsOptions().listInternal(true)).namesToListings());
            want(all.get("__consumer_offsets").isInternal(), all.keySet());
        });
        row("describeTopics", () -> {
            Uuid id = make("described", 3, Map.of());
            for (int limit : new int[] {2, 2000}) {
                TopicDescription d = get(admin.describeTopics(TopicCollection.ofTopicNames(List.of("described")),
                    new DescribeTopicsOptions().partitionSizeLimitPerResponse(limit).includeAuthorizedOperations(true)).topicNameValues().get("described"));
                same(d.topicId(), id, "id");
                same(d.partitions().size(), 3, "partitions");
                same(d.partitions().get(2).leader().id(), 1, "leader");
                same(d.partitions().get(2).isr().size(), 1, "in-sync replicas");
                want(d.authorizedOperations().contains(AclOperation.READ), d.authorizedOperations());
            }
            DescribeTopicsResult byId = admin.describeTopics(TopicCollection.ofTopicIds(List.of(id, Uuid.randomUuid())));
            same(get(byId.topicIdValues().get(id)).name(), "described", "name");
            for (Map.Entry<Uuid, KafkaFuture<TopicDescription>> e : byId.topicIdValues().entrySet()) {
                if (!e.getKey().equals(id)) {
                    fails(() -> get(e.getValue()), UnknownTopicIdException.class);
                }
            }
            fails(() -> get(admin.describeTopics(List.of("nowhere")).allTopicNames()), UnknownTopicOrPartitionException.class);
        });
        row("deleteTopics", () -> {
            Uuid id = make("deleted-by-id", 1, Map.of());
            make("deleted", 1, Map.of());
            get(admin.deleteTopics(List.of("deleted")).all());
            get(admin.deleteTopics(TopicCollection.ofTopicIds(List.of(id))).all());
            eventually(() -> {
                Set<String> names = get(admin.listTopics().names());
                want(!names.contains("deleted") && !names.contains("deleted-by-id"), names);
            });
            fails(() -> get(admin.deleteTopics(List.of("deleted")).all()), UnknownTopicOrPartitionException.class);
            fails(() -> get(admin.deleteTopics(TopicCollection.ofTopicIds(List.of(id))).all()), UnknownTopicIdException.class);
        });
        row("createPartitions", () -> {
            make("grown", 2, Map.of());
            get(admin.createPartitions(Map.of("grown", NewPartitions.increaseTo(3)), new CreatePartitionsOptions().validateOnly(true)).all());
            fails(() -> get(admin.createPartitions(Map.of("grown", NewPartitions.increaseTo(2))).all()), InvalidPartitionsException.class);
            fails(() -> get(admin.createPartitions(Map.of("grown", NewPartitions.increaseTo(1))).all()), InvalidPartitionsException.class);
            same(get(admin.describeTopics(List.of("grown")).allTopicNames()).get("grown").partitions().size(), 2, "partitions");
            get(admin.createPartitions(Map.of("grown", NewPartitions.increaseTo(4, List.of(List.of(1), List.of(1))))).all());
            eventually(() -> same(get(admin.describeTopics(List.of("grown")).allTopicNames()).get("grown").partitions().size(), 4, "partitions"));
        });
        row("deleteRecords", () -> {
            make("trimmed", 1, Map.of());
            write("trimmed", 5);
            TopicPartition p = tp("trimmed", 0);
            same(get(admin.deleteRecords(Map.of(p, RecordsToDelete.beforeOffset(3))).lowWatermarks().get(p)).lowWatermark(), 3L, "low watermark");
            fails(() -> get(admin.deleteRecords(Map.of(p, RecordsToDelete.beforeOffset(9))).all()), OffsetOutOfRangeException.class);
            same(get(admin.deleteRecords(Map.of(p, RecordsToDelete.beforeOffset(-1))).lowWatermarks().get(p)).lowWatermark(), 5L, "low watermark");
        });
        row("listOffsets", () -> {
            make("offsets", 2, Map.of());
            write("offsets", 5);
            TopicPartition p = tp("offsets", 0);
            Map<OffsetSpec, Long> specs = new LinkedHashMap<>();
            specs.put(OffsetSpec.earliest(), 0L);
            specs.put(OffsetSpec.latest(), 5L);
            specs.put(OffsetSpec.maxTimestamp(), 4L);
            specs.put(OffsetSpec.forTimestamp(2500), 2L);
            specs.put(OffsetSpec.forTimestamp(9999), -1L);
            specs.put(OffsetSpec.earliestLocal(), 0L);
            specs.put(OffsetSpec.latestTiered(), -1L);
            for (Map.Entry<OffsetSpec, Long> e : specs.entrySet()) {
                same(get(admin.listOffsets(Map.of(p, e.getKey())).partitionResult(p)).offset(), e.getValue(), e.getKey().toString());
            }
            ListOffsetsResult.ListOffsetsResultInfo max = get(admin.listOffsets(Map.of(p, OffsetSpec.maxTimestamp())).partitionResult(p));
            same(max.timestamp(), 5000L, "timestamp");
            Map<TopicPartition, ListOffsetsResult.ListOffsetsResultInfo> two = get(admin.listOffsets(Map.of(p, OffsetSpec.latest(),
                tp("offsets", 1), OffsetSpec.latest()), new ListOffsetsOptions(IsolationLevel.READ_COMMITTED)).all());
            same(two.get(tp("offsets", 1)).offset(), 0L, "end of the empty one");
        });
        row("describeProducers", "describing producers", keys(61), () -> {
            make("produced", 1, Map.of());
            write("produced", 2);
            List<ProducerState> active = get(admin.describeProducers(List.of(tp("produced", 0))).partitionResult(tp("produced", 0))).activeProducers();
            same(active.size(), 1, "producers");
            same(active.get(0).lastSequence(), 1, "last sequence");
        });
        row("describeLogDirs", "log directories", keys(35), () -> {
            make("stored", 1, Map.of());
            write("stored", 2);
            Map<String, LogDirDescription> dirs = get(admin.describeLogDirs(List.of(1)).allDescriptions()).get(1);
            same(dirs.size(), 1, "directories");
            LogDirDescription d = dirs.values().iterator().next();
            want(d.error() == null, d.error());
            ReplicaInfo r = d.replicaInfos().get(tp("stored", 0));
            want(r.size() > 0 && r.offsetLag() == 0 && !r.isFuture(), r);
            want(d.totalBytes().getAsLong() > d.usableBytes().getAsLong() && d.usableBytes().getAsLong() > 0, d);
        });
        row("describeReplicaLogDirs", "log directories", keys(35), () -> {
            make("placed", 1, Map.of());
            TopicPartitionReplica r = new TopicPartitionReplica("placed", 0, 1);
            DescribeReplicaLogDirsResult.ReplicaLogDirInfo i = get(admin.describeReplicaLogDirs(List.of(r)).values().get(r));
            want(i.getCurrentReplicaLogDir() != null && i.getFutureReplicaLogDir() == null, i);
        });
        row("alterReplicaLogDirs", "cluster", keys(34), () -> {
            make("moved", 1, Map.of());
            fails(() -> get(admin.alterReplicaLogDirs(Map.of(new TopicPartitionReplica("moved", 0, 1), "/nowhere")).all()), LogDirNotFoundException.class);
        });
        row("electLeaders", "cluster", keys(43), () -> {
            make("elected", 1, Map.of());
            Map<TopicPartition, Optional<Throwable>> r = get(admin.electLeaders(ElectionType.PREFERRED, Set.of(tp("elected", 0))).partitions());
            want(r.get(tp("elected", 0)).get() instanceof ElectionNotNeededException, r);
        });
        row("alterPartitionReassignments", "cluster", keys(45), () -> {
            make("reassigned", 1, Map.of());
            fails(() -> get(admin.alterPartitionReassignments(Map.of(tp("reassigned", 0), Optional.empty())).all()), NoReassignmentInProgressException.class);
            get(admin.alterPartitionReassignments(Map.of(tp("reassigned", 0), Optional.of(new NewPartitionReassignment(List.of(1))))).all());
        });
        row("listPartitionReassignments", "cluster", keys(46), () ->
            same(get(admin.listPartitionReassignments().reassignments()).size(), 0, "reassignments"));
    }

    static ConfigEntry config(ConfigResource r, String name) throws Exception {
        return get(admin.describeConfigs(List.of(r), new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true)).all()).get(r).get(name);
    }

    static void alter(ConfigResource r, String name, String value, AlterConfigOp.OpType op) throws Exception {
        get(admin.incrementalAlterConfigs(Map.of(r, List.of(new AlterConfigOp(new ConfigEntry(name, value), op)))).all());
    }

    static void configs() {
        row("describeConfigs", () -> {
            make("configured", 1, Map.of("max.message.bytes", "2000000"));
            ConfigEntry e = config(new ConfigResource(ConfigResource.Type.TOPIC, "configured"), "max.message.bytes");
            same(e.value(), "2000000", "max.message.bytes");
            same(e.source(), ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG, "source");
            same(e.type(), ConfigEntry.ConfigType.INT, "type");
            same(e.synonyms().size(), 2, "synonyms");
            want(!e.documentation().isEmpty() && !e.isReadOnly() && !e.isSensitive(), e);
            e = config(new ConfigResource(ConfigResource.Type.BROKER, "1"), "node.id");
            want(e.value().equals("1") && e.isReadOnly(), e);
            same(config(new ConfigResource(ConfigResource.Type.GROUP, "any"), "consumer.session.timeout.ms").value(), "45000", "a group's config");
            fails(() -> config(new ConfigResource(ConfigResource.Type.TOPIC, "nowhere"), "any"), UnknownTopicOrPartitionException.class);
        });
        row("incrementalAlterConfigs", () -> {
            make("altered", 1, Map.of());
            ConfigResource topic = new ConfigResource(ConfigResource.Type.TOPIC, "altered");
            alter(topic, "retention.ms", "77777", AlterConfigOp.OpType.SET);
            alter(topic, "cleanup.policy", "compact", AlterConfigOp.OpType.APPEND);
            eventually(() -> {
                same(config(topic, "retention.ms").value(), "77777", "retention.ms");
                same(Set.of(config(topic, "cleanup.policy").value().split(",")), Set.of("delete", "compact"), "cleanup.policy");
            });
            alter(topic, "cleanup.policy", "delete", AlterConfigOp.OpType.SUBTRACT);
            alter(topic, "retention.ms", "", AlterConfigOp.OpType.DELETE);
            eventually(() -> {
                same(config(topic, "cleanup.policy").value(), "compact", "cleanup.policy");
                same(config(topic, "retention.ms").source(), ConfigEntry.ConfigSource.DEFAULT_CONFIG, "source");
            });
            fails(() -> {
                alter(topic, "retention.ms", "never", AlterConfigOp.OpType.SET);
                return null;
            }, InvalidConfigurationException.class);
            get(admin.incrementalAlterConfigs(Map.of(topic, List.of(new AlterConfigOp(new ConfigEntry("retention.ms", "5"), AlterConfigOp.OpType.SET))),
                new AlterConfigsOptions().validateOnly(true)).all());
            same(config(topic, "retention.ms").value(), "604800000", "retention.ms after validateOnly");
            for (ConfigResource r : List.of(new ConfigResource(ConfigResource.Type.BROKER, ""), new ConfigResource(ConfigResource.Type.BROKER, "1"))) {
                alter(r, "message.max.bytes", "1500000", AlterConfigOp.OpType.SET);
                eventually(() -> same(config(r, "message.max.bytes").value(), "1500000", "message.max.bytes of broker " + r.name()));
                alter(r, "message.max.bytes", "", AlterConfigOp.OpType.DELETE);
            }
            ConfigResource metrics = new ConfigResource(ConfigResource.Type.CLIENT_METRICS, "some");
            alter(metrics, "interval.ms", "5000", AlterConfigOp.OpType.SET);
            eventually(() -> same(config(metrics, "interval.ms").value(), "5000", "interval.ms"));
            ConfigResource group = new ConfigResource(ConfigResource.Type.GROUP, "altered");
            alter(group, "consumer.session.timeout.ms", "50000", AlterConfigOp.OpType.SET);
            eventually(() -> same(config(group, "consumer.session.timeout.ms").value(), "50000", "consumer.session.timeout.ms"));
        });
        row("listConfigResources", "listing of config resources", keys(74), () -> {
            alter(new ConfigResource(ConfigResource.Type.GROUP, "listed"), "consumer.session.timeout.ms", "50000", AlterConfigOp.OpType.SET);
            make("resource", 1, Map.of());
            eventually(() -> {
                Collection<ConfigResource> all = get(admin.listConfigResources().all());
                want(all.contains(new ConfigResource(ConfigResource.Type.GROUP, "listed")) && all.contains(new ConfigResource(ConfigResource.Type.TOPIC, "resource"))
                    && all.contains(new ConfigResource(ConfigResource.Type.BROKER, "1")), all);
            });
            Collection<ConfigResource> groups = get(admin.listConfigResources(Set.of(ConfigResource.Type.GROUP), new ListConfigResourcesOptions()).all());
            want(groups.stream().allMatch(r -> r.type() == ConfigResource.Type.GROUP), groups);
        });
        row("listClientMetricsResources", "listing of config resources", keys(74), () -> {
            alter(new ConfigResource(ConfigResource.Type.CLIENT_METRICS, "listed"), "interval.ms", "5000", AlterConfigOp.OpType.SET);
            eventually(() -> {
                Collection<ClientMetricsResourceListing> all = get(admin.listClientMetricsResources().all());
                want(all.contains(new ClientMetricsResourceListing("listed")), all);
            });
        });
        row("alterClientQuotas", "client quotas", keys(48, 49), () -> {
            ClientQuotaEntity user = new ClientQuotaEntity(Map.of(ClientQuotaEntity.USER, "ulla"));
            get(admin.alterClientQuotas(List.of(new ClientQuotaAlteration(user, List.of(new ClientQuotaAlteration.Op("producer_byte_rate", 1000.0))))).all());
            eventually(() -> same(get(admin.describeClientQuotas(ClientQuotaFilter.all()).entities()).get(user), Map.of("producer_byte_rate", 1000.0), "quotas"));
            fails(() -> get(admin.alterClientQuotas(List.of(new ClientQuotaAlteration(user, List.of(new ClientQuotaAlteration.Op("no_such_rate", 1.0))))).all()),
                InvalidRequestException.class);
        });
        row("describeClientQuotas", "client quotas", keys(48, 49), () -> {
            ClientQuotaEntity client = new ClientQuotaEntity(Map.of(ClientQuotaEntity.USER, "uwe", ClientQuotaEntity.CLIENT_ID, "c"));
            get(admin.alterClientQuotas(List.of(new ClientQuotaAlteration(client, List.of(new ClientQuotaAlteration.Op("consumer_byte_rate", 5.0))))).all());
            eventually(() -> same(get(admin.describeClientQuotas(ClientQuotaFilter.contains(List.of(ClientQuotaFilterComponent.ofEntity(ClientQuotaEntity.USER, "uwe"))))
                .entities()).keySet(), Set.of(client), "entities"));
            same(get(admin.describeClientQuotas(ClientQuotaFilter.containsOnly(List.of(ClientQuotaFilterComponent.ofEntity(ClientQuotaEntity.USER, "uwe"))))
                .entities()).size(), 0, "entities of the user alone");
        });
    }

    static void groups() {
        row("listGroups", () -> {
            make("grouped", 1, Map.of());
            commit("group-listed", "grouped");
            Map<String, GroupListing> all = get(admin.listGroups().all()).stream().collect(Collectors.toMap(GroupListing::groupId, g -> g));
            want(all.containsKey("group-listed"), all);
            GroupListing g = all.get("group-listed");
            same(g.type(), Optional.of(GroupType.CLASSIC), "type");
            same(g.groupState(), Optional.of(GroupState.EMPTY), "state");
            Collection<GroupListing> stable = get(admin.listGroups(new ListGroupsOptions().inGroupStates(Set.of(GroupState.STABLE))).all());
            want(stable.stream().noneMatch(x -> x.groupId().equals("group-listed")), stable);
            Collection<GroupListing> classic = get(admin.listGroups(new ListGroupsOptions().withTypes(Set.of(GroupType.CLASSIC))).all());
            want(classic.stream().anyMatch(x -> x.groupId().equals("group-listed")), classic);
            want(get(admin.listGroups(new ListGroupsOptions().withTypes(Set.of(GroupType.CONSUMER))).all()).stream()
                .noneMatch(x -> x.groupId().equals("group-listed")), "among consumer groups");
        });
        row("listConsumerGroups", () -> {
            make("consumer-grouped", 1, Map.of());
            commit("consumer-group-listed", "consumer-grouped");
            Collection<ConsumerGroupListing> all = get(admin.listConsumerGroups().all());
            want(all.stream().anyMatch(g -> g.groupId().equals("consumer-group-listed")), all);
        });
        row("describeConsumerGroups", () -> {
            make("consumed", 2, Map.of());
            try (Member m = new Member("consumers", "consumed", null)) {
                ConsumerGroupDescription d = get(admin.describeConsumerGroups(List.of("consumers"),
                    new DescribeConsumerGroupsOptions().includeAuthorizedOperations(true)).all()).get("consumers");
                same(d.partitionAssignor(), "range", "assignor");
                same(d.coordinator().id(), 1, "coordinator");
                same(d.type(), GroupType.CLASSIC, "type");
                same(d.members().size(), 1, "members");
                MemberDescription x = d.members().iterator().next();
                same(x.assignment().topicPartitions(), Set.of(tp("consumed", 0), tp("consumed", 1)), "assignment");
                same(x.clientId(), "admin-methods", "client id");
                want(x.host().contains("127.0.0.1"), x.host());
                want(d.authorizedOperations().contains(AclOperation.READ), d.authorizedOperations());
            }
            fails(() -> get(admin.describeConsumerGroups(List.of("no-such-group")).all()), GroupIdNotFoundException.class);
        });
        row("describeClassicGroups", () -> {
            make("classic", 1, Map.of());
            try (Member m = new Member("classics", "classic", "first")) {
                ClassicGroupDescription d = get(admin.describeClassicGroups(List.of("classics")).all()).get("classics");
                same(d.state(), org.apache.kafka.common.ClassicGroupState.STABLE, "state");
                same(d.protocol(), "consumer", "protocol");
                same(d.protocolData(), "range", "protocol data");
                same(d.members().iterator().next().groupInstanceId(), Optional.of("first"), "instance");
            }
            fails(() -> get(admin.describeClassicGroups(List.of("no-such-group")).all()), GroupIdNotFoundException.class);
        });
        row("alterConsumerGroupOffsets", () -> {
            make("set", 1, Map.of());
            TopicPartition p = tp("set", 0);
            get(admin.alterConsumerGroupOffsets("setters", Map.of(p, new OffsetAndMetadata(7, Optional.of(0), "note"))).all());
            OffsetAndMetadata o = get(admin.listConsumerGroupOffsets("setters").partitionsToOffsetAndMetadata()).get(p);
            want(o.offset() == 7 && o.metadata().equals("note") && o.leaderEpoch().equals(Optional.of(0)), o);
            fails(() -> get(admin.alterConsumerGroupOffsets("setters", Map.of(tp("nowhere", 0), new OffsetAndMetadata(1))).all()),
                UnknownTopicOrPartitionException.class);
            try (Member m = new Member("setters", "set", null)) {
                fails(() -> get(admin.alterConsumerGroupOffsets("setters", Map.of(p, new OffsetAndMetadata(1))).all()), UnknownMemberIdException.class);
            }
        });
        row("listConsumerGroupOffsets", () -> {
            make("committed", 2, Map.of());
            commit("committers", "committed");
            commit("committers-2", "committed");
            Map<TopicPartition, OffsetAndMetadata> one = get(admin.listConsumerGroupOffsets("committers").partitionsToOffsetAndMetadata());
            same(one, Map.of(tp("committed", 0), new OffsetAndMetadata(2)), "offsets");
            ListConsumerGroupOffsetsResult two = admin.listConsumerGroupOffsets(Map.of("committers", new ListConsumerGroupOffsetsSpec(),
                "committers-2", new ListConsumerGroupOffsetsSpec().topicPartitions(List.of(tp("committed", 0), tp("committed", 1)))),
                new ListConsumerGroupOffsetsOptions().requireStable(true));
            same(get(two.partitionsToOffsetAndMetadata("committers")).size(), 1, "offsets");
            Map<TopicPartition, OffsetAndMetadata> both = get(two.partitionsToOffsetAndMetadata("committers-2"));
            want(both.get(tp("committed", 0)).offset() == 2 && both.containsKey(tp("committed", 1)) && both.get(tp("committed", 1)) == null, both);
        });
        row("deleteConsumerGroupOffsets", () -> {
            make("forgotten", 1, Map.of());
            commit("forgetters", "forgotten");
            TopicPartition p = tp("forgotten", 0);
            try (Member m = new Member("forgetters", "forgotten", null)) {
                fails(() -> get(admin.deleteConsumerGroupOffsets("forgetters", Set.of(p)).all()), GroupSubscribedToTopicException.class);
            }
            get(admin.deleteConsumerGroupOffsets("forgetters", Set.of(p)).all());
            same(get(admin.listConsumerGroupOffsets("forgetters").partitionsToOffsetAndMetadata()).size(), 0, "offsets");
        });
        row("deleteConsumerGroups", () -> {
            make("left", 1, Map.of());
            try (Member m = new Member("leavers", "left", null)) {
                fails(() -> get(admin.deleteConsumerGroups(List.of("leavers")).all()), GroupNotEmptyException.class);
            }
            get(admin.deleteConsumerGroups(List.of("leavers")).all());
            fails(() -> get(admin.deleteConsumerGroups(List.of("leavers")).all()), GroupIdNotFoundException.class);
        });
        row("removeMembersFromConsumerGroup", () -> {
            make("removed", 1, Map.of());
            try (Member m = new Member("removers", "removed", "first")) {
                get(admin.removeMembersFromConsumerGroup("removers", new RemoveMembersFromConsumerGroupOptions(List.of(new MemberToRemove("first")))).all());
                same(get(admin.describeConsumerGroups(List.of("removers")).all()).get("removers").members().stream()
                    .filter(x -> x.groupInstanceId().equals(Optional.of("first"))).count(), 0L, "members of that name");
                fails(() -> get(admin.removeMembersFromConsumerGroup("removers",
                    new RemoveMembersFromConsumerGroupOptions(List.of(new MemberToRemove("nobody")))).memberResult(new MemberToRemove("nobody"))),
                    UnknownMemberIdException.class);
            }
            try (Member m = new Member("removers-all", "removed", null)) {
                get(admin.removeMembersFromConsumerGroup("removers-all", new RemoveMembersFromConsumerGroupOptions()).all());
            }
        });

        // The offsets of a streams group are those of any group, and go by the same requests.
        row("alterStreamsGroupOffsets", () -> {
            make("streams-set", 1, Map.of());
            get(admin.alterStreamsGroupOffsets("streams-set", Map.of(tp("streams-set", 0), new OffsetAndMetadata(3))).all());
            same(get(admin.listConsumerGroupOffsets("streams-set").partitionsToOffsetAndMetadata()).get(tp("streams-set", 0)).offset(), 3L, "offset");
        });
        row("listStreamsGroupOffsets", () -> {
            make("streams-listed", 1, Map.of());
            commit("streams-listed", "streams-listed");
            same(get(admin.listStreamsGroupOffsets(Map.of("streams-listed", new ListStreamsGroupOffsetsSpec()))
                .partitionsToOffsetAndMetadata("streams-listed")).get(tp("streams-listed", 0)).offset(), 2L, "offset");
        });
        row("deleteStreamsGroupOffsets", () -> {
            make("streams-forgotten", 1, Map.of());
            commit("streams-forgotten", "streams-forgotten");
            get(admin.deleteStreamsGroupOffsets("streams-forgotten", Set.of(tp("streams-forgotten", 0))).all());
            same(get(admin.listConsumerGroupOffsets("streams-forgotten").partitionsToOffsetAndMetadata()).size(), 0, "offsets");
        });
        row("deleteStreamsGroups", () -> {
            make("streams-deleted", 1, Map.of());
            commit("streams-deleted", "streams-deleted");
            get(admin.deleteStreamsGroups(List.of("streams-deleted")).all());
            fails(() -> get(admin.deleteStreamsGroups(List.of("streams-deleted")).all()), GroupIdNotFoundException.class);
        });
        row("describeStreamsGroups", "streams groups", keys(88, 89), () ->
            fails(() -> get(admin.describeStreamsGroups(List.of("no-such-group")).all()), GroupIdNotFoundException.class));

        row("describeShareGroups", "share groups", keys(76, 77), () ->
            fails(() -> get(admin.describeShareGroups(List.of("no-such-group")).all()), GroupIdNotFoundException.class));
        row("alterShareGroupOffsets", "share groups", keys(91), () -> {
            make("shared", 1, Map.of());
            share("sharers", "shared");
        });
        row("listShareGroupOffsets", "share groups", keys(90, 91), () -> {
            make("share-listed", 1, Map.of());
            share("share-listers", "share-listed");
            want(get(admin.listShareGroupOffsets(Map.of("share-listers", new ListShareGroupOffsetsSpec()))
                .partitionsToOffsetInfo("share-listers")).containsKey(tp("share-listed", 0)), "no offset");
        });
        row("deleteShareGroupOffsets", "share groups", keys(91, 92), () -> {
            make("share-forgotten", 1, Map.of());
            share("share-forgetters", "share-forgotten");
            get(admin.deleteShareGroupOffsets("share-forgetters", Set.of("share-forgotten")).all());
        });
        row("deleteShareGroups", "share groups", keys(91), () -> {
            make("share-deleted", 1, Map.of());
            share("share-deleters", "share-deleted");
            get(admin.deleteShareGroups(List.of("share-deleters")).all());
        });
    }

    static void cluster() {
        row("describeCluster", () -> {
            DescribeClusterResult r = admin.describeCluster(new DescribeClusterOptions().includeAuthorizedOperations(true).includeFencedBrokers(true));
            same(get(r.nodes()).size(), 1, "nodes");
            same(get(r.nodes()).iterator().next().id(), 1, "node");
            same(get(r.controller()).id(), 1, "controller");
            same(get(r.clusterId()).length(), 22, "length of the cluster id");
            want(get(r.authorizedOperations()).contains(AclOperation.CREATE), get(r.authorizedOperations()));
        });
        row("describeFeatures", () -> {
            FeatureMetadata f = get(admin.describeFeatures().featureMetadata());
            FinalizedVersionRange v = f.finalizedFeatures().get("metadata.version");
            want(v.minVersionLevel() == v.maxVersionLevel() && v.maxVersionLevel() > 0, f);
            want(f.supportedFeatures().get("metadata.version").maxVersion() >= v.maxVersionLevel(), f);
            want(f.finalizedFeaturesEpoch().get() >= 0, f);
        });
        row("updateFeatures", () -> {
            short level = get(admin.describeFeatures().featureMetadata()).finalizedFeatures().get("metadata.version").maxVersionLevel();
            get(admin.updateFeatures(Map.of("metadata.version", new FeatureUpdate(level, FeatureUpdate.UpgradeType.UPGRADE)),
                new UpdateFeaturesOptions().validateOnly(true)).all());
            fails(() -> get(admin.updateFeatures(Map.of("metadata.version", new FeatureUpdate((short) 999, FeatureUpdate.UpgradeType.UPGRADE)),
                new UpdateFeaturesOptions()).all()), InvalidUpdateVersionException.class);
        });
        row("describeMetadataQuorum", () -> {
            QuorumInfo q = get(admin.describeMetadataQuorum().quorumInfo());
            same(q.leaderId(), 1, "leader");
            same(q.voters().size(), 1, "voters");
            want(q.highWatermark() > 0 && q.leaderEpoch() > 0 && q.voters().get(0).logEndOffset() >= q.highWatermark(), q);
        });
        row("unregisterBroker", "cluster", keys(64), () ->
            fails(() -> get(admin.unregisterBroker(77).all()), BrokerIdNotRegisteredException.class));
        row("unregisterController", "cluster", keys(94), () ->
            refused(94, () -> get(admin.unregisterController(77).all())));
        row("addRaftVoter", "cluster", keys(80), () ->
            refused(80, () -> get(admin.addRaftVoter(77, Uuid.randomUuid(), Set.of(new RaftVoterEndpoint("CONTROLLER", "127.0.0.1", 1))).all())));
        row("removeRaftVoter", "cluster", keys(81), () ->
            refused(81, () -> get(admin.removeRaftVoter(77, Uuid.randomUuid()).all())));
    }

    static void transactions() {
        int[] all = keys(24, 25, 26, 27, 28, 61, 65, 66);
        row("listTransactions", "transactions", all, () -> {
            transaction("tx-listed", true);
            eventually(() -> {
                Collection<TransactionListing> list = get(admin.listTransactions(new ListTransactionsOptions()
                    .filterStates(Set.of(TransactionState.COMPLETE_COMMIT))).all());
                want(list.stream().anyMatch(t -> t.transactionalId().equals("tx-listed")), list);
            });
        });
        row("describeTransactions", "transactions", all, () -> {
            transaction("tx-described", true);
            eventually(() -> same(get(admin.describeTransactions(List.of("tx-described")).all()).get("tx-described").state(), TransactionState.COMPLETE_COMMIT, "state"));
            fails(() -> get(admin.describeTransactions(List.of("no-such-id")).all()), TransactionalIdNotFoundException.class);
        });
        row("fenceProducers", "transactions", all, () -> {
            try (KafkaProducer<String, String> p = transaction("tx-fenced", false)) {
                get(admin.fenceProducers(List.of("tx-fenced")).all());
                fails(() -> {
                    p.commitTransaction();
                    return null;
                }, ProducerFencedException.class, InvalidProducerEpochException.class);
            }
        });
        row("forceTerminateTransaction", "transactions", all, () -> {
            try (KafkaProducer<String, String> p = transaction("tx-terminated", false)) {
                get(admin.forceTerminateTransaction("tx-terminated").result());
                eventually(() -> {
                    TransactionState state = get(admin.describeTransactions(List.of("tx-terminated")).all()).get("tx-terminated").state();
                    want(state == TransactionState.COMPLETE_ABORT || state == TransactionState.EMPTY, state);
                });
                p.close(Duration.ZERO);
            }
        });
        row("abortTransaction", "transactions", all, () -> {
            try (KafkaProducer<String, String> p = transaction("tx-aborted", false)) {
                TopicPartition at = tp("tx-aborted", 0);
                ProducerState s = get(admin.describeProducers(List.of(at)).partitionResult(at)).activeProducers().get(0);
                get(admin.abortTransaction(new AbortTransactionSpec(at, s.producerId(), (short) s.producerEpoch(), s.coordinatorEpoch().orElse(0))).all());
                p.close(Duration.ZERO);
            }
        });
    }

    /** A transaction with one record, committed or left open. */
    static KafkaProducer<String, String> transaction(String id, boolean commit) throws Exception {
        if (!SERVED.contains(24)) {
            // What the admin client itself has to say, not its producer.
            get(admin.describeTransactions(List.of(id)).all());
        }
        make(id, 1, Map.of());
        KafkaProducer<String, String> p = new KafkaProducer<>(Map.of("bootstrap.servers", bootstrap, "transactional.id", id), new StringSerializer(), new StringSerializer());
        p.initTransactions();
        p.beginTransaction();
        p.send(new ProducerRecord<>(id, 0, "k", "v")).get();
        if (commit) {
            p.commitTransaction();
            p.close();
        }
        return p;
    }

    static void security() {
        AclBinding acl = new AclBinding(new ResourcePattern(ResourceType.TOPIC, "t", PatternType.LITERAL),
            new AccessControlEntry("User:ulla", "*", AclOperation.READ, AclPermissionType.ALLOW));
        // A broker without an authorizer says so.
        row("createAcls", "security", keys(30), () -> fails(() -> get(admin.createAcls(List.of(acl)).all()), SecurityDisabledException.class));
        row("describeAcls", "security", keys(29), () -> fails(() -> get(admin.describeAcls(AclBindingFilter.ANY).values()), SecurityDisabledException.class));
        row("deleteAcls", "security", keys(31), () -> fails(() -> get(admin.deleteAcls(List.of(AclBindingFilter.ANY)).all()), SecurityDisabledException.class));
        row("describeUserScramCredentials", "security", keys(50), () -> same(get(admin.describeUserScramCredentials().all()).size(), 0, "credentials"));
        row("alterUserScramCredentials", "security", keys(51), () -> fails(() ->
            get(admin.alterUserScramCredentials(List.of(new UserScramCredentialDeletion("ulla", ScramMechanism.SCRAM_SHA_256))).all()), ResourceNotFoundException.class));
        // Tokens are given to who authenticated, which nobody did here.
        row("createDelegationToken", "security", keys(38), () -> fails(() -> get(admin.createDelegationToken().delegationToken()), ApiException.class));
        row("renewDelegationToken", "security", keys(39), () -> fails(() -> get(admin.renewDelegationToken(new byte[] {1}).expiryTimestamp()), ApiException.class));
        row("expireDelegationToken", "security", keys(40), () -> fails(() -> get(admin.expireDelegationToken(new byte[] {1}).expiryTimestamp()), ApiException.class));
        row("describeDelegationToken", "security", keys(41), () -> fails(() -> get(admin.describeDelegationToken().delegationTokens()), ApiException.class));
    }

    static void others() {
        // A broker advertises telemetry only when it has somewhere to put it.
        row("clientInstanceId", "telemetry", keys(71), () -> {
            // Without a word from the client when a broker has none.
            Uuid id = admin.clientInstanceId(Duration.ofSeconds(5));
            if (id == null && !SERVED.contains(71)) {
                throw new UnsupportedVersionException("no telemetry");
            }
            want(id != null && !id.equals(Uuid.ZERO_UUID), "no id");
        });
        row("metrics", () -> want(admin.metrics().size() > 10, admin.metrics().size()));
        // These stay in the client.
        row("registerMetricForSubscription", () -> { });
        row("unregisterMetricFromSubscription", () -> { });
        row("create", () -> {
            try (Admin another = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
                get(another.describeCluster().clusterId());
            }
        });
        row("close", () -> {
            Admin another = Admin.create(Map.of("bootstrap.servers", bootstrap));
            another.close();
            fails(() -> get(another.describeCluster().clusterId()), IllegalStateException.class, TimeoutException.class);
        });
    }
}
