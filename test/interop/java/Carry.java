import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Clients that live through a change of the server under them. Each line of standard input is a command, each is
 * answered by one line, "ok" and offsets, or "error" and why.
 *
 * <pre>
 *   produce TOPIC N              the one idempotent producer sends N records and waits for them
 *   consume TOPIC GROUP KIND N   the one consumer of that group, of protocol KIND, reads N records and commits
 *   close GROUP                  that consumer leaves
 *   open TOPIC ID                a transactional producer begins, sends a record, and leaves it at that
 * </pre>
 */
public class Carry {
    static String bootstrap;
    static KafkaProducer<String, String> producer;
    static final Map<String, KafkaConsumer<String, String>> consumers = new HashMap<>();
    static int sent;

    public static void main(String[] args) throws Exception {
        bootstrap = args[0];
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = in.readLine()) != null; ) {
            String answer;
            try {
                answer = "ok " + run(line.split(" "));
            } catch (Exception e) {
                answer = "error " + e.toString().replace('\n', ' ');
            }
            System.out.println(answer);
            System.out.flush();
        }
        Runtime.getRuntime().halt(0); // nobody leaves a group or ends a transaction
    }

    static Properties common() {
        Properties p = new Properties();
        p.put("bootstrap.servers", bootstrap);
        p.put("reconnect.backoff.max.ms", "100");
        p.put("metadata.max.age.ms", "1000");
        return p;
    }

    static KafkaProducer<String, String> producer(String transactionalId) {
        Properties p = common();
        p.put("acks", "all");
        p.put("compression.type", "lz4");
        p.put("delivery.timeout.ms", "60000");
        p.put("request.timeout.ms", "5000");
        if (transactionalId != null) {
            p.put("transactional.id", transactionalId);
        }
        return new KafkaProducer<>(p, new StringSerializer(), new StringSerializer());
    }

    static String run(String[] words) throws Exception {
        switch (words[0]) {
            case "produce":
                if (producer == null) {
                    producer = producer(null);
                }
                List<java.util.concurrent.Future<RecordMetadata>> futures = new ArrayList<>();
                for (int i = 0; i < Integer.parseInt(words[2]); i++) {
                    futures.add(producer.send(new ProducerRecord<>(words[1], 0, "java", "record " + sent++)));
                }
                StringBuilder offsets = new StringBuilder();
                for (java.util.concurrent.Future<RecordMetadata> f : futures) {
                    offsets.append(f.get().offset()).append(' ');
                }
                return offsets.toString().trim();
            case "consume":
                return consume(words[1], words[2], words[3], Integer.parseInt(words[4]));
            case "close":
                consumers.remove(words[1]).close();
                return "";
            case "open":
                KafkaProducer<String, String> t = producer(words[2]);
                t.initTransactions();
                t.beginTransaction();
                return "" + t.send(new ProducerRecord<>(words[1], 0, "java", "open")).get().offset();
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    static String consume(String topic, String group, String kind, int n) {
        KafkaConsumer<String, String> consumer = consumers.get(group);
        if (consumer == null) {
            Properties p = common();
            p.put("group.id", group);
            p.put("group.protocol", kind);
            p.put("auto.offset.reset", "earliest");
            p.put("enable.auto.commit", "false");
            p.put("max.poll.records", "" + n);
            if (kind.equals("classic")) {
                p.put("session.timeout.ms", "45000");
                p.put("heartbeat.interval.ms", "200");
            }
            consumer = new KafkaConsumer<>(p, new StringDeserializer(), new StringDeserializer());
            consumer.subscribe(List.of(topic));
            consumers.put(group, consumer);
        }
        StringBuilder offsets = new StringBuilder();
        long until = System.currentTimeMillis() + 40000;
        for (int got = 0; got < n; ) {
            if (System.currentTimeMillis() > until) {
                throw new IllegalStateException(got + " records instead of " + n);
            }
            for (ConsumerRecord<String, String> r : consumer.poll(Duration.ofMillis(200))) {
                offsets.append(r.offset()).append(' ');
                got++;
            }
        }
        consumer.commitSync(Duration.ofSeconds(20));
        return offsets.toString().trim();
    }
}
