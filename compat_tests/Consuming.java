// A Java consumer for the tests. It subscribes, prints its assignments and records, and commits, until standard input
// ends. Arguments: bootstrap, group, "names" or "pattern", the topics or the pattern, then further settings as
// name=value.

import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

public class Consuming {
    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("group.id", args[1]);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        for (int at = 4; at < args.length; at++) {
            String[] setting = args[at].split("=", 2);
            settings.put(setting[0], setting[1]);
        }
        StringDeserializer text = new StringDeserializer();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings, text, text)) {
            ConsumerRebalanceListener listener = new ConsumerRebalanceListener() {
                public void onPartitionsRevoked(Collection<TopicPartition> gone) {
                    say("revoked", gone);
                }

                public void onPartitionsAssigned(Collection<TopicPartition> given) {
                    say("assigned", given);
                }
            };
            if (args[2].equals("pattern")) {
                consumer.subscribe(new SubscriptionPattern(args[3]), listener);
            } else {
                consumer.subscribe(List.of(args[3].split(",")), listener);
            }
            while (System.in.available() == 0) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) {
                    System.out.println("read " + record.value());
                    consumer.commitSync();
                }
            }
        }
        System.out.println("closed");
    }

    static void say(String what, Collection<TopicPartition> partitions) {
        System.out.println(what + " " + partitions.stream().map(TopicPartition::toString).sorted().collect(Collectors.joining(",")));
    }
}
