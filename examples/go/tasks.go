package main

// Tasks, and sets of tasks [GRAMMAR 5]: all forms can be read; gaps are written.

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strings"
)

const active, standby, learner = 1, 2, 3 // roles [7]

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
		positions := r.segment(total)
		check(len(tasks)+len(positions) <= tasksMax, "more than %d tasks", tasksMax)
		for _, position := range positions {
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

// bits returns one bit after the other; the reader advances by whole bytes.
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
func (r *reader) segment(size int64) (positions []int64) {
	form, bit := r.byte(), r.bits()
	put := func(at int64) {
		check(at < size && len(positions) < tasksMax, "position %d of %d", at, size)
		positions = append(positions, at)
	}
	switch form &^ 0x80 {
	case 0: // nothing
	case 1: // runs
		n, k, m := r.varint(), r.byte(), r.byte()
		check(n > 0, "no runs")
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
		return positions
	}
	check(size <= tasksMax, "all but some of %d tasks", size)
	listed := positions
	positions = nil
	for at := range size {
		if len(listed) > 0 && listed[0] == at {
			listed = listed[1:]
		} else {
			put(at)
		}
	}
	return positions
}

func appendBytes[T string | []byte](out []byte, value T) []byte {
	return append(binary.AppendVarint(out, int64(len(value))), value...)
}

const manyUnits = 1 << 16 // characters; labels that take more are deflated

// appendSets writes the units of some sets as a list, and each set as gaps over all of them. The
// names of very many units become the extra "units" instead [GRAMMAR 5].
func appendSets(out []byte, sets [][]Task) (written, names []byte) {
	sizes, starts, total := map[string]int64{}, map[string]int64{}, int64(0)
	for _, task := range slices.Concat(sets...) {
		sizes[task.label] = max(sizes[task.label], task.number+first(task.label)+1)
	}
	var list, lines []byte
	for _, label := range slices.Sorted(maps.Keys(sizes)) {
		list = binary.AppendVarint(appendBytes(list, label), sizes[label])
		lines = fmt.Appendf(lines, "%s\x00%d\n", label, sizes[label])
		starts[label] = total + first(label)
		total += sizes[label]
	}
	if len(lines) > manyUnits {
		var deflated bytes.Buffer
		stream := zlib.NewWriter(&deflated)
		stream.Write(lines)
		stream.Close()
		names = deflated.Bytes()
	} else if len(sizes) > 0 {
		out = append(binary.AppendVarint(out, int64(len(sizes))), list...)
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
	return out, names
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
