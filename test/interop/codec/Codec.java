import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.message.ApiMessageType;
import org.apache.kafka.common.message.RequestHeaderData;
import org.apache.kafka.common.message.ResponseHeaderData;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.protocol.types.BoundField;
import org.apache.kafka.common.protocol.types.Field;
import org.apache.kafka.common.protocol.types.RawTaggedField;
import org.apache.kafka.common.protocol.types.Schema;
import org.apache.kafka.common.protocol.types.Struct;
import org.apache.kafka.common.protocol.types.TaggedFields;
import org.apache.kafka.common.protocol.types.Type;
import org.apache.kafka.common.record.internal.MemoryRecords;

/**
 * Kafka's generated message classes behind a binary protocol on standard input and output, one answer for each
 * question, in order. A question is: op (1: read, 2: make), kind (0: request, 1: response, 2: a class by name), key
 * (int16), class name (UTF), version (int16), then for 1 the bytes (int32 length), for 2 a seed (int64) and whether
 * to add tagged fields that no schema has (boolean). An answer is: ok (boolean), then bytes and JSON, or a text.
 * Requests and responses are whole frames without their size: header and body.
 */
public class Codec {
    static final ObjectMapper JSON = new ObjectMapper();
    static final ByteBuffer BUFFER = ByteBuffer.allocate(16 << 20);
    static final Map<Class<?>, Method> CONVERTERS = new HashMap<>();

    public static void main(String[] args) throws Exception {
        DataInputStream in = new DataInputStream(new BufferedInputStream(System.in, 1 << 20));
        DataOutputStream out = new DataOutputStream(new BufferedOutputStream(System.out, 1 << 20));
        while (true) {
            byte op;
            try {
                op = in.readByte();
            } catch (EOFException e) {
                return;
            }
            byte kind = in.readByte();
            short key = in.readShort();
            String name = in.readUTF();
            short version = in.readShort();
            byte[] bytes = null;
            long seed = 0;
            boolean strange = false;
            if (op == 1) {
                bytes = new byte[in.readInt()];
                in.readFully(bytes);
            } else {
                seed = in.readLong();
                strange = in.readBoolean();
            }
            try {
                Parts p = new Parts(kind, key, name, version);
                if (op == 2) {
                    Random r = new Random(seed);
                    ByteBuffer made = BUFFER.clear();
                    for (int i = 0; i < p.messages.length; i++) {
                        Schema s = p.schemas[i][p.versions[i]];
                        Struct v = new Maker(r, strange).struct(s, 0);
                        if (kind == 0 && i == 0) {
                            v.set("request_api_key", key);
                            v.set("request_api_version", version);
                        }
                        if (kind == 2 && v.hasField("version")) {
                            v.set("version", version); // of control records, which say it themselves
                        }
                        s.write(made, v);
                    }
                    made.flip();
                    bytes = new byte[made.remaining()];
                    made.get(bytes);
                }
                p.read(bytes);
                byte[] again = p.write();
                byte[] json = JSON.writeValueAsBytes(p.json());
                out.writeBoolean(true);
                out.writeInt(again.length);
                out.write(again);
                out.writeInt(json.length);
                out.write(json);
            } catch (Throwable e) {
                StringWriter text = new StringWriter();
                (e instanceof InvocationTargetException ? e.getCause() : e).printStackTrace(new PrintWriter(text));
                byte[] b = text.toString().getBytes(StandardCharsets.UTF_8);
                out.writeBoolean(false);
                out.writeInt(b.length);
                out.write(b);
            }
            if (in.available() == 0) {
                out.flush();
            }
        }
    }

    /** What a frame consists of: header and body, or one message alone. */
    static class Parts {
        final Message[] messages;
        final short[] versions;
        final Schema[][] schemas;

        Parts(byte kind, short key, String name, short version) throws Exception {
            if (kind == 2) {
                Class<?> c = Class.forName(name);
                messages = new Message[] {(Message) c.getDeclaredConstructor().newInstance()};
                versions = new short[] {version};
            } else {
                ApiMessageType type = ApiMessageType.fromApiKey(key);
                if (kind == 0) {
                    messages = new Message[] {new RequestHeaderData(), type.newRequest()};
                    versions = new short[] {type.requestHeaderVersion(version), version};
                } else {
                    messages = new Message[] {new ResponseHeaderData(), type.newResponse()};
                    versions = new short[] {type.responseHeaderVersion(version), version};
                }
            }
            schemas = new Schema[messages.length][];
            for (int i = 0; i < messages.length; i++) {
                schemas[i] = (Schema[]) messages[i].getClass().getField("SCHEMAS").get(null);
                Message m = messages[i];
                if (versions[i] < m.lowestSupportedVersion() || versions[i] > m.highestSupportedVersion()) {
                    throw new IllegalArgumentException(m.getClass().getSimpleName() + " has versions "
                        + m.lowestSupportedVersion() + " to " + m.highestSupportedVersion() + ", not " + versions[i]);
                }
            }
        }

        void read(byte[] bytes) {
            ByteBufferAccessor b = new ByteBufferAccessor(ByteBuffer.wrap(bytes));
            for (int i = 0; i < messages.length; i++) {
                messages[i].read(b, versions[i]);
            }
            if (b.remaining() > 0) {
                throw new IllegalArgumentException(b.remaining() + " bytes left over: " + this);
            }
        }

        byte[] write() {
            ObjectSerializationCache[] caches = new ObjectSerializationCache[messages.length];
            int size = 0;
            for (int i = 0; i < messages.length; i++) {
                caches[i] = new ObjectSerializationCache();
                size += messages[i].size(caches[i], versions[i]);
            }
            ByteBuffer b = ByteBuffer.allocate(size);
            ByteBufferAccessor to = new ByteBufferAccessor(b);
            for (int i = 0; i < messages.length; i++) {
                messages[i].write(to, caches[i], versions[i]);
            }
            return b.array();
        }

        JsonNode json() throws Exception {
            ObjectNode all = JSON.createObjectNode();
            for (int i = 0; i < messages.length; i++) {
                Class<?> c = messages[i].getClass();
                Method m = CONVERTERS.get(c);
                if (m == null) {
                    m = Class.forName(c.getName() + "JsonConverter").getMethod("write", c, short.class, boolean.class);
                    CONVERTERS.put(c, m);
                }
                all.set(i == messages.length - 1 ? "body" : "header", (JsonNode) m.invoke(null, messages[i], versions[i], false));
            }
            return all;
        }

        @Override
        public String toString() {
            return java.util.Arrays.toString(messages);
        }
    }

    /** Random values for the schemas that Kafka keeps beside its generated readers and writers. */
    static class Maker {
        static final String[] STRINGS = {"", "a", "topic-1", "\u00e9t\u00e9", "\u6f22\u5b57", "\ud83d\ude00", "\u0000", "a b\tc\n\"\\", "x".repeat(127), "y".repeat(128), "z".repeat(300)};
        final Random r;
        final boolean strange;

        Maker(Random r, boolean strange) {
            this.r = r;
            this.strange = strange;
        }

        Struct struct(Schema s, int depth) {
            Struct v = new Struct(s);
            for (BoundField f : s.fields()) {
                v.set(f, value(f.def.type, depth + 1));
            }
            return v;
        }

        Object value(Type t, int depth) {
            if (t.isNullable() && r.nextInt(4) == 0) {
                return null;
            }
            if (t.isArray()) {
                int n = r.nextInt(depth > 4 ? 2 : 4);
                if (depth <= 2 && r.nextInt(40) == 0) {
                    n = 130;
                }
                Object[] a = new Object[n];
                for (int i = 0; i < n; i++) {
                    a[i] = value(t.arrayElementType().get(), n > 4 ? depth + 3 : depth + 1);
                }
                return a;
            }
            if (t instanceof Schema) {
                return struct((Schema) t, depth);
            }
            if (t instanceof TaggedFields) {
                TreeMap<Integer, Object> m = new TreeMap<>();
                for (Map.Entry<Integer, Field> e : ((TaggedFields) t).fields().entrySet()) {
                    if (r.nextBoolean()) {
                        m.put(e.getKey(), value(e.getValue().type, depth + 1));
                    }
                }
                while (strange && r.nextInt(4) == 0) {
                    int tag = new int[] {57, 127, 128, 9999, 1 << 20, Integer.MAX_VALUE - 1}[r.nextInt(6)];
                    byte[] b = new byte[r.nextInt(5) == 0 ? 200 : r.nextInt(8)];
                    r.nextBytes(b);
                    m.put(tag, new RawTaggedField(tag, b));
                }
                return m;
            }
            String name = ((Type.DocumentedType) t).typeName();
            switch (name) {
                case "BOOLEAN":
                    return r.nextBoolean();
                case "INT8":
                    return (byte) integer(Byte.MIN_VALUE, Byte.MAX_VALUE);
                case "INT16":
                    return (short) integer(Short.MIN_VALUE, Short.MAX_VALUE);
                case "UINT16":
                    return (int) integer(0, 65535);
                case "INT32":
                    return (int) integer(Integer.MIN_VALUE, Integer.MAX_VALUE);
                case "UINT32":
                    return integer(0, (1L << 32) - 1);
                case "INT64":
                    return integer(Long.MIN_VALUE, Long.MAX_VALUE);
                case "FLOAT64":
                    return new double[] {0, -0.0, 1, -1.5, Double.MAX_VALUE, Double.MIN_VALUE, r.nextGaussian()}[r.nextInt(7)];
                case "UUID":
                    return r.nextInt(4) == 0 ? Uuid.ZERO_UUID : new Uuid(r.nextLong(), r.nextLong());
                case "STRING":
                case "COMPACT_STRING":
                case "NULLABLE_STRING":
                case "COMPACT_NULLABLE_STRING":
                    return r.nextInt(200) == 0 ? "w".repeat(32767) : STRINGS[r.nextInt(STRINGS.length)];
                case "BYTES":
                case "COMPACT_BYTES":
                case "NULLABLE_BYTES":
                case "COMPACT_NULLABLE_BYTES":
                    return ByteBuffer.wrap(bytes());
                case "RECORDS":
                case "COMPACT_RECORDS":
                case "NULLABLE_RECORDS":
                case "COMPACT_NULLABLE_RECORDS":
                    return MemoryRecords.readableRecords(ByteBuffer.wrap(bytes()));
                default:
                    throw new IllegalArgumentException("no values for type " + name);
            }
        }

        byte[] bytes() {
            byte[] b = new byte[new int[] {0, 1, 5, 127, 128, 1000}[r.nextInt(6)]];
            r.nextBytes(b);
            return b;
        }

        long integer(long min, long max) {
            switch (r.nextInt(6)) {
                case 0:
                    return min;
                case 1:
                    return max;
                case 2:
                    return 0;
                case 3:
                    return min < 0 ? -1 : 1;
                case 4:
                    return r.nextInt(100);
                default:
                    return min == Long.MIN_VALUE ? r.nextLong() : min + (r.nextLong() >>> 1) % (max - min + 1);
            }
        }
    }
}
