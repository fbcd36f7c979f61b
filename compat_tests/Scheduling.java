import java.nio.charset.StandardCharsets;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.processor.api.ContextualFixedKeyProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;

/**
 * A Kafka Streams application that copies the records of a topic to another one, with a header that says after which time
 * they are due, in transactions.
 *
 * Arguments: bootstrap, application, state directory, source, sink, delay.
 */
public class Scheduling {
    public static void main(String[] args) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, args[1]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, args[2]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100);
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.String().getClass());
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.String().getClass());
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");

        byte[] delay = args[5].getBytes(StandardCharsets.US_ASCII);
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, String> source = builder.stream(args[3]);
        source.processValues(() -> new ContextualFixedKeyProcessor<String, String, String>() {
            @Override
            public void process(FixedKeyRecord<String, String> record) {
                Headers headers = new RecordHeaders(record.headers()).add("deliver-after", delay);
                context().forward(record.withHeaders(headers));
            }
        }).to(args[4]);

        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
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
