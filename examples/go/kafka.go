package main

// Events to Kafka, records from it, and how far the reader is behind.

import (
	"bytes"
	"cmp"
	"context"
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

// Link is a worker's connection. Its numbers belong to the worker's loop.
type Link struct {
	w          *Worker
	kafka      *kgo.Client
	admin      *kadm.Client
	keys       *Keyring
	key        string // of our records
	partition  int32  // of assignments, where they are
	position   int64  // how far it has been read
	end, endMs int64  // where it ended, and when we asked; 0 = nothing to reach
	unread     bool   // the newest of our records says nothing to us
}

// connect stands at the end of our partition: what answers a join is written after it.
func connect(w *Worker, servers string) (*Link, error) {
	keys, err := openKeyring(os.Getenv("MUSTER_SIGNING_KEYS"))
	if err != nil {
		return nil, err
	}
	// Keyed records go where the Java client puts them; acks=all and idempotence are the defaults.
	// A topic that has grown is to be noticed soon: our key may belong to another partition of it.
	kafka, err := kgo.NewClient(kgo.SeedBrokers(servers), kgo.ProducerLinger(0),
		kgo.FetchMaxWait(5*time.Second), kgo.MetadataMaxAge(10*time.Second))
	if err != nil {
		return nil, err
	}
	l := &Link{w: w, kafka: kafka, admin: kadm.NewClient(kafka), keys: keys, key: w.group + "|" + w.member}
	w.send = l.send
	l.partition, l.position = find(assignments, l.key, l.admin.ListEndOffsets)
	l.read(kgo.NewOffset().At(l.position))
	go l.follow()
	return l, nil
}

func (l *Link) flush() { l.kafka.Flush(context.Background()) }

// send writes an event, and asks at the same moment where our partition ends.
func (l *Link) send(value []byte, counts bool) {
	w, session, atMs := l.w, l.w.session, bootMs()
	w.sentMs = atMs
	done := func(_ *kgo.Record, err error) {
		w.inbox <- func() {
			if session == w.session {
				w.beating = w.beating && !bytes.HasPrefix(value, []byte(heartbeatFrame))
				if err == nil && counts {
					w.acknowledged(atMs)
				}
			}
		}
	}
	record := &kgo.Record{Topic: membership, Key: []byte(w.group), Value: value}
	if err := l.keys.sign(record, time.Now().UnixMilli()); err != nil {
		log.Printf("not written: %v", err)
		go done(record, err)
		return
	}
	l.kafka.Produce(context.Background(), record, done)
	go l.askEnd(atMs)
}

// askEnd asks where our partition ends, and which it is: the topic may have grown.
func (l *Link) askEnd(atMs int64) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	listed, err := l.admin.ListEndOffsets(ctx, assignments)
	l.w.inbox <- func() {
		if found := listed[assignments]; err == nil && listed.Error() == nil && len(found) > 0 {
			l.moveTo(partitionOf(l.key, len(found)))
			if l.endMs == 0 { // one that was asked about before is to be reached first
				l.end, l.endMs = found[l.partition].Offset, atMs
			}
		}
		l.reached(l.partition, l.position)
	}
}

// reached notes how far a partition has been read. A record that cannot be read may take tasks from
// us: until there is another, we have not read all.
func (l *Link) reached(partition int32, position int64) {
	if partition != l.partition {
		return // it was ours before
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

// follow reads our partition.
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

// meaning says what the worker is to do about a record.
func (l *Link) meaning(record *kgo.Record, names Names, joiner Joiner) func() {
	if keyOfWhole(string(record.Key)) != l.key {
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
		l.readNames(names)
	}
	a.readSets(names)
	return func() { l.unread = false; l.w.hear(a) }
}

// readNames looks the group's dictionaries up, in every partition: they are not written again when
// the topic is given more.
func (l *Link) readNames(names Names) {
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
	for len(left) > 0 {
		reader.PollFetches(context.Background()).EachRecord(func(record *kgo.Record) {
			if end, open := left[record.Partition]; open && record.Offset+1 >= end {
				delete(left, record.Partition)
			}
			if keyOfWhole(string(record.Key)) == key {
				if value, whole := joiner.Feed(string(record.Key), record.Value); whole && value != nil {
					names.read(value)
				}
			}
		})
	}
}

type listing = func(context.Context, ...string) (kadm.ListedOffsets, error)

// find gives the partition of a key, and where it ends or begins.
func find(topic, key string, list listing) (int32, int64) {
	found := listed(topic, list)
	partition := partitionOf(key, len(found))
	return partition, found[partition].Offset
}

// listed asks until there is an answer for every partition.
func listed(topic string, list listing) map[int32]kadm.ListedOffset {
	for {
		listed, err := list(context.Background(), topic)
		if found := listed[topic]; err == nil && listed.Error() == nil && len(found) > 0 {
			return found
		}
		log.Printf("no topic %s yet (%v)", topic, cmp.Or(err, listed.Error()))
		time.Sleep(time.Second)
	}
}

// partitionOf is where a record of a key belongs [GRAMMAR 2].
func partitionOf(key string, partitions int) int32 {
	owner := &kgo.Record{Key: []byte(strings.TrimSuffix(keyOfWhole(key), "||names"))}
	return int32(kgo.StickyKeyPartitioner(nil).ForTopic("").Partition(owner, partitions)) // Java's murmur2
}
