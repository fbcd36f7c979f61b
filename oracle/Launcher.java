import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's tools one after the other in one JVM. Each line on stdin is a JSON object {main, args, stdin}; each result
 * is one line {code, out, err} on stdout. A call of Exit ends only the tool that calls it, and its shutdown hooks run
 * before the result is printed.
 */
public class Launcher {
    private static final Switch OUT = new Switch();
    private static final Switch ERR = new Switch();
    private static final List<Runnable> HOOKS = new CopyOnWriteArrayList<>();
    private static ObjectNode answer;

    private static final class Ended extends RuntimeException {
        final int code;

        Ended(int code) {
            super("exit " + code, null, false, false);
            this.code = code;
        }
    }

    /** Tools (and Scala's Console) keep the PrintStream that they used first, so only the sink of this object changes. */
    private static final class Switch extends OutputStream {
        volatile ByteArrayOutputStream sink = new ByteArrayOutputStream();

        @Override
        public void write(int octet) {
            sink.write(octet);
        }

        @Override
        public void write(byte[] octets, int from, int count) {
            sink.write(octets, from, count);
        }
    }

    public static void main(String[] ignored) throws Exception {
        ObjectMapper json = new ObjectMapper();
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream answers = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        PrintStream console = System.err;
        Thread.currentThread().setUncaughtExceptionHandler((thread, thrown) -> thrown.printStackTrace(console));
        System.setOut(new PrintStream(OUT, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(ERR, true, StandardCharsets.UTF_8));
        Exit.setExitProcedure((code, message) -> { throw end(code, message); });
        Exit.setHaltProcedure((code, message) -> { throw end(code, message); });
        Exit.setShutdownHookAdder((name, runnable) -> HOOKS.add(runnable));

        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            JsonNode command = json.readTree(line);
            OUT.sink = new ByteArrayOutputStream();
            ERR.sink = new ByteArrayOutputStream();
            System.setIn(new ByteArrayInputStream(command.get("stdin").asText().getBytes(StandardCharsets.UTF_8)));
            String[] args = json.convertValue(command.get("args"), String[].class);
            answer = json.createObjectNode();
            int code = run(command.get("main").asText(), args);
            boolean hasExited = answer.has("code");
            if (hasExited) {
                OUT.sink = new ByteArrayOutputStream();
                ERR.sink = new ByteArrayOutputStream();
            }
            runHooks();
            if (hasExited) {
                answer.put("out", answer.get("out").asText() + OUT.sink.toString(StandardCharsets.UTF_8));
                answer.put("err", answer.get("err").asText() + ERR.sink.toString(StandardCharsets.UTF_8));
            }
            end(code, null);
            answers.println(json.writeValueAsString(answer));
        }
    }

    /** Only the first call counts: some tools catch the exception that is thrown here, report it, and exit again. */
    private static synchronized Ended end(int code, String message) {
        if (message != null) {
            System.err.println(message);
        }
        System.out.flush();
        System.err.flush();
        if (!answer.has("code")) {
            answer.put("code", code);
            answer.put("out", OUT.sink.toString(StandardCharsets.UTF_8));
            answer.put("err", ERR.sink.toString(StandardCharsets.UTF_8));
        }
        return new Ended(code);
    }

    /** Runs the shutdown hooks of a tool (the console producer sends its queued records in one), and keeps their output. */
    private static void runHooks() {
        for (Runnable hook : HOOKS) {
            try {
                hook.run();
            } catch (RuntimeException thrown) {
                thrown.printStackTrace();
            }
        }
        HOOKS.clear();
        System.out.flush();
        System.err.flush();
    }

    private static int run(String main, String[] args) {
        try {
            Class.forName(main).getMethod("main", String[].class).invoke(null, (Object) args);
            return 0;
        } catch (InvocationTargetException thrown) {
            if (thrown.getCause() instanceof Ended) {
                return ((Ended) thrown.getCause()).code;
            }
            thrown.getCause().printStackTrace();
            return 1;
        } catch (ReflectiveOperationException missing) {
            missing.printStackTrace();
            return 127;
        }
    }
}
