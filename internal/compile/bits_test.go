package compile_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"reprise/internal/compile"
	"reprise/internal/testprog"
	"reprise/runtime"
)

// small are the builtin models at sizes that compile and run in a blink, with odd shapes, dropout and
// state wherever the model has them.
func small() []string {
	specs := []string{
		"builtin:mlp,in=20,hidden=37,layers=2,batch=6,dropout=0.3",
		"builtin:gpt,layers=2,d=32,heads=2,seq=24,batch=2,vocab=40",
		"builtin:llama,layers=1,d=32,heads=4,kv_heads=2,seq=16,batch=2,vocab=33",
		"builtin:cnn,size=12,width=4,batch=3,dropout=0.2",
		"builtin:resnet,size=8,width=4,blocks=1,batch=3",
		"builtin:lstm,batch=3,seq=5,d=24,vocab=30",
		"builtin:moe,layers=1,d=24,heads=2,seq=12,batch=2,vocab=30,hidden=20,experts=4",
	}
	if testprog.Long() { // by default internal/models has such
		specs = append(specs,
			"builtin:llama,layers=2,d=32,heads=4,kv_heads=2,seq=16,batch=2,vocab=33",
			"builtin:moe,layers=2,d=24,heads=2,seq=12,batch=2,vocab=30,hidden=20,experts=4",
			"builtin:qwen,layers=2,d=32,heads=4,kv_heads=2,hidden=44,seq=20,batch=2,vocab=33",
			"builtin:llama4,layers=2,d=32,heads=4,kv_heads=2,hidden=20,experts=4,nope_every=2,seq=12,batch=2,vocab=30",
			"builtin:mixtral,layers=2,d=32,heads=4,kv_heads=2,hidden=20,experts=4,seq=12,batch=2,vocab=30",
			"builtin:gpt,layers=2,d=32,heads=2,seq=24,batch=2,vocab=40,dtype=bf16,ema=0.9,micro=2")
	}
	return specs
}

func name(spec string) string {
	n, _, _ := strings.Cut(strings.TrimPrefix(spec, "builtin:"), ",")
	return n
}

func budget(t testing.TB, s string) compile.Budget {
	t.Helper()
	b, err := compile.ParseBudget(s)
	require.NoError(t, err)
	return b
}

var lab = testprog.New(sweepSteps)

func TestMain(m *testing.M) { lab.Main(m) }

// TestSameBits: loss bits of every step and the state after 20 steps depend on neither budget, threads,
// instruction set, nor on which compilation made the program.
func TestSameBits(t *testing.T) {
	const steps = 20
	for _, spec := range small() {
		t.Run(name(spec), func(t *testing.T) {
			t.Parallel()
			m := testprog.Load(t, spec, true)
			before := m.Module.String()
			all := lab.Compile(t, m, compile.Options{})
			want := all.Run(t, steps, 1)
			require.NotEqual(t, want.Loss[0], want.Loss[steps-1], "the model learns nothing")
			for _, threads := range []int{2, 3} {
				assert.Equal(t, want, all.Run(t, steps, threads), "%d threads", threads)
			}
			least := lab.Compile(t, m, smallest())
			assert.Equal(t, want, least.Run(t, steps, 1), "the smallest budget")
			lo, hi := least.Report.ArenaBytes, all.Report.ArenaBytes
			assert.Less(t, lo, hi)
			budgets := []int64{(lo + hi) / 2}
			if testprog.Long() {
				budgets = nil
				for k := range int64(10) {
					budgets = append(budgets, lo+(hi-lo)*k/9)
				}
			}
			for k, b := range budgets {
				target := []string{"cpu:x86-64-v4", "cpu:x86-64-v3"}[k%2]
				p := lab.Compile(t, m, compile.Options{Budget: compile.Budget{Bytes: b}, Target: target})
				assert.LessOrEqual(t, p.Report.ArenaBytes, b)
				assert.Equal(t, want, p.Run(t, steps, 2+k%2), "budget %d of %d … %d on %s", b, lo, hi, target)
			}
			assert.Equal(t, before, m.Module.String(), "compilation changed its input")
		})
	}
}

// TestResumeEqualsUnbroken: a run that is saved and goes on in another process's memory ends in the same
// state as one that was not.
func TestResumeEqualsUnbroken(t *testing.T) {
	m := testprog.Load(t, small()[1], true)
	p := lab.Compile(t, m, smallest())
	want := p.Run(t, 6, 2)
	i, err := runtime.Load(p.Library, runtime.Options{Seed: testprog.Seed})
	require.NoError(t, err)
	first := testprog.Steer(t, i, m, 0, 3)
	file := filepath.Join(t.TempDir(), "s.safetensors")
	require.NoError(t, i.Save(file))
	require.NoError(t, i.Close())
	j, err := runtime.Load(p.Library, runtime.Options{Seed: 99})
	require.NoError(t, err)
	defer j.Close()
	require.NoError(t, j.Resume(file))
	second := testprog.Steer(t, j, m, 3, 6)
	assert.Equal(t, want.Loss, append(first.Loss, second.Loss...))
	assert.Equal(t, want.State, second.State)
}

// smallest is the program that more than one test looks at.
func smallest() compile.Options {
	return compile.Options{Budget: compile.Budget{Min: true}, Target: "cpu:x86-64-v3"}
}

// sweepSteps keeps the planner's search short where the promise, not the plan's quality, is tested.
const sweepSteps = 500

// TestEveryBudget sweeps budgets from the smallest found to everything: each gives a program whose bytes are
// within it. Below the smallest, the error says what is the least.
func TestEveryBudget(t *testing.T) {
	n := 12
	if testprog.Long() {
		n = 200
	}
	for k, spec := range small() {
		t.Run(name(spec), func(t *testing.T) {
			t.Parallel()
			m := testprog.Load(t, spec, true)
			c, err := compile.Pareto(context.Background(), m, compile.Options{PlanSteps: sweepSteps}, n)
			require.NoError(t, err)
			require.Less(t, c.MinBudgetBytes, c.SaveAllPeakBytes)
			require.Len(t, c.Points, n)
			for _, p := range c.Points {
				require.LessOrEqual(t, p.ArenaBytes, p.BudgetBytes)
				require.GreaterOrEqual(t, p.CostNs, p.LowerBoundNs)
			}
			below := []int64{1, c.MinBudgetBytes / 3, c.MinBudgetBytes * 2 / 3}
			if !testprog.Long() {
				below = below[k%3:][:1]
			}
			for _, b := range below {
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
