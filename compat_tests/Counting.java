import java.io.FileReader;
import java.util.Arrays;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Produced;

/**
 * A Kafka Streams application that counts in two ways. Words: it counts the words in the lines of a topic. Keys: it counts
 * the records by value, through a repartition topic; without a cache it writes a new count for each record.
 *
 * Arguments: bootstrap, application, instance, state directory, guarantee, words or keys, source, sink, and optionally a
 * file with further settings.
 */
public class Counting {
    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        if (args.length > 8) {
            try (FileReader file = new FileReader(args[8])) {
                settings.load(file);
            }
        }
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, args[1]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, args[3]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, args[4]);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100);
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, args[5].equals("words") ? 1 << 20 : 0);
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.String().getClass());
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.String().getClass());
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        if (!"streams".equals(settings.get(StreamsConfig.GROUP_PROTOCOL_CONFIG))) {
            settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG), 6000);
            settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.HEARTBEAT_INTERVAL_MS_CONFIG), 500);
            settings.put(StreamsConfig.mainConsumerPrefix(ConsumerConfig.GROUP_INSTANCE_ID_CONFIG), args[2]);
        }

        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, String> source = builder.stream(args[6]);
        KGroupedStream<String, String> grouped = args[5].equals("words")
            ? source.flatMapValues(line -> Arrays.asList(line.split(" "))).groupBy((key, word) -> word)
            : source.groupBy((key, value) -> value);
        grouped.count().toStream().mapValues(count -> Long.toString(count))
            .to(args[7], Produced.with(Serdes.String(), Serdes.String()));

        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.setStateListener((now, before) -> {
            System.out.println(now);
            System.out.flush();
            if (now == KafkaStreams.State.ERROR || now == KafkaStreams.State.NOT_RUNNING) {
                Runtime.getRuntime().halt(now == KafkaStreams.State.ERROR ? 3 : 0);
            }
        });
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
    }
}
