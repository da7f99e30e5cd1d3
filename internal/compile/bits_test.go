package compile_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"reprise/frontend"
	"reprise/internal/compile"
	"reprise/ir"
	"reprise/runtime"
	"reprise/runtime/exe"
)

// small are the builtin models at sizes that compile and run in a blink, with odd shapes, dropout and
// state wherever the model has them.
func small() []string {
	specs := []string{
		"builtin:mlp,in=20,hidden=37,layers=2,batch=6,dropout=0.3",
		"builtin:gpt,layers=2,d=32,heads=2,seq=24,batch=2,vocab=40",
		"builtin:llama,layers=2,d=32,heads=4,kv_heads=2,seq=16,batch=2,vocab=33",
		"builtin:cnn,size=12,width=4,batch=3,dropout=0.2",
		"builtin:resnet,size=8,width=4,blocks=1,batch=3",
		"builtin:lstm,batch=3,seq=5,d=24,vocab=30",
		"builtin:moe,layers=2,d=24,heads=2,seq=12,batch=2,vocab=30,hidden=20,experts=4",
	}
	if long() { // by default internal/models has them
		specs = append(specs,
			"builtin:qwen,layers=2,d=32,heads=4,kv_heads=2,hidden=44,seq=20,batch=2,vocab=33",
			"builtin:llama4,layers=2,d=32,heads=4,kv_heads=2,hidden=20,experts=4,nope_every=2,seq=12,batch=2,vocab=30",
			"builtin:mixtral,layers=2,d=32,heads=4,kv_heads=2,hidden=20,experts=4,seq=12,batch=2,vocab=30",
			"builtin:gpt,layers=2,d=32,heads=2,seq=24,batch=2,vocab=40,dtype=bf16,ema=0.9,micro=2")
	}
	return specs
}

func long() bool { return os.Getenv("REPRISE_LONG") != "" }

func name(spec string) string {
	n, _, _ := strings.Cut(strings.TrimPrefix(spec, "builtin:"), ",")
	return n
}

func load(t testing.TB, spec string, train bool) *frontend.Model {
	t.Helper()
	m, err := frontend.Load(spec, frontend.Options{Train: train})
	require.NoError(t, err)
	return m
}

func budget(t testing.TB, s string) compile.Budget {
	t.Helper()
	b, err := compile.ParseBudget(s)
	require.NoError(t, err)
	return b
}

// libraryDriver is compiled once for all tests.
var libraryDriver = func() func(t testing.TB) *exe.Driver {
	var once sync.Once
	var d *exe.Driver
	var err error
	return func(t testing.TB) *exe.Driver {
		once.Do(func() {
			var dir string
			if dir, err = os.MkdirTemp("", "reprise-test-driver-"); err == nil {
				d, err = exe.CompileDriver(context.Background(), dir, true)
			}
		})
		require.NoError(t, err)
		return d
	}
}()

// library compiles m to a shared library in a directory of the test.
func library(t testing.TB, m *frontend.Model, o compile.Options) (path string, p *compile.Program) {
	t.Helper()
	o.NoMinimum, o.Shared, o.Driver, o.PlanSteps = true, true, libraryDriver(t), sweepSteps
	path = filepath.Join(t.TempDir(), "m.so")
	p, err := compile.Make(context.Background(), m, o, path)
	require.NoError(t, err)
	require.NoError(t, p.ProveOnce())
	return path, p
}

// trace is everything that a run shows: the loss bits of each step and the state's hash.
type trace struct {
	loss  []string
	state string
}

func run(t testing.TB, lib string, m *frontend.Model, steps, threads int) trace {
	t.Helper()
	i, err := runtime.Load(lib, runtime.Options{Seed: 11, Threads: threads})
	require.NoError(t, err)
	defer i.Close()
	return steer(t, i, m, 0, steps)
}

// steer runs steps from … to−1 on an instance.
func steer(t testing.TB, i *runtime.Instance, m *frontend.Model, from, to int) trace {
	t.Helper()
	var tr trace
	for s := from; s < to; s++ {
		for _, p := range m.Module.Func("step").Body.Params {
			if p.Role() == ir.RoleInput {
				x, err := compile.SyntheticInput(p, 5, s)
				require.NoError(t, err)
				require.NoError(t, i.Bind(p.Name, x.Data))
			}
		}
		require.NoError(t, i.Step())
		loss, err := i.Read("loss")
		require.NoError(t, err)
		tr.loss = append(tr.loss, fmt.Sprintf("%x", loss))
	}
	var err error
	tr.state, err = i.StateSHA256()
	require.NoError(t, err)
	return tr
}

// TestSameBits: loss bits of every step and the state after 20 steps depend on neither budget, threads,
// instruction set, nor on which compilation made the program.
func TestSameBits(t *testing.T) {
	const steps = 20
	for _, spec := range small() {
		t.Run(name(spec), func(t *testing.T) {
			t.Parallel()
			m := load(t, spec, true)
			before := m.Module.String()
			lib, all := library(t, m, compile.Options{})
			want := run(t, lib, m, steps, 1)
			require.NotEqual(t, want.loss[0], want.loss[steps-1], "the model learns nothing")
			for _, threads := range []int{2, 3} {
				assert.Equal(t, want, run(t, lib, m, steps, threads), "%d threads", threads)
			}
			least, err := compile.Plan(context.Background(), m, compile.Options{Budget: compile.Budget{Min: true}, PlanSteps: sweepSteps})
			require.NoError(t, err)
			lo, hi := least.Report.MinBudgetBytes, all.Report.ArenaBytes
			assert.Less(t, lo, hi)
			budgets := []int64{lo, (lo + hi) / 2}
			if long() {
				budgets = nil
				for k := range int64(10) {
					budgets = append(budgets, lo+(hi-lo)*k/9)
				}
			}
			for k, b := range budgets {
				target := []string{"cpu:x86-64-v3", "cpu:x86-64-v4"}[k%2]
				lib, p := library(t, m, compile.Options{Budget: compile.Budget{Bytes: b}, Target: target})
				assert.LessOrEqual(t, p.Report.ArenaBytes, b)
				assert.Equal(t, want, run(t, lib, m, steps, 1+k%3), "budget %d of %d … %d on %s", b, lo, hi, target)
			}
			assert.Equal(t, before, m.Module.String(), "compilation changed its input")
		})
	}
}

// TestResumeEqualsUnbroken: a run that is saved and goes on in another process's memory ends in the same
// state as one that was not.
func TestResumeEqualsUnbroken(t *testing.T) {
	m := load(t, small()[1], true)
	lib, _ := library(t, m, compile.Options{Budget: budget(t, "90%")})
	want := run(t, lib, m, 6, 2)
	i, err := runtime.Load(lib, runtime.Options{Seed: 11})
	require.NoError(t, err)
	first := steer(t, i, m, 0, 3)
	file := filepath.Join(t.TempDir(), "s.safetensors")
	require.NoError(t, i.Save(file))
	require.NoError(t, i.Close())
	j, err := runtime.Load(lib, runtime.Options{Seed: 99})
	require.NoError(t, err)
	defer j.Close()
	require.NoError(t, j.Resume(file))
	second := steer(t, j, m, 3, 6)
	assert.Equal(t, want.loss, append(first.loss, second.loss...))
	assert.Equal(t, want.state, second.state)
}

// sweepSteps keeps the planner's search short where the promise, not the plan's quality, is tested.
const sweepSteps = 500

// TestEveryBudget sweeps budgets from the smallest found to everything: each gives a program whose bytes are
// within it. Below the smallest, the error says what is the least.
func TestEveryBudget(t *testing.T) {
	n := 24
	if long() {
		n = 200
	}
	for _, spec := range small() {
		t.Run(name(spec), func(t *testing.T) {
			t.Parallel()
			m := load(t, spec, true)
			c, err := compile.Pareto(context.Background(), m, compile.Options{PlanSteps: sweepSteps}, n)
			require.NoError(t, err)
			require.Less(t, c.MinBudgetBytes, c.SaveAllPeakBytes)
			require.Len(t, c.Points, n)
			for _, p := range c.Points {
				require.LessOrEqual(t, p.ArenaBytes, p.BudgetBytes)
				require.GreaterOrEqual(t, p.CostNs, p.LowerBoundNs)
			}
			for _, b := range []int64{1, c.MinBudgetBytes / 3, c.MinBudgetBytes * 2 / 3} {
				_, err := compile.Plan(context.Background(), m, compile.Options{Budget: compile.Budget{Bytes: b}, NoMinimum: true, PlanSteps: sweepSteps})
				var be *compile.BudgetError
				require.ErrorAs(t, err, &be)
				require.Greater(t, be.MinBudget, b)
				require.LessOrEqual(t, be.LowerBound, be.MinBudget)
				require.NotEmpty(t, be.Binding)
			}
		})
	}
}
