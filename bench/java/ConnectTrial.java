package org.apache.kafka.connect.runtime.distributed;

import com.fasterxml.jackson.databind.JsonNode;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.function.Supplier;
import muster.bench.Answer;
import muster.bench.Problem;
import muster.bench.Trial;
import org.apache.kafka.clients.GroupRebalanceConfig;
import org.apache.kafka.common.message.JoinGroupResponseData.JoinGroupResponseMember;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.utils.LogContext;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.connect.runtime.distributed.IncrementalCooperativeAssignor.ClusterAssignment;
import org.apache.kafka.connect.runtime.distributed.WorkerCoordinator.ConnectorsAndTasks;
import org.apache.kafka.connect.storage.ClusterConfigState;
import org.apache.kafka.connect.util.ConnectorTaskId;

/**
 * Connect's assignors, one round at a time.
 *
 * <p>{@code cooperative} calls the inner method on a sorted map of workers: what the algorithm
 * costs. {@code cooperative-wire} and {@code eager} go through {@code performAssignment} with
 * serialised metadata, as a leader does, {@code CONFIG_MISMATCH} included. An assignor lives as
 * long as its {@code "session"}; without one, it is new and first sees the round {@code "before"}.
 */
public final class ConnectTrial implements Trial {
    private static final Map<String, Leader> SESSIONS = new HashMap<>();
    private static final short VERSION = IncrementalCooperativeConnectProtocol.CONNECT_PROTOCOL_V2;

    private final String name;
    private final Problem problem;
    private final Supplier<Leader> leaders;
    private final boolean delivered;
    private final long leaderOffset;
    private Leader leader;
    private Map<String, ConnectorsAndTasks> reported;
    private ClusterConfigState state;
    private ClusterAssignment placed;
    private Map<String, ByteBuffer> answers;

    private ConnectTrial(String name, Problem problem, Supplier<Leader> leaders, boolean delivered, long offset) {
        this.name = name;
        this.problem = problem;
        this.leaders = leaders;
        this.delivered = delivered;
        this.leaderOffset = offset;
    }

    /** Reads {@code session}, {@code before}, {@code delivered} and {@code config_offset} beside the problem. */
    public static Trial of(String name, Problem problem, JsonNode request) {
        int maxDelay = Integer.parseInt(problem.setting("scheduled.rebalance.max.delay.ms", "300000"));
        Supplier<Leader> leaders = () -> new Leader(maxDelay);
        if (request.hasNonNull("session")) {
            Leader kept = SESSIONS.computeIfAbsent(request.path("session").asText(), k -> new Leader(maxDelay));
            leaders = () -> kept;
        } else if (request.hasNonNull("before")) {
            Problem before = Problem.of(request.path("before"));
            leaders = () -> {
                Leader fresh = new Leader(maxDelay);
                ConnectTrial first = new ConnectTrial(name, before, () -> fresh, true, 0);
                first.prepare();
                first.build();
                first.assign();
                return fresh;
            };
        }
        long offset = request.path("config_offset").asLong(Long.MAX_VALUE);
        return new ConnectTrial(name, problem, leaders, request.path("delivered").asBoolean(true), offset);
    }

    @Override
    public void prepare() {
        leader = leaders.get();
    }

    @Override
    public void build() {
        reported = new TreeMap<>();
        for (Problem.Member member : problem.members()) {
            reported.put(member.id(), load(member.active()));
        }
        state = configured();
    }

    @Override
    public void assign() {
        leader.time.now = problem.nowMs();
        leader.generation++;
        if (delivered) {
            leader.completed = leader.generation - 1;
        }
        if (name.equals("cooperative")) {
            placed = leader.cooperative.performTaskAssignment(state, leader.completed, leader.generation, reported);
            return;
        }
        boolean eager = name.equals("eager");
        ConnectAssignor assignor = eager ? leader.eager : leader.cooperative;
        leader.snapshot = state;
        answers = assignor.performAssignment(
                problem.members().get(0).id(),
                eager ? ConnectProtocolCompatibility.EAGER : ConnectProtocolCompatibility.SESSIONED,
                metadata(eager),
                leader);
    }

    @Override
    public Answer answer() {
        Answer answer = new Answer();
        for (Problem.Member member : problem.members()) {
            ConnectorsAndTasks held = load(member.active());
            if (name.equals("eager")) {
                ConnectProtocol.Assignment one = ConnectProtocol.deserializeAssignment(answers.get(member.id()).duplicate());
                List<String> all = printed(one.connectors(), one.tasks());
                answer.worker(member.id(), all, List.of(), all).error(one.failed() ? "CONFIG_MISMATCH" : null);
                continue;
            }
            ExtendedAssignment one = placed != null ? increment(member.id()) : received(member.id());
            held.connectors().removeAll(one.revokedConnectors());
            held.tasks().removeAll(one.revokedTasks());
            Set<String> connectors = new LinkedHashSet<>(one.connectors());
            Set<ConnectorTaskId> tasks = new LinkedHashSet<>(one.tasks());
            connectors.addAll(held.connectors());
            tasks.addAll(held.tasks());
            answer.worker(member.id(), printed(connectors, tasks),
                            printed(one.revokedConnectors(), one.revokedTasks()), reportedNext(connectors, tasks))
                    .delay(one.delay())
                    .error(one.failed() ? "CONFIG_MISMATCH" : null);
        }
        return answer;
    }

    private ExtendedAssignment increment(String member) {
        return assignment(
                placed.newlyAssignedConnectors(member), placed.newlyAssignedTasks(member),
                placed.newlyRevokedConnectors(member), placed.newlyRevokedTasks(member), leader.cooperative.delay);
    }

    private ExtendedAssignment received(String member) {
        return IncrementalCooperativeConnectProtocol.deserializeAssignment(answers.get(member).duplicate());
    }

    /** The order in which the leader will read this worker's load: grouped by connector on the wire. */
    private List<String> reportedNext(Collection<String> connectors, Collection<ConnectorTaskId> tasks) {
        if (placed != null) {
            return printed(connectors, tasks);
        }
        ExtendedAssignment read = IncrementalCooperativeConnectProtocol
                .deserializeMetadata(wire(connectors, tasks, 0)).assignment();
        return printed(read.connectors(), read.tasks());
    }

    private List<JoinGroupResponseMember> metadata(boolean eager) {
        List<JoinGroupResponseMember> all = new ArrayList<>();
        for (Problem.Member member : problem.members()) {
            ConnectorsAndTasks load = reported.get(member.id());
            ByteBuffer bytes = eager
                    ? ConnectProtocol.serializeMetadata(new ConnectProtocol.WorkerState("url", member.configOffset()))
                    : wire(load.connectors(), load.tasks(), member.configOffset());
            byte[] copy = new byte[bytes.remaining()];
            bytes.get(copy);
            all.add(new JoinGroupResponseMember().setMemberId(member.id()).setMetadata(copy));
        }
        return all;
    }

    private static ByteBuffer wire(Collection<String> connectors, Collection<ConnectorTaskId> tasks, long offset) {
        ExtendedAssignment held = assignment(connectors, tasks, List.of(), List.of(), 0);
        return IncrementalCooperativeConnectProtocol.serializeMetadata(
                new ExtendedWorkerState("url", offset, held), true);
    }

    private static ExtendedAssignment assignment(
            Collection<String> connectors, Collection<ConnectorTaskId> tasks,
            Collection<String> revokedConnectors, Collection<ConnectorTaskId> revokedTasks, int delay) {
        return new ExtendedAssignment(VERSION, ConnectProtocol.Assignment.NO_ERROR, "leader", "url", 0,
                connectors, tasks, revokedConnectors, revokedTasks, delay);
    }

    private ConnectorsAndTasks load(List<String> ids) {
        List<String> connectors = new ArrayList<>();
        List<ConnectorTaskId> tasks = new ArrayList<>();
        for (String id : ids) {
            int dash = id.lastIndexOf('-');
            boolean task = dash > 0 && id.substring(dash + 1).chars().allMatch(Character::isDigit);
            if (task) {
                tasks.add(new ConnectorTaskId(id.substring(0, dash), Integer.parseInt(id.substring(dash + 1))));
            } else {
                connectors.add(id);
            }
        }
        return new ConnectorsAndTasks.Builder().with(connectors, tasks).build();
    }

    private static List<String> printed(Collection<String> connectors, Collection<ConnectorTaskId> tasks) {
        List<String> all = new ArrayList<>(connectors);
        tasks.forEach(task -> all.add(task.toString()));
        return all;
    }

    private ClusterConfigState configured() {
        Map<String, Integer> counts = new HashMap<>();
        Map<String, Map<String, String>> configs = new HashMap<>();
        for (Problem.Unit unit : problem.units()) {
            counts.put(unit.name(), unit.size());
            configs.put(unit.name(), Map.of());
        }
        return new ClusterConfigState(leaderOffset, null, counts, configs, Map.of(), Map.of(), Map.of(), Map.of(),
                Map.of(), Set.of(), Set.of());
    }

    /** A leader without a network: its config snapshot, its clock and its generations are given. */
    private static final class Leader extends WorkerCoordinator {
        private final FixedTime time;
        private final IncrementalCooperativeAssignor cooperative;
        private final EagerAssignor eager = new EagerAssignor(new LogContext());
        private ClusterConfigState snapshot;
        private int generation;
        private int completed;

        Leader(int maxDelay) {
            this(maxDelay, new FixedTime());
        }

        private Leader(int maxDelay, FixedTime time) {
            super(new GroupRebalanceConfig(10_000, 60_000, 3_000, "bench", Optional.empty(), null, 100, 1000),
                    new LogContext(), null, new Metrics(), "bench", time, "url", null, null,
                    ConnectProtocolCompatibility.SESSIONED, maxDelay);
            this.time = time;
            this.cooperative = new IncrementalCooperativeAssignor(new LogContext(), time, maxDelay);
        }

        @Override
        public int generationId() {
            return generation;
        }

        @Override
        public int lastCompletedGenerationId() {
            return completed;
        }

        @Override
        public String memberId() {
            return "leader";
        }

        @Override
        public ClusterConfigState configSnapshot() {
            return snapshot;
        }

        @Override
        public ClusterConfigState configFreshSnapshot() {
            return snapshot;
        }
    }

    /** A clock that stands at the problem's {@code now_ms}. */
    private static final class FixedTime implements Time {
        private long now;

        @Override
        public long milliseconds() {
            return now;
        }

        @Override
        public long nanoseconds() {
            return now * 1_000_000;
        }

        @Override
        public void sleep(long ms) {
            now += ms;
        }

        @Override
        public void waitObject(Object object, Supplier<Boolean> condition, long deadlineMs) {
            throw new UnsupportedOperationException();
        }
    }
}
