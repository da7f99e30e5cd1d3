package planner

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"time"
)

// clock measures wall time, the CPU time of the process and the most memory that it had resident.
type clock struct {
	wall time.Time
	cpu  time.Duration
	peak bool // the system's mark of the most resident memory was set back
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func startClock() clock {
	debug.FreeOSMemory() // what the row before left
	err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0)
	return clock{time.Now(), cpuTime(), err == nil}
}

func (c clock) stop(r *Row) {
	r.Seconds = time.Since(c.wall).Seconds()
	r.CPU = (cpuTime() - c.cpu).Seconds()
	r.Load = load()
	if c.peak {
		var kib int64
		if _, err := fmt.Sscanf(line("/proc/self/status", "VmHWM:"), "%d", &kib); err == nil {
			r.Memory = kib << 10
		}
	}
}

// load is the load average of the last minute, "" where the system does not say.
func load() string {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	first, _, _ := strings.Cut(string(data), " ")
	return first
}

// machine is the kind of processor, and how many.
func machine() string {
	name := strings.TrimLeft(line("/proc/cpuinfo", "model name"), ": \t")
	if name == "" {
		name = runtime.GOARCH
	}
	return fmt.Sprintf("a machine with %d of %s", runtime.NumCPU(), name)
}

// line is what follows a key in the first line of a file that has it.
func line(file, key string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if rest, ok := strings.CutPrefix(sc.Text(), key); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}
