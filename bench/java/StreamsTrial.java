package org.apache.kafka.streams.processor.internals.assignment;

import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.UUID;
import java.util.stream.Collectors;
import muster.bench.Answer;
import muster.bench.Problem;
import muster.bench.Trial;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.processor.TaskId;
import org.apache.kafka.streams.processor.assignment.ApplicationState;
import org.apache.kafka.streams.processor.assignment.AssignmentConfigs;
import org.apache.kafka.streams.processor.assignment.KafkaStreamsAssignment;
import org.apache.kafka.streams.processor.assignment.KafkaStreamsAssignment.AssignedTask;
import org.apache.kafka.streams.processor.assignment.KafkaStreamsState;
import org.apache.kafka.streams.processor.assignment.ProcessId;
import org.apache.kafka.streams.processor.assignment.TaskAssignor.TaskAssignment;
import org.apache.kafka.streams.processor.assignment.TaskInfo;
import org.apache.kafka.streams.processor.assignment.assignors.StickyTaskAssignor;
import org.apache.kafka.streams.processor.internals.InternalTopicManager;
import org.apache.kafka.streams.processor.internals.TopologyMetadata.Subtopology;

/**
 * The assignors of the Streams client, rack optimisation included.
 *
 * <p>It sits in Kafka's package because the lean constructors are private to it. Members become
 * process ids by their place in the sorted order, so ties by process id fall as ties by member id.
 */
public final class StreamsTrial implements Trial {
    private final String name;
    private final Problem problem;
    private final AssignmentConfigs configs;
    private final List<ProcessId> processes = new ArrayList<>();
    private final Map<TaskId, Problem.Unit> tasks = new LinkedHashMap<>();
    private final Set<TaskId> stateful = new TreeSet<>();
    private final Map<ProcessId, Map<TaskId, Long>> lags = new HashMap<>();

    private Map<ProcessId, ClientState> clients;
    private RackAwareTaskAssignor racks;
    private ApplicationState application;
    private boolean followup;
    private TaskAssignment placed;

    public StreamsTrial(String name, Problem problem) {
        this.name = name;
        this.problem = problem;
        for (Problem.Unit unit : problem.units()) {
            for (int partition = 0; partition < unit.size(); partition++) {
                TaskId task = new TaskId(Integer.parseInt(unit.name()), partition);
                tasks.put(task, unit);
                if (unit.stateful()) {
                    stateful.add(task);
                }
            }
        }
        this.configs = configs(problem);
        long everything = full(problem);
        for (int i = 0; i < problem.members().size(); i++) {
            ProcessId process = new ProcessId(new UUID(0, i + 1));
            processes.add(process);
            lags.put(process, lags(problem.members().get(i), everything));
        }
    }

    private static AssignmentConfigs configs(Problem problem) {
        return new AssignmentConfigs(
                Long.parseLong(problem.setting("acceptable.recovery.lag", "10000")),
                Integer.parseInt(problem.setting("max.warmup.replicas", "2")),
                Integer.parseInt(problem.setting("num.standby.replicas", "0")),
                Long.parseLong(problem.setting("probing.rebalance.interval.ms", "600000")),
                names(problem.setting("rack.aware.assignment.tags", "")),
                cost(problem.setting("rack.aware.assignment.traffic_cost", null)),
                cost(problem.setting("rack.aware.assignment.non_overlap_cost", null)),
                problem.setting("rack.aware.assignment.strategy", "none"));
    }

    private static List<String> names(String list) {
        return list.isBlank() ? List.of() : List.of(list.split(" *, *"));
    }

    private static OptionalInt cost(String value) {
        return value == null ? OptionalInt.empty() : OptionalInt.of(Integer.parseInt(value));
    }

    /** The lag of a copy that has to be restored from nothing: beyond every other and the acceptable. */
    private static long full(Problem problem) {
        long acceptable = Long.parseLong(problem.setting("acceptable.recovery.lag", "10000"));
        long largest = acceptable == Long.MAX_VALUE ? 0 : acceptable;
        for (Problem.Member member : problem.members()) {
            for (long lag : member.lag().values()) {
                largest = Math.max(largest, lag);
            }
        }
        return largest + 1;
    }

    private Map<TaskId, Long> lags(Problem.Member member, long everything) {
        Set<String> active = new HashSet<>(member.active());
        Map<TaskId, Long> found = new TreeMap<>();
        for (TaskId task : stateful) {
            String id = task.toString();
            Long told = member.lag().get(id);
            long caughtUp = active.contains(id) ? -2 : member.ready().contains(id) ? 0 : everything;
            found.put(task, told == null ? caughtUp : told);
        }
        return found;
    }

    @Override
    public void build() {
        boolean rackAware = !"none".equals(configs.rackAwareAssignmentStrategy());
        if (name.equals("sticky")) {
            application = application();
            return;
        }
        clients = new HashMap<>();
        for (int i = 0; i < processes.size(); i++) {
            Problem.Member member = problem.members().get(i);
            ProcessId process = processes.get(i);
            clients.put(process, new ClientState(
                    ids(member.active()), ids(member.standby()), lags.get(process), member.tags(), member.capacity(), process));
        }
        racks = rackAware ? new Racks().assignor() : Racks.NONE;
    }

    private static Set<TaskId> ids(Collection<String> printed) {
        return printed.stream().map(TaskId::parse).collect(Collectors.toSet());
    }

    @Override
    public void assign() {
        switch (name) {
            case "high-availability" ->
                followup = new HighAvailabilityTaskAssignor().assign(clients, tasks.keySet(), stateful, racks, configs);
            case "legacy-sticky" ->
                followup = new LegacyStickyTaskAssignor().assign(clients, tasks.keySet(), stateful, racks, configs);
            case "fallback" ->
                followup = new FallbackPriorTaskAssignor().assign(clients, tasks.keySet(), stateful, racks, configs);
            default -> placed = new StickyTaskAssignor().assign(application);
        }
    }

    @Override
    public Answer answer() {
        Answer answer = new Answer().followup(followup ? configs.probingRebalanceIntervalMs() : null);
        if (placed != null) {
            for (KafkaStreamsAssignment one : placed.assignment()) {
                String id = problem.members().get(processes.indexOf(one.processId())).id();
                answer.member(id, printed(one, AssignedTask.Type.ACTIVE), printed(one, AssignedTask.Type.STANDBY));
            }
            return answer;
        }
        for (int i = 0; i < processes.size(); i++) {
            ClientState client = clients.get(processes.get(i));
            answer.member(problem.members().get(i).id(), printed(client.activeTasks()), printed(client.standbyTasks()));
        }
        return answer;
    }

    private static List<String> printed(Collection<TaskId> ids) {
        return new TreeSet<>(ids).stream().map(TaskId::toString).toList();
    }

    private static List<String> printed(KafkaStreamsAssignment one, AssignedTask.Type type) {
        return printed(one.tasks().values().stream().filter(t -> t.type() == type).map(AssignedTask::id).toList());
    }

    /** KIP-924's view, for the sticky assignor users can name. */
    private ApplicationState application() {
        Map<TaskId, TaskInfo> infos = new HashMap<>();
        tasks.forEach((task, unit) -> infos.put(task, new DefaultTaskInfo(
                task, unit.stateful(), unit.stateful() ? Set.of("store") : Set.of(), topicPartitions(task, unit))));
        Map<ProcessId, KafkaStreamsState> states = new HashMap<>();
        for (int i = 0; i < processes.size(); i++) {
            Problem.Member member = problem.members().get(i);
            ProcessId process = processes.get(i);
            states.put(process, new DefaultKafkaStreamsState(
                    process, member.capacity(), member.tags(), new TreeSet<>(ids(member.active())),
                    new TreeSet<>(ids(member.standby())), new TreeMap<>(), Optional.empty(),
                    Optional.of(lags.get(process)), Optional.ofNullable(member.rack())));
        }
        return new ApplicationState() {
            @Override
            public Map<ProcessId, KafkaStreamsState> kafkaStreamsStates(boolean computeTaskLags) {
                return states;
            }

            @Override
            public AssignmentConfigs assignmentConfigs() {
                return configs;
            }

            @Override
            public Map<TaskId, TaskInfo> allTasks() {
                return infos;
            }
        };
    }

    private static Set<org.apache.kafka.streams.processor.assignment.TaskTopicPartition> topicPartitions(
            TaskId task, Problem.Unit unit) {
        Set<org.apache.kafka.streams.processor.assignment.TaskTopicPartition> found = new HashSet<>();
        addTopics(found, unit.sourceRacks(), task, true);
        addTopics(found, unit.changelogRacks(), task, false);
        if (unit.stateful() && unit.changelogRacks() == null) {
            found.add(new DefaultTaskTopicPartition(Racks.partition(task, 0, false), false, true, () -> { }));
        }
        return found;
    }

    private static void addTopics(
            Set<org.apache.kafka.streams.processor.assignment.TaskTopicPartition> found,
            List<List<Set<String>>> racks, TaskId task, boolean source) {
        if (racks == null) {
            return;
        }
        List<Set<String>> topics = racks.get(task.partition());
        for (int topic = 0; topic < topics.size(); topic++) {
            DefaultTaskTopicPartition one =
                    new DefaultTaskTopicPartition(Racks.partition(task, topic, source), source, !source, () -> { });
            one.annotateWithRackIds(topics.get(topic));
            found.add(one);
        }
    }

    /** Where replicas and processes are, as the Streams leader would have read it. */
    private final class Racks {
        static final RackAwareTaskAssignor NONE = new RackAwareTaskAssignor(
                Cluster.empty(), Map.of(), Map.of(), Map.of(), null, null,
                new AssignmentConfigs(0L, 1, 0, 60_000L, List.of()), Time.SYSTEM);

        private final Map<String, Node> nodes = new HashMap<>();
        private final List<PartitionInfo> sources = new ArrayList<>();
        private final Map<String, List<TopicPartitionInfo>> changelogs = new HashMap<>();
        private final Map<TaskId, Set<TopicPartition>> sourcesOf = new HashMap<>();
        private final Map<TaskId, Set<TopicPartition>> changelogsOf = new HashMap<>();

        RackAwareTaskAssignor assignor() {
            Map<Subtopology, Set<TaskId>> groups = new HashMap<>();
            tasks.forEach((task, unit) -> {
                groups.computeIfAbsent(new Subtopology(task.subtopology(), null), k -> new HashSet<>()).add(task);
                sourcesOf.put(task, sourcePartitions(task, unit));
                changelogsOf.put(task, changelogPartitions(task, unit));
            });
            Map<ProcessId, Map<String, Optional<String>>> clientRacks = new HashMap<>();
            for (int i = 0; i < processes.size(); i++) {
                clientRacks.put(processes.get(i),
                        Map.of("consumer", Optional.ofNullable(problem.members().get(i).rack())));
            }
            Cluster cluster = new Cluster("cluster", nodes.values(), sources, Set.of(), Set.of());
            return new RackAwareTaskAssignor(
                    cluster, sourcesOf, changelogsOf, groups, clientRacks, describer(), configs, Time.SYSTEM);
        }

        static TopicPartition partition(TaskId task, int topic, boolean source) {
            return new TopicPartition((source ? "source-" : "changelog-") + task.subtopology() + "-" + topic, task.partition());
        }

        private Set<TopicPartition> sourcePartitions(TaskId task, Problem.Unit unit) {
            Set<TopicPartition> found = new HashSet<>();
            int topics = unit.sourceRacks() == null ? 1 : unit.sourceRacks().get(task.partition()).size();
            for (int topic = 0; topic < topics; topic++) {
                TopicPartition one = partition(task, topic, true);
                found.add(one);
                if (unit.sourceRacks() != null) {
                    Node[] replicas = replicas(unit.sourceRacks().get(task.partition()).get(topic));
                    sources.add(new PartitionInfo(one.topic(), one.partition(), null, replicas, replicas));
                }
            }
            return found;
        }

        private Set<TopicPartition> changelogPartitions(TaskId task, Problem.Unit unit) {
            Set<TopicPartition> found = new HashSet<>();
            if (!unit.stateful()) {
                return found;
            }
            int topics = unit.changelogRacks() == null ? 1 : unit.changelogRacks().get(task.partition()).size();
            for (int topic = 0; topic < topics; topic++) {
                TopicPartition one = partition(task, topic, false);
                found.add(one);
                if (unit.changelogRacks() != null) {
                    List<Node> replicas = List.of(replicas(unit.changelogRacks().get(task.partition()).get(topic)));
                    changelogs.computeIfAbsent(one.topic(), k -> new ArrayList<>())
                            .add(new TopicPartitionInfo(one.partition(), null, replicas, replicas));
                }
            }
            return found;
        }

        private Node[] replicas(Set<String> rackNames) {
            return rackNames.stream()
                    .map(rack -> nodes.computeIfAbsent(rack, r -> new Node(nodes.size(), "host", 9092, r)))
                    .toArray(Node[]::new);
        }

        /** Answers what the admin client would. */
        private InternalTopicManager describer() {
            Map<String, Object> required = new HashMap<>();
            required.put(StreamsConfig.APPLICATION_ID_CONFIG, "bench");
            required.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, "localhost:9092");
            return new InternalTopicManager(Time.SYSTEM, null, new StreamsConfig(required)) {
                @Override
                public Map<String, List<TopicPartitionInfo>> getTopicPartitionInfo(Set<String> topics) {
                    Map<String, List<TopicPartitionInfo>> known = new HashMap<>(changelogs);
                    known.keySet().retainAll(topics);
                    return known;
                }
            };
        }
    }
}
