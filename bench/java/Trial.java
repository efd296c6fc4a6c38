package muster.bench;

/**
 * One placement by one of Kafka's classes, in steps so that each can be timed apart: fresh
 * Kafka objects from the problem, the assignor's call, the answer.
 */
public interface Trial {
    /** What must have happened before, not timed. */
    default void prepare() {}

    /** Makes the objects the class wants; never reused, most classes change them. */
    void build();

    /** The assignor's call and nothing else. */
    void assign() throws Exception;

    /** What came out. */
    Answer answer();
}
