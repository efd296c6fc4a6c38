// Checks the encoding with the shared vectors, on which every reader and writer of muster agrees.
package main

import (
	"bytes"
	"compress/zlib"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
)

type vector struct {
	Name, Key, Value, Bytes, Digest, Schema string
	Units                                   [][2]any
	Tasks, Active, Standby, Learner         []string
	Of1, Of3, Of16, Of50                    int32
	Held                                    []struct {
		Label  string
		Number int64
		Role   int
	}
	Incarnation, Fault, Message, Version string
	CoordinatorEpoch                     int64 `json:"coordinator_epoch"`
	Generation, Epoch, Revision          int64
	Report                               bool
	SessionTimeoutMs                     int64 `json:"session_timeout_ms"`
	HeartbeatIntervalMs                  int64 `json:"heartbeat_interval_ms"`
	Parts                                [][2]string
	Topic, Algorithm, Secret, Signature  string
	KeyID                                string `json:"key_id"`
	SignedMs                             int64  `json:"signed_ms"`
	Keyring                              struct{ Keys []Key }
	Group                                string
	AtMs                                 int64 `json:"at_ms"`
	Signer                               string
}

func (v *vector) UnmarshalJSON(data []byte) error {
	type plain vector
	if err := json.Unmarshal(data, (*plain)(v)); err != nil {
		return err
	}
	var of struct {
		A int32 `json:"of_1"`
		B int32 `json:"of_3"`
		C int32 `json:"of_16"`
		D int32 `json:"of_50"`
	}
	err := json.Unmarshal(data, &of)
	v.Of1, v.Of3, v.Of16, v.Of50 = of.A, of.B, of.C, of.D
	return err
}

func raw(text string) []byte {
	data, err := hex.DecodeString(text)
	if err != nil {
		log.Fatal(err)
	}
	return data
}

func printed(tasks []Task) []string {
	out := []string{}
	for _, task := range tasks {
		out = append(out, task.String())
	}
	return out
}

func same(what string, found, wanted any) {
	if !reflect.DeepEqual(found, wanted) {
		log.Fatalf("%s: %v, expected %v", what, found, wanted)
	}
}

// joined feeds the parts of a vector, or its value.
func joined(v vector) []byte {
	joiner := Joiner{}
	for _, part := range v.Parts {
		if value, whole := joiner.Feed(part[0], raw(part[1])); whole {
			same(v.Name+" joined", hex.EncodeToString(value), v.Value)
			return value
		}
	}
	return raw(v.Value)
}

func inflated(data []byte) string {
	stream, err := zlib.NewReader(bytes.NewReader(data))
	if err != nil {
		log.Fatal(err)
	}
	text, err := io.ReadAll(stream)
	if err != nil {
		log.Fatal(err)
	}
	return string(text)
}

func TestVectors(t *testing.T) {
	folder, checked := vectorsFolder(), 0
	load := func(name string) (all []vector) {
		data, err := os.ReadFile(filepath.Join(folder, name+".json"))
		if err == nil {
			err = json.Unmarshal(data, &all)
		}
		if err != nil {
			log.Fatal(name, ": ", err)
		}
		checked += len(all)
		return all
	}
	for _, v := range load("keys") {
		same(v.Key, []int32{partitionOf(v.Key, 1), partitionOf(v.Key, 3), partitionOf(v.Key, 16), partitionOf(v.Key, 50)},
			[]int32{v.Of1, v.Of3, v.Of16, v.Of50})
	}
	for _, v := range load("tasksets") {
		units := []Unit{}
		for _, unit := range v.Units {
			units = append(units, Unit{unit[0].(string), int64(unit[1].(float64))})
		}
		tasks := readSet(raw(v.Bytes), units)
		same(v.Name, printed(tasks), v.Tasks)
		sets, _ := appendSets(nil, [][]Task{tasks})
		written := &reader{sets}
		mine := written.units()
		again := printed(readSet(written.bytes(), mine))
		slices.Sort(again)
		slices.Sort(v.Tasks)
		same(v.Name+" written", again, v.Tasks)
	}
	for _, v := range load("digest") {
		sum := uint64(0)
		for _, held := range v.Held {
			sum += digestOf(Task{held.Label, held.Number}, held.Role)
		}
		same(v.Name, fmt.Sprintf("%016x", sum), v.Digest)
	}
	names := Names{}
	for _, v := range load("dictionary") {
		names.read(joined(v))
	}
	for _, v := range load("assignments") {
		a := readAssignment(joined(v))
		incarnation, _ := strconv.ParseUint(v.Incarnation, 16, 64)
		same(v.Name, []any{a.Incarnation, a.CoordinatorEpoch, a.Generation, a.Epoch, a.Revision, a.Report, a.Fault,
			a.SessionTimeoutMs, a.HeartbeatIntervalMs, a.Message}, []any{incarnation, v.CoordinatorEpoch, v.Generation,
			v.Epoch, v.Revision, v.Report, v.Fault, v.SessionTimeoutMs, v.HeartbeatIntervalMs, v.Message})
		wanted := map[string]bool{}
		for role, tasks := range [][]string{active: v.Active, standby: v.Standby, learner: v.Learner} {
			for _, task := range tasks {
				wanted[fmt.Sprint(task, role)] = true
			}
		}
		found := map[string]bool{}
		a.readSets(names)
		for task, role := range a.wanted {
			found[fmt.Sprint(task.String(), role)] = true
		}
		same(v.Name, found, wanted)
	}
	for _, v := range load("hostile") {
		if err := attempt(func() { readAssignment(raw(v.Value)).readSets(names) }); err == nil {
			log.Fatalf("%s: was read", v.Name)
		}
	}
	for _, v := range load("signatures") {
		key := Key{ID: v.KeyID, Algorithm: v.Algorithm, Secret: raw(v.Secret)}
		var value []byte
		if v.Value != "" { // null: a tombstone
			value = raw(v.Value)
		}
		signature := key.signature(v.Topic, []byte(v.Key), value, v.SignedMs)
		same("signed with "+v.KeyID, hex.EncodeToString(signature), v.Signature)
	}
	for _, v := range load("keyrings") {
		found := ""
		if key := signer(v.Keyring.Keys, v.Group, v.AtMs); key != nil {
			found = key.ID
		}
		same(v.Name, found, v.Signer)
	}
	many := []Task{}
	for i := range 5000 {
		many = append(many, Task{fmt.Sprintf("orders-to-warehouse-%04d-", i), int64(i % 3)})
	}
	sets, lines := appendSets(nil, [][]Task{many})
	units, stream := []Unit{}, inflated(lines)
	for line := range strings.Lines(stream) {
		label, size, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\x00")
		number, _ := strconv.ParseInt(size, 10, 64)
		units = append(units, Unit{label, number})
	}
	rest := &reader{sets}
	same("units beside the names", len(rest.units()), 0)
	same("many units", readSet(rest.bytes(), units), many)
	const w1 = 0x0102030405060708
	written := map[string]bool{}
	w := &Worker{member: "W1", session: w1, coordinator: 5,
		send: func(value []byte, _ bool) { written[hex.EncodeToString(value)] = true }}
	w.join()
	w.leave(0)
	w.newest = &Assignment{}
	w.heartbeat()
	w.newest = &Assignment{Epoch: 3, Revision: 9}
	w.report()
	for _, v := range load("events") {
		delete(written, v.Value)
	}
	same("written, in no vector", written, map[string]bool{})
	fmt.Printf("%d vectors agree\n", checked)
}
