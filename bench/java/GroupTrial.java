package org.apache.kafka.coordinator.group;

import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.Optional;
import java.util.Set;
import muster.bench.Answer;
import muster.bench.Problem;
import muster.bench.Trial;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.group.api.assignor.GroupAssignment;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.UniformAssignor;
import org.apache.kafka.coordinator.group.modern.Assignment;
import org.apache.kafka.coordinator.group.modern.GroupSpecImpl;
import org.apache.kafka.coordinator.group.modern.MemberSubscriptionAndAssignmentImpl;
import org.apache.kafka.coordinator.group.streams.assignor.AssignmentMemberSpec;
import org.apache.kafka.coordinator.group.streams.assignor.MemberAssignment;
import org.apache.kafka.coordinator.group.streams.assignor.StickyTaskAssignor;
import org.apache.kafka.coordinator.group.streams.assignor.TopologyDescriber;

/** The assignors of the broker: consumer groups (KIP-848) and streams groups (KIP-1071). */
public final class GroupTrial {
    private GroupTrial() {}

    public static Trial of(String name, Problem problem) {
        return name.equals("uniform") ? new Uniform(problem) : new Streams(problem);
    }

    private static String unitOf(String task) {
        return task.substring(0, task.lastIndexOf('_'));
    }

    private static int partitionOf(String task) {
        return Integer.parseInt(task.substring(task.lastIndexOf('_') + 1));
    }

    private static <K> Map<K, Set<Integer>> grouped(Collection<String> tasks, Map<String, K> keys) {
        Map<K, Set<Integer>> found = new HashMap<>();
        for (String task : tasks) {
            found.computeIfAbsent(keys.get(unitOf(task)), k -> new HashSet<>()).add(partitionOf(task));
        }
        return found;
    }

    private static <K> List<String> printed(Map<K, Set<Integer>> partitions, Map<K, String> names) {
        List<String> found = new ArrayList<>();
        partitions.forEach((key, numbers) -> numbers.forEach(n -> found.add(names.get(key) + "_" + n)));
        return found;
    }

    /** KIP-848's uniform assignor; the units are topics. */
    private static final class Uniform implements Trial {
        private final Problem problem;
        private final Map<String, Uuid> topicIds = new LinkedHashMap<>();
        private final Map<Uuid, String> topicNames = new HashMap<>();
        private final Map<Uuid, Integer> sizes = new HashMap<>();
        private final boolean homogeneous;
        private GroupSpecImpl spec;
        private GroupAssignment placed;

        Uniform(Problem problem) {
            this.problem = problem;
            for (Problem.Unit unit : problem.units()) {
                Uuid id = new Uuid(1, topicIds.size() + 1L);
                topicIds.put(unit.name(), id);
                topicNames.put(id, unit.name());
                sizes.put(id, unit.size());
            }
            homogeneous = problem.members().stream().map(Problem.Member::topics).distinct().count() <= 1;
        }

        @Override
        public void build() {
            Map<String, MemberSubscriptionAndAssignmentImpl> members = new HashMap<>();
            Map<Uuid, Map<Integer, String>> owners = new HashMap<>();
            Set<Uuid> all = Set.copyOf(topicIds.values());
            for (Problem.Member member : problem.members()) {
                Set<Uuid> subscribed = all;
                if (member.topics() != null) {
                    subscribed = new HashSet<>();
                    for (String topic : member.topics()) {
                        subscribed.add(topicIds.get(topic));
                    }
                }
                Map<Uuid, Set<Integer>> owned = grouped(member.active(), topicIds);
                owned.forEach((topic, partitions) -> partitions.forEach(
                        p -> owners.computeIfAbsent(topic, k -> new HashMap<>()).put(p, member.id())));
                members.put(member.id(), new MemberSubscriptionAndAssignmentImpl(
                        Optional.ofNullable(member.rack()), Optional.empty(), subscribed, new Assignment(owned)));
            }
            spec = new GroupSpecImpl(
                    members, homogeneous ? SubscriptionType.HOMOGENEOUS : SubscriptionType.HETEROGENEOUS, owners);
        }

        @Override
        public void assign() {
            placed = new UniformAssignor().assign(spec, new SubscribedTopicDescriber() {
                @Override
                public int numPartitions(Uuid topic) {
                    return sizes.getOrDefault(topic, -1);
                }

                @Override
                public Set<String> racksForPartition(Uuid topic, int partition) {
                    return Set.of();
                }
            });
        }

        @Override
        public Answer answer() {
            Answer answer = new Answer();
            placed.members().forEach((id, one) -> answer.member(id, printed(one.partitions(), topicNames), List.of()));
            return answer;
        }
    }

    /** KIP-1071's sticky assignor; every member is a process of its own. */
    private static final class Streams implements Trial {
        private final Problem problem;
        private final Map<String, Problem.Unit> units = new LinkedHashMap<>();
        private final Map<String, String> names = new HashMap<>();
        private org.apache.kafka.coordinator.group.streams.assignor.GroupSpecImpl spec;
        private org.apache.kafka.coordinator.group.streams.assignor.GroupAssignment placed;

        Streams(Problem problem) {
            this.problem = problem;
            for (Problem.Unit unit : problem.units()) {
                units.put(unit.name(), unit);
                names.put(unit.name(), unit.name());
            }
        }

        @Override
        public void build() {
            Map<String, AssignmentMemberSpec> members = new HashMap<>();
            for (Problem.Member member : problem.members()) {
                members.put(member.id(), new AssignmentMemberSpec(
                        Optional.empty(), Optional.ofNullable(member.rack()), grouped(member.active(), names),
                        grouped(member.standby(), names), Map.of(), member.id(), member.tags(), Map.of(), Map.of()));
            }
            spec = new org.apache.kafka.coordinator.group.streams.assignor.GroupSpecImpl(
                    members, Map.of("num.standby.replicas", problem.setting("num.standby.replicas", "0")));
        }

        @Override
        public void assign() {
            placed = new StickyTaskAssignor().assign(spec, new TopologyDescriber() {
                @Override
                public List<String> subtopologies() {
                    return new ArrayList<>(units.keySet());
                }

                @Override
                public int maxNumInputPartitions(String subtopology) throws NoSuchElementException {
                    return units.get(subtopology).size();
                }

                @Override
                public boolean isStateful(String subtopology) {
                    return units.get(subtopology).stateful();
                }
            });
        }

        @Override
        public Answer answer() {
            Answer answer = new Answer();
            for (Map.Entry<String, MemberAssignment> one : placed.members().entrySet()) {
                answer.member(one.getKey(), printed(one.getValue().activeTasks(), names),
                        printed(one.getValue().standbyTasks(), names));
            }
            return answer;
        }
    }
}
