package fuzz

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"reprise/ir"
	"reprise/runtime/exe"
)

func checker(t testing.TB) *Checker {
	t.Helper()
	for _, tool := range []string{"clang-19", "ld.lld-19"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(tool + " is not installed")
		}
	}
	d, err := exe.CompileDriver(context.Background(), t.TempDir(), true)
	require.NoError(t, err)
	c := &Checker{Driver: d, Dir: t.TempDir(), Targets: []string{"cpu:x86-64-v3"}}
	if info, _ := os.ReadFile("/proc/cpuinfo"); strings.Contains(string(info), "avx512bw") {
		c.Targets = append(c.Targets, "cpu:x86-64-v4")
	}
	return c
}

// guarded turns a panic into an error, so that a program that breaks an invariant is reported like any.
func guarded(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	return f()
}

func number(name string, or uint64) uint64 {
	if n, err := strconv.ParseUint(os.Getenv(name), 10, 64); err == nil {
		return n
	}
	return or
}

// smaller is the text of a program as small as can be found that fails like m does.
func smaller(c *Checker, m *ir.Module, seed uint64, err error) string {
	kind := func(err error) string {
		s := err.Error()
		for _, k := range []string{"against the interpreter", "against another budget", "is used before it is defined", "BUG", "panic", "is read before it is set", "arena"} {
			if strings.Contains(s, k) {
				return k
			}
		}
		return s
	}
	small := Minimise(m, int(number("FUZZ_TRIES", 40)), func(m *ir.Module) bool {
		got := guarded(func() error { return c.Check(context.Background(), m, rand.New(rand.NewPCG(seed, 1))) })
		return got != nil && kind(got) == kind(err)
	})
	return small.String()
}

// TestCompiled grows programs from seeds 0, 1, 2 … until its time is up.
func TestCompiled(t *testing.T) {
	c := checker(t)
	limit := 40 * time.Second
	if os.Getenv("REPRISE_LONG") != "" {
		limit = 20 * time.Minute
	}
	limit = time.Duration(number("FUZZ_SECONDS", uint64(limit/time.Second))) * time.Second
	start := time.Now()
	done, refused := 0, 0
	from := number("FUZZ_SEED", 0)
	for seed := from; time.Since(start) < limit && (os.Getenv("FUZZ_SEED") == "" || os.Getenv("FUZZ_SECONDS") != "" || seed == from); seed++ {
		m := Grow(seed)
		err := guarded(func() error { return c.Check(context.Background(), m, rand.New(rand.NewPCG(seed, 1))) })
		var no *Refused
		if errors.As(err, &no) {
			refused++
			t.Logf("seed %d: %v", seed, err)
			continue
		}
		done++
		if err != nil {
			t.Errorf("seed %d: %v\n%s", seed, err, smaller(c, m, seed, err))
		}
	}
	t.Logf("%d programs, %d refused, %v", done, refused, time.Since(start))
}
