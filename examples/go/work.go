package main

// The work of a task, the lines written about it, and the clock of leases.

import (
	"context"
	"encoding/json"
	"log"
	"os"
	"syscall"
	"time"
	"unsafe"
)

// run is the work. It ends soon after ctx is done, and checks the lease before it uses what the task
// owns. Generation and epoch of given are the fencing token for outside systems.
func (w *Worker) run(ctx context.Context, held Held, given *Assignment) {
	for ctx.Err() == nil && bootMs() < w.lease.Load() {
		time.Sleep(20 * time.Millisecond)
	}
}

// bootMs is milliseconds since boot, including time the machine was suspended.
func bootMs() int64 {
	var at syscall.Timespec
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, 7, uintptr(unsafe.Pointer(&at)), 0)
	return at.Nano() / 1e6
}

var lines = log.New(os.Stdout, "", 0)

func say(event, member string, held Held, given *Assignment) {
	line, _ := json.Marshal(map[string]any{
		"event": event, "task": held.Task.String(), "member": member, "incarnation": given.Incarnation,
		"role":       [...]string{active: "active", standby: "standby", learner: "learner"}[held.Role],
		"generation": given.Generation, "epoch": given.Epoch,
		"at_ms": time.Now().UnixMilli(), "boottime_ms": bootMs(),
	})
	lines.Println(string(line))
}
