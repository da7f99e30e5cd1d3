package compile

import (
	"os"
	"strconv"
	"strings"

	"reprise/internal/diag"
)

// besideArena is what a model holds outside its arena, at most: code, stacks, libc.
const besideArena = 16 << 20

// fitting is the budget "fit": the memory that a process could get now on the machine that compiles, less what a
// program holds beside its arena. It is asked when the word is read; a compilation sees a number of bytes.
func fitting() (Budget, error) {
	free := int64(-1)
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if words := strings.Fields(line); len(words) == 3 && words[0] == "MemAvailable:" {
				if kib, err := strconv.ParseInt(words[1], 10, 64); err == nil {
					free = kib << 10
				}
			}
		}
	}
	// A container may have less than the machine.
	read := func(name string) (int64, bool) {
		text, err := os.ReadFile("/sys/fs/cgroup/" + name)
		if err != nil {
			return 0, false
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		return n, err == nil
	}
	if top, ok := read("memory.max"); ok && free >= 0 {
		if used, ok := read("memory.current"); ok {
			free = min(free, max(0, top-used))
		}
	}
	if free <= besideArena {
		return Budget{}, diag.Errorf("usage", "budget fit: this machine does not say how much memory is free, or has none").
			WithHint("give a number of bytes, --budget 512MiB")
	}
	return Budget{Bytes: free - besideArena}, nil
}
