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
			t.Errorf("seed %d: %v", seed, err)
			_ = os.WriteFile(fmt.Sprintf("%s/seed%d.ir", os.TempDir(), seed), []byte(m.String()), 0o666)
		}
	}
	t.Logf("%d programs, %d refused, %v", done, refused, time.Since(start))
}
