import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/**
 * A producer with default settings that sends 100 records per second to one partition and prints a line for each
 * acknowledgement. Arguments: bootstrap, topic, partition. Ends when stdin is closed.
 */
public class Acks {
    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("acks", "all");
        settings.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        settings.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        KafkaProducer<String, String> producer = new KafkaProducer<>(settings);
        Thread end = new Thread(() -> {
            try {
                System.in.read();
            } catch (java.io.IOException ended) {
                System.exit(1);
            }
            System.exit(0);
        });
        end.setDaemon(true);
        end.start();
        while (true) {
            producer.send(new ProducerRecord<>(args[1], Integer.parseInt(args[2]), null, "x"), (told, error) -> {
                System.out.println(error == null ? "acknowledged" : "refused " + error);
                System.out.flush();
            });
            Thread.sleep(10);
        }
    }
}
