package planner

import (
	"syscall"
	"time"
)

// clock measures wall time and the CPU time of the process.
type clock struct {
	wall time.Time
	cpu  time.Duration
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func startClock() clock { return clock{time.Now(), cpuTime()} }

func (c clock) stop(r *Row) {
	r.Seconds = time.Since(c.wall).Seconds()
	r.CPU = (cpuTime() - c.cpu).Seconds()
}
