// A muster worker in Go, from protocol/GRAMMAR.md alone (sections in brackets): joins a group,
// heartbeats, takes and gives up tasks, fences itself. A task here is a goroutine; put your work
// into run.
//
//	go run . GROUP HOST:PORT [MEMBER]   starts and stops go to standard output as JSON
//	go test .                           checks the codec on protocol/vectors
//
// Linux, for its boot-time clock.
package main

import (
	"bytes"
	"cmp"
	"compress/zlib"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"math/bits"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unicode/utf8"
	"unsafe"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

var prefix = cmp.Or(os.Getenv("MUSTER_TOPIC_PREFIX"), "muster")

const active, standby, learner, ready, releasing = 1, 2, 3, 4, 5

var roles = map[int]string{active: "active", standby: "standby", learner: "learner"}

// ------------------------------------------------------------------------------------ the work

// run is the work. It ends soon after ctx is done, and asks for the lease before it touches
// anything. Generation and epoch of given are fencing tokens for the outside world.
func (w *Worker) run(ctx context.Context, held Held, given *Assignment) {
	for ctx.Err() == nil && bootMs() < w.lease.Load() {
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// ----------------------------------------------------------------------------------- bytes [3]

var frames = map[string]string{
	"Join": "\xc3\x01\x3b\x83\x4d\xd0\x0c\x14\x83\xf0", "Report": "\xc3\x01\xcd\x5c\x45\x24\x16\x20\xde\xf1",
	"Heartbeat": "\xc3\x01\x84\xd7\xc1\xae\x25\xd0\xc2\x2b", "Leave": "\xc3\x01\xb6\xed\x0e\xf0\xd7\x7c\x19\xa9",
	"MemberAssignment": "\xc3\x01\x83\xa7\x06\x3d\x7e\xec\xcd\xd7", "Dictionary": "\xc3\x01\xed\x27\x7f\x4d\x4d\x88\x71\xa9",
	"Packed": "\xc3\x01\x1d\x98\x8c\xe4\xa2\x67\xa7\x31", "Part": "\xc3\x01\x3d\x34\xd0\xb9\x69\x21\x61\x8b",
}

const tasksMax, valueMax = 4_194_304, 64 << 20

func is(value []byte, schema string) bool { return bytes.HasPrefix(value, []byte(frames[schema])) }

// check panics with a problem; read turns that into its error.
func check(good bool, problem string, more ...any) {
	if !good {
		panic(fmt.Errorf(problem, more...))
	}
}

type reader struct {
	data []byte
	at   int
}

func read(value []byte, schema string, body func(*reader)) (err error) {
	defer func() {
		if thrown := recover(); thrown != nil {
			var known bool
			if err, known = thrown.(error); !known {
				panic(thrown)
			}
		}
	}()
	check(is(value, schema), "not a %s", schema)
	r := &reader{value, len(frames[schema])}
	body(r)
	r.end()
	return nil
}

func (r *reader) end() { check(r.at == len(r.data), "%d bytes left over", len(r.data)-r.at) }

func (r *reader) take(count int) []byte {
	check(count >= 0 && count <= len(r.data)-r.at, "%d bytes wanted, %d left", count, len(r.data)-r.at)
	r.at += count
	return r.data[r.at-count : r.at]
}

func (r *reader) unsigned(bytesMax int) uint64 {
	value, size := binary.Uvarint(r.data[r.at:])
	check(size > 0 && size <= bytesMax, "no number at byte %d", r.at)
	r.at += size
	return value
}

func (r *reader) long() int64 {
	value := r.unsigned(10)
	return int64(value>>1) ^ -int64(value&1)
}

func (r *reader) bytes() []byte {
	size := r.long()
	check(size >= 0 && size <= int64(len(r.data)), "a length of %d", size)
	return r.take(int(size))
}

func (r *reader) byte() byte    { return r.take(1)[0] }
func (r *reader) varint() int64 { return int64(r.unsigned(5)) }
func (r *reader) u64() uint64   { return binary.LittleEndian.Uint64(r.take(8)) }
func (r *reader) bool() bool    { return r.byte() != 0 }
func (r *reader) extras()       { r.list(func() { r.text(); r.bytes() }) }

func (r *reader) text() string {
	value := r.bytes()
	check(utf8.Valid(value), "text that is not UTF-8")
	return string(value)
}

func (r *reader) list(item func()) {
	for count := r.long(); count != 0; count = r.long() {
		if count < 0 {
			count = -count
			r.long()
		}
		check(count > 0 && count <= int64(len(r.data)), "a list of %d", count)
		for ; count > 0; count-- {
			item()
		}
	}
}

func (r *reader) units() (units []Unit) {
	r.list(func() {
		unit := Unit{r.text(), r.long()}
		check(unit.label != "" && unit.size >= 0 && unit.size < 1<<31, "unit %q of %d", unit.label, unit.size)
		units = append(units, unit)
	})
	return units
}

func long(value int64) []byte {
	return binary.AppendUvarint(nil, uint64(value<<1)^uint64(value>>63))
}
func u64(value uint64) []byte     { return binary.LittleEndian.AppendUint64(nil, value) }
func sized(value []byte) []byte   { return append(long(int64(len(value))), value...) }
func text(value string) []byte    { return sized([]byte(value)) }
func zeros(count int) []byte      { return make([]byte, count) }
func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// ----------------------------------------------------------------- units and task sets [5]

type Unit struct {
	label string
	size  int64
}

// Task is a task: its unit's label and its number, -1 for a connector itself.
type Task struct {
	label  string
	number int64
}

func (t Task) String() string {
	if t.number < 0 {
		return strings.TrimSuffix(t.label, "-")
	}
	return fmt.Sprintf("%s%d", t.label, t.number)
}

// first is 1 where position 0 is the connector itself.
func first(label string) int64 {
	if strings.HasSuffix(label, "-") {
		return 1
	}
	return 0
}

func readSet(data []byte, units []Unit) (tasks []Task) {
	if len(data) == 0 {
		return nil
	}
	r := &reader{data: data}
	codec := r.byte()
	check(codec == 1 || codec == 2, "set codec %d", codec)
	segments := [][]Unit{units}
	if codec == 2 {
		segments = slices.Collect(slices.Chunk(units, 1))
	}
	for _, of := range segments {
		total := int64(0)
		for _, unit := range of {
			total += unit.size
		}
		unit, start := 0, int64(0)
		for _, position := range r.segment(total) {
			for ; position >= start+of[unit].size; unit++ {
				start += of[unit].size
			}
			label := of[unit].label
			tasks = append(tasks, Task{label, position - start - first(label)})
		}
	}
	r.end()
	return tasks
}

func (r *reader) segment(size int64) (found []int64) {
	form := r.byte()
	switch form &^ 0x80 {
	case 0:
	case 1:
		n, k, m := r.varint(), r.byte(), r.byte()
		bit, at := r.bits(), int64(-1)
		skips, lengths := r.rice(bit, n, k), r.rice(bit, n, m)
		for i, skip := range skips {
			at += skip + 1
			end := at + lengths[i] + 1
			check(end <= size && int64(len(found))+end-at <= tasksMax, "a range up to %d of %d", end, size)
			for ; at < end; at++ {
				found = append(found, at)
			}
		}
	case 2:
		n, at := r.varint(), r.varint()
		check(n > 0, "no gaps")
		found = append(found, at)
		if n > 1 {
			base, k := r.varint(), r.byte()
			for _, gap := range r.rice(r.bits(), n-1, k) {
				at += 1 + base + gap
				found = append(found, at)
			}
		}
	case 3:
		found = r.triplets(size)
	case 4:
		for bit, at := r.bits(), int64(0); at < size; at++ {
			if bit() == 1 {
				found = append(found, at)
			}
		}
	default:
		check(false, "form %d", form)
	}
	check(len(found) == 0 || found[len(found)-1] < size, "a position beyond %d", size)
	if form&0x80 == 0 {
		return found
	}
	check(size <= tasksMax, "all but some of %d tasks", size)
	rest, next := []int64{}, 0
	for at := int64(0); at < size; at++ {
		if next < len(found) && found[next] == at {
			next++
		} else {
			rest = append(rest, at)
		}
	}
	return rest
}

func (r *reader) triplets(size int64) (found []int64) {
	count := (size + 2) / 3
	check(count <= int64(len(r.data))*4, "%d triplets in %d bytes", count, len(r.data))
	bit, symbols := r.bits(), make([]int, count)
	for i := range symbols {
		symbols[i] = bit() | bit()<<1
	}
	for i, class := range symbols {
		if class != 0 {
			symbols[i] = class*2 - 1 + bit()
		}
	}
	members := [8]int{0, 0b001, 0b010, 0b100, 0b011, 0b101, 0b110, 0b111}
	for i, symbol := range symbols {
		if symbol == 6 {
			symbol += bit()
		}
		for j := range 3 {
			if members[symbol]>>j&1 == 1 {
				found = append(found, int64(3*i+j))
			}
		}
	}
	return found
}

// bits reads bits from the lowest up; the reader moves on by whole bytes.
func (r *reader) bits() func() int {
	octet, left := 0, 0
	return func() int {
		if left == 0 {
			octet, left = int(r.byte()), 8
		}
		bit := octet & 1
		octet >>= 1
		left--
		return bit
	}
}

func (r *reader) rice(bit func() int, n int64, k byte) []int64 {
	check(n <= tasksMax && k <= 32 && (k == 32 || n <= int64(len(r.data))*8), "%d values of Rice %d", n, k)
	values := make([]int64, n)
	if k == 32 {
		return values
	}
	for i := range values {
		for bit() == 0 {
			values[i]++
		}
	}
	for i := range values {
		low := 0
		for j := range k {
			low |= bit() << j
		}
		values[i] = values[i]<<k | int64(low)
	}
	return values
}

// writeSets gives the units of some sets, and each set in the form of gaps over all units.
func writeSets(sets ...[]Task) (units []Unit, values [][]byte) {
	for _, task := range slices.Concat(sets...) {
		size := task.number + first(task.label) + 1
		if i := slices.IndexFunc(units, func(u Unit) bool { return u.label == task.label }); i >= 0 {
			units[i].size = max(units[i].size, size)
		} else {
			units = append(units, Unit{task.label, size})
		}
	}
	slices.SortFunc(units, func(a, b Unit) int { return cmp.Compare(a.label, b.label) })
	starts, total := map[string]int64{}, int64(0)
	for _, unit := range units {
		starts[unit.label] = total + first(unit.label)
		total += unit.size
	}
	for _, set := range sets {
		positions := []int64{}
		for _, task := range set {
			positions = append(positions, starts[task.label]+task.number)
		}
		slices.Sort(positions)
		values = append(values, gaps(positions))
	}
	return units, values
}

func gaps(positions []int64) []byte {
	n := len(positions)
	if n == 0 {
		return nil
	}
	out := binary.AppendUvarint([]byte{1, 2}, uint64(n))
	out = binary.AppendUvarint(out, uint64(positions[0]))
	if n == 1 {
		return out
	}
	k := max(0, bits.Len64(uint64(positions[n-1]-positions[0])/uint64(n-1))-1)
	var high, low []byte // a byte for every bit
	for i := 1; i < n; i++ {
		gap := positions[i] - positions[i-1] - 1
		high = append(append(high, zeros(int(gap>>k))...), 1)
		for j := range k {
			low = append(low, byte(gap>>j&1))
		}
	}
	line := append(high, low...)
	packed := zeros((len(line) + 7) / 8)
	for i, bit := range line {
		packed[i/8] |= bit << (i % 8)
	}
	return join(out, []byte{0, byte(k)}, packed) // base 0
}

// -------------------------------------------------------------------- what a member writes

// joinValue: no instance id, rack or tags, capacity 1, empty hands; it can wait for a learner
// before it gives up a task.
func joinValue(member string, session uint64) []byte {
	return join([]byte(frames["Join"]), text(member), u64(session), zeros(2), long(1), zeros(13), []byte{1, 0})
}

func reportValue(member string, session uint64, epoch, revision int64, held map[int][]Task) []byte {
	units, sets := writeSets(held[active], held[standby], held[learner], held[ready], held[releasing])
	value := join([]byte(frames["Report"]), text(member), u64(session), long(epoch), long(revision))
	if len(units) > 0 {
		value = append(value, long(int64(len(units)))...)
	}
	for _, unit := range units {
		value = join(value, text(unit.label), long(unit.size))
	}
	value = append(value, 0)
	for _, set := range sets {
		value = append(value, sized(set)...)
	}
	return append(value, 0, 0) // no lags, no extras
}

func heartbeatValue(member string, epoch int64, digest uint64) []byte {
	return join([]byte(frames["Heartbeat"]), text(member), long(epoch), u64(digest))
}

func leaveValue(member string, session uint64) []byte {
	return join([]byte(frames["Leave"]), text(member), u64(session), zeros(2))
}

// --------------------------------------------------------------------- what a member reads

// Assignment is everything the member should hold.
type Assignment struct {
	Incarnation                                   uint64
	CoordinatorEpoch, Generation, Epoch, Revision int64
	Tasks                                         map[int][]Task // by role
	Report                                        bool
	Fault, Message                                string
	SessionTimeoutMs, HeartbeatIntervalMs         int64
}

func (a *Assignment) wanted() map[Held]bool {
	wanted := map[Held]bool{}
	for role, tasks := range a.Tasks {
		for _, task := range tasks {
			wanted[Held{task, role}] = true
		}
	}
	return wanted
}

// UnknownDictionary asks for the dictionary of a version [6].
type UnknownDictionary struct{ version uint64 }

func (u UnknownDictionary) Error() string { return fmt.Sprintf("no dictionary %016x", u.version) }

func readAssignment(value []byte, names map[uint64][]Unit) (*Assignment, error) {
	a := &Assignment{Tasks: map[int][]Task{}}
	err := read(value, "MemberAssignment", func(r *reader) {
		a.Incarnation = r.u64()
		a.CoordinatorEpoch, a.Generation, a.Epoch, a.Revision = r.long(), r.long(), r.long(), r.long()
		version, referred := uint64(0), r.long() != 0
		if referred {
			version = r.u64()
		}
		units := r.units()
		sets := [][]byte{r.bytes(), r.bytes(), r.bytes()}
		a.Report, a.Fault = r.bool(), r.text()
		a.SessionTimeoutMs, a.HeartbeatIntervalMs, a.Message = r.long(), r.long(), r.text()
		r.extras()
		if referred {
			var known bool
			if units, known = names[version]; !known {
				panic(error(UnknownDictionary{version}))
			}
		}
		for i, set := range sets {
			a.Tasks[active+i] = readSet(set, units)
		}
	})
	return a, err
}

func readDictionary(value []byte) (version uint64, units []Unit, err error) {
	if is(value, "Packed") {
		err = read(value, "Packed", func(r *reader) {
			size, deflated := r.long(), r.bytes()
			check(size >= 0 && size <= 32*int64(len(deflated)), "%d bytes in %d", size, len(deflated))
			stream, broken := zlib.NewReader(bytes.NewReader(deflated))
			check(broken == nil, "no zlib stream: %v", broken)
			value, broken = io.ReadAll(io.LimitReader(stream, size+1))
			check(broken == nil && int64(len(value)) == size, "not %d bytes: %v", size, broken)
		})
	}
	if err == nil {
		err = read(value, "Dictionary", func(r *reader) {
			version, units = r.u64(), r.units()
			r.extras()
		})
	}
	return version, units, err
}

// Joiner puts the parts of split records together [4], by the key of the whole.
type Joiner map[string]*pending

type pending struct {
	id     uint64
	slices map[int64][]byte
}

// Feed takes a record; whole says that value is one again. A value of nil is a tombstone.
func (j Joiner) Feed(key string, value []byte) (joined []byte, whole bool, err error) {
	name := keyOfWhole(key)
	if !is(value, "Part") {
		if name != key {
			return nil, false, nil // a tombstone that tidies up a part
		}
		delete(j, name)
		return value, true, nil
	}
	err = read(value, "Part", func(r *reader) {
		id, index, count, size, slice := r.u64(), r.long(), r.long(), r.long(), r.bytes()
		check(index >= 0 && index < count && count <= size && size <= valueMax && len(slice) > 0,
			"part %d of %d of %d bytes", index, count, size)
		if j[name] == nil || j[name].id != id {
			j[name] = &pending{id, map[int64][]byte{}}
		}
		found := j[name].slices
		if found[index] = slice; int64(len(found)) < count {
			return
		}
		delete(j, name)
		for i := range count {
			joined = append(joined, found[i]...)
		}
		sum := sha256.Sum256(joined)
		check(int64(len(joined)) == size && binary.LittleEndian.Uint64(sum[:]) == id, "parts of something else")
		whole = true
	})
	return joined, whole, err
}

// ------------------------------------------------------------------- keys [2], digest [7]

func murmur2(data []byte) uint32 {
	const m = 0x5bd1e995
	h := 0x9747b28c ^ uint32(len(data))
	for ; len(data) >= 4; data = data[4:] {
		k := binary.LittleEndian.Uint32(data) * m
		h = h*m ^ (k^k>>24)*m
	}
	if len(data) > 0 {
		h = (h ^ binary.LittleEndian.Uint32(append(slices.Clone(data), 0, 0, 0))) * m
	}
	h = (h ^ h>>13) * m
	return h ^ h>>15
}

func keyOfWhole(key string) string {
	fields := strings.SplitN(key, "|", 3)
	switch {
	case len(fields) < 3:
		return key
	case fields[1] != "":
		return fields[0] + "|" + fields[1]
	case fields[2] == "names" || strings.HasPrefix(fields[2], "names."):
		return fields[0] + "||names"
	}
	return fields[0]
}

func partitionOf(key string, partitions int) int32 {
	key = strings.TrimSuffix(keyOfWhole(key), "||names")
	return int32((murmur2([]byte(key)) & 0x7fffffff) % uint32(partitions))
}

func digestOf(task Task, role int) uint64 {
	name := uint64(0xcbf29ce484222325)
	for _, octet := range []byte(task.label) {
		name = (name ^ uint64(octet)) * 0x100000001b3
	}
	x := name + uint64(task.number+1)*0x9e3779b97f4a7c15 + uint64(role)*0xd1b54a32d192ed03
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// ------------------------------------------------------------------------------- the talk [8]

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
	admin := kadm.NewClient(w.kafka)
	// Stand at the end before the join: its answer is written after it.
	partition, end := w.find(topic, key, admin.ListEndOffsets)
	w.position = end
	w.kafka.AddConsumePartitions(map[string]map[int32]kgo.Offset{
		topic: {partition: kgo.NewOffset().At(w.position)}})
	w.lookAtEnd = func(atMs int64) {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		listed, err := admin.ListEndOffsets(ctx, topic)
		if end, found := listed.Lookup(topic, partition); err == nil && found && end.Err == nil {
			w.inbox <- End{end.Offset, atMs}
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
			w.send("Leave", leaveValue(w.member, w.session))
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
		if w.held[given.Held] != given.what {
			return // lost meanwhile
		}
		if !given.what.leaving {
			w.lose(given.Task.String()+" ended by itself", true)
			return
		}
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
			w.send("Leave", leaveValue(w.member, w.previous))
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
	for role := range roles {
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
		w.send("Leave", leaveValue(w.member, old))
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
	held, wanted := map[int][]Task{}, w.newest.wanted()
	for h, running := range w.held {
		held[h.Role] = append(held[h.Role], h.Task)
		if running.leaving && !wanted[h] {
			held[releasing] = append(held[releasing], h.Task)
		}
		if h.Role == learner && w.ready[h.Task] {
			held[ready] = append(held[ready], h.Task)
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
type Stopped struct {
	Held
	what *Running
}

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
		w.inbox <- Stopped{held, running}
	}(w.newest)
	if held.Role == learner { // nothing to restore here
		w.ready[held.Task] = true
		w.report()
	}
}

func (w *Worker) stop(held Held) {
	running := w.held[held]
	running.leaving = true
	running.stop()
	delete(w.ready, held.Task)
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
	admin := kadm.NewClient(w.kafka)
	partition, end := w.find(topic, key, admin.ListEndOffsets)
	_, next := w.find(topic, key, admin.ListStartOffsets)
	at := map[string]map[int32]kgo.Offset{topic: {partition: kgo.NewOffset().AtStart()}}
	reader, err := kgo.NewClient(append(w.kafka.Opts(), kgo.ConsumePartitions(at))...)
	if err != nil {
		log.Print(err)
		return
	}
	defer reader.Close()
	for joiner := (Joiner{}); next < end; {
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

// find gives the partition of a key, and where it ends or begins.
func (w *Worker) find(topic, key string, list listing) (int32, int64) {
	for {
		listed, err := list(context.Background(), topic)
		if err == nil {
			err = listed.Error()
		}
		if found := listed[topic]; err == nil && len(found) > 0 {
			partition := partitionOf(key, len(found))
			return partition, found[partition].Offset
		}
		log.Printf("no topic %s yet (%v)", topic, err)
		time.Sleep(time.Second)
	}
}

type listing = func(context.Context, ...string) (kadm.ListedOffsets, error)
