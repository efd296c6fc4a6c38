// A muster worker in Go, written from protocol/GRAMMAR.md alone: it joins a group, sends heartbeats,
// takes and releases tasks, and fences itself. A task is a goroutine; put your work into run (work.go).
//
//	go run . GROUP HOST:PORT[,…] [MEMBER]   starts and stops go to standard output as JSON
//	go test .                               checks codec and session with protocol/vectors
//
// MUSTER_TOPIC_PREFIX is the prefix of the topics, MUSTER_SIGNING_KEYS a keyring if events are signed.
// It needs Linux, for the boot-time clock. Read session.go first, then kafka.go; the rest is encoding.
package main

import (
	"crypto/rand"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	log.SetFlags(log.Lmicroseconds)
	args := append(os.Args[1:], rand.Text()) // a name, if none is given
	if len(args) < 3 {
		log.Fatal("usage: worker GROUP HOST:PORT[,…] [MEMBER]")
	}
	w := &Worker{group: args[0], member: args[2], inbox: make(chan func(), 1000), held: map[Held]*Running{}}
	link, err := connect(w, strings.Split(args[1], ","))
	if err != nil {
		log.Fatal(err)
	}
	w.loop()
	if err := link.flush(); err != nil {
		log.Fatalf("the group notices the end when the session is over: %v", err)
	}
}

// loop calls the functions of the inbox, one after the other, until the member has left.
func (w *Worker) loop() {
	ends := make(chan os.Signal, 2)
	signal.Notify(ends, syscall.SIGTERM, os.Interrupt)
	ticks := time.Tick(50 * time.Millisecond)
	for w.begin(); !w.leaving || len(w.held) > 0; w.tick() {
		select {
		case <-ends:
			signal.Reset() // a second signal does not wait
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
