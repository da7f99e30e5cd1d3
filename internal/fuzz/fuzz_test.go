package fuzz

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"reprise/ir"
	"reprise/ir/ops"
	"reprise/runtime/exe"
)

func checker(t testing.TB) *Checker {
	t.Helper()
	for _, tool := range []string{"clang-19", "ld.lld-19"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(tool + " is not installed")
		}
	}
	d := &exe.Drivers{}
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	c := &Checker{Drivers: d, Dir: t.TempDir(), Targets: []string{"cpu:x86-64-v3"}}
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

// check is one way to check a program.
type check func(m *ir.Module, r *rand.Rand) error

// kind is what is the same about two failures of one cause.
func kind(err error) string {
	s := err.Error()
	for _, k := range []string{"against the interpreter", "against another budget", "is used before it is defined", "BUG", "panic", "is read before it is set", "arena"} {
		if strings.Contains(s, k) {
			return k
		}
	}
	return s
}

// smaller is the text of a program as small as can be found that fails like m does.
func smaller(c check, m *ir.Module, seed uint64, err error) string {
	small := Minimise(m, int(number("FUZZ_TRIES", 60)), func(m *ir.Module) bool {
		got := guarded(func() error { return c(m, rand.New(rand.NewPCG(seed, 1))) })
		return got != nil && kind(got) == kind(err)
	})
	return small.String()
}

// sweep grows programs from seeds first, first+1, … until the time is up. FUZZ_SEED and FUZZ_SECONDS
// override both; FUZZ_SEED alone runs one program.
func sweep(t *testing.T, first uint64, limit time.Duration, c check) {
	if os.Getenv("REPRISE_LONG") != "" {
		limit *= 25
	}
	one := os.Getenv("FUZZ_SEED") != "" && os.Getenv("FUZZ_SECONDS") == ""
	limit = time.Duration(number("FUZZ_SECONDS", uint64(limit/time.Second))) * time.Second
	start := time.Now()
	done, refused := 0, 0
	first = number("FUZZ_SEED", first)
	for seed := first; time.Since(start) < limit && (!one || seed == first); seed++ {
		m := Grow(seed)
		err := guarded(func() error { return c(m, rand.New(rand.NewPCG(seed, 1))) })
		var no *Refused
		switch {
		case errors.As(err, &no):
			refused++
			t.Logf("seed %d: %v", seed, err)
		case err != nil:
			t.Errorf("seed %d: %v\n%s", seed, err, smaller(c, m, seed, err))
		default:
			done++
		}
	}
	t.Logf("%d programs, %d refused, %v", done, refused, time.Since(start))
	if !one && !t.Failed() && done < 5*refused {
		t.Errorf("%d of %d programs were refused", refused, done+refused)
	}
}

// TestCompiled: compiled code at several budgets, on every instruction set that this machine has.
func TestCompiled(t *testing.T) {
	c := checker(t)
	sweep(t, 0, 30*time.Second, func(m *ir.Module, r *rand.Rand) error { return c.Check(context.Background(), m, r) })
}

// TestSimulated: the same programs before code generation, many more of them.
func TestSimulated(t *testing.T) {
	sweep(t, 1<<20, 25*time.Second, func(m *ir.Module, r *rand.Rand) error { return Simulate(context.Background(), m, r) })
}

// TestCases: programs that were once compiled wrongly, each with what it is about as its first line.
func TestCases(t *testing.T) {
	files, err := filepath.Glob("testdata/*.ir")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	var c *Checker
	if _, err := exe.Toolchain(); err == nil {
		c = checker(t)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".ir"), func(t *testing.T) {
			text, err := os.ReadFile(f)
			require.NoError(t, err)
			m, err := ir.Parse(ops.Table(), f, string(text))
			require.NoError(t, err)
			for seed := range uint64(3) {
				require.NoError(t, Simulate(context.Background(), m, rand.New(rand.NewPCG(seed, 1))))
			}
			if c != nil {
				require.NoError(t, c.Check(context.Background(), m, rand.New(rand.NewPCG(1, 1))))
			}
		})
	}
}

// TestGrowIsPure: a seed gives one program.
func TestGrowIsPure(t *testing.T) {
	for seed := range uint64(20) {
		require.Equal(t, Grow(seed).String(), Grow(seed).String())
	}
}
