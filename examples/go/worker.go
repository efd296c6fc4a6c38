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
	"reflect"
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

const active, standby, learner = 1, 2, 3

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

// -------------------------------------------------------------------------------- values [3, 4]

// Every schema a member needs: the first ten bytes of its values, and its fields in order. uint64
// is u64, int64 int or long, a pointer what may be null.
var frames = map[reflect.Type]string{
	reflect.TypeFor[Join]():       "\xc3\x01\x3b\x83\x4d\xd0\x0c\x14\x83\xf0",
	reflect.TypeFor[Report]():     "\xc3\x01\xcd\x5c\x45\x24\x16\x20\xde\xf1",
	reflect.TypeFor[Heartbeat]():  "\xc3\x01\x84\xd7\xc1\xae\x25\xd0\xc2\x2b",
	reflect.TypeFor[Leave]():      "\xc3\x01\xb6\xed\x0e\xf0\xd7\x7c\x19\xa9",
	reflect.TypeFor[Assignment](): "\xc3\x01\x83\xa7\x06\x3d\x7e\xec\xcd\xd7",
	reflect.TypeFor[Dictionary](): "\xc3\x01\xed\x27\x7f\x4d\x4d\x88\x71\xa9",
	reflect.TypeFor[Packed]():     "\xc3\x01\x1d\x98\x8c\xe4\xa2\x67\xa7\x31",
	reflect.TypeFor[Part]():       "\xc3\x01\x3d\x34\xd0\xb9\x69\x21\x61\x8b",
}

type (
	Unit struct {
		Label string
		Size  int64
	}
	Lag     struct{ Unit, Position, Offsets int64 }
	Extras  map[string][]byte
	Holding struct{ Active, Standby, Learner, Ready, Releasing []byte }
	Join    struct {
		Member                         string
		Incarnation                    uint64
		InstanceID, Rack               *string
		Capacity                       int64
		Tags                           map[string]string
		Protocols                      []string
		Topics                         *[]string
		Static                         []string
		Units                          []Unit
		Holding                        Holding
		Lags                           []Lag
		ConfigOffset, RebalanceTimeout *int64
		MakeBeforeBreak                bool
		Extras                         Extras
	}
	Report struct {
		Member          string
		Incarnation     uint64
		Epoch, Revision int64
		Units           []Unit
		Holding         Holding
		Lags            []Lag
		Extras          Extras
	}
	Heartbeat struct {
		Member string
		Epoch  int64
		Digest uint64
	}
	Leave struct {
		Member      string
		Incarnation uint64
		Temporary   bool
		Extras      Extras
	}
	Assignment struct {
		Incarnation                                   uint64
		CoordinatorEpoch, Generation, Epoch, Revision int64
		Dictionary                                    *uint64
		Units                                         []Unit
		Sets                                          struct{ Active, Standby, Learner []byte }
		Report                                        bool
		Fault                                         string
		SessionTimeoutMs, HeartbeatIntervalMs         int64
		Message                                       string
		Extras                                        Extras
	}
	Dictionary struct {
		Version uint64
		Units   []Unit
		Extras  Extras
	}
	Packed struct {
		Size     int64
		Deflated []byte
	}
	Part struct {
		ID                 uint64
		Index, Count, Size int64
		Slice              []byte
	}
)

func is[T any](value []byte) bool {
	return bytes.HasPrefix(value, []byte(frames[reflect.TypeFor[T]()]))
}

// write gives the value of a record.
func write[T any](row T) []byte {
	return appended([]byte(frames[reflect.TypeFor[T]()]), reflect.ValueOf(row))
}

func appended(out []byte, v reflect.Value) []byte {
	switch v.Kind() {
	case reflect.Bool:
		return append(out, map[bool]byte{true: 1}[v.Bool()])
	case reflect.Uint64:
		return binary.LittleEndian.AppendUint64(out, v.Uint())
	case reflect.Int64:
		return binary.AppendVarint(out, v.Int())
	case reflect.String:
		return append(binary.AppendVarint(out, int64(v.Len())), v.String()...)
	case reflect.Struct:
		for i := range v.NumField() {
			out = appended(out, v.Field(i))
		}
		return out
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return append(binary.AppendVarint(out, int64(v.Len())), v.Bytes()...)
		}
		if v.Len() > 0 {
			out = binary.AppendVarint(out, int64(v.Len()))
		}
		for i := range v.Len() {
			out = appended(out, v.Index(i))
		}
		return append(out, 0)
	default: // maps and what may be null: this worker has none to write
		check(v.IsZero(), "cannot write a %s", v.Type())
		return append(out, 0)
	}
}

// check panics with a problem; attempt turns that into its error.
func check(good bool, problem string, more ...any) {
	if !good {
		panic(fmt.Errorf(problem, more...))
	}
}

func attempt(what func()) (err error) {
	defer func() {
		if thrown := recover(); thrown != nil {
			var known bool
			if err, known = thrown.(error); !known {
				panic(thrown)
			}
		}
	}()
	what()
	return nil
}

// read gives the record of a value.
func read[T any](value []byte) (row T) {
	check(is[T](value), "not a %T", row)
	r := &reader{value, 10}
	r.value(reflect.ValueOf(&row).Elem())
	r.end()
	return row
}

type reader struct {
	data []byte
	at   int
}

func (r *reader) end() { check(r.at == len(r.data), "%d bytes left over", len(r.data)-r.at) }

func (r *reader) take(count int64) []byte {
	check(count >= 0 && count <= int64(len(r.data)-r.at), "%d bytes wanted, %d left", count, len(r.data)-r.at)
	r.at += int(count)
	return r.data[r.at-int(count) : r.at]
}

func (r *reader) byte() byte { return r.take(1)[0] }

func (r *reader) varint() int64 {
	value, size := binary.Uvarint(r.data[r.at:])
	check(size > 0 && size <= 5, "no number at byte %d", r.at)
	r.at += size
	return int64(value)
}

func (r *reader) long() int64 {
	value, size := binary.Varint(r.data[r.at:])
	check(size > 0, "no number at byte %d", r.at)
	r.at += size
	return value
}

func (r *reader) value(v reflect.Value) {
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(r.byte() != 0)
	case reflect.Uint64:
		v.SetUint(binary.LittleEndian.Uint64(r.take(8)))
	case reflect.Int64:
		v.SetInt(r.long())
	case reflect.String:
		text := r.take(r.long())
		check(utf8.Valid(text), "text that is not UTF-8")
		v.SetString(string(text))
	case reflect.Struct:
		for i := range v.NumField() {
			r.value(v.Field(i))
		}
	case reflect.Pointer:
		if r.long() != 0 {
			v.Set(reflect.New(v.Type().Elem()))
			r.value(v.Elem())
		}
	default: // lists, maps and bytes
		if v.Type() == reflect.TypeFor[[]byte]() {
			v.SetBytes(r.take(r.long()))
			return
		}
		for count := r.long(); count != 0; count = r.long() {
			if count < 0 {
				count = -count
				r.long() // the size of the block
			}
			check(count > 0 && count <= int64(len(r.data)), "a list of %d", count)
			for ; count > 0; count-- {
				r.item(v)
			}
		}
	}
}

func (r *reader) item(v reflect.Value) {
	item := reflect.New(v.Type().Elem()).Elem()
	if v.Kind() == reflect.Slice {
		r.value(item)
		v.Set(reflect.Append(v, item))
		return
	}
	var key string
	r.value(reflect.ValueOf(&key).Elem())
	r.value(item)
	if v.IsNil() {
		v.Set(reflect.MakeMap(v.Type()))
	}
	v.SetMapIndex(reflect.ValueOf(key), item)
}

// --------------------------------------------------------------------------- task sets [5]

const tasksMax = 4_194_304

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
	r := &reader{data, 1}
	check(data[0] == 1 || data[0] == 2, "set codec %d", data[0])
	segments := [][]Unit{units}
	if data[0] == 2 {
		segments = slices.Collect(slices.Chunk(units, 1))
	}
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

// segment reads ascending positions below its size.
func (r *reader) segment(size int64) (found []int64) {
	form := r.byte()
	octet, left := 0, 0
	bit := func() int { // the reader moves on by whole bytes
		if octet, left = octet>>1, left-1; left < 0 {
			octet, left = int(r.byte()), 7
		}
		return octet & 1
	}
	rice := func(n int64, k byte) []int64 {
		check(n >= 0 && n <= tasksMax && k <= 32, "%d values of Rice %d", n, k)
		values := make([]int64, n)
		for i := range values {
			for k < 32 && bit() == 0 {
				values[i] += 1 << k
			}
		}
		for i := range values {
			for j := byte(0); k < 32 && j < k; j++ {
				values[i] += int64(bit()) << j
			}
		}
		return values
	}
	put := func(at int64) {
		check(at < size && len(found) < tasksMax, "position %d of %d", at, size)
		found = append(found, at)
	}
	switch form &^ 0x80 {
	case 0: // nothing
	case 1: // runs
		n, k, m := r.varint(), r.byte(), r.byte()
		skips, lengths := rice(n, k), rice(n, m)
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
			for _, gap := range rice(n-1, k) {
				at += 1 + base + gap
				put(at)
			}
		}
	case 3: // triplets
		symbols := []int{}
		for at := int64(0); at < size; at += 3 {
			symbols = append(symbols, bit()|bit()<<1)
		}
		for i, class := range symbols {
			if class > 0 {
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
					put(int64(3*i + j))
				}
			}
		}
	case 4: // bitmap
		for at := int64(0); at < size; at++ {
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
	rest := []int64{}
	for at := int64(0); at < size; at++ {
		if len(found) > 0 && found[0] == at {
			found = found[1:]
		} else {
			rest = append(rest, at)
		}
	}
	return rest
}

// writeSets gives the units of some sets, and each set in the form of gaps over all units.
func writeSets(sets ...[]Task) (units []Unit, values [][]byte) {
	sizes, starts, total := map[string]int64{}, map[string]int64{}, int64(0)
	for _, task := range slices.Concat(sets...) {
		sizes[task.label] = max(sizes[task.label], task.number+first(task.label)+1)
	}
	for _, label := range slices.Sorted(maps.Keys(sizes)) {
		units = append(units, Unit{label, sizes[label]})
		starts[label] = total + first(label)
		total += sizes[label]
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
		high = append(append(high, make([]byte, gap>>k)...), 1)
		for j := range k {
			low = append(low, byte(gap>>j&1))
		}
	}
	line := append(high, low...)
	packed := make([]byte, (len(line)+7)/8)
	for i, bit := range line {
		packed[i/8] |= bit << (i % 8)
	}
	return append(append(out, 0, byte(k)), packed...) // base 0
}

// ------------------------------------------------------------- large groups [4, 6], keys [2]

// Names are the dictionaries of the group, by version.
type Names map[uint64][]Unit

// tasks gives an assignment's tasks by role.
func (a *Assignment) tasks(names Names) [][]Task {
	units, known := a.Units, true
	if a.Dictionary != nil {
		units, known = names[*a.Dictionary]
	}
	check(known, "no dictionary %v", a.Dictionary)
	s := a.Sets
	return [][]Task{nil, readSet(s.Active, units), readSet(s.Standby, units), readSet(s.Learner, units)}
}

func readDictionary(value []byte) Dictionary {
	if is[Packed](value) {
		packed := read[Packed](value)
		check(packed.Size >= 0 && packed.Size <= 32*int64(len(packed.Deflated)), "%d bytes packed", packed.Size)
		stream, err := zlib.NewReader(bytes.NewReader(packed.Deflated))
		check(err == nil, "no zlib stream: %v", err)
		value, err = io.ReadAll(io.LimitReader(stream, packed.Size+1))
		check(err == nil && int64(len(value)) == packed.Size, "not %d bytes: %v", packed.Size, err)
	}
	return read[Dictionary](value)
}

// Joiner puts the parts of split records together, by the key of the whole.
type Joiner map[string]*pending

type pending struct {
	id     uint64
	slices map[int64][]byte
}

// Feed takes a record; whole says that value is one again. A value of nil is a tombstone.
func (j Joiner) Feed(key string, value []byte) (joined []byte, whole bool) {
	name := keyOfWhole(key)
	if !is[Part](value) {
		if name != key {
			return nil, false // a tombstone that tidies up a part
		}
		delete(j, name)
		return value, true
	}
	part := read[Part](value)
	check(part.Index >= 0 && part.Index < part.Count && part.Count <= part.Size && part.Size <= 64<<20 && len(part.Slice) > 0,
		"part %d of %d of %d bytes", part.Index, part.Count, part.Size)
	if j[name] == nil || j[name].id != part.ID {
		j[name] = &pending{part.ID, map[int64][]byte{}}
	}
	found := j[name].slices
	if found[part.Index] = part.Slice; int64(len(found)) < part.Count {
		return nil, false
	}
	delete(j, name)
	for i := range part.Count {
		joined = append(joined, found[i]...)
	}
	sum := sha256.Sum256(joined)
	check(int64(len(joined)) == part.Size && binary.LittleEndian.Uint64(sum[:]) == part.ID, "parts of something else")
	return joined, true
}

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

func digestOf(task Task, role int) uint64 { // [7]
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

// Given is an assignment with its tasks; nil = a tombstone.
type Given struct {
	*Assignment
	wanted map[Held]bool
}

// Worker is one member. All fields belong to the loop, but for lease: it is told what happens as
// functions to call.
type Worker struct {
	group, member string
	kafka         *kgo.Client
	admin         *kadm.Client
	inbox         chan func()
	names         Names

	session     uint64 // incarnation
	newest      *Given // obeyed; nil = not a member
	coordinator int64  // the highest coordinator epoch seen
	held        map[Held]*Running
	lease       atomic.Int64 // until then our tasks are ours; from the older of the next two
	heardMs     int64        // when the newest acknowledged event was sent
	readMs      int64        // by when all that was written to us has been read
	ends        [][2]int64   // (end of our partition, when we asked) that are to be reached
	position    int64        // how far our partition has been read
	partition   int32        // of assignments
	firstMs     int64        // of this session's first join
	sentMs      int64
	joinAtMs    int64
	attempts    int
	beating     bool // a heartbeat is on its way
	owesReport  bool
	leaving     bool
}

// hear acts on a record, if it is news.
func (w *Worker) hear(a *Given) {
	mine := a.Incarnation == w.session || a.Fault != "" && a.Incarnation == 0
	if !mine || a.CoordinatorEpoch < w.coordinator {
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

func (w *Worker) hearFault(a *Given) {
	log.Printf("%s: %s", a.Fault, a.Message)
	switch a.Fault {
	case "MEMBER_ID_IN_USE", "UNRELEASED_INSTANCE_ID", "GROUP_MAX_SIZE_REACHED": // asks again
	case "UNKNOWN_MEMBER_ID", "FENCED_MEMBER_EPOCH":
		w.letGo(a.Fault)
	default:
		if w.newest == nil || a.Fault == "FENCED_INSTANCE_ID" {
			w.stopAll()
			log.Fatal(a.Message)
		}
		w.lose(a.Fault)
	}
}

func (w *Worker) letGo(why string) {
	if w.newest != nil {
		w.lose(why)
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

// lose stops everything, then joins anew as somebody else.
func (w *Worker) lose(why string) {
	log.Printf("lost everything: %s", why)
	w.lease.Store(0)
	w.stopAll()
	w.newest, w.beating, w.owesReport, w.attempts = nil, false, false, 0
	if !w.leaving { // else the loop says so
		w.send(write(Leave{Member: w.member, Incarnation: w.session}), false)
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

// join comes with empty hands; it can wait for a learner before it gives up a task.
func (w *Worker) join() {
	w.joinAtMs = bootMs() + min(int64(1000)<<min(w.attempts, 3), 5000)
	w.attempts++
	w.send(write(Join{Member: w.member, Incarnation: w.session, Capacity: 1, MakeBeforeBreak: true}), true)
}

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
	units, s := writeSets(sets[:]...)
	holding := Holding{s[0], s[1], s[2], s[3], s[4]}
	w.send(write(Report{w.member, w.session, w.newest.Epoch, w.newest.Revision, units, holding, nil, nil}), true)
}

// tick writes what is due by the clock.
func (w *Worker) tick() {
	now := bootMs()
	if w.newest == nil {
		if now >= w.joinAtMs && !w.leaving {
			w.join()
		}
	} else if !w.beating && now >= w.sentMs+w.newest.HeartbeatIntervalMs {
		w.beating = true
		digest := uint64(0)
		for h, running := range w.held {
			if running.stopping && !w.newest.wanted[h] {
				h.Role += 4
			}
			digest += digestOf(h.Task, h.Role)
		}
		w.send(write(Heartbeat{w.member, w.newest.Epoch, digest}), true)
	}
}

// send writes an event, and asks at the same moment where our partition ends.
func (w *Worker) send(value []byte, counts bool) {
	session, atMs := w.session, bootMs()
	w.sentMs = atMs
	record := &kgo.Record{Topic: prefix + ".membership", Key: []byte(w.group), Value: value}
	w.kafka.Produce(context.Background(), record, func(_ *kgo.Record, err error) {
		w.inbox <- func() {
			if session == w.session {
				w.beating = w.beating && !is[Heartbeat](value)
				if err == nil && counts && w.newest != nil {
					w.heardMs = max(w.heardMs, atMs)
					w.renew()
				}
			}
		}
	})
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		listed, err := w.admin.ListEndOffsets(ctx, prefix+".assignments")
		if end, found := listed.Lookup(prefix+".assignments", w.partition); err == nil && found && end.Err == nil {
			w.inbox <- func() { w.ends = append(w.ends, [2]int64{end.Offset, atMs}); w.reached(w.position) }
		}
	}()
}

// reached says how far our partition has been read: a member that is heard but does not read must
// stop, too.
func (w *Worker) reached(position int64) {
	w.position = position
	w.ends = slices.DeleteFunc(w.ends, func(end [2]int64) bool {
		if end[0] <= position {
			w.readMs = max(w.readMs, end[1])
		}
		return end[0] <= position
	})
	w.ends = w.ends[max(0, len(w.ends)-64):]
	w.renew()
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
	say("start", w.member, held, w.newest.Assignment)
	go func(given *Assignment) {
		w.run(ctx, held, given)
		say("stop", w.member, held, given)
		close(running.done)
		w.inbox <- func() { w.stopped(held, running) }
	}(w.newest.Assignment)
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

var saying sync.Mutex

func say(event, member string, held Held, given *Assignment) {
	saying.Lock()
	defer saying.Unlock()
	json.NewEncoder(os.Stdout).Encode(map[string]any{
		"event": event, "task": held.Task.String(), "member": member, "incarnation": given.Incarnation,
		"role":       [...]string{active: "active", standby: "standby", learner: "learner"}[held.Role],
		"generation": given.Generation, "epoch": given.Epoch,
		"at_ms": time.Now().UnixMilli(), "boottime_ms": bootMs(),
	})
}

// -------------------------------------------------------------------------- the loop, Kafka

func main() {
	log.SetFlags(log.Lmicroseconds)
	if len(os.Args) < 3 {
		log.Fatal("usage: worker GROUP HOST:PORT [MEMBER]")
	}
	member := rand.Text()
	if len(os.Args) > 3 {
		member = os.Args[3]
	}
	// Keyed records go where the Java client puts them; acks=all and idempotence are the defaults.
	kafka, err := kgo.NewClient(kgo.SeedBrokers(os.Args[2]), kgo.ProducerLinger(0), kgo.FetchMaxWait(5*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	w := &Worker{group: os.Args[1], member: member, kafka: kafka, admin: kadm.NewClient(kafka),
		inbox: make(chan func(), 1000), held: map[Held]*Running{}, names: Names{}}
	w.loop()
}

func (w *Worker) loop() {
	key := w.group + "|" + w.member
	// Stand at the end before the join: its answer is written after it.
	w.partition, w.position = w.find(".assignments", key, w.admin.ListEndOffsets)
	w.kafka.AddConsumePartitions(map[string]map[int32]kgo.Offset{
		prefix + ".assignments": {w.partition: kgo.NewOffset().At(w.position)}})
	go w.follow(key)
	told := make(chan os.Signal, 2)
	signal.Notify(told, syscall.SIGTERM, os.Interrupt)
	ticks := time.Tick(50 * time.Millisecond)
	for w.begin(); !w.leaving || len(w.held) > 0; w.tick() {
		select {
		case <-told:
			w.leaving = true
			for held := range w.held {
				w.stop(held)
			}
		case happened := <-w.inbox:
			happened()
		case <-ticks:
			w.fenced()
		}
	}
	w.send(write(Leave{Member: w.member, Incarnation: w.session}), false)
	w.kafka.Flush(context.Background())
}

// follow reads our partition.
func (w *Worker) follow(key string) {
	joiner := Joiner{}
	for {
		fetches := w.kafka.PollFetches(context.Background())
		fetches.EachError(func(topic string, partition int32, err error) {
			log.Printf("%s-%d: %v", topic, partition, err)
		})
		fetches.EachRecord(func(record *kgo.Record) {
			err := attempt(func() {
				value, whole := []byte(nil), false
				if keyOfWhole(string(record.Key)) == key {
					value, whole = joiner.Feed(string(record.Key), record.Value)
				}
				if whole && value == nil {
					w.inbox <- func() { w.letGo("let go by the coordinator") }
				} else if whole {
					given := w.given(read[Assignment](value))
					w.inbox <- func() {
						if !w.fenced() {
							w.hear(given)
						}
					}
				}
			})
			if err != nil {
				log.Printf("a record at offset %d cannot be read: %v", record.Offset, err)
			}
			w.inbox <- func() { w.reached(record.Offset + 1) }
		})
	}
}

// given looks up the dictionary of the group when it is not known yet.
func (w *Worker) given(a Assignment) *Given {
	if a.Dictionary != nil && w.names[*a.Dictionary] == nil {
		w.readNames()
	}
	wanted := map[Held]bool{}
	for role, tasks := range a.tasks(w.names) {
		for _, task := range tasks {
			wanted[Held{task, role}] = true
		}
	}
	return &Given{&a, wanted}
}

func (w *Worker) readNames() {
	key, joiner := w.group+"||names", Joiner{}
	partition, end := w.find(".groups", key, w.admin.ListEndOffsets)
	_, next := w.find(".groups", key, w.admin.ListStartOffsets)
	at := map[string]map[int32]kgo.Offset{prefix + ".groups": {partition: kgo.NewOffset().AtStart()}}
	reader, err := kgo.NewClient(append(w.kafka.Opts(), kgo.ConsumePartitions(at))...)
	check(err == nil, "no client: %v", err)
	defer reader.Close()
	for next < end {
		reader.PollFetches(context.Background()).EachRecord(func(record *kgo.Record) {
			next = record.Offset + 1
			if keyOfWhole(string(record.Key)) != key {
				return
			}
			if value, whole := joiner.Feed(string(record.Key), record.Value); whole && value != nil {
				names := readDictionary(value)
				w.names[names.Version] = names.Units
			}
		})
	}
}

type listing = func(context.Context, ...string) (kadm.ListedOffsets, error)

// find gives the partition of a key, and where it ends or begins.
func (w *Worker) find(kind, key string, list listing) (int32, int64) {
	for {
		listed, err := list(context.Background(), prefix+kind)
		if err == nil {
			err = listed.Error()
		}
		if found := listed[prefix+kind]; err == nil && len(found) > 0 {
			partition := partitionOf(key, len(found))
			return partition, found[partition].Offset
		}
		log.Printf("no topic %s yet (%v)", prefix+kind, err)
		time.Sleep(time.Second)
	}
}
