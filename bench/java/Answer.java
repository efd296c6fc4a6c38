package muster.bench;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Collection;
import java.util.Map;
import java.util.TreeMap;

/** What Kafka answered, in the form of an answer of muster assign. */
public final class Answer {
    /** One member's part; Kafka's classes do not tell warm-ups from standbys. */
    public record Holding(
            Collection<String> active,
            Collection<String> standby,
            Collection<String> revoked,
            Collection<String> report) {}

    private final Map<String, Holding> members = new TreeMap<>();
    private Long followupMs;
    private long delayMs;
    private String error;

    public Answer member(String id, Collection<String> active, Collection<String> standby) {
        members.put(id, new Holding(active, standby, null, null));
        return this;
    }

    /** A Connect worker: what it is to hold, to stop, and the order in which it will report next. */
    public Answer worker(String id, Collection<String> active, Collection<String> revoked, Collection<String> report) {
        members.put(id, new Holding(active, null, revoked, report));
        return this;
    }

    public Answer followup(Long afterMs) {
        followupMs = afterMs;
        return this;
    }

    public Answer delay(long delay) {
        delayMs = delay;
        return this;
    }

    public Answer error(String name) {
        error = name;
        return this;
    }

    ObjectNode json(ObjectMapper mapper) {
        ObjectNode root = mapper.createObjectNode();
        ObjectNode all = root.putObject("members");
        members.forEach((id, holding) -> {
            ObjectNode one = all.putObject(id);
            put(one, "active", holding.active());
            put(one, "standby", holding.standby());
            put(one, "revoked", holding.revoked());
            put(one, "report", holding.report());
        });
        root.put("followup_ms", followupMs);
        root.put("delay_ms", delayMs);
        if (error != null) {
            root.put("error", error);
        }
        return root;
    }

    private static void put(ObjectNode node, String key, Collection<String> tasks) {
        if (tasks != null) {
            var array = node.putArray(key);
            tasks.forEach(array::add);
        }
    }
}
