// A muster worker in Go, from protocol/GRAMMAR.md alone: joins a group, heartbeats, takes and gives
// up tasks, fences itself. A task here is a goroutine that ticks; put your work into run.
//
//	go run . GROUP HOST:PORT [MEMBER]     starts and stops go to standard output as JSON
//	go test .                             checks the codec on protocol/vectors
//
// wire.go holds the bytes, this file the talk. Linux, for its boot-time clock.
package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// prefix of muster's topics.
var prefix = cmp.Or(os.Getenv("MUSTER_TOPIC_PREFIX"), "muster")

// bootMs is milliseconds since boot, time asleep included: leases are measured on it.
func bootMs() int64 {
	var at syscall.Timespec
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, 7, uintptr(unsafe.Pointer(&at)), 0)
	return at.Nano() / 1e6
}

// Held is a task we have, in one role.
type Held struct {
	Task Task
	Role int
}

// Running is what runs for a task, and how to end it.
type Running struct {
	stop    context.CancelFunc
	done    chan struct{}
	leaving bool // told to stop, and not yet stopped
}

// Sent is an event on its way; the lease counts from when it was decided.
type Sent struct {
	session uint64
	atMs    int64
	beat    bool
	ok      bool
}

// Worker is one member. All fields belong to the loop, but for lease.
type Worker struct {
	group, member string
	kafka         *kgo.Client
	inbox         chan any
	names         map[uint64][]Unit
	joiner        Joiner

	session    uint64      // incarnation
	newest     *Assignment // obeyed; nil = not a member
	seen       [2]int64    // newest (coordinator epoch, revision)
	held       map[Held]*Running
	ready      map[Task]bool
	lease      atomic.Int64
	heardMs    int64 // when the newest acknowledged event was sent
	readMs     int64 // by when all that was written to us has been read
	position   int64 // how far our partition has been read
	ends       []End // where it ended, when we asked, beyond position
	sentMs     int64
	beating    bool // a heartbeat is on its way
	owesReport bool
	joinAtMs   int64
	firstMs    int64
	attempts   int
	previous   uint64 // an older session that may still be counted
	leaving    bool
	lookAtEnd  func(atMs int64)
}

func main() {
	log.SetFlags(log.Lmicroseconds)
	if len(os.Args) < 3 {
		log.Fatal("usage: worker GROUP HOST:PORT [MEMBER]")
	}
	var id [16]byte
	rand.Read(id[:])
	member := base64.RawURLEncoding.EncodeToString(id[:])
	if len(os.Args) > 3 {
		member = os.Args[3]
	}
	newWorker(os.Args[1], member, os.Args[2]).loop()
}

func newWorker(group, member, servers string) *Worker {
	w := &Worker{group: group, member: member, inbox: make(chan any, 1000),
		held: map[Held]*Running{}, ready: map[Task]bool{}, names: map[uint64][]Unit{},
		joiner: Joiner{}, seen: [2]int64{-1, -1}}
	// Keyed records go where the Java client puts them; acks=all and idempotence are the defaults.
	kafka, err := kgo.NewClient(kgo.SeedBrokers(servers), kgo.ProducerLinger(0), kgo.FetchMaxWait(5*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	w.kafka = kafka
	return w
}

// ------------------------------------------------------------------------------------- the loop

func (w *Worker) loop() {
	topic := prefix + ".assignments"
	key := w.group + "|" + w.member
	partition := partitionOf(key, w.partitions(topic))
	// Stand at the end before the join: its answer is written after it.
	w.position = w.offset(topic, partition, -1)
	w.kafka.AddConsumePartitions(map[string]map[int32]kgo.Offset{
		topic: {partition: kgo.NewOffset().At(w.position)}})
	w.lookAtEnd = func(atMs int64) {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if end, err := w.askOffset(ctx, topic, partition, -1); err == nil {
			w.inbox <- End{end, atMs}
		}
	}
	go w.read(key)
	told := make(chan os.Signal, 2)
	signal.Notify(told, syscall.SIGTERM, os.Interrupt)
	w.join()
	for {
		select {
		case sig := <-told:
			log.Printf("%s: leaving", sig)
			w.leave()
		case given := <-w.inbox:
			if sent, ok := given.(Sent); ok { // what Kafka acknowledged before a freeze counts
				w.acknowledged(sent)
				continue
			}
			w.checkLease()
			w.take(given)
		case <-time.After(w.pause()):
			w.checkLease()
		}
		w.tick()
		if w.leaving && len(w.held) == 0 {
			w.send("Leave", leaveValue(w.member, w.session, false))
			w.kafka.Flush(context.Background())
			return
		}
	}
}

func (w *Worker) take(given any) {
	switch given := given.(type) {
	case End:
		w.ends = append(w.ends, given)
		w.catchUp()
	case ReadTo:
		w.position = int64(given)
		w.catchUp()
	case Stopped:
		delete(w.held, given.Held)
		if w.newest != nil && !w.leaving {
			w.settle() // something may have waited for its other role to stop
		}
	case *Assignment:
		w.hear(given)
	case Gone:
		if w.newest != nil {
			w.lose("let go by the coordinator", false)
		}
	}
}

// hear acts on a record, if it is news.
func (w *Worker) hear(a *Assignment) {
	mine := a.Incarnation == w.session || a.Fault != "" && a.Incarnation == 0
	order := [2]int64{a.CoordinatorEpoch, a.Revision}
	old := order[0] < w.seen[0] || a.Fault == "" && !(order[0] > w.seen[0] || order[1] > w.seen[1])
	if !mine || old {
		if mine && a.Report && order == w.seen && w.newest != nil {
			w.report()
		}
		return
	}
	if a.Fault != "" {
		w.fault(a)
		return
	}
	if w.newest == nil {
		w.heardMs = w.firstMs
	}
	w.newest, w.seen = a, order
	if w.leaving {
		return
	}
	w.renew()
	if w.checkLease() {
		return
	}
	w.settle()
	if a.Report {
		w.report()
	}
}

func (w *Worker) fault(a *Assignment) {
	log.Printf("%s: %s", a.Fault, a.Message)
	switch a.Fault {
	case "UNKNOWN_MEMBER_ID", "FENCED_MEMBER_EPOCH":
		if w.newest != nil {
			w.lose(a.Fault, false)
		}
	case "MEMBER_ID_IN_USE", "UNRELEASED_INSTANCE_ID", "GROUP_MAX_SIZE_REACHED":
		// Asked again when it is time; at once if it is our own older session that stands in the way.
		if w.newest == nil && w.previous != 0 {
			w.send("Leave", leaveValue(w.member, w.previous, false))
			w.previous, w.joinAtMs = 0, bootMs()
		}
	case "FENCED_INSTANCE_ID":
		w.stopAll()
		log.Fatal(a.Message)
	default:
		if w.newest == nil {
			log.Fatal(a.Message)
		}
		w.lose(a.Fault, false)
	}
}

// settle gives up what is beyond the assignment and takes what it adds.
func (w *Worker) settle() {
	wanted := w.newest.wanted()
	stopping := false
	for held, running := range w.held {
		if !wanted[held] && !running.leaving {
			w.owesReport = true
			w.stop(held)
		}
		stopping = stopping || running.leaving
	}
	for held := range wanted {
		if !w.holds(held.Task) {
			w.start(held)
		}
	}
	if w.owesReport && !stopping {
		w.owesReport = false
		w.report()
	}
}

func (w *Worker) holds(task Task) bool {
	for role := 1; role <= 3; role++ {
		if w.held[Held{task, role}] != nil {
			return true
		}
	}
	return false
}

// tick writes what is due by the clock.
func (w *Worker) tick() {
	now := bootMs()
	if w.newest == nil {
		if now >= w.joinAtMs && !w.leaving {
			w.join()
		}
		return
	}
	if !w.beating && now >= w.sentMs+w.newest.HeartbeatIntervalMs {
		w.beating = true
		w.send("Heartbeat", heartbeatValue(w.member, w.newest.Epoch, w.digest()))
	}
}

func (w *Worker) pause() time.Duration {
	due := w.joinAtMs
	if w.newest != nil {
		due = w.lease.Load()
		if beat := w.sentMs + w.newest.HeartbeatIntervalMs; !w.beating && beat < due {
			due = beat
		}
	}
	// A second at most: a machine that slept is noticed soon.
	return time.Duration(max(0, min(due-bootMs(), 1000))) * time.Millisecond
}

// ------------------------------------------------------------------------------------- the lease

func (w *Worker) acknowledged(sent Sent) {
	if sent.session != w.session {
		return
	}
	w.beating = w.beating && !sent.beat
	// Until the first answer the lease counts from the first join: a process that slept while it
	// joined may read an answer to what it asked before.
	if sent.ok && w.newest != nil && sent.atMs > w.heardMs {
		w.heardMs = sent.atMs
		w.renew()
	}
}

// catchUp takes note of the ends that have been reached: a member that is heard but does not read
// must stop, too.
func (w *Worker) catchUp() {
	open := w.ends[:0]
	for _, end := range w.ends {
		if end.offset <= w.position {
			w.readMs = max(w.readMs, end.askedMs)
		} else {
			open = append(open, end)
		}
	}
	w.ends = open[max(0, len(open)-64):]
	w.renew()
}

// renew: 1 % is kept for clocks that run apart, a tenth, at most 3 s, for stopping.
func (w *Worker) renew() {
	if w.newest != nil {
		timeout := w.newest.SessionTimeoutMs
		w.lease.Store(min(w.heardMs, w.readMs) + timeout*99/100 - min(3000, timeout/10))
	}
}

func (w *Worker) checkLease() bool {
	over := w.newest != nil && bootMs() >= w.lease.Load()
	if over {
		w.lose("the lease ran out", true)
	}
	return over
}

// lose stops everything, then joins anew as somebody else.
func (w *Worker) lose(why string, leaveFirst bool) {
	log.Printf("lost everything: %s", why)
	w.lease.Store(0)
	w.stopAll()
	old := w.session
	w.newest, w.seen[1], w.beating, w.owesReport = nil, -1, false, false
	w.ready = map[Task]bool{}
	w.previous = old
	if leaveFirst {
		w.send("Leave", leaveValue(w.member, old, false))
		w.previous = 0
	}
	w.session, w.attempts = 0, 0
	if !w.leaving {
		w.join()
	}
}

// ------------------------------------------------------------------------------------ the writing

func (w *Worker) join() {
	if w.session == 0 {
		var seed [8]byte
		rand.Read(seed[:])
		w.session = binary.LittleEndian.Uint64(seed[:])>>1 | 1
		w.firstMs = bootMs()
		w.readMs = w.firstMs // nothing is written to a session before its first join
	}
	w.attempts++
	w.joinAtMs = bootMs() + min(int64(1000)<<min(w.attempts-1, 3), 5000)
	w.send("Join", joinValue(w.member, w.session))
}

func (w *Worker) report() {
	held := map[int][]Task{}
	for h, running := range w.held {
		held[h.Role] = append(held[h.Role], h.Task)
		if running.leaving && !w.newest.wanted()[h] {
			held[5] = append(held[5], h.Task)
		}
		if h.Role == 3 && w.ready[h.Task] {
			held[4] = append(held[4], h.Task)
		}
	}
	w.send("Report", reportValue(w.member, w.session, w.newest.Epoch, w.newest.Revision, held))
}

func (w *Worker) digest() (sum uint64) {
	wanted := w.newest.wanted()
	for h, running := range w.held {
		role := h.Role
		if running.leaving && !wanted[h] {
			role += 4
		}
		sum += digestOf(h.Task, role)
	}
	return sum
}

func (w *Worker) send(schema string, value []byte) {
	w.sentMs = bootMs()
	sent := Sent{session: w.session, atMs: w.sentMs, beat: schema == "Heartbeat"}
	record := &kgo.Record{Topic: prefix + ".membership", Key: []byte(w.group), Value: value}
	w.kafka.Produce(context.Background(), record, func(_ *kgo.Record, err error) {
		sent.ok = err == nil && schema != "Leave"
		w.inbox <- sent
	})
	if schema != "Leave" {
		go w.lookAtEnd(w.sentMs)
	}
}

// leave stops everything; the loop writes Leave when it has stopped.
func (w *Worker) leave() {
	w.leaving = true
	for held, running := range w.held {
		if !running.leaving {
			w.stop(held)
		}
	}
}

// ------------------------------------------------------------------------------------- the tasks

// Stopped says that what ran for a task has ended.
type Stopped struct{ Held }

// Gone is a tombstone.
type Gone struct{}

// End says where our partition ended, asked at a moment.
type End struct{ offset, askedMs int64 }

// ReadTo says how far it has been read.
type ReadTo int64

func (w *Worker) start(held Held) {
	ctx, cancel := context.WithCancel(context.Background())
	running := &Running{stop: cancel, done: make(chan struct{})}
	w.held[held] = running
	w.say("start", held, w.newest)
	go func(given *Assignment) {
		w.run(ctx, held, given)
		w.say("stop", held, given)
		close(running.done)
	}(w.newest)
	if held.Role == 3 { // nothing to restore here
		w.ready[held.Task] = true
		w.report()
	}
}

// run is the work. It must end when ctx is done, and asks for the lease before it touches anything.
// generation and epoch are fencing tokens for the outside world.
func (w *Worker) run(ctx context.Context, held Held, given *Assignment) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for bootMs() < w.lease.Load() {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (w *Worker) stop(held Held) {
	running := w.held[held]
	running.leaving = true
	running.stop()
	delete(w.ready, held.Task)
	go func() {
		<-running.done
		w.inbox <- Stopped{held}
	}()
}

func (w *Worker) stopAll() {
	for _, running := range w.held {
		running.stop()
	}
	for _, running := range w.held {
		<-running.done
	}
	w.held = map[Held]*Running{}
}

var saying sync.Mutex

func (w *Worker) say(event string, held Held, given *Assignment) {
	saying.Lock()
	defer saying.Unlock()
	json.NewEncoder(os.Stdout).Encode(map[string]any{
		"event": event, "task": held.Task.String(), "role": roles[held.Role], "member": w.member,
		"incarnation": given.Incarnation, "generation": given.Generation, "epoch": given.Epoch,
		"at_ms": time.Now().UnixMilli(), "boottime_ms": bootMs(),
	})
}

// ------------------------------------------------------------------------------------ the reading

func (w *Worker) read(key string) {
	for {
		fetches := w.kafka.PollFetches(context.Background())
		fetches.EachError(func(topic string, partition int32, err error) {
			log.Printf("%s-%d: %v", topic, partition, err)
		})
		fetches.EachRecord(func(record *kgo.Record) {
			defer func() { w.inbox <- ReadTo(record.Offset + 1) }()
			if keyOfWhole(string(record.Key)) != key {
				return
			}
			value, whole, err := w.joiner.Feed(string(record.Key), record.Value)
			if err == nil && whole && value == nil {
				w.inbox <- Gone{}
			} else if err == nil && whole {
				var given *Assignment
				if given, err = w.decode(value); err == nil {
					w.inbox <- given
				}
			}
			if err != nil {
				log.Printf("a record at offset %d cannot be read: %v", record.Offset, err)
			}
		})
	}
}

// decode looks up the dictionary of the group when it is not known yet.
func (w *Worker) decode(value []byte) (*Assignment, error) {
	given, err := readAssignment(value, w.names)
	if _, unknown := err.(UnknownDictionary); unknown {
		w.readNames()
		given, err = readAssignment(value, w.names)
	}
	return given, err
}

func (w *Worker) readNames() {
	topic, key := prefix+".groups", w.group+"||names"
	partition := partitionOf(key, w.partitions(topic))
	end := w.offset(topic, partition, -1)
	at := map[string]map[int32]kgo.Offset{topic: {partition: kgo.NewOffset().AtStart()}}
	reader, err := kgo.NewClient(append(w.kafka.Opts(), kgo.ConsumePartitions(at))...)
	if err != nil {
		log.Print(err)
		return
	}
	defer reader.Close()
	joiner, next := Joiner{}, w.offset(topic, partition, -2)
	for next < end {
		reader.PollFetches(context.Background()).EachRecord(func(record *kgo.Record) {
			next = record.Offset + 1
			if keyOfWhole(string(record.Key)) != key {
				return
			}
			if value, whole, err := joiner.Feed(string(record.Key), record.Value); err == nil && whole && value != nil {
				if version, units, err := readDictionary(value); err == nil {
					w.names[version] = units
				}
			}
		})
	}
}

func (w *Worker) partitions(topic string) int {
	for {
		request := kmsg.NewPtrMetadataRequest()
		request.Topics = []kmsg.MetadataRequestTopic{{Topic: &topic}}
		answer, err := request.RequestWith(context.Background(), w.kafka)
		if err == nil && len(answer.Topics) == 1 && len(answer.Topics[0].Partitions) > 0 {
			return len(answer.Topics[0].Partitions)
		}
		log.Printf("no topic %s yet (%v)", topic, err)
		time.Sleep(time.Second)
	}
}

// offset of a partition's end (-1) or beginning (-2).
func (w *Worker) offset(topic string, partition int32, which int64) int64 {
	for {
		offset, err := w.askOffset(context.Background(), topic, partition, which)
		if err == nil {
			return offset
		}
		log.Printf("%s-%d does not say where it ends (%v)", topic, partition, err)
		time.Sleep(time.Second)
	}
}

func (w *Worker) askOffset(ctx context.Context, topic string, partition int32, which int64) (int64, error) {
	request := kmsg.NewPtrListOffsetsRequest()
	request.ReplicaID = -1
	request.Topics = []kmsg.ListOffsetsRequestTopic{{Topic: topic, Partitions: []kmsg.ListOffsetsRequestTopicPartition{
		{Partition: partition, CurrentLeaderEpoch: -1, Timestamp: which}}}}
	answer, err := request.RequestWith(ctx, w.kafka)
	if err != nil {
		return 0, err
	}
	asked := answer.Topics[0].Partitions[0]
	return asked.Offset, kerr.ErrorForCode(asked.ErrorCode)
}

func (t Task) String() string { return fmt.Sprint(t.print()) }
