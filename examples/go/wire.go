package main

// The encoding of records: read from front to back, written by appending [GRAMMAR 3, 4].

import (
	"bytes"
	"compress/zlib"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"unicode/utf8"
)

const ( // the first ten bytes of a value, which name its type
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

// reader reads a value from front to back.
type reader struct{ rest []byte }

func open(value []byte, frame string) *reader {
	rest, isFrame := bytes.CutPrefix(value, []byte(frame))
	check(isFrame, "not a value of %x", frame)
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

// list reads items until an empty block.
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

// extras come last in most records; unknown ones are skipped.
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
	wanted                                        map[Task]int // the role of each task, from the sets
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
	a.wanted = map[Task]int{}
	for role, set := range a.Sets {
		for _, task := range readSet(set, units) {
			a.wanted[task] = role
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

// Joiner joins the parts of split records, by the key of the whole record.
type Joiner map[string]map[int64][]byte

// Feed takes a record; whole says that value is a whole record. A value of nil is a tombstone.
func (j Joiner) Feed(key string, value []byte) (joined []byte, whole bool) {
	name := keyOfWhole(key)
	if !bytes.HasPrefix(value, []byte(partFrame)) {
		if name == key { // otherwise it is the tombstone of a part
			delete(j, name)
		}
		return value, name == key
	}
	r := open(value, partFrame)
	id, index, count, size, slice := r.u64(), r.long(), r.long(), r.long(), r.bytes()
	r.end()
	fits := index >= 0 && index < count && count <= size && size <= 64<<20 && len(slice) > 0
	check(fits, "part %d of %d of %d bytes", index, count, size)
	const of = -1 // position of the id that the slices have in common
	if owner := binary.LittleEndian.AppendUint64(nil, id); !bytes.Equal(j[name][of], owner) {
		j[name] = map[int64][]byte{of: owner}
	}
	slices := j[name]
	if slices[index] = slice; int64(len(slices)) <= count {
		return nil, false
	}
	delete(j, name)
	for i := range count {
		joined = append(joined, slices[i]...)
	}
	sum := sha256.Sum256(joined)
	check(int64(len(joined)) == size && bytes.Equal(sum[:8], slices[of]), "parts of something else")
	return joined, true
}
