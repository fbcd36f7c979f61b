import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * A share consumer that executes the commands on standard input, one per line: poll, acknowledge, commit, close.
 *
 * Arguments: bootstrap, group, topic, and settings as name=value. It prints the result of each command as lines, the
 * last of which begins with "done" or "failed".
 */
public class Sharing {
    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("group.id", args[1]);
        for (int i = 3; i < args.length; i++) {
            String[] pair = args[i].split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        KafkaShareConsumer<String, String> consumer =
            new KafkaShareConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
        consumer.subscribe(List.of(args[2]));
        Map<String, ConsumerRecord<String, String>> held = new HashMap<>();
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ");
            try {
                switch (words[0]) {
                    case "poll" -> {
                        ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(Long.parseLong(words[1])));
                        for (ConsumerRecord<String, String> record : records) {
                            held.put(record.partition() + " " + record.offset(), record);
                            System.out.println("record " + record.partition() + " " + record.offset() + " "
                                + record.deliveryCount().orElse((short) -1) + " " + record.value());
                        }
                    }
                    case "acknowledge" -> consumer.acknowledge(
                        held.get(words[1] + " " + words[2]), AcknowledgeType.valueOf(words[3]));
                    case "commit" -> {
                        for (Map.Entry<TopicIdPartition, Optional<KafkaException>> each : consumer.commitSync().entrySet()) {
                            System.out.println("committed " + each.getKey().partition() + " "
                                + each.getValue().map(error -> error.getClass().getSimpleName()).orElse("NONE"));
                        }
                    }
                    case "close" -> consumer.close();
                    default -> throw new IllegalArgumentException(line);
                }
                System.out.println("done");
            } catch (RuntimeException error) {
                System.out.println("failed " + error.getClass().getSimpleName());
            }
            System.out.flush();
            if (words[0].equals("close")) {
                return;
            }
        }
    }
}
