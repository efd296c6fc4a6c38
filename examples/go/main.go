// A muster worker in Go, from protocol/GRAMMAR.md alone: joins a group, heartbeats, takes and gives
// up tasks, fences itself. A task here is a goroutine; put your work into run.
//
//	go run . GROUP HOST:PORT [MEMBER]   starts and stops go to standard output as JSON
//	go test .                           checks the codec on protocol/vectors
//
// MUSTER_TOPIC_PREFIX names the topics, MUSTER_SIGNING_KEYS a keyring where events must be signed.
// Linux, for its boot-time clock. Read session.go first, then kafka.go; the rest is bytes.
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"
	"unsafe"
)

// run is the work. It ends soon after ctx is done, and asks for the lease before it touches
// anything. Generation and epoch of given are fencing tokens for the outside world.
func (w *Worker) run(ctx context.Context, held Held, given *Assignment) {
	for ctx.Err() == nil && bootMs() < w.lease.Load() {
		time.Sleep(20 * time.Millisecond)
	}
}

func main() {
	log.SetFlags(log.Lmicroseconds)
	args := append(os.Args[1:], rand.Text()) // a name, if none is given
	if len(args) < 3 {
		log.Fatal("usage: worker GROUP HOST:PORT [MEMBER]")
	}
	w := &Worker{group: args[0], member: args[2], inbox: make(chan func(), 1000), held: map[Held]*Running{}}
	link, err := connect(w, args[1])
	if err != nil {
		log.Fatal(err)
	}
	w.loop()
	link.flush()
}

// loop runs what the inbox holds, one after the other, until we have left.
func (w *Worker) loop() {
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
	w.leave(0)
}

// bootMs is milliseconds since boot, time asleep included: leases are measured on it.
func bootMs() int64 {
	var at syscall.Timespec
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, 7, uintptr(unsafe.Pointer(&at)), 0)
	return at.Nano() / 1e6
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
