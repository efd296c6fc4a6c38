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
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"math/bits"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unicode/utf8"
	"unsafe"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

var (
	prefix      = cmp.Or(os.Getenv("MUSTER_TOPIC_PREFIX"), "muster")
	membership  = prefix + ".membership"
	assignments = prefix + ".assignments"
	groups      = prefix + ".groups"
)

const active, standby, learner = 1, 2, 3

// run is the work. It ends soon after ctx is done, and asks for the lease before it touches
// anything. Generation and epoch of given are fencing tokens for the outside world.
func (w *Worker) run(ctx context.Context, held Held, given *Assignment) {
	for ctx.Err() == nil && bootMs() < w.lease.Load() {
		time.Sleep(20 * time.Millisecond)
	}
}

// -------------------------------------------------------------------------------- values [3, 4]

const ( // the first ten bytes of a value say what it is
	joinFrame       = "\xc3\x01\x3b\x83\x4d\xd0\x0c\x14\x83\xf0"
	reportFrame     = "\xc3\x01\xcd\x5c\x45\x24\x16\x20\xde\xf1"
	heartbeatFrame  = "\xc3\x01\x84\xd7\xc1\xae\x25\xd0\xc2\x2b"
	leaveFrame      = "\xc3\x01\xb6\xed\x0e\xf0\xd7\x7c\x19\xa9"
	assignmentFrame = "\xc3\x01\x83\xa7\x06\x3d\x7e\xec\xcd\xd7"
	dictionaryFrame = "\xc3\x01\xed\x27\x7f\x4d\x4d\x88\x71\xa9"
	packedFrame     = "\xc3\x01\x1d\x98\x8c\xe4\xa2\x67\xa7\x31"
	partFrame       = "\xc3\x01\x3d\x34\xd0\xb9\x69\x21\x61\x8b"
)

// check panics with a problem; attempt turns that into its error.
func check(good bool, problem string, more ...any) {
	if !good {
		panic(fmt.Errorf(problem, more...))
	}
}

func attempt(what func()) (err error) {
	defer func() {
		if thrown := recover(); thrown != nil {
			err = thrown.(error)
		}
	}()
	what()
	return nil
}

// reader takes a value apart, front to back.
type reader struct{ rest []byte }

func open(value []byte, frame string) *reader {
	rest, found := bytes.CutPrefix(value, []byte(frame))
	check(found, "not a value of %x", frame)
	return &reader{rest}
}

func (r *reader) end() { check(len(r.rest) == 0, "%d bytes left over", len(r.rest)) }

func (r *reader) take(count int64) (taken []byte) {
	check(count >= 0 && count <= int64(len(r.rest)), "%d bytes wanted, %d left", count, len(r.rest))
	taken, r.rest = r.rest[:count], r.rest[count:]
	return taken
}

func (r *reader) varint() int64 {
	value, size := binary.Uvarint(r.rest)
	check(size > 0 && size <= 5, "no number where %d bytes are left", len(r.rest))
	r.take(int64(size))
	return int64(value)
}

func (r *reader) long() int64 {
	value, size := binary.Varint(r.rest)
	check(size > 0, "no number where %d bytes are left", len(r.rest))
	r.take(int64(size))
	return value
}

func (r *reader) byte() byte    { return r.take(1)[0] }
func (r *reader) u64() uint64   { return binary.LittleEndian.Uint64(r.take(8)) }
func (r *reader) bytes() []byte { return r.take(r.long()) }

func (r *reader) text() string {
	text := string(r.bytes())
	check(utf8.ValidString(text), "text that is not UTF-8")
	return text
}

// list reads items until a block of none.
func (r *reader) list(item func()) {
	for count := r.long(); count != 0; count = r.long() {
		if count < 0 {
			count = -count
			r.long() // the size of the block
		}
		check(count > 0 && count <= int64(len(r.rest)), "a list of %d", count)
		for range count {
			item()
		}
	}
}

func (r *reader) units() (units []Unit) {
	r.list(func() { units = append(units, Unit{r.text(), r.long()}) })
	return units
}

// extras come last in most records; those that are not known are passed over.
func (r *reader) extras() {
	r.list(func() { r.text(); r.bytes() })
	r.end()
}

// Assignment is what a member should hold.
type Assignment struct {
	Incarnation                                   uint64
	CoordinatorEpoch, Generation, Epoch, Revision int64
	Dictionary                                    uint64 // 0 = names its units itself
	Units                                         []Unit
	Sets                                          [4][]byte // by role
	Report                                        bool
	Fault                                         string
	SessionTimeoutMs, HeartbeatIntervalMs         int64
	Message                                       string
	wanted                                        map[Held]bool // what the sets say
}

func readAssignment(value []byte) *Assignment {
	r := open(value, assignmentFrame)
	a := &Assignment{Incarnation: r.u64(), CoordinatorEpoch: r.long(), Generation: r.long(), Epoch: r.long()}
	a.Revision = r.long()
	if r.long() != 0 {
		a.Dictionary = r.u64()
	}
	a.Units = r.units()
	a.Sets = [...][]byte{active: r.bytes(), standby: r.bytes(), learner: r.bytes()}
	a.Report, a.Fault = r.byte() != 0, r.text()
	a.SessionTimeoutMs, a.HeartbeatIntervalMs, a.Message = r.long(), r.long(), r.text()
	r.extras()
	return a
}

func (a *Assignment) readSets(names Names) {
	units, known := a.Units, true
	if a.Dictionary != 0 {
		units, known = names[a.Dictionary]
	}
	check(known, "no dictionary %x", a.Dictionary)
	a.wanted = map[Held]bool{}
	for role, set := range a.Sets {
		for _, task := range readSet(set, units) {
			a.wanted[Held{task, role}] = true
		}
	}
}

// Names are the dictionaries of the group, by version.
type Names map[uint64][]Unit

func (names Names) read(value []byte) {
	if bytes.HasPrefix(value, []byte(packedFrame)) {
		r := open(value, packedFrame)
		size, deflated := r.long(), r.bytes()
		r.end()
		check(size >= 0 && size <= 32*int64(len(deflated)), "%d bytes from %d", size, len(deflated))
		stream, err := zlib.NewReader(bytes.NewReader(deflated))
		check(err == nil, "no zlib stream: %v", err)
		value, err = io.ReadAll(io.LimitReader(stream, size+1))
		check(err == nil && int64(len(value)) == size, "not %d bytes: %v", size, err)
	}
	r := open(value, dictionaryFrame)
	version, units := r.u64(), r.units()
	r.extras()
	names[version] = units
}

// Joiner puts the parts of split records together, by the key of the whole.
type Joiner map[string]map[int64][]byte

// Feed takes a record; whole says that value is one again. A value of nil is a tombstone.
func (j Joiner) Feed(key string, value []byte) (joined []byte, whole bool) {
	name := keyOfWhole(key)
	if !bytes.HasPrefix(value, []byte(partFrame)) {
		if name == key { // else it tidies up a part
			delete(j, name)
		}
		return value, name == key
	}
	r := open(value, partFrame)
	id, index, count, size, slice := r.u64(), r.long(), r.long(), r.long(), r.bytes()
	r.end()
	fits := index >= 0 && index < count && count <= size && size <= 64<<20 && len(slice) > 0
	check(fits, "part %d of %d of %d bytes", index, count, size)
	const of = -1 // here stands the id that the slices have in common
	if owner := binary.LittleEndian.AppendUint64(nil, id); !bytes.Equal(j[name][of], owner) {
		j[name] = map[int64][]byte{of: owner}
	}
	found := j[name]
	if found[index] = slice; int64(len(found)) <= count {
		return nil, false
	}
	delete(j, name)
	for i := range count {
		joined = append(joined, found[i]...)
	}
	sum := sha256.Sum256(joined)
	check(int64(len(joined)) == size && bytes.Equal(sum[:8], found[of]), "parts of something else")
	return joined, true
}

// ------------------------------------------------------------------------------ task sets [5]

const tasksMax = 4_194_304

type Unit struct {
	Label string
	Size  int64
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
func first(label string) int64 { return int64(strings.Count(label[len(label)-1:], "-")) }

func readSet(data []byte, units []Unit) (tasks []Task) {
	if len(data) == 0 {
		return nil
	}
	check(data[0] == 1 || data[0] == 2, "set codec %d", data[0])
	segments := [][]Unit{units}
	if data[0] == 2 {
		segments = slices.Collect(slices.Chunk(units, 1))
	}
	r := &reader{data[1:]}
	for _, together := range segments {
		total := int64(0)
		for _, unit := range together {
			check(unit.Label != "" && unit.Size >= 0 && unit.Size < 1<<31, "unit %q of %d", unit.Label, unit.Size)
			total += unit.Size
		}
		unit, start := 0, int64(0)
		for _, position := range r.segment(total) {
			for ; position >= start+together[unit].Size; unit++ {
				start += together[unit].Size
			}
			label := together[unit].Label
			tasks = append(tasks, Task{label, position - start - first(label)})
		}
	}
	r.end()
	return tasks
}

// bits gives one bit after the other; the reader moves on by whole bytes.
func (r *reader) bits() func() int64 {
	octet, left := int64(0), 0
	return func() int64 {
		if octet, left = octet>>1, left-1; left < 0 {
			octet, left = int64(r.byte()), 7
		}
		return octet & 1
	}
}

func rice(bit func() int64, n int64, k byte) []int64 {
	check(n >= 0 && n <= tasksMax && k <= 32, "%d values of Rice %d", n, k)
	values := make([]int64, n)
	for i := range values {
		for k < 32 && bit() == 0 {
			values[i] += 1 << k
		}
	}
	for i := range values {
		for j := byte(0); k < 32 && j < k; j++ {
			values[i] += bit() << j
		}
	}
	return values
}

// segment reads ascending positions below its size.
func (r *reader) segment(size int64) (found []int64) {
	form, bit := r.byte(), r.bits()
	put := func(at int64) {
		check(at < size && len(found) < tasksMax, "position %d of %d", at, size)
		found = append(found, at)
	}
	switch form &^ 0x80 {
	case 0: // nothing
	case 1: // runs
		n, k, m := r.varint(), r.byte(), r.byte()
		skips, lengths := rice(bit, n, k), rice(bit, n, m)
		for i, at := 0, int64(0); i < len(skips); i, at = i+1, at+1 {
			at += skips[i]
			for end := at + lengths[i]; at <= end; at++ {
				put(at)
			}
		}
	case 2: // gaps
		n, at := r.varint(), r.varint()
		check(n > 0, "no gaps")
		put(at)
		if n > 1 {
			base, k := r.varint(), r.byte()
			for _, gap := range rice(bit, n-1, k) {
				at += 1 + base + gap
				put(at)
			}
		}
	case 3: // triplets
		symbols := []int64{}
		for at := int64(0); at < size; at += 3 {
			symbols = append(symbols, bit()|bit()<<1)
		}
		for i, class := range symbols {
			if class > 0 {
				symbols[i] = class*2 - 1 + bit()
			}
		}
		for i, symbol := range symbols {
			if symbol == 6 {
				symbol += bit()
			}
			for j := range 3 {
				if "\x00\x01\x02\x04\x03\x05\x06\x07"[symbol]>>j&1 == 1 {
					put(int64(3*i + j))
				}
			}
		}
	case 4: // bitmap
		for at := range size {
			if bit() == 1 {
				put(at)
			}
		}
	default:
		check(false, "form %d", form)
	}
	if form < 0x80 {
		return found
	}
	check(size <= tasksMax, "all but some of %d tasks", size)
	listed := found
	found = nil
	for at := range size {
		if len(listed) > 0 && listed[0] == at {
			listed = listed[1:]
		} else {
			put(at)
		}
	}
	return found
}

func appendBytes[T string | []byte](out []byte, value T) []byte {
	return append(binary.AppendVarint(out, int64(len(value))), value...)
}

// appendSets writes the units of some sets as a list, and each set as gaps over all of them.
func appendSets(out []byte, sets [][]Task) []byte {
	sizes, starts, total := map[string]int64{}, map[string]int64{}, int64(0)
	for _, task := range slices.Concat(sets...) {
		sizes[task.label] = max(sizes[task.label], task.number+first(task.label)+1)
	}
	if len(sizes) > 0 {
		out = binary.AppendVarint(out, int64(len(sizes)))
	}
	for _, label := range slices.Sorted(maps.Keys(sizes)) {
		out = binary.AppendVarint(appendBytes(out, label), sizes[label])
		starts[label] = total + first(label)
		total += sizes[label]
	}
	out = append(out, 0)
	for _, set := range sets {
		positions := []int64{}
		for _, task := range set {
			positions = append(positions, starts[task.label]+task.number)
		}
		slices.Sort(positions)
		out = appendBytes(out, gaps(positions))
	}
	return out
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
		high = append(append(high, make([]byte, gap>>k)...), 1)
		for j := range k {
			low = append(low, byte(gap>>j&1))
		}
	}
	packed := make([]byte, (len(high)+len(low)+7)/8)
	for i, bit := range append(high, low...) {
		packed[i/8] |= bit << (i % 8)
	}
	return append(append(out, 0, byte(k)), packed...) // base 0
}

// ------------------------------------------------------------------------ keys [2], digest [7]

func keyOfWhole(key string) string {
	fields := strings.SplitN(key, "|", 3)
	switch {
	case len(fields) < 3:
		return key
	case fields[1] != "":
		return fields[0] + "|" + fields[1]
	case strings.HasPrefix(fields[2]+".", "names."):
		return fields[0] + "||names"
	}
	return fields[0]
}

func partitionOf(key string, partitions int) int32 {
	owner := &kgo.Record{Key: []byte(strings.TrimSuffix(keyOfWhole(key), "||names"))}
	return int32(kgo.StickyKeyPartitioner(nil).ForTopic("").Partition(owner, partitions)) // Java's murmur2
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

// Running is what runs for a task.
type Running struct {
	stop            context.CancelFunc
	done            chan struct{}
	stopping, ready bool
}

// Worker is one member. All fields belong to the loop, but for lease: it is told what happens as
// functions to call.
type Worker struct {
	group, member string
	kafka         *kgo.Client
	admin         *kadm.Client
	inbox         chan func()
	send          func(value []byte, counts bool)

	session     uint64      // incarnation
	newest      *Assignment // obeyed; nil = not a member
	coordinator int64       // the highest coordinator epoch seen
	held        map[Held]*Running
	lease       atomic.Int64 // until then our tasks are ours; from the older of the next two
	heardMs     int64        // when the newest acknowledged event was sent
	readMs      int64        // by when all that was written to us has been read
	position    int64        // how far our partition has been read
	partition   int32        // of assignments
	end, endMs  int64        // where our partition ended, and when we asked; 0 = nothing to reach
	firstMs     int64        // of this session's first join
	sentMs      int64
	joinAtMs    int64
	attempts    int
	beating     bool // a heartbeat is on its way
	owesReport  bool
	leaving     bool
}

// hear acts on a record, if it is news.
func (w *Worker) hear(a *Assignment) {
	mine := a.Incarnation == w.session || a.Fault != "" && a.Incarnation == 0
	if w.fenced() || !mine || a.CoordinatorEpoch < w.coordinator {
		return
	}
	w.coordinator = a.CoordinatorEpoch
	if a.Fault != "" {
		w.hearFault(a)
		return
	}
	if w.newest == nil || a.Revision > w.newest.Revision {
		if w.newest == nil { // a process that slept may read an answer to what it asked before
			w.heardMs = w.firstMs
		}
		w.newest = a
		w.renew()
		if w.leaving || w.fenced() {
			return
		}
		w.settle()
	}
	if a.Report {
		w.report()
	}
}

func (w *Worker) hearFault(a *Assignment) {
	log.Printf("%s: %s", a.Fault, a.Message)
	switch a.Fault {
	case "MEMBER_ID_IN_USE", "UNRELEASED_INSTANCE_ID", "GROUP_MAX_SIZE_REACHED": // asks again
	case "UNKNOWN_MEMBER_ID", "FENCED_MEMBER_EPOCH":
		w.lose(a.Fault)
	default:
		if w.newest == nil || a.Fault == "FENCED_INSTANCE_ID" {
			w.stopAll()
			log.Fatal(a.Message)
		}
		w.lose(a.Fault)
	}
}

// renew: 1 % is kept for clocks that run apart, a tenth, at most 3 s, for stopping.
func (w *Worker) renew() {
	if w.newest != nil {
		timeout := w.newest.SessionTimeoutMs
		w.lease.Store(min(w.heardMs, w.readMs) + timeout*99/100 - min(3000, timeout/10))
	}
}

func (w *Worker) fenced() bool {
	over := w.newest != nil && bootMs() >= w.lease.Load()
	if over {
		w.lose("the lease ran out")
	}
	return over
}

// lose stops everything a member has, then joins anew as somebody else.
func (w *Worker) lose(why string) {
	if w.newest == nil {
		return
	}
	log.Printf("lost everything: %s", why)
	w.lease.Store(0)
	w.stopAll()
	w.newest, w.beating, w.owesReport, w.attempts = nil, false, false, 0
	if !w.leaving { // else the loop says so
		w.leave()
		w.begin()
	}
}

func (w *Worker) begin() {
	var seed [8]byte
	rand.Read(seed[:])
	w.session = binary.LittleEndian.Uint64(seed[:])>>1 | 1
	w.firstMs = bootMs()
	w.readMs = w.firstMs // nothing is written to a session before its first join
	w.join()
}

// join comes with empty hands and a capacity of 1; it can wait for a learner before it gives up a
// task.
func (w *Worker) join() {
	w.joinAtMs = bootMs() + min(int64(1000)<<min(w.attempts, 3), 5000)
	w.attempts++
	w.send(append(w.ofSession(joinFrame), 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0), true)
}

func (w *Worker) leave() { w.send(append(w.ofSession(leaveFrame), 0, 0), false) } // for good, no extras

func (w *Worker) report() {
	var sets [5][]Task // active, standby, learner, ready, releasing
	for h, running := range w.held {
		sets[h.Role-1] = append(sets[h.Role-1], h.Task)
		if running.ready {
			sets[3] = append(sets[3], h.Task)
		}
		if running.stopping && !w.newest.wanted[h] {
			sets[4] = append(sets[4], h.Task)
		}
	}
	out := binary.AppendVarint(w.ofSession(reportFrame), w.newest.Epoch)
	out = appendSets(binary.AppendVarint(out, w.newest.Revision), sets[:])
	out = append(out, "\x00\x02\x22coordinator_epoch\x10"...) // no lags; one extra, of 8 bytes
	w.send(append(binary.LittleEndian.AppendUint64(out, uint64(w.coordinator)), 0), true)
}

func (w *Worker) heartbeat() {
	digest := uint64(0)
	for h, running := range w.held {
		if running.stopping && !w.newest.wanted[h] {
			h.Role += 4
		}
		digest += digestOf(h.Task, h.Role)
	}
	w.beating = true
	out := binary.AppendVarint(appendBytes([]byte(heartbeatFrame), w.member), w.newest.Epoch)
	w.send(binary.LittleEndian.AppendUint64(out, digest), true)
}

func (w *Worker) ofSession(frame string) []byte {
	return binary.LittleEndian.AppendUint64(appendBytes([]byte(frame), w.member), w.session)
}

// tick writes what is due by the clock.
func (w *Worker) tick() {
	if w.newest == nil {
		if !w.leaving && bootMs() >= w.joinAtMs {
			w.join()
		}
	} else if !w.fenced() && !w.beating && bootMs() >= w.sentMs+w.newest.HeartbeatIntervalMs {
		w.heartbeat()
	}
}

// produce writes an event, and asks at the same moment where our partition ends.
func (w *Worker) produce(value []byte, counts bool) {
	session, atMs := w.session, bootMs()
	w.sentMs = atMs
	record := &kgo.Record{Topic: membership, Key: []byte(w.group), Value: value}
	w.kafka.Produce(context.Background(), record, func(_ *kgo.Record, err error) {
		w.inbox <- func() {
			if session == w.session {
				w.beating = w.beating && !bytes.HasPrefix(value, []byte(heartbeatFrame))
				if err == nil && counts && w.newest != nil {
					w.heardMs = max(w.heardMs, atMs)
					w.renew()
				}
			}
		}
	})
	go w.askEnd(atMs)
}

func (w *Worker) askEnd(atMs int64) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	listed, err := w.admin.ListEndOffsets(ctx, assignments)
	end, found := listed.Lookup(assignments, w.partition)
	w.inbox <- func() {
		if err == nil && found && end.Err == nil && w.endMs == 0 { // else an older one is to be reached first
			w.end, w.endMs = end.Offset, atMs
		}
		w.reached(w.position)
	}
}

// reached says how far our partition has been read: a member that is heard but does not read must
// stop, too.
func (w *Worker) reached(position int64) {
	w.position = position
	if w.endMs > 0 && position >= w.end {
		w.readMs, w.endMs = max(w.readMs, w.endMs), 0
		w.renew()
	}
}

// settle gives up what is beyond the assignment and takes what it adds.
func (w *Worker) settle() {
	stopping, names := false, map[Task]bool{}
	for held, running := range w.held {
		if !w.newest.wanted[held] && !running.stopping {
			w.owesReport = true
			w.stop(held)
		}
		stopping = stopping || running.stopping
		names[held.Task] = true
	}
	for held := range w.newest.wanted {
		if !names[held.Task] { // in another role it must stop first
			w.start(held)
		}
	}
	if w.owesReport && !stopping {
		w.owesReport = false
		w.report()
	}
}

func (w *Worker) start(held Held) {
	ctx, cancel := context.WithCancel(context.Background())
	running := &Running{stop: cancel, done: make(chan struct{}), ready: held.Role == learner} // nothing to restore
	w.held[held] = running
	say("start", w.member, held, w.newest)
	go func(given *Assignment) {
		w.run(ctx, held, given)
		say("stop", w.member, held, given)
		close(running.done)
		w.inbox <- func() { w.stopped(held, running) }
	}(w.newest)
	if running.ready {
		w.report()
	}
}

func (w *Worker) stop(held Held) {
	w.held[held].stopping, w.held[held].ready = true, false
	w.held[held].stop()
}

func (w *Worker) stopped(held Held, running *Running) {
	if w.held[held] != running {
		return // lost meanwhile
	}
	if !running.stopping {
		w.lose(held.Task.String() + " ended by itself")
		return
	}
	delete(w.held, held)
	if w.newest != nil && !w.leaving && !w.fenced() {
		w.settle() // something may have waited for its other role to stop
	}
}

func (w *Worker) stopAll() {
	for _, running := range w.held {
		running.stop()
	}
	for _, running := range w.held {
		<-running.done
	}
	clear(w.held)
}

var told = log.New(os.Stdout, "", 0)

func say(event, member string, held Held, given *Assignment) {
	line, _ := json.Marshal(map[string]any{
		"event": event, "task": held.Task.String(), "member": member, "incarnation": given.Incarnation,
		"role":       [...]string{active: "active", standby: "standby", learner: "learner"}[held.Role],
		"generation": given.Generation, "epoch": given.Epoch,
		"at_ms": time.Now().UnixMilli(), "boottime_ms": bootMs(),
	})
	told.Println(string(line))
}

// -------------------------------------------------------------------------- the loop, Kafka

func main() {
	log.SetFlags(log.Lmicroseconds)
	args := append(os.Args[1:], rand.Text()) // a name, if none is given
	if len(args) < 3 {
		log.Fatal("usage: worker GROUP HOST:PORT [MEMBER]")
	}
	// Keyed records go where the Java client puts them; acks=all and idempotence are the defaults.
	kafka, err := kgo.NewClient(kgo.SeedBrokers(args[1]), kgo.ProducerLinger(0), kgo.FetchMaxWait(5*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	w := &Worker{group: args[0], member: args[2], kafka: kafka, admin: kadm.NewClient(kafka),
		inbox: make(chan func(), 1000), held: map[Held]*Running{}}
	w.send = w.produce
	w.loop()
}

func (w *Worker) loop() {
	key := w.group + "|" + w.member
	// Stand at the end before the join: its answer is written after it.
	w.partition, w.position = find(assignments, key, w.admin.ListEndOffsets)
	w.kafka.AddConsumePartitions(map[string]map[int32]kgo.Offset{
		assignments: {w.partition: kgo.NewOffset().At(w.position)}})
	go w.follow(key)
	ends := make(chan os.Signal, 2)
	signal.Notify(ends, syscall.SIGTERM, os.Interrupt)
	ticks := time.Tick(50 * time.Millisecond)
	for w.begin(); !w.leaving || len(w.held) > 0; w.tick() {
		select {
		case <-ends:
			w.leaving = true
			for held := range w.held {
				w.stop(held)
			}
		case happened := <-w.inbox:
			happened()
		case <-ticks:
		}
	}
	w.leave()
	w.kafka.Flush(context.Background())
}

// follow reads our partition.
func (w *Worker) follow(key string) {
	names, joiner := Names{}, Joiner{}
	for {
		fetches := w.kafka.PollFetches(context.Background())
		fetches.EachError(func(topic string, _ int32, err error) { log.Printf("%s: %v", topic, err) })
		fetches.EachRecord(func(record *kgo.Record) {
			act := func() {}
			err := attempt(func() {
				if keyOfWhole(string(record.Key)) != key {
					return
				}
				value, whole := joiner.Feed(string(record.Key), record.Value)
				if whole && value == nil {
					act = func() { w.lose("let go by the coordinator") }
				} else if whole {
					a := readAssignment(value)
					if a.Dictionary != 0 && names[a.Dictionary] == nil {
						w.readNames(names)
					}
					a.readSets(names)
					act = func() { w.hear(a) }
				}
			})
			if err != nil {
				log.Printf("a record at offset %d cannot be read: %v", record.Offset, err)
			}
			w.inbox <- func() { act(); w.reached(record.Offset + 1) }
		})
	}
}

// readNames looks the group's dictionaries up.
func (w *Worker) readNames(names Names) {
	key, joiner := w.group+"||names", Joiner{}
	partition, end := find(groups, key, w.admin.ListEndOffsets)
	_, next := find(groups, key, w.admin.ListStartOffsets)
	at := map[string]map[int32]kgo.Offset{groups: {partition: kgo.NewOffset().AtStart()}}
	reader, err := kgo.NewClient(append(w.kafka.Opts(), kgo.ConsumePartitions(at))...)
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
