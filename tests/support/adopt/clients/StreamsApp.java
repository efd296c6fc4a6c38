import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.Stores;

/** A Kafka Streams application that counts records by key: address, application id, topic, protocol, folder. */
public final class StreamsApp {
    public static void main(String[] args) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("application.id", args[1]);
        settings.put("group.protocol", args[3]);
        settings.put("state.dir", args[4]);
        settings.put("default.key.serde", Serdes.StringSerde.class);
        settings.put("default.value.serde", Serdes.StringSerde.class);
        settings.put("statestore.cache.max.bytes", "0");
        settings.put("num.stream.threads", "1");
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(args[2])
            .groupByKey()
            .count(Materialized.as(Stores.inMemoryKeyValueStore("counts")));
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
    }
}
