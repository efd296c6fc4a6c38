package main

// Writes events, reads records, and checks that the reader keeps up.

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"log"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

var (
	prefix      = cmp.Or(os.Getenv("MUSTER_TOPIC_PREFIX"), "muster")
	membership  = prefix + ".membership"
	assignments = prefix + ".assignments"
	groups      = prefix + ".groups"
)

// How long Kafka may send nothing before a dictionary counts as missing, and may take for the last events.
const patience = 10 * time.Second

// Link is a worker's connection. Only the worker's loop uses its numbers.
type Link struct {
	w          *Worker
	kafka      *kgo.Client
	admin      *kadm.Client
	keys       *Keyring
	key        string // of the member's records
	partition  int32  // of assignments, with that key
	position   int64  // offset up to which it was read
	end, endMs int64  // its end, and when it was asked for; 0 = none to reach
	unread     bool   // the newest record could not be decoded
}

// connect moves to the end of the partition: the answer to a join is written after it.
func connect(w *Worker, servers []string) (*Link, error) {
	keys, err := openKeyring(os.Getenv("MUSTER_SIGNING_KEYS"))
	if err != nil {
		return nil, err
	}
	// Keys belong to the partitions of the Java client; acks=all and idempotence are the defaults.
	// Metadata are read often: when a topic has grown, the key may belong to another partition.
	// The markers of transactions are records too: the last offset may be one, and must be reached.
	kafka, err := kgo.NewClient(kgo.SeedBrokers(servers...), kgo.ProducerLinger(0), kgo.KeepControlRecords(),
		kgo.FetchMaxWait(5*time.Second), kgo.MetadataMaxAge(10*time.Second))
	if err != nil {
		return nil, err
	}
	l := &Link{w: w, kafka: kafka, admin: kadm.NewClient(kafka), keys: keys, key: w.group + "|" + w.member}
	w.send = l.send
	l.partition, l.position, err = l.own()
	for err != nil {
		log.Printf("where %s ends is not known yet: %v", assignments, err)
		time.Sleep(time.Second)
		l.partition, l.position, err = l.own()
	}
	l.read(kgo.NewOffset().At(l.position))
	go l.follow()
	return l, nil
}

// flush waits until everything is written, unless Kafka is away.
func (l *Link) flush() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return l.kafka.Flush(ctx)
}

// send writes an event, and asks at the same moment for the end of the partition.
func (l *Link) send(value []byte, counts bool) {
	w, session, atMs := l.w, l.w.session, bootMs()
	w.sentMs = atMs
	done := func(_ *kgo.Record, err error) {
		if err != nil {
			log.Printf("not written: %v", err)
		}
		w.inbox <- func() {
			if session == w.session {
				w.beating = w.beating && !bytes.HasPrefix(value, []byte(heartbeatFrame))
				if err == nil && counts {
					w.acknowledged(atMs)
				} else if err != nil && bytes.HasPrefix(value, []byte(reportFrame)) {
					w.reportLater()
				}
			}
		}
	}
	record := &kgo.Record{Topic: membership, Key: []byte(w.group), Value: value}
	if err := l.keys.sign(record, time.Now().UnixMilli()); err != nil {
		go done(record, err)
		return
	}
	l.kafka.Produce(context.Background(), record, done)
	go l.askEnd(atMs)
}

// askEnd asks for the end of the partition, and which one it is: the topic may have grown.
func (l *Link) askEnd(atMs int64) {
	partition, end, err := l.own()
	l.w.inbox <- func() {
		if err == nil {
			l.moveTo(partition)
			if l.endMs == 0 { // an earlier end must be reached first
				l.end, l.endMs = end, atMs
			}
		}
		l.reached(l.partition, l.position)
	}
}

// own asks for the partition that the key belongs to, and its end.
func (l *Link) own() (int32, int64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	topics, err := l.admin.ListTopics(ctx, assignments)
	if err != nil {
		return 0, 0, err
	}
	listed, err := l.admin.ListEndOffsets(ctx, assignments)
	return endOfOwn(l.key, topics[assignments], listed, err)
}

// endOfOwn looks at one partition only: another one may have no leader, or its leader may be silent.
func endOfOwn(key string, topic kadm.TopicDetail, listed kadm.ListedOffsets, failure error) (int32, int64, error) {
	if len(topic.Partitions) == 0 {
		return 0, 0, cmp.Or(topic.Err, failure, errors.New("it has no partitions"))
	}
	partition := partitionOf(key, len(topic.Partitions))
	end, known := listed.Lookup(topic.Topic, partition)
	if !known {
		return 0, 0, cmp.Or(failure, errors.New("no answer"))
	}
	return partition, end.Offset, end.Err
}

// reached notes how far a partition was read. A record that cannot be decoded may revoke tasks: until
// a newer one is read, not everything is read.
func (l *Link) reached(partition int32, position int64) {
	if partition != l.partition {
		return // the partition of before
	}
	l.position = position
	if l.endMs > 0 && position >= l.end && !l.unread {
		l.w.caughtUp(l.endMs)
		l.endMs = 0
	}
}

func (l *Link) read(from kgo.Offset) {
	l.kafka.AddConsumePartitions(map[string]map[int32]kgo.Offset{assignments: {l.partition: from}})
}

// moveTo reads another partition, from its beginning.
func (l *Link) moveTo(partition int32) {
	if partition == l.partition {
		return
	}
	log.Printf("%s has grown: ours is partition %d now", assignments, partition)
	l.kafka.RemoveConsumePartitions(map[string][]int32{assignments: {l.partition}})
	l.partition, l.position, l.endMs = partition, 0, 0
	l.read(kgo.NewOffset().AtStart())
}

// follow reads the partition.
func (l *Link) follow() {
	names, joiner := Names{}, Joiner{}
	for {
		fetches := l.kafka.PollFetches(context.Background())
		fetches.EachError(func(topic string, _ int32, err error) { log.Printf("%s: %v", topic, err) })
		fetches.EachRecord(func(record *kgo.Record) {
			act := func() {}
			if err := attempt(func() { act = l.meaning(record, names, joiner) }); err != nil {
				log.Printf("a record at offset %d cannot be read: %v", record.Offset, err)
				act = func() { l.unread = true }
			}
			l.w.inbox <- func() { act(); l.reached(record.Partition, record.Offset+1) }
		})
	}
}

// meaning returns what the worker does with a record.
func (l *Link) meaning(record *kgo.Record, names Names, joiner Joiner) func() {
	if record.Attrs.IsControl() || keyOfWhole(string(record.Key)) != l.key {
		return func() {}
	}
	value, whole := joiner.Feed(string(record.Key), record.Value)
	switch {
	case !whole:
		return func() {}
	case value == nil:
		return func() { l.unread = false; l.w.lose("let go by the coordinator") }
	}
	a := readAssignment(value)
	if a.Dictionary != 0 && names[a.Dictionary] == nil {
		l.readNames(names, a.Dictionary)
	}
	a.readSets(names)
	return func() { l.unread = false; l.w.hear(a) }
}

// readNames looks for a dictionary of the group in every partition: when the topic gets more
// partitions they are not written again. The last offsets of a partition may have no record, because
// compaction removed them; then nothing more comes.
func (l *Link) readNames(names Names, wanted uint64) {
	key, joiner, at, left := l.w.group+"||names", Joiner{}, map[int32]kgo.Offset{}, map[int32]int64{}
	starts, ends := listed(groups, l.admin.ListStartOffsets), listed(groups, l.admin.ListEndOffsets)
	for partition, end := range ends {
		at[partition] = kgo.NewOffset().AtStart()
		if starts[partition].Offset < end.Offset {
			left[partition] = end.Offset
		}
	}
	where := kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{groups: at})
	reader, err := kgo.NewClient(append(l.kafka.Opts(), where)...)
	check(err == nil, "no client: %v", err)
	defer reader.Close()
	for len(left) > 0 && names[wanted] == nil {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		fetches := reader.PollFetches(ctx)
		cancel()
		if errors.Is(fetches.Err0(), context.DeadlineExceeded) {
			return
		}
		fetches.EachRecord(func(record *kgo.Record) {
			if end, open := left[record.Partition]; open && record.Offset+1 >= end {
				delete(left, record.Partition)
			}
			if keyOfWhole(string(record.Key)) != key || record.Attrs.IsControl() {
				return
			}
			if err := attempt(func() {
				if value, whole := joiner.Feed(string(record.Key), record.Value); whole && value != nil {
					names.read(value)
				}
			}); err != nil { // another one may be the right one
				log.Printf("a dictionary at offset %d cannot be read: %v", record.Offset, err)
			}
		})
	}
}

type listing = func(context.Context, ...string) (kadm.ListedOffsets, error)

// listed asks until it has an answer for every partition.
func listed(topic string, list listing) map[int32]kadm.ListedOffset {
	for {
		listed, err := list(context.Background(), topic)
		if offsets := listed[topic]; err == nil && listed.Error() == nil && len(offsets) > 0 {
			return offsets
		}
		log.Printf("no topic %s yet (%v)", topic, cmp.Or(err, listed.Error()))
		time.Sleep(time.Second)
	}
}

// partitionOf is the partition of a key [GRAMMAR 2].
func partitionOf(key string, partitions int) int32 {
	owner := &kgo.Record{Key: []byte(strings.TrimSuffix(keyOfWhole(key), "||names"))}
	return int32(kgo.StickyKeyPartitioner(nil).ForTopic("").Partition(owner, partitions)) // Java's murmur2
}
