import java.util.Arrays;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/**
 * A load with Kafka's transactional producer. Arguments: bootstrap, topic, partitions, transactional id, record bytes, then
 * either "throughput", seconds of warm-up, seconds of measurement, milliseconds between commits (prints records per second);
 * or "latency", transactions of warm-up, transactions of measurement (prints p50 and p99 of one record and its commit in ms).
 */
public class Transactions {
    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("transactional.id", args[3]);
        settings.put("key.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        settings.put("value.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        byte[] value = new byte[Integer.parseInt(args[4])];
        Arrays.fill(value, (byte) 'x');
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings)) {
            producer.initTransactions();
            if (args[5].equals("throughput")) {
                long periodNs = Long.parseLong(args[8]) * 1_000_000L;
                pump(producer, args[1], Integer.parseInt(args[2]), value, Double.parseDouble(args[6]), periodNs);
                System.out.println(
                    pump(producer, args[1], Integer.parseInt(args[2]), value, Double.parseDouble(args[7]), periodNs));
            } else {
                one(producer, args[1], value, Integer.parseInt(args[6]));
                double[] tookMs = one(producer, args[1], value, Integer.parseInt(args[7]));
                Arrays.sort(tookMs);
                System.out.println(tookMs[tookMs.length / 2] + " " + tookMs[(int) (tookMs.length * 0.99)]);
            }
        }
    }

    static double pump(
        KafkaProducer<byte[], byte[]> producer, String topic, int partitions, byte[] value, double seconds, long periodNs) {
        long began = System.nanoTime();
        long end = began + (long) (seconds * 1e9);
        long sent = 0;
        for (long now = began; now < end; now = System.nanoTime()) {
            producer.beginTransaction();
            while (System.nanoTime() - now < periodNs) {
                for (int turn = 0; turn < 64; turn++, sent++) {
                    producer.send(new ProducerRecord<>(topic, (int) (sent % partitions), null, value));
                }
            }
            producer.commitTransaction();
        }
        return sent / ((System.nanoTime() - began) / 1e9);
    }

    static double[] one(KafkaProducer<byte[], byte[]> producer, String topic, byte[] value, int count) {
        double[] tookMs = new double[count];
        for (int number = 0; number < count; number++) {
            long began = System.nanoTime();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 0, null, value));
            producer.commitTransaction();
            tookMs[number] = (System.nanoTime() - began) / 1e6;
        }
        return tookMs;
    }
}
