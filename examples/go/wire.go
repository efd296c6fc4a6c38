// The bytes of muster, as protocol/GRAMMAR.md says (its sections are named below).
package main

import (
	"bytes"
	"compress/zlib"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"sort"
	"strings"
	"unicode/utf8"
)

var roles = map[int]string{1: "active", 2: "standby", 3: "learner"}

// frames: the first ten bytes of a value (section 3).
var frames = map[string]string{
	"Join": "\xc3\x01\x3b\x83\x4d\xd0\x0c\x14\x83\xf0", "Report": "\xc3\x01\xcd\x5c\x45\x24\x16\x20\xde\xf1",
	"Heartbeat": "\xc3\x01\x84\xd7\xc1\xae\x25\xd0\xc2\x2b", "Leave": "\xc3\x01\xb6\xed\x0e\xf0\xd7\x7c\x19\xa9",
	"MemberAssignment": "\xc3\x01\x83\xa7\x06\x3d\x7e\xec\xcd\xd7", "Dictionary": "\xc3\x01\xed\x27\x7f\x4d\x4d\x88\x71\xa9",
	"Packed": "\xc3\x01\x1d\x98\x8c\xe4\xa2\x67\xa7\x31", "Part": "\xc3\x01\x3d\x34\xd0\xb9\x69\x21\x61\x8b",
}

const tasksMax = 4_194_304 // no set has more (section 5)
const valueMax = 64 << 20

// ------------------------------------------------------------------------- keys (section 2)

func murmur2(data []byte) uint32 {
	const m = 0x5bd1e995
	h := 0x9747b28c ^ uint32(len(data))
	for ; len(data) >= 4; data = data[4:] {
		k := binary.LittleEndian.Uint32(data) * m
		h = h*m ^ (k^k>>24)*m
	}
	if len(data) > 0 {
		var rest [4]byte
		copy(rest[:], data)
		h = (h ^ binary.LittleEndian.Uint32(rest[:])) * m
	}
	h = (h ^ h>>13) * m
	return h ^ h>>15
}

func partitionOf(key string, partitions int) int32 {
	key = strings.SplitN(key, "||", 2)[0] // group||part lives with group
	if fields := strings.SplitN(key, "|", 3); len(fields) == 3 {
		key = fields[0] + "|" + fields[1] // group|member|part with group|member
	}
	return int32((murmur2([]byte(key)) & 0x7fffffff) % uint32(partitions))
}

// keyOfWhole drops the part name of a key (section 4).
func keyOfWhole(key string) string {
	if group, part, found := strings.Cut(key, "||"); found {
		if names, _, _ := strings.Cut(part, "."); names == "names" {
			return group + "||names"
		}
		return group
	}
	if fields := strings.SplitN(key, "|", 3); len(fields) == 3 {
		return fields[0] + "|" + fields[1]
	}
	return key
}

// ----------------------------------------------------------------------- bodies (section 3)

// A reader panics with its error; read() turns that into a return.
type reader struct {
	data []byte
	at   int
}

func fail(format string, more ...any) { panic(fmt.Errorf(format, more...)) }

func read(value []byte, schema string, body func(*reader)) (err error) {
	defer func() {
		if thrown := recover(); thrown != nil {
			var ok bool
			if err, ok = thrown.(error); !ok {
				panic(thrown)
			}
		}
	}()
	if !bytes.HasPrefix(value, []byte(frames[schema])) {
		fail("not a %s", schema)
	}
	r := &reader{data: value, at: len(frames[schema])}
	body(r)
	if r.at != len(r.data) {
		fail("%d bytes behind the body", len(r.data)-r.at)
	}
	return nil
}

func (r *reader) take(count int) []byte {
	if count < 0 || count > len(r.data)-r.at {
		fail("%d bytes wanted, %d left", count, len(r.data)-r.at)
	}
	r.at += count
	return r.data[r.at-count : r.at]
}

func (r *reader) long() int64 {
	value, size := binary.Uvarint(r.data[r.at:])
	if size <= 0 {
		fail("no number at byte %d", r.at)
	}
	r.at += size
	return int64(value>>1) ^ -int64(value&1)
}

func (r *reader) size() int {
	value := r.long()
	if value < 0 || value > int64(len(r.data)) {
		fail("a length of %d", value)
	}
	return int(value)
}

func (r *reader) bytes() []byte { return r.take(r.size()) }
func (r *reader) u64() uint64   { return binary.LittleEndian.Uint64(r.take(8)) }
func (r *reader) bool() bool    { return r.take(1)[0] != 0 }

func (r *reader) text() string {
	value := r.bytes()
	if !utf8.Valid(value) {
		fail("text that is not UTF-8")
	}
	return string(value)
}

// each reads the blocks of a list.
func (r *reader) each(item func()) {
	for {
		count := r.long()
		if count < 0 {
			count = -count
			r.long()
		}
		if count < 0 || count > int64(len(r.data)) {
			fail("a list of %d", count)
		}
		if count == 0 {
			return
		}
		for ; count > 0; count-- {
			item()
		}
	}
}

func (r *reader) extras() { r.each(func() { r.text(); r.bytes() }) }

func (r *reader) units() (units []Unit) {
	r.each(func() {
		unit := Unit{r.text(), r.long()}
		if unit.size < 0 || unit.size > 1<<31-1 || unit.label == "" {
			fail("unit %q of %d", unit.label, unit.size)
		}
		units = append(units, unit)
	})
	return units
}

type writer struct{ bytes.Buffer }

func valueOf(schema string) *writer {
	w := &writer{}
	w.WriteString(frames[schema])
	return w
}

func (w *writer) long(value int64) {
	w.Write(binary.AppendUvarint(nil, uint64(value<<1)^uint64(value>>63)))
}
func (w *writer) text(value string)  { w.long(int64(len(value))); w.WriteString(value) }
func (w *writer) bytes(value []byte) { w.long(int64(len(value))); w.Write(value) }
func (w *writer) u64(value uint64)   { w.Write(binary.LittleEndian.AppendUint64(nil, value)) }
func (w *writer) bool(value bool)    { w.WriteByte(map[bool]byte{false: 0, true: 1}[value]) }

// --------------------------------------------------------------- units, task sets (section 5)

// Unit is a unit as records refer to it.
type Unit struct {
	label string
	size  int64
}

// Task is a task: its unit's label and its number, -1 for a connector itself.
type Task struct {
	label  string
	number int64
}

func (t Task) print() string {
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
	switch codec := r.take(1)[0]; codec {
	case 1:
		total := int64(0)
		for _, unit := range units {
			total += unit.size
		}
		unit, start := 0, int64(0)
		for _, position := range r.segment(total) {
			for position >= start+units[unit].size {
				start += units[unit].size
				unit++
			}
			label := units[unit].label
			tasks = append(tasks, Task{label, position - start - first(label)})
		}
	case 2:
		for _, unit := range units {
			for _, position := range r.segment(unit.size) {
				tasks = append(tasks, Task{unit.label, position - first(unit.label)})
			}
		}
	default:
		fail("set codec %d", codec)
	}
	if r.at != len(data) {
		fail("%d bytes behind a set", len(data)-r.at)
	}
	return tasks
}

func (r *reader) varint() int64 {
	value, size := binary.Uvarint(r.data[r.at:])
	if size <= 0 || size > 5 {
		fail("no varint at byte %d", r.at)
	}
	r.at += size
	return int64(value)
}

func (r *reader) segment(size int64) (found []int64) {
	form := r.take(1)[0]
	switch form &^ 0x80 {
	case 0:
	case 1:
		n, k, m := r.varint(), r.take(1)[0], r.take(1)[0]
		b := &bitReader{r: r}
		gaps, lengths := b.rice(n, k), b.rice(n, m)
		at := int64(0)
		for i, gap := range gaps {
			if i > 0 {
				gap++
			}
			at += gap
			end := at + lengths[i] + 1
			if end > size || int64(len(found))+end-at > tasksMax {
				fail("a range up to %d of %d", end, size)
			}
			for ; at < end; at++ {
				found = append(found, at)
			}
		}
	case 2:
		n, at := r.varint(), r.varint()
		if n < 1 {
			fail("no gaps")
		}
		found = append(found, at)
		if n > 1 {
			base, k := r.varint(), r.take(1)[0]
			for _, gap := range (&bitReader{r: r}).rice(n-1, k) {
				at += 1 + base + gap
				found = append(found, at)
			}
		}
	case 3:
		found = r.triplets(size)
	case 4:
		b := &bitReader{r: r}
		for at := int64(0); at < size; at++ {
			if b.bit() == 1 {
				found = append(found, at)
			}
		}
	default:
		fail("form %d", form)
	}
	if len(found) > 0 && found[len(found)-1] >= size {
		fail("position %d of %d", found[len(found)-1], size)
	}
	if form&0x80 != 0 {
		found = others(found, size)
	}
	return found
}

func others(listed []int64, size int64) (rest []int64) {
	if size > tasksMax {
		fail("all but some of %d tasks", size)
	}
	next := 0
	for at := int64(0); at < size; at++ {
		if next < len(listed) && listed[next] == at {
			next++
		} else {
			rest = append(rest, at)
		}
	}
	return rest
}

func (r *reader) triplets(size int64) (found []int64) {
	b := &bitReader{r: r}
	count := (size + 2) / 3
	if count > int64(len(r.data))*4 {
		fail("%d triplets in %d bytes", count, len(r.data))
	}
	class, symbol := make([]int, count), make([]int, count)
	for i := range class {
		class[i] = b.bit() | b.bit()<<1
	}
	for i := range class {
		if class[i] != 0 {
			symbol[i] = class[i]*2 - 1 + b.bit() // 1..6
		}
	}
	for i := range class {
		if symbol[i] == 6 {
			symbol[i] += b.bit()
		}
	}
	members := [8]int{0, 0b001, 0b010, 0b100, 0b011, 0b101, 0b110, 0b111}
	for i, s := range symbol {
		for j := 0; j < 3; j++ {
			if members[s]>>j&1 == 1 {
				found = append(found, int64(3*i+j))
			}
		}
	}
	return found
}

// bitReader reads bits from the lowest up; the reader moves on by whole bytes.
type bitReader struct {
	r    *reader
	byte byte
	left int
}

func (b *bitReader) bit() int {
	if b.left == 0 {
		b.byte, b.left = b.r.take(1)[0], 8
	}
	bit := int(b.byte & 1)
	b.byte >>= 1
	b.left--
	return bit
}

func (b *bitReader) rice(n int64, k byte) []int64 {
	if n < 0 || n > tasksMax || k > 32 || k < 32 && n > int64(len(b.r.data))*8 {
		fail("%d values of Rice %d", n, k)
	}
	values := make([]int64, n)
	if k == 32 {
		return values
	}
	for i := range values {
		for b.bit() == 0 {
			values[i]++
		}
	}
	for i := range values {
		low := int64(0)
		for bit := byte(0); bit < k; bit++ {
			low |= int64(b.bit()) << bit
		}
		values[i] = values[i]<<k | low
	}
	return values
}

// writeSets gives the units of some sets, and each set in the form of gaps over all units.
func writeSets(sets ...[]Task) (units []Unit, values [][]byte) {
	sizes := map[string]int64{}
	for _, set := range sets {
		for _, task := range set {
			sizes[task.label] = max(sizes[task.label], task.number+first(task.label)+1)
		}
	}
	for label, size := range sizes {
		units = append(units, Unit{label, size})
	}
	sort.Slice(units, func(i, j int) bool { return units[i].label < units[j].label })
	start, total := map[string]int64{}, int64(0)
	for _, unit := range units {
		start[unit.label] = total
		total += unit.size
	}
	for _, set := range sets {
		positions := make([]int64, 0, len(set))
		for _, task := range set {
			positions = append(positions, start[task.label]+task.number+first(task.label))
		}
		sort.Slice(positions, func(i, j int) bool { return positions[i] < positions[j] })
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
	mean := uint64(positions[n-1]-positions[0]) / uint64(n-1)
	k := max(0, bits.Len64(mean)-1)
	out = append(out, 0, byte(k)) // base 0
	var line []byte
	for i := 1; i < n; i++ {
		gap := positions[i] - positions[i-1] - 1
		line = append(append(line, make([]byte, gap>>k)...), 1)
	}
	for i := 1; i < n; i++ {
		gap := positions[i] - positions[i-1] - 1
		for bit := 0; bit < k; bit++ {
			line = append(line, byte(gap>>bit&1))
		}
	}
	packed := make([]byte, (len(line)+7)/8)
	for i, bit := range line {
		packed[i/8] |= bit << (i % 8)
	}
	return append(out, packed...)
}

// ------------------------------------------------------------------------ digest (section 7)

func digestOf(task Task, role int) uint64 {
	name := uint64(0xcbf29ce484222325)
	for i := 0; i < len(task.label); i++ {
		name = (name ^ uint64(task.label[i])) * 0x100000001b3
	}
	x := name + uint64(task.number+1)*0x9e3779b97f4a7c15 + uint64(role)*0xd1b54a32d192ed03
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// ------------------------------------------------------------------ what a member writes

func joinValue(member string, incarnation uint64) []byte {
	w := valueOf("Join")
	w.text(member)
	w.u64(incarnation)
	w.WriteString("\x00\x00") // no instance id, no rack
	w.long(1)                 // capacity
	w.WriteString("\x00\x00\x00\x00")
	w.WriteString("\x00\x00\x00\x00\x00\x00") // holds nothing
	w.WriteString("\x00\x00\x00")
	w.bool(true) // can wait for a learner before it gives up a task
	w.long(0)
	return w.Bytes()
}

// reportValue: held by role; 4 are ready learners, 5 the tasks being given up.
func reportValue(member string, incarnation uint64, epoch, revision int64, held map[int][]Task) []byte {
	units, sets := writeSets(held[1], held[2], held[3], held[4], held[5])
	w := valueOf("Report")
	w.text(member)
	w.u64(incarnation)
	w.long(epoch)
	w.long(revision)
	if len(units) > 0 {
		w.long(int64(len(units)))
		for _, unit := range units {
			w.text(unit.label)
			w.long(unit.size)
		}
	}
	w.long(0)
	for _, set := range sets {
		w.bytes(set)
	}
	w.WriteString("\x00\x00") // no lags, no extras
	return w.Bytes()
}

func heartbeatValue(member string, epoch int64, digest uint64) []byte {
	w := valueOf("Heartbeat")
	w.text(member)
	w.long(epoch)
	w.u64(digest)
	return w.Bytes()
}

func leaveValue(member string, incarnation uint64, temporary bool) []byte {
	w := valueOf("Leave")
	w.text(member)
	w.u64(incarnation)
	w.bool(temporary)
	w.long(0)
	return w.Bytes()
}

// ------------------------------------------------------------------- what a member reads

// Assignment is everything the member should hold.
type Assignment struct {
	Incarnation                                   uint64
	CoordinatorEpoch, Generation, Epoch, Revision int64
	Active, Standby, Learner                      []Task
	Report                                        bool
	Fault                                         string
	SessionTimeoutMs, HeartbeatIntervalMs         int64
	Message                                       string
}

func (a *Assignment) wanted() map[Held]bool {
	wanted := map[Held]bool{}
	for role, tasks := range map[int][]Task{1: a.Active, 2: a.Standby, 3: a.Learner} {
		for _, task := range tasks {
			wanted[Held{task, role}] = true
		}
	}
	return wanted
}

// UnknownDictionary asks for the dictionary of a version.
type UnknownDictionary struct{ version uint64 }

func (u UnknownDictionary) Error() string { return fmt.Sprintf("no dictionary %016x", u.version) }

func readAssignment(value []byte, names map[uint64][]Unit) (*Assignment, error) {
	a := &Assignment{}
	err := read(value, "MemberAssignment", func(r *reader) {
		a.Incarnation = r.u64()
		a.CoordinatorEpoch, a.Generation, a.Epoch, a.Revision = r.long(), r.long(), r.long(), r.long()
		version, referred := uint64(0), r.long() != 0
		if referred {
			version = r.u64()
		}
		units := r.units()
		active, standby, learner := r.bytes(), r.bytes(), r.bytes()
		a.Report, a.Fault = r.bool(), r.text()
		a.SessionTimeoutMs, a.HeartbeatIntervalMs, a.Message = r.long(), r.long(), r.text()
		r.extras()
		if referred {
			var known bool
			if units, known = names[version]; !known {
				panic(error(UnknownDictionary{version}))
			}
		}
		a.Active, a.Standby, a.Learner = readSet(active, units), readSet(standby, units), readSet(learner, units)
	})
	return a, err
}

func readDictionary(value []byte) (version uint64, units []Unit, err error) {
	if value, err = unpack(value); err != nil {
		return 0, nil, err
	}
	err = read(value, "Dictionary", func(r *reader) {
		version, units = r.u64(), r.units()
		r.extras()
	})
	return version, units, err
}

func unpack(value []byte) (inner []byte, err error) {
	if !bytes.HasPrefix(value, []byte(frames["Packed"])) {
		return value, nil
	}
	err = read(value, "Packed", func(r *reader) {
		size, deflated := r.long(), r.bytes()
		if size < 0 || size > int64(len(deflated))*32 {
			fail("%d bytes packed into %d", size, len(deflated))
		}
		stream, err := zlib.NewReader(bytes.NewReader(deflated))
		if err != nil {
			panic(err)
		}
		if inner, err = io.ReadAll(io.LimitReader(stream, size+1)); err != nil {
			panic(err)
		}
		if int64(len(inner)) != size {
			fail("%d bytes instead of %d", len(inner), size)
		}
	})
	return inner, err
}

// Joiner puts the parts of split records together (section 4).
type Joiner map[string]*pending

type pending struct {
	id          uint64
	count, size int64
	slices      map[int64][]byte
}

// Feed takes a record; whole says that value is one again. A value of nil is a tombstone.
func (j Joiner) Feed(key string, value []byte) (joined []byte, whole bool, err error) {
	name := keyOfWhole(key)
	if !bytes.HasPrefix(value, []byte(frames["Part"])) {
		if name != key {
			return nil, false, nil // a tombstone that tidies up a part
		}
		delete(j, name)
		return value, true, nil
	}
	err = read(value, "Part", func(r *reader) {
		id, index, count, size, slice := r.u64(), r.long(), r.long(), r.long(), r.bytes()
		if index < 0 || index >= count || count > size || size > valueMax || len(slice) == 0 {
			fail("part %d of %d of %d bytes", index, count, size)
		}
		if j[name] == nil || j[name].id != id {
			j[name] = &pending{id, count, size, map[int64][]byte{}}
		}
		p := j[name]
		p.slices[index] = slice
		if int64(len(p.slices)) < p.count {
			return
		}
		delete(j, name)
		for i := int64(0); i < p.count; i++ {
			joined = append(joined, p.slices[i]...)
		}
		sum := sha256.Sum256(joined)
		if int64(len(joined)) != p.size || binary.LittleEndian.Uint64(sum[:]) != id {
			panic(errors.New("parts that join to other bytes than were split"))
		}
		whole = true
	})
	return joined, whole, err
}
