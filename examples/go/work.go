package main

// What a task does, and what is said of it; the clock that leases are measured on.

import (
	"context"
	"encoding/json"
	"log"
	"os"
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
