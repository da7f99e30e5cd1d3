package compile_test

import (
	"context"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/internal/compile"
	"reprise/internal/testprog"
	"reprise/runtime"
)

// TestP125Counts: a compiled model counts how often each op of the plan runs, and the numbers are the plan's,
// forward and recomputed, for every op; ops of loops run as often as the loop turns, in every clone of it. The
// steps it counts in have the same bits.
func TestP125Counts(t *testing.T) {
	specs := []string{"../trace/testdata/control.ir"}
	if testprog.Long() {
		specs = append(specs, small()...)
	}
	for k, spec := range specs {
		t.Run(name(spec), func(t *testing.T) {
			t.Parallel()
			const steps = 2
			m := testprog.Load(t, spec, strings.HasPrefix(spec, "builtin:"))
			executed := func(b compile.Budget) (map[[2]int]int64, *testprog.Program, string) {
				p := lab.Compile(t, m, compile.Options{Budget: b})
				i := p.Start(t, runtime.Options{Seed: 1, Threads: 2})
				require.NoError(t, i.Count())
				tr := testprog.Trace{}
				if m.Train {
					tr = testprog.Steer(t, i, m, 0, steps)
				} else {
					for s := range steps {
						testprog.Feed(t, i, m, s, nil)
						require.NoError(t, i.Step())
					}
				}
				counts, err := i.Counts()
				require.NoError(t, err)
				require.Len(t, counts, len(p.Exe.Ops))
				sum := map[[2]int]int64{}
				for k, op := range i.Description().Ops {
					if op.Sub == 0 {
						require.EqualValues(t, steps, counts[k], "clone %d of %s", op.Clone, op.Name)
					}
					sum[[2]int{op.ID, op.Sub}] += counts[k]
				}
				return sum, p, tr.State
			}
			all, _, want := executed(compile.Budget{})
			got, p, state := executed(compile.Budget{Min: true})
			require.Equal(t, want, state)
			again := 0
			for _, c := range p.Counts() {
				require.Equal(t, int64(c.Planned)*all[[2]int{c.ID, c.Sub}], got[[2]int{c.ID, c.Sub}], c.Name)
				again += c.Planned - 1
			}
			require.Len(t, p.Counts(), len(got))
			if k == 0 { // others need not: in an lstm readers compute what is missing
				require.Positive(t, again, "nothing is recomputed")
			}
		})
	}
}

// TestCountsOfAnExecutable: the program itself prints them.
func TestCountsOfAnExecutable(t *testing.T) {
	m := testprog.Load(t, small()[0], true)
	out, p := lab.Executable(t, m, compile.Options{Budget: compile.Budget{Min: true}})
	done, err := runtime.Run(context.Background(), out, []string{"--steps", "3", "--counts"}, func(s runtime.Step) { require.NotZero(t, s.Step) })
	require.NoError(t, err)
	require.Len(t, done.Counts, len(p.Counts()))
	for i, c := range p.Counts() {
		got := done.Counts[i]
		require.Equal(t, c.Name, got.Name)
		require.EqualValues(t, 3*c.Planned, *got.Planned)
		require.Equal(t, *got.Planned, got.Executed, c.Name)
		require.EqualValues(t, 3, got.Forward)
		require.EqualValues(t, 3*(c.Planned-1), got.Recomputed)
	}
	text, err := exec.Command(out, "--steps", "1", "--counts", "--quiet").CombinedOutput()
	require.NoError(t, err)
	require.Contains(t, string(text), "executed")
	require.Contains(t, string(text), p.Counts()[0].Name)
}
