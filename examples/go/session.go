package main

// The member's half of the protocol [GRAMMAR 8]: when to join, what to start, stop and report.

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"log"
	"sync/atomic"
)

// Held is a task that the member holds, in one role.
type Held struct {
	Task Task
	Role int
}

// Running is the work of one task.
type Running struct {
	stop            context.CancelFunc
	done            chan struct{}
	stopping, ready bool
}

// From the first stopped task to the report, so that tasks that stop together are one report.
const gatherMs = 50

// Work that ends by itself later than this after the join has not failed again and again.
const failuresMs = 60_000

// Worker is one member. Only the loop uses its fields, except lease; other goroutines put functions
// into the inbox for the loop to call.
type Worker struct {
	group, member string
	inbox         chan func()
	send          func(value []byte, counts bool) // counts: its acknowledgement extends the lease

	session     uint64      // incarnation
	newest      *Assignment // in force; nil = not a member
	coordinator int64       // the highest coordinator epoch seen
	held        map[Held]*Running
	lease       atomic.Int64 // when it ends; it counts from the older of the next two
	heardMs     int64        // when the newest acknowledged event was sent
	readMs      int64        // see caughtUp
	firstMs     int64        // of this session's first join
	formerMs    int64        // the longest session timeout that may count, see retime
	toldMs      int64        // when a report on a shorter timeout was sent; 0 = it was not
	joinsMs     [][2]int64   // when acknowledged joins were sent and acknowledged, until one is answered
	sentMs      int64
	joinAtMs    int64
	attempts    int   // joins of this session; if 0, the session is over and another one begins at joinAtMs
	failures    int   // sessions that work ended by itself, one soon after the other
	beating     bool  // a heartbeat is in flight
	reportMs    int64 // when to report what has stopped; 0 = nothing has
	leaving     bool
}

// hear acts on a record, unless it is for another session, old or repeated.
func (w *Worker) hear(a *Assignment) {
	mine := a.Incarnation == w.session || a.Fault != "" && a.Incarnation == 0
	isOver := w.newest == nil && w.attempts == 0
	if w.fenced() || isOver || !mine || a.CoordinatorEpoch < w.coordinator {
		return
	}
	w.coordinator = a.CoordinatorEpoch
	if a.Fault != "" {
		w.hearFault(a)
		return
	}
	if !w.leaving && (w.newest == nil || a.Revision > w.newest.Revision) { // leaving: all stops anyway
		if w.newest == nil {
			w.admitted(a)
		} else {
			w.retime(a.SessionTimeoutMs)
		}
		w.newest = a
		w.renew()
		if w.fenced() || w.settle() {
			return
		}
	}
	if a.Report || w.mustTell() {
		w.report()
	}
}

// admitted: the answer proves that one join is in the log, perhaps the first: a process that was
// suspended and asks again may read the answer to an earlier join.
func (w *Worker) admitted(a *Assignment) {
	w.heardMs, w.formerMs, w.toldMs = w.firstMs, a.SessionTimeoutMs, 0
	for _, join := range w.joinsMs {
		w.count(join[0], join[1])
	}
	w.joinsMs = nil
}

// acknowledged: Kafka has an event that was sent at sentMs.
func (w *Worker) acknowledged(sentMs int64) {
	if w.newest == nil {
		w.joinsMs = append(w.joinsMs, [2]int64{sentMs, bootMs()})
		return
	}
	w.count(sentMs, bootMs())
	w.renew()
}

// count takes an acknowledgement for a sign of life if it came before the session of the event
// counted so far could end: later, the coordinator may have given the tasks away already.
func (w *Worker) count(sentMs, acknowledgedMs int64) {
	if acknowledgedMs < w.endsAt(w.heardMs) {
		w.heardMs = max(w.heardMs, sentMs)
	}
}

// reportLater: Kafka has not taken a report, so another one takes the place of the next heartbeat.
func (w *Worker) reportLater() {
	if w.newest != nil {
		w.reportMs = bootMs() + w.newest.HeartbeatIntervalMs
	}
}

func (w *Worker) hearFault(a *Assignment) {
	log.Printf("%s: %s", a.Fault, a.Message)
	switch a.Fault {
	case "MEMBER_ID_IN_USE", "UNRELEASED_INSTANCE_ID", "GROUP_MAX_SIZE_REACHED": // asks again
	case "UNKNOWN_MEMBER_ID", "FENCED_MEMBER_EPOCH", "GROUP_ID_NOT_FOUND": // joining: asks again
		w.lose(a.Fault)
	default:
		if w.newest == nil || a.Fault == "FENCED_INSTANCE_ID" {
			w.stopAll()
			log.Fatal(a.Message)
		}
		w.lose(a.Fault)
	}
}

func (w *Worker) renew() {
	if w.newest != nil {
		// A tenth of the session, at most 3 s, is for stopping.
		w.lease.Store(w.endsAt(min(w.heardMs, w.readMs)) - min(3000, w.newest.SessionTimeoutMs/10))
	}
}

// retime takes the session timeout of a newer record. The coordinator counts a longer one at once, and
// a shorter one from the member's report on: what was sent before had the rhythm of the longer one. If
// the timeout changes again before an event since the report proves the session, the first report
// counts: the coordinator may have counted from then on.
func (w *Worker) retime(ms int64) {
	longest := w.formerMs
	proved := w.toldMs > 0 && min(w.heardMs, w.readMs) >= w.toldMs
	if proved {
		longest = w.newest.SessionTimeoutMs
	}
	if proved || ms >= longest {
		w.toldMs = 0
	}
	w.formerMs = max(ms, longest)
}

// mustTell: the timeout is shorter than before, and no report was sent since.
func (w *Worker) mustTell() bool { return w.formerMs > w.newest.SessionTimeoutMs && w.toldMs == 0 }

// endsAt: until when the session lives for certain that is proved up to sinceMs. 1 % is for clocks
// that drift.
func (w *Worker) endsAt(sinceMs int64) int64 {
	former := sinceMs + w.formerMs*99/100
	if w.toldMs == 0 {
		return former
	}
	return min(former, max(sinceMs, w.toldMs)+w.newest.SessionTimeoutMs*99/100)
}

func (w *Worker) fenced() bool {
	over := w.newest != nil && bootMs() >= w.lease.Load()
	if over {
		w.lose("the lease ran out")
	}
	return over
}

// failed: work has ended by itself. If it does so again and again, the joins wait, longer each time, while the
// tasks wait for the member. Otherwise it would leave and join as fast as the coordinator answers.
func (w *Worker) failed(held Held) {
	if bootMs() >= w.firstMs+failuresMs {
		w.failures = 0
	}
	pauseMs := int64(0)
	if w.failures > 0 {
		pauseMs = min(int64(500)<<min(w.failures, 6), 30_000)
	}
	w.failures++
	w.loseFor(pauseMs, held.Task.String()+" ended by itself")
}

func (w *Worker) lose(why string) { w.loseFor(0, why) }

// loseFor stops every task, then joins again under another incarnation, after a pause.
func (w *Worker) loseFor(pauseMs int64, why string) {
	if w.newest == nil {
		return
	}
	log.Printf("lost everything: %s", why)
	w.lease.Store(0)
	w.stopAll()
	w.newest, w.beating, w.reportMs, w.attempts = nil, false, 0, 0
	if !w.leaving { // otherwise the loop sends the leave
		w.leave(1)
		w.joinAtMs = bootMs() + pauseMs
		w.tick()
	}
}

func (w *Worker) begin() {
	var seed [8]byte
	rand.Read(seed[:])
	w.session = binary.LittleEndian.Uint64(seed[:])>>1 | 1
	w.firstMs = bootMs()
	w.readMs = w.firstMs // nothing is written to a session before its first join
	w.joinsMs = nil
	w.join()
}

// join says that the member holds nothing, has a capacity of 1, and can keep a task until a learner
// has caught up with it.
func (w *Worker) join() {
	w.joinAtMs = bootMs() + min(int64(1000)<<min(w.attempts, 3), 5000)
	w.attempts++
	w.send(append(w.ofSession(joinFrame), 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0), true)
}

// leave says whether the member returns soon (1) or not (0); no extras.
func (w *Worker) leave(returns byte) { w.send(append(w.ofSession(leaveFrame), returns, 0), false) }

func (w *Worker) report() {
	w.reportMs = 0
	if w.mustTell() {
		w.toldMs = bootMs()
		w.renew()
	}
	var sets [5][]Task // active, standby, learner, ready, releasing
	for h, running := range w.held {
		sets[h.Role-1] = append(sets[h.Role-1], h.Task)
		if running.ready {
			sets[3] = append(sets[3], h.Task)
		}
		if w.givenUp(h) {
			sets[4] = append(sets[4], h.Task)
		}
	}
	out := binary.AppendVarint(w.ofSession(reportFrame), w.newest.Epoch)
	out, names := appendSets(binary.AppendVarint(out, w.newest.Revision), sets[:])
	out = append(out, "\x00\x02\x22coordinator_epoch\x10"...) // no lags; one extra, of 8 bytes
	out = binary.LittleEndian.AppendUint64(out, uint64(w.coordinator))
	if names != nil { // another block of extras
		out = appendBytes(appendBytes(append(out, 2), "units"), names)
	}
	w.send(append(out, 0), true)
}

func (w *Worker) heartbeat() {
	digest := uint64(0)
	for h := range w.held {
		role := h.Role
		if w.givenUp(h) {
			role += 4
		}
		digest += digestOf(h.Task, role)
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
		if w.leaving || bootMs() < w.joinAtMs {
			return
		}
		if w.attempts == 0 {
			w.begin()
		} else {
			w.join()
		}
	} else if w.fenced() {
		return
	} else if w.reportMs > 0 && bootMs() >= w.reportMs {
		w.report()
	} else if !w.beating && bootMs() >= w.sentMs+w.newest.HeartbeatIntervalMs {
		w.heartbeat()
	}
}

// caughtUp: everything written before atMs has been read. A member whose heartbeats arrive, but which
// does not read, must stop too.
func (w *Worker) caughtUp(atMs int64) {
	w.readMs = max(w.readMs, atMs)
	w.renew()
}

// settle releases what is held beyond the assignment and takes what it adds; it returns whether it has
// reported that. The same report again, signed in the same millisecond, would count as a repetition.
func (w *Worker) settle() bool {
	stopping, copies, names := false, false, map[Task]bool{}
	for held, running := range w.held {
		switch role := w.newest.wanted[held.Task]; {
		case role == held.Role || running.stopping:
		case role != 0 && held.Role != active:
			w.change(held, role)
		default:
			w.stop(held)
		}
		stopping = stopping || running.stopping
		names[held.Task] = true
	}
	for task, role := range w.newest.wanted {
		if !names[task] { // an active that becomes a copy must stop first
			w.start(Held{task, role}, nil)
			copies = copies || role != active
		}
	}
	due := copies || w.reportMs > 0 && !stopping // copies are ready at once: nothing to restore
	if due {
		w.report()
	}
	return due
}

// change gives a copy another role. Its state stays, and there is nothing to report.
func (w *Worker) change(held Held, role int) {
	before := w.held[held]
	delete(w.held, held)
	before.stop()
	w.start(Held{held.Task, role}, before)
}

// start begins a task's work when its work in another role has ended.
func (w *Worker) start(held Held, before *Running) {
	ctx, cancel := context.WithCancel(context.Background())
	running := &Running{stop: cancel, done: make(chan struct{}), ready: held.Role != active}
	w.held[held] = running
	go func(given *Assignment) {
		if before != nil {
			<-before.done
		}
		say("start", w.member, held, given)
		w.run(ctx, held, given)
		say("stop", w.member, held, given)
		close(running.done)
		w.inbox <- func() { w.stopped(held, running) }
	}(w.newest)
}

func (w *Worker) stop(held Held) {
	w.held[held].stopping, w.held[held].ready = true, false
	w.held[held].stop()
}

func (w *Worker) stopped(held Held, running *Running) {
	if w.held[held] != running {
		return // lost meanwhile
	}
	if w.fenced() { // the work has noticed it first
		return
	}
	if !running.stopping {
		w.failed(held)
		return
	}
	// While the member leaves, others wait for what a record has revoked; the leave releases the rest.
	due := !w.leaving || w.givenUp(held)
	delete(w.held, held)
	if due && w.reportMs == 0 {
		w.reportMs = bootMs() + gatherMs
	}
	if !w.leaving {
		w.settle() // a task may have waited until it stopped in its other role
	}
}

// givenUp: a record has revoked the task, which still has to stop.
func (w *Worker) givenUp(held Held) bool {
	return w.held[held].stopping && w.newest.wanted[held.Task] != held.Role
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
