import java.util.*;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.metrics.*;
import org.apache.kafka.common.metrics.stats.*;
import org.apache.kafka.server.quota.*;

/**
 * Records the results of Kafka's Rate and TokenBucket for random histories. For each step it prints the pause in ms, the
 * recorded value, the measured value after the step, and the throttle time. Run it from the source file, with the jars of
 * Apache Kafka on the class path:
 * java -cp "$KPYBROKER_KAFKA_LIBS/*" oracle/Rates.java > tests/quotas/rates-4.3.1.json
 */
public class Rates {
    public static void main(String[] a) throws Exception {
        Random r = new Random(43);
        StringBuilder out = new StringBuilder("[\n");
        for (int h = 0; h < 40; h++) {
            boolean permits = h % 4 == 3;
            int samples = 1 + r.nextInt(12);
            if (h % 5 == 0) samples = 11;
            int window = 1 + r.nextInt(3);
            double quota = permits ? 0.25 * (1 + r.nextInt(20)) : 1 + r.nextInt(2000);
            long[] time = {1_700_000_000_000L};
            MetricConfig config = new MetricConfig().samples(samples).timeWindow(window, TimeUnit.SECONDS).quota(new Quota(quota, true));
            Metrics metrics = new Metrics(config);
            Sensor sensor = metrics.sensor("s", config);
            MetricName name = metrics.metricName("m", "g");
            MeasurableStat stat = permits ? new TokenBucket() : new Rate();
            sensor.add(name, stat, config);
            if (h > 0) out.append(",\n");
            out.append("{\"kind\": \"" + (permits ? "permits" : "rate") + "\", \"samples\": " + samples + ", \"window_ms\": " + window * 1000 + ", \"quota\": " + quota + ", \"steps\": [");
            for (int i = 0; i < 40; i++) {
                int kind = r.nextInt(5);
                long pause = kind == 0 ? 0 : kind == 1 ? r.nextInt(50) : kind == 2 ? r.nextInt(1500) : kind == 3 ? r.nextInt(5000) : r.nextInt(samples * window * 1000 + 3000);
                if (r.nextInt(3) > 0) pause = pause / 7;
                time[0] += pause;
                double value = permits ? r.nextInt(12) : r.nextInt(4) == 0 ? -1 * r.nextInt(100) : r.nextInt((int) (quota * samples / 2) + 2);
                long now = time[0];
                long wait = 0;
                try {
                    sensor.record(value, now, true);
                } catch (QuotaViolationException e) {
                    wait = permits ? ControllerMutationQuotaManager.throttleTimeMs(e) : QuotaUtils.throttleTime(e, now);
                }
                double measured = ((KafkaMetric) metrics.metric(name)).measurable().measure(config, now);
                if (i > 0) out.append(", ");
                out.append("[" + pause + ", " + value + ", " + measured + ", " + wait + "]");
            }
            out.append("]}");
            metrics.close();
        }
        out.append("\n]\n");
        System.out.print(out);
    }
}
