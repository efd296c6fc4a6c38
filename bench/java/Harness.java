package muster.bench;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.apache.kafka.connect.runtime.distributed.ConnectTrial;
import org.apache.kafka.coordinator.group.GroupTrial;
import org.apache.kafka.streams.processor.internals.assignment.StreamsTrial;

/**
 * Runs Kafka's released assignors on problems as muster assign reads them.
 *
 * <p>One request a line on standard input, one answer a line on standard output:
 * {@code {"kafka": NAME, "problem": {...}}}. With {@code "repeat": N} the call is made N times
 * after warm-up (calls that take {@code "warmup_ms"} together; at least one) and the answer carries medians:
 * {@code assign_us} of the assignor's call alone, {@code build_us} of making the objects it wants,
 * both CPU time of the calling thread, which a busy machine does not stretch. The collector's and
 * the compiler's threads are not counted: in Kafka's favour. A first call of more than 5 s is not
 * repeated ({@code "calls": 1}).
 */
public final class Harness {
    private static final ObjectMapper MAPPER = new ObjectMapper();
    private static final long LONG_CALL_NS = 5_000_000_000L;
    private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();

    private Harness() {}

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(MAPPER.writeValueAsString(reply(line)));
        }
    }

    private static ObjectNode reply(String line) {
        try {
            JsonNode request = MAPPER.readTree(line);
            Trial trial = trial(request);
            int repeat = request.path("repeat").asInt(0);
            return repeat > 0 ? timed(trial, repeat, request.path("warmup_ms").asLong(1000)) : once(trial);
        } catch (OutOfMemoryError error) {
            return MAPPER.createObjectNode().put("error", "out of memory");
        } catch (Exception error) {
            return MAPPER.createObjectNode().put("error", error.toString());
        }
    }

    private static Trial trial(JsonNode request) {
        String name = request.path("kafka").asText();
        Problem problem = Problem.of(request.path("problem"));
        return switch (name) {
            case "high-availability", "legacy-sticky", "sticky", "fallback" -> new StreamsTrial(name, problem);
            case "uniform", "streams-group-sticky" -> GroupTrial.of(name, problem);
            case "cooperative", "cooperative-wire", "eager" -> ConnectTrial.of(name, problem, request);
            default -> throw new IllegalArgumentException("no Kafka assignor is called " + name);
        };
    }

    private static ObjectNode once(Trial trial) throws Exception {
        trial.prepare();
        trial.build();
        trial.assign();
        return trial.answer().json(MAPPER);
    }

    private static ObjectNode timed(Trial trial, int repeat, long warmupMs) throws Exception {
        long[] first = call(trial);
        boolean once = first[0] + first[1] > LONG_CALL_NS;
        for (long spent = first[0] + first[1]; !once && spent < warmupMs * 1_000_000; ) {
            long[] taken = call(trial);
            spent += taken[0] + taken[1];
        }
        List<Long> build = new ArrayList<>(once ? List.of(first[0]) : List.of());
        List<Long> assign = new ArrayList<>(once ? List.of(first[1]) : List.of());
        for (int i = 0; i < repeat && !once; i++) {
            long[] taken = call(trial);
            build.add(taken[0]);
            assign.add(taken[1]);
        }
        ObjectNode json = trial.answer().json(MAPPER);
        json.put("assign_us", median(assign) / 1000.0);
        json.put("build_us", median(build) / 1000.0);
        json.put("calls", assign.size());
        return json;
    }

    /** CPU nanoseconds of making the objects, and of the assignor's call. */
    private static long[] call(Trial trial) throws Exception {
        trial.prepare();
        long start = THREADS.getCurrentThreadCpuTime();
        trial.build();
        long built = THREADS.getCurrentThreadCpuTime();
        trial.assign();
        return new long[] {built - start, THREADS.getCurrentThreadCpuTime() - built};
    }

    private static double median(List<Long> values) {
        Collections.sort(values);
        int half = values.size() / 2;
        return values.size() % 2 == 1 ? values.get(half) : (values.get(half - 1) + values.get(half)) / 2.0;
    }
}
