package main

// Events to Kafka, records from it, and how far the reader is behind.

import (
	"bytes"
	"cmp"
	"context"
	"log"
	"os"
	"strconv"
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

// layoutCheck says how often we look whether our topic has grown: MUSTER_LAYOUT_CHECK_MS, a minute.
func layoutCheck() time.Duration {
	if ms, err := strconv.Atoi(os.Getenv("MUSTER_LAYOUT_CHECK_MS")); err == nil {
		return time.Duration(ms) * time.Millisecond
	}
	return time.Minute
}

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
}

// connect stands at the end of our partition: what answers a join is written after it.
func connect(w *Worker, servers string) (*Link, error) {
	keys, err := openKeyring(os.Getenv("MUSTER_SIGNING_KEYS"))
	if err != nil {
		return nil, err
	}
	// Keyed records go where the Java client puts them; acks=all and idempotence are the defaults.
	kafka, err := kgo.NewClient(kgo.SeedBrokers(servers), kgo.ProducerLinger(0), kgo.FetchMaxWait(5*time.Second))
	if err != nil {
		return nil, err
	}
	l := &Link{w: w, kafka: kafka, admin: kadm.NewClient(kafka), keys: keys, key: w.group + "|" + w.member}
	w.send = l.send
	l.partition, l.position = find(assignments, l.key, l.admin.ListEndOffsets)
	l.read(kgo.NewOffset().At(l.position))
	go l.follow()
	go l.watchLayout()
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
				if err == nil && counts && w.newest != nil {
					w.heardMs = max(w.heardMs, atMs)
					w.renew()
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
	go l.askEnd(l.partition, atMs)
}

func (l *Link) askEnd(partition int32, atMs int64) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	listed, err := l.admin.ListEndOffsets(ctx, assignments)
	end, found := listed.Lookup(assignments, partition)
	l.w.inbox <- func() {
		// One that was asked about before is to be reached first.
		if err == nil && found && end.Err == nil && l.endMs == 0 && partition == l.partition {
			l.end, l.endMs = end.Offset, atMs
		}
		l.reached(l.partition, l.position)
	}
}

// reached notes how far a partition has been read.
func (l *Link) reached(partition int32, position int64) {
	if partition != l.partition {
		return // it was ours before
	}
	l.position = position
	if l.endMs > 0 && position >= l.end {
		l.w.caughtUp(l.endMs)
		l.endMs = 0
	}
}

func (l *Link) read(from kgo.Offset) {
	l.kafka.AddConsumePartitions(map[string]map[int32]kgo.Offset{assignments: {l.partition: from}})
}

// watchLayout looks whether our key belongs to another partition since the topic has more.
func (l *Link) watchLayout() {
	for range time.Tick(layoutCheck()) {
		partition, _ := find(assignments, l.key, l.admin.ListStartOffsets)
		l.w.inbox <- func() { l.moveTo(partition) }
	}
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
		return func() { l.w.lose("let go by the coordinator") }
	}
	a := readAssignment(value)
	if a.Dictionary != 0 && names[a.Dictionary] == nil {
		l.readNames(names)
	}
	a.readSets(names)
	return func() { l.w.hear(a) }
}

// readNames looks the group's dictionaries up.
func (l *Link) readNames(names Names) {
	key, joiner := l.w.group+"||names", Joiner{}
	partition, end := find(groups, key, l.admin.ListEndOffsets)
	_, next := find(groups, key, l.admin.ListStartOffsets)
	at := map[string]map[int32]kgo.Offset{groups: {partition: kgo.NewOffset().AtStart()}}
	reader, err := kgo.NewClient(append(l.kafka.Opts(), kgo.ConsumePartitions(at))...)
	check(err == nil, "no client: %v", err)
	defer reader.Close()
	for next < end {
		reader.PollFetches(context.Background()).EachRecord(func(record *kgo.Record) {
			next = record.Offset + 1
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
	for {
		listed, err := list(context.Background(), topic)
		if found := listed[topic]; err == nil && listed.Error() == nil && len(found) > 0 {
			partition := partitionOf(key, len(found))
			return partition, found[partition].Offset
		}
		log.Printf("no topic %s yet (%v)", topic, cmp.Or(err, listed.Error()))
		time.Sleep(time.Second)
	}
}
