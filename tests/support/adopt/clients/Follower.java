import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.WakeupException;

/** An ordinary Java consumer that prints what happens to it, as followers.py does. */
public final class Follower {
    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("group.id", args[1]);
        settings.put("client.id", args[3]);
        settings.put("partition.assignment.strategy", List.of(args[4].split(",")).stream()
            .map(name -> "org.apache.kafka.clients.consumer." + name).toList());
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("heartbeat.interval.ms", "500");
        settings.put("session.timeout.ms", "6000");
        String bytes = "org.apache.kafka.common.serialization.ByteArrayDeserializer";
        settings.put("key.deserializer", bytes);
        settings.put("value.deserializer", bytes);
        KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings);
        Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            consumer.wakeup();
            try {
                main.join();
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        }));
        consumer.subscribe(List.of(args[2]), new ConsumerRebalanceListener() {
            @Override public void onPartitionsAssigned(Collection<TopicPartition> parts) {
                say("assigned", parts);
            }

            @Override public void onPartitionsRevoked(Collection<TopicPartition> parts) {
                say("revoked", parts);
            }

            @Override public void onPartitionsLost(Collection<TopicPartition> parts) {
                say("lost", parts);
            }
        });
        try {
            while (true) {
                var records = consumer.poll(Duration.ofMillis(100));
                records.forEach(r -> line("read " + r.topic() + ":" + r.partition() + " " + r.offset()));
                try {
                    if (!records.isEmpty()) {
                        consumer.commitSync();
                    }
                } catch (WakeupException e) {
                    throw e;
                } catch (KafkaException e) {
                    line("refused " + e.getClass().getSimpleName());
                }
            }
        } catch (WakeupException e) {
            consumer.close();
            line("bye");
        }
    }

    private static void say(String word, Collection<TopicPartition> parts) {
        line(word + parts.stream().map(p -> " " + p.topic() + ":" + p.partition())
            .collect(Collectors.joining()));
    }

    private static synchronized void line(String text) {
        System.out.println(System.currentTimeMillis() + " " + text);
    }
}
