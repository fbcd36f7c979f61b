import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;

/** Kafka's Java client as a program that executes transactional commands line by line; transacting.py has the same commands. */
public class Transacting {
    static final String END = "END";
    static final String STRING = "org.apache.kafka.common.serialization.String";
    static final Duration POLL = Duration.ofMillis(200);
    static String bootstrap;
    static KafkaProducer<String, String> producer;

    public static void main(String[] args) throws Exception {
        bootstrap = args[0];
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.trim().split(" ");
            try {
                say("ok " + run(words));
            } catch (KafkaException refusal) {
                say("no " + told(refusal));
                if (words[0].equals("transform")) {
                    Runtime.getRuntime().halt(3);
                }
            }
        }
        Runtime.getRuntime().halt(0);
    }

    static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    /** The text of an error and of its cause. */
    static String told(Throwable refusal) {
        String cause = refusal.getCause() == null ? "" : " because of " + refusal.getCause();
        return (refusal.getClass().getSimpleName() + " " + refusal.getMessage() + cause).replace("\n", " ");
    }

    static String run(String[] words) throws Exception {
        switch (words[0]) {
            case "producer": open(words[1], words[2]); return "";
            case "begin": producer.beginTransaction(); return "";
            case "flush": producer.flush(); return "";
            case "commit": producer.commitTransaction(); return "";
            case "abort": producer.abortTransaction(); return "";
            case "send":
                producer.send(new ProducerRecord<>(words[1], Integer.parseInt(words[2]), null, words[3]));
                return "";
            case "offsets":
                producer.sendOffsetsToTransaction(
                    Map.of(place(words[2], words[3]), new OffsetAndMetadata(Long.parseLong(words[4]))),
                    new ConsumerGroupMetadata(words[1]));
                return "";
            case "burst": burst(words[1], words[2], Integer.parseInt(words[3])); return "";
            case "committed": return committed(words);
            case "read": return read(words);
            case "transform": transform(words); return "";
            default: throw new IllegalArgumentException(words[0]);
        }
    }

    static void burst(String group, String topic, int count) {
        for (int number = 0; number < count; number++) {
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 0, null, Integer.toString(number)));
            producer.sendOffsetsToTransaction(
                Map.of(place(topic, "0"), new OffsetAndMetadata(number + 1)), new ConsumerGroupMetadata(group));
            producer.commitTransaction();
        }
    }

    static TopicPartition place(String topic, String partition) {
        return new TopicPartition(topic, Integer.parseInt(partition));
    }

    static void open(String id, String timeoutMs) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("transactional.id", id);
        settings.put("transaction.timeout.ms", timeoutMs);
        settings.put("request.timeout.ms", "10000");
        settings.put("reconnect.backoff.max.ms", "500");
        settings.put("key.serializer", STRING + "Serializer");
        settings.put("value.serializer", STRING + "Serializer");
        producer = new KafkaProducer<>(settings);
        producer.initTransactions();
    }

    static KafkaConsumer<String, String> consumer(String isolation, String group, String instance) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("isolation.level", isolation);
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        settings.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer.RangeAssignor");
        settings.put("session.timeout.ms", "6000");
        settings.put("max.poll.interval.ms", "9000");
        settings.put("heartbeat.interval.ms", "300");
        settings.put("request.timeout.ms", "10000");
        settings.put("fetch.max.wait.ms", "100");
        settings.put("reconnect.backoff.max.ms", "500");
        settings.put("key.deserializer", STRING + "Deserializer");
        settings.put("value.deserializer", STRING + "Deserializer");
        if (group != null) {
            settings.put("group.id", group);
        }
        if (instance != null) {
            settings.put("group.instance.id", instance);
        }
        return new KafkaConsumer<>(settings);
    }

    static String committed(String[] words) {
        TopicPartition place = place(words[2], words[3]);
        try (KafkaConsumer<String, String> consumer = consumer("read_committed", words[1], null)) {
            OffsetAndMetadata found = consumer.committed(Set.of(place)).get(place);
            return found == null ? "None" : Long.toString(found.offset());
        }
    }

    static String read(String[] words) {
        int partitions = Integer.parseInt(words[3]);
        double patienceS = Double.parseDouble(words[4]);
        List<TopicPartition> places = new ArrayList<>();
        for (int at = 0; at < partitions; at++) {
            places.add(new TopicPartition(words[2], at));
        }
        StringBuilder found = new StringBuilder();
        Set<Integer> ended = new HashSet<>();
        try (KafkaConsumer<String, String> consumer = consumer(words[1], null, null)) {
            consumer.assign(places);
            consumer.seekToBeginning(places);
            long heard = System.nanoTime();
            while (ended.size() < partitions && System.nanoTime() - heard < patienceS * 1e9) {
                for (ConsumerRecord<String, String> one : consumer.poll(POLL)) {
                    heard = System.nanoTime();
                    found.append(found.length() == 0 ? "" : " ").append(one.partition()).append(':').append(one.value());
                    if (one.value().endsWith(END)) {
                        ended.add(one.partition());
                    }
                }
            }
        }
        return found.toString();
    }

    static void transform(String[] words) {
        open(words[1], "60000");
        while (true) {
            String instance = words[5].equals("-") && !words[1].endsWith("dynamic") ? words[1] : null;
            try (KafkaConsumer<String, String> consumer = consumer("read_committed", words[2], instance)) {
                copy(consumer, words[3], words[4], words[5]);
            } catch (KafkaException refusal) {
                say("met " + told(refusal));
                producer.abortTransaction();
            }
        }
    }

    /** Copies until a request is refused: then the consumer has to restart from the committed offsets. */
    static void copy(KafkaConsumer<String, String> consumer, String source, String sink, String partition) {
        if (partition.equals("-")) {
            consumer.subscribe(List.of(source));
        } else {
            consumer.assign(List.of(place(source, partition)));
        }
        while (true) {
            ConsumerRecords<String, String> found = consumer.poll(POLL);
            if (found.isEmpty()) {
                continue;
            }
            producer.beginTransaction();
            Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
            for (ConsumerRecord<String, String> one : found) {
                producer.send(new ProducerRecord<>(sink, one.partition(), null, "did-" + one.value()));
                offsets.put(new TopicPartition(one.topic(), one.partition()), new OffsetAndMetadata(one.offset() + 1));
            }
            producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
            producer.commitTransaction();
            say("did " + found.count());
        }
    }
}
