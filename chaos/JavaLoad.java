import java.io.BufferedOutputStream;
import java.io.FileReader;
import java.io.IOException;
import java.io.PrintStream;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Semaphore;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.WakeupException;

/**
 * A load with Kafka's Java client: a producer of numbered records, and a group member that commits offsets.
 *
 * Arguments: bootstrap, topic, partitions, producer's number, records per second, group, and optionally a file with further
 * settings of both clients. Prints a line to stdout for each event:
 * "A partition number offset": acknowledged; "F partition number error": given up; "R partition offset value": read;
 * "T": begins a commit; "C partition offset": committed; "U partition offset error": possibly committed.
 * A line on stdin ends the production, and a second line ends the consumption. It then prints "P" and "E", respectively.
 */
public class JavaLoad {
    static final int IN_FLIGHT = 5000;
    static final int VALUE_BYTES = 100;
    static final PrintStream OUT = new PrintStream(new BufferedOutputStream(System.out, 1 << 16), false);

    static Properties settings(String[] args) throws IOException {
        Properties settings = new Properties();
        if (args.length > 6) {
            try (FileReader file = new FileReader(args[6])) {
                settings.load(file);
            }
        }
        return settings;
    }

    static synchronized void tell(String line) {
        OUT.println(line);
    }

    static synchronized void flush() {
        OUT.flush();
    }

    public static void main(String[] args) throws Exception {
        Producing producing = new Producing(args);
        Consuming consuming = new Consuming(args);
        producing.start();
        consuming.start();
        System.in.read();
        producing.wanted = false;
        producing.join();
        tell("P");
        flush();
        System.in.read();
        consuming.wanted = false;
        consuming.join();
        tell("E");
        flush();
        System.exit(0);
    }

    static class Producing extends Thread {
        volatile boolean wanted = true;
        final String[] args;
        final Properties settings;

        Producing(String[] args) throws IOException {
            this.args = args;
            settings = settings(args);
        }

        public void run() {
            settings.put("bootstrap.servers", args[0]);
            settings.put("acks", "all");
            settings.put("enable.idempotence", "true");
            settings.put("delivery.timeout.ms", "900000");
            settings.put("request.timeout.ms", "5000");
            settings.put("max.block.ms", "900000");
            settings.put("reconnect.backoff.max.ms", "500");
            settings.put("linger.ms", "5");
            settings.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
            settings.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
            String topic = args[1];
            int partitions = Integer.parseInt(args[2]);
            double perSecond = Double.parseDouble(args[4]);
            long[] numbers = new long[partitions];
            Semaphore room = new Semaphore(IN_FLIGHT);
            long begun = System.nanoTime();
            long sent = 0;
            try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
                while (wanted) {
                    long due = (long) ((System.nanoTime() - begun) / 1e9 * perSecond);
                    for (; sent < due && room.tryAcquire(); sent++) {
                        int partition = (int) (sent % partitions);
                        long number = numbers[partition]++;
                        StringBuilder value = new StringBuilder(args[3]).append(' ').append(number).append(' ');
                        while (value.length() < VALUE_BYTES) {
                            value.append('.');
                        }
                        producer.send(new ProducerRecord<>(topic, partition, null, value.toString()), (told, error) -> {
                            room.release();
                            tell(error == null
                                ? "A " + partition + " " + number + " " + told.offset()
                                : "F " + partition + " " + number + " " + error);
                        });
                    }
                    sent = due;
                    flush();
                    Thread.sleep(10);
                }
                producer.flush();
            } catch (InterruptedException interrupted) {
                tell("F 0 0 " + interrupted);
            }
        }
    }

    static class Consuming extends Thread {
        volatile boolean wanted = true;
        final String[] args;
        final Properties settings;

        Consuming(String[] args) throws IOException {
            this.args = args;
            settings = settings(args);
        }

        public void run() {
            settings.put("bootstrap.servers", args[0]);
            settings.put("group.id", args[5]);
            settings.put("auto.offset.reset", "earliest");
            settings.put("enable.auto.commit", "false");
            settings.put("isolation.level", "read_committed");
            settings.put("request.timeout.ms", "5000");
            settings.put("default.api.timeout.ms", "8000");
            settings.put("reconnect.backoff.max.ms", "500");
            settings.put("session.timeout.ms", "10000");
            settings.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
            settings.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
            try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings)) {
                Map<TopicPartition, OffsetAndMetadata> wished = new HashMap<>();
                consumer.subscribe(List.of(args[1]), new ConsumerRebalanceListener() {
                    public void onPartitionsRevoked(Collection<TopicPartition> gone) {
                        wished.clear();
                    }

                    public void onPartitionsAssigned(Collection<TopicPartition> come) {
                        wished.clear();
                    }
                });
                long committed = System.nanoTime();
                while (wanted) {
                    try {
                        ConsumerRecords<String, String> found = consumer.poll(Duration.ofMillis(200));
                        for (ConsumerRecord<String, String> one : found) {
                            tell("R " + one.partition() + " " + one.offset() + " " + one.value().replace(".", ""));
                            wished.put(new TopicPartition(one.topic(), one.partition()),
                                new OffsetAndMetadata(one.offset() + 1));
                        }
                    } catch (RuntimeException error) {
                        tell("I " + error);
                    }
                    if (System.nanoTime() - committed > 300_000_000L && !wished.isEmpty()) {
                        commit(consumer, wished);
                        wished.clear();
                        committed = System.nanoTime();
                    }
                    flush();
                }
            } catch (WakeupException end) {
                flush();
            }
        }

        void commit(KafkaConsumer<String, String> consumer, Map<TopicPartition, OffsetAndMetadata> wished) {
            String outcome = "C";
            String why = "";
            tell("T");
            try {
                consumer.commitSync(wished);
            } catch (RuntimeException error) {
                outcome = "U";
                why = " " + error;
            }
            for (Map.Entry<TopicPartition, OffsetAndMetadata> one : wished.entrySet()) {
                tell(outcome + " " + one.getKey().partition() + " " + one.getValue().offset() + why);
            }
        }
    }
}
