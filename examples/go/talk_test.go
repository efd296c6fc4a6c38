// Plays protocol/vectors/talk.json: how a member reacts to the records it reads, one after the other.
// Without Kafka: go test session.go work.go tasks.go wire.go keys.go talk_test.go
package main

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"flag"
	"log"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
)

type talk struct {
	Name  string
	Steps []step
}

// step is a record to read (null: a tombstone), or tasks that have stopped, and the expected state
// afterwards.
type step struct {
	Incarnation    string
	Read           *string
	Stopped        map[string][]string
	Obeyed, Report bool
	Held           map[string][]string
	Digest         string
}

// vectorsFolder is the folder of the shared vectors: the first argument, or its place in the checkout.
func vectorsFolder() string {
	if len(flag.Args()) > 0 {
		return flag.Arg(0)
	}
	return "../../protocol/vectors"
}

func TestTalks(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(vectorsFolder(), "talk.json"))
	if err != nil {
		t.Fatal(err)
	}
	talks := []talk{}
	if err := json.Unmarshal(data, &talks); err != nil || len(talks) == 0 {
		t.Fatal("no talks: ", err)
	}
	for _, each := range talks {
		t.Run(each.Name, func(t *testing.T) { each.play(t) })
	}
}

func (each talk) play(t *testing.T) {
	sent := []string{}
	w := &Worker{member: "W1", inbox: make(chan func(), 1000), held: map[Held]*Running{},
		send: func(value []byte, _ bool) { sent = append(sent, string(value)) }}
	w.begin()
	for i, step := range each.Steps {
		w.session, _ = strconv.ParseUint(step.Incarnation, 16, 64)
		w.acknowledged(bootMs())
		w.caughtUp(bootMs())
		before := names(w)
		sent = nil
		obeyed := w.take(t, step)
		if step.Stopped == nil && obeyed != step.Obeyed {
			t.Errorf("step %d: obeyed %v, expected %v", i, obeyed, step.Obeyed)
		}
		expected := step.Report
		for _, task := range slices.Concat(step.Held["standby"], step.Held["learner"]) {
			expected = expected || !slices.Contains(before, task) // copies are ready at once, and reported
		}
		reports := 0
		for _, value := range sent {
			if strings.HasPrefix(value, reportFrame) {
				reports++
			}
		}
		if expected != (reports == 1) || reports > 1 {
			t.Errorf("step %d: %d reports, expected one: %v", i, reports, expected)
		}
		for _, tasks := range step.Held {
			slices.Sort(tasks)
		}
		if held := sets(w); !reflect.DeepEqual(held, step.Held) {
			t.Errorf("step %d: holds %v, expected %v", i, held, step.Held)
		}
		digest := make([]byte, 8)
		if w.newest != nil {
			w.heartbeat()
			beat := sent[len(sent)-1]
			digest = []byte(beat[len(beat)-8:])
		}
		wanted, _ := strconv.ParseUint(step.Digest, 16, 64)
		if sum := binary.LittleEndian.Uint64(digest); sum != wanted {
			t.Errorf("step %d: digest %016x, expected %s", i, sum, step.Digest)
		}
	}
}

// take lets a worker take a step, and returns whether it acted on it.
func (w *Worker) take(t *testing.T, step step) bool {
	if step.Stopped != nil {
		for anyStopping(w) {
			(<-w.inbox)()
		}
		return true
	}
	if step.Read == nil {
		w.lose("let go by the coordinator")
		return w.newest == nil
	}
	value, err := hex.DecodeString(*step.Read)
	if err != nil {
		t.Fatal(err)
	}
	a := readAssignment(value)
	a.readSets(Names{})
	w.hear(a)
	return w.newest == a
}

func anyStopping(w *Worker) bool {
	for _, running := range w.held {
		if running.stopping {
			return true
		}
	}
	return false
}

// names returns the tasks that a worker holds in any role.
func names(w *Worker) (all []string) {
	for held := range w.held {
		all = append(all, held.Task.String())
	}
	return all
}

// sets returns what a worker holds, in the format of the vectors.
func sets(w *Worker) map[string][]string {
	sets := map[string][]string{"active": {}, "standby": {}, "learner": {}, "releasing": {}}
	add := func(name string, held Held) { sets[name] = append(sets[name], held.Task.String()) }
	for held := range w.held {
		add([...]string{active: "active", standby: "standby", learner: "learner"}[held.Role], held)
		if w.givenUp(held) {
			add("releasing", held)
		}
	}
	for _, tasks := range sets {
		slices.Sort(tasks)
	}
	return sets
}

// TestShorterSession: a shorter timeout counts from the report on, not from what was sent before in
// the rhythm of the longer one; a report whose acknowledgement comes too late proves nothing.
func TestShorterSession(t *testing.T) {
	sent := 0
	w := &Worker{member: "W1", inbox: make(chan func(), 1000), held: map[Held]*Running{}, send: func([]byte, bool) { sent++ }}
	w.begin()
	w.hear(&Assignment{Incarnation: w.session, Revision: 1, SessionTimeoutMs: 60_000})
	w.heardMs, w.readMs = bootMs()-19_000, bootMs()-19_000
	w.hear(&Assignment{Incarnation: w.session, Revision: 2, SessionTimeoutMs: 2_000})
	left := w.lease.Load() - bootMs()
	if w.newest == nil || sent != 2 || left < 1_500 || left > 1_780 {
		t.Fatalf("%d events sent, %d ms left", sent, left)
	}
	w.count(bootMs()+2_000, bootMs()+2_000)
	if w.heardMs > bootMs()-19_000 {
		t.Error("a late acknowledgement counts")
	}
	told := w.toldMs
	w.acknowledged(told)
	w.caughtUp(told)
	w.hear(&Assignment{Incarnation: w.session, Revision: 3, SessionTimeoutMs: 60_000})
	if left := w.lease.Load() - told; w.mustTell() || left != 56_400 {
		t.Errorf("%d ms of a longer session", left)
	}
}

// TestOneReport: a copy to report and a question in one record are one report. Two would have the same
// signature in the same millisecond, and a signature counts once.
func TestOneReport(t *testing.T) {
	sent := 0
	w := &Worker{member: "W1", inbox: make(chan func(), 1000), held: map[Held]*Running{}, send: func([]byte, bool) { sent++ }}
	w.begin()
	w.hear(&Assignment{Incarnation: w.session, Revision: 1, Report: true, SessionTimeoutMs: 60_000,
		wanted: map[Task]int{{"0_", 0}: standby}})
	if sent != 2 {
		t.Errorf("%d events instead of a join and a report", sent)
	}
}

// TestLeaves: a member that leaves reports what a record had revoked before, as it stops, and answers a
// coordinator that asks; it obeys no record.
func TestLeaves(t *testing.T) {
	sent := []string{}
	w := &Worker{member: "W1", session: 1, leaving: true, held: map[Held]*Running{},
		send: func(value []byte, _ bool) { sent = append(sent, string(value[:10])) }}
	kept, revoked, slow := Task{"0_", 0}, Task{"0_", 1}, Task{"0_", 2}
	w.newest = &Assignment{Revision: 2, SessionTimeoutMs: 60_000, HeartbeatIntervalMs: 60_000, wanted: map[Task]int{kept: active}}
	w.formerMs, w.heardMs, w.readMs, w.sentMs = 60_000, bootMs(), bootMs(), bootMs()
	w.renew()
	for _, task := range []Task{kept, revoked, slow} {
		w.held[Held{task, active}] = &Running{stopping: true}
	}
	stop := func(task Task) { w.stopped(Held{task, active}, w.held[Held{task, active}]) }
	stop(kept)
	if w.reportMs != 0 {
		t.Error("what the leave releases is reported")
	}
	stop(revoked)
	for w.reportMs > 0 && len(sent) == 0 {
		w.tick()
	}
	if !slices.Equal(sent, []string{reportFrame}) {
		t.Errorf("what was revoked before is not reported: %q", sent)
	}
	asks := &Assignment{Incarnation: 1, CoordinatorEpoch: 9, Revision: 3, Report: true, wanted: map[Task]int{revoked: active}}
	w.hear(asks)
	if len(sent) != 2 || w.coordinator != 9 || w.newest == asks || len(w.held) != 1 {
		t.Errorf("%d events after a question, coordinator %d, %d held", len(sent), w.coordinator, len(w.held))
	}
}

// TestLeaseEnds: work that notices the end of the lease first has not ended by itself.
func TestLeaseEnds(t *testing.T) {
	var said bytes.Buffer
	log.SetOutput(&said)
	defer log.SetOutput(os.Stderr)
	w := &Worker{member: "W1", inbox: make(chan func(), 1000), held: map[Held]*Running{}, send: func([]byte, bool) {}}
	w.begin()
	w.hear(&Assignment{Incarnation: w.session, SessionTimeoutMs: 500, wanted: map[Task]int{{"0_", 0}: active}})
	(<-w.inbox)()
	if !strings.Contains(said.String(), "the lease ran out") {
		t.Error(said.String())
	}
}

// TestFails: work that ends by itself again and again makes the joins wait, longer each time. Meanwhile no record
// counts, and a leave is still that of the session before.
func TestFails(t *testing.T) {
	sent := []string{}
	w := &Worker{member: "W1", inbox: make(chan func(), 1000), held: map[Held]*Running{},
		send: func(value []byte, _ bool) { sent = append(sent, string(value[:10])) }}
	task := Task{"0_", 0}
	w.begin()
	for _, pauseMs := range []int64{0, 1_000, 2_000, 4_000} {
		session := w.session
		record := &Assignment{Incarnation: session, SessionTimeoutMs: 60_000, wanted: map[Task]int{task: active}}
		w.hear(record)
		sent = nil
		beforeMs := bootMs()
		w.stopped(Held{task, active}, w.held[Held{task, active}])
		if pauseMs == 0 {
			if !slices.Equal(sent, []string{leaveFrame, joinFrame}) {
				t.Fatalf("%q is sent after the first failure", sent)
			}
			continue
		}
		w.hear(record)
		if w.joinAtMs < beforeMs+pauseMs || w.newest != nil || w.session != session {
			t.Errorf("joins after %d ms instead of %d", w.joinAtMs-beforeMs, pauseMs)
		}
		w.joinAtMs = bootMs()
		w.tick()
		if !slices.Equal(sent, []string{leaveFrame, joinFrame}) || w.session == session {
			t.Fatalf("%q is sent after the pause", sent)
		}
	}
}
