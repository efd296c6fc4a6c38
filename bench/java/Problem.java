package muster.bench;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;

/** A problem as muster assign reads it, read once; each family turns it into its own Kafka objects. */
public record Problem(Map<String, String> config, List<Unit> units, List<Member> members, long nowMs) {

    /** A subtopology, topic or connector. Racks: per partition, per topic read, the replicas' racks. */
    public record Unit(
            String name,
            int size,
            boolean connector,
            boolean stateful,
            List<List<Set<String>>> sourceRacks,
            List<List<Set<String>>> changelogRacks) {}

    /** A member as it reports itself; task ids as printed, in the order reported. */
    public record Member(
            String id,
            int capacity,
            String rack,
            Map<String, String> tags,
            List<String> active,
            List<String> standby,
            Set<String> ready,
            Map<String, Long> lag,
            Set<String> topics,
            long configOffset) {}

    /** Reads the JSON form. */
    public static Problem of(JsonNode json) {
        Map<String, String> config = new HashMap<>();
        json.path("config").properties().forEach(e -> config.put(e.getKey(), text(e.getValue())));
        List<Unit> units = new ArrayList<>();
        json.path("tasks").forEach(node -> units.add(unit(node)));
        List<Member> members = new ArrayList<>();
        json.path("members").forEach(node -> members.add(member(node)));
        members.sort((a, b) -> a.id().compareTo(b.id()));
        return new Problem(config, units, members, json.path("now_ms").asLong(0));
    }

    /** A setting, or what Kafka has where nothing is given. */
    public String setting(String key, String absent) {
        String value = config.get(key);
        return value == null ? absent : value;
    }

    private static Unit unit(JsonNode node) {
        boolean connector = node.has("connector");
        return new Unit(
                node.path(connector ? "connector" : "subtopology").asText(),
                node.path(connector ? "tasks" : "partitions").asInt(),
                connector,
                node.path("stateful").asBoolean(false),
                racks(node.get("source_racks")),
                racks(node.get("changelog_racks")));
    }

    private static Member member(JsonNode node) {
        Map<String, String> tags = new HashMap<>();
        node.path("tags").properties().forEach(e -> tags.put(e.getKey(), e.getValue().asText()));
        Map<String, Long> lag = new HashMap<>();
        node.path("lag").properties().forEach(e -> lag.put(e.getKey(), e.getValue().asLong()));
        List<String> standby = strings(node.path("standby"));
        standby.addAll(strings(node.path("learner")));
        return new Member(
                node.path("id").asText(),
                node.path("capacity").asInt(1),
                node.hasNonNull("rack") ? node.path("rack").asText() : null,
                tags,
                strings(node.path("active")),
                standby,
                new LinkedHashSet<>(strings(node.path("ready"))),
                lag,
                node.hasNonNull("topics") ? new LinkedHashSet<>(strings(node.path("topics"))) : null,
                node.path("config_offset").asLong(0));
    }

    private static List<List<Set<String>>> racks(JsonNode perPartition) {
        if (perPartition == null || perPartition.isNull()) {
            return null;
        }
        List<List<Set<String>>> all = new ArrayList<>();
        for (JsonNode partition : perPartition) {
            List<Set<String>> topics = new ArrayList<>();
            if (partition.path(0).isArray()) {
                partition.forEach(topic -> topics.add(new TreeSet<>(strings(topic))));
            } else {
                topics.add(new TreeSet<>(strings(partition)));
            }
            all.add(topics);
        }
        return all;
    }

    private static List<String> strings(JsonNode array) {
        List<String> found = new ArrayList<>(array.size());
        array.forEach(item -> found.add(item.asText()));
        return found;
    }

    private static String text(JsonNode value) {
        if (value.isNull()) {
            return null;
        }
        if (!value.isArray()) {
            return value.asText();
        }
        return String.join(",", strings(value));
    }
}
