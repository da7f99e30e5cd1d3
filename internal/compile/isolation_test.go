package compile_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"reprise/frontend"
	"reprise/internal/compile"
	"reprise/internal/testprog"
)

// Isolation: a compilation is a function of its arguments. What other compilations of the process did before, after
// or beside it is in none of its bytes.

// everything is a hash of all that a plan decides: the planned program's text, the report, and the explanation with
// the place of every stretch of memory. (TestCompilationIsPure compares whole binaries.)
func everything(m *frontend.Model, o compile.Options) (string, error) {
	o.PlanSteps, o.NoMinimum = sweepSteps, true
	p, err := compile.Plan(context.Background(), m, o)
	if err != nil {
		return "", err
	}
	p.Report.PlanSeconds, p.Report.CheckSeconds = 0, 0
	h := sha256.New()
	fmt.Fprintln(h, p.Step.String())
	for _, doc := range []any{p.Report, p.Explanation} {
		b, err := json.Marshal(doc)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s\n", b)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// binary is the hash of the executable that is made of a model.
func binary(t *testing.T, m *frontend.Model, o compile.Options) (string, *compile.Program) {
	t.Helper()
	o.NoMinimum, o.PlanSteps, o.Drivers = true, sweepSteps, lab.Drivers()
	p, err := compile.Make(context.Background(), m, o, filepath.Join(t.TempDir(), "m"))
	require.NoError(t, err)
	return p.Report.BinarySHA256, p
}

// TestOneDescriptionWithAndWithoutRemat: from one model, planned with and without recomputation in every order and from
// thirty-two goroutines at once, come the bytes that each has alone; the model stays as it was; and the two
// compute the same bits (P001).
func TestOneDescriptionWithAndWithoutRemat(t *testing.T) {
	specs := small()[:1]
	if testprog.Long() {
		specs = small()
	}
	for k, spec := range specs {
		t.Run(name(spec), func(t *testing.T) {
			t.Parallel()
			less := compile.Budget{Min: true} // not every model recomputes anything there: readers may compute values instead
			if k == 0 {
				less = budget(t, "92%")
			}
			m := testprog.Load(t, spec, true)
			before := sha256.Sum256([]byte(m.Module.String()))
			ways := []compile.Options{{}, {Budget: less}}
			var alone [2]string
			for k, o := range ways {
				var err error
				alone[k], err = everything(testprog.Load(t, spec, true), o)
				require.NoError(t, err)
			}
			require.NotEqual(t, alone[0], alone[1])
			for _, order := range [][]int{{0, 1}, {1, 0, 1}, {1, 1, 0, 0}} {
				for _, k := range order {
					got, err := everything(m, ways[k])
					require.NoError(t, err)
					require.Equal(t, alone[k], got, "order %v", order)
				}
			}
			var wg sync.WaitGroup
			var got [32]string
			for i := range got {
				wg.Add(1)
				go func() {
					defer wg.Done()
					s, err := everything(m, ways[i%2])
					if err != nil {
						s = err.Error()
					}
					got[i] = s
				}()
			}
			wg.Wait()
			for i, s := range got {
				assert.Equal(t, alone[i%2], s, "goroutine %d", i)
			}
			assert.Equal(t, before, sha256.Sum256([]byte(m.Module.String())), "compilation changed its input")
			planned := lab.Compile(t, m, ways[1])
			if k == 0 {
				require.Positive(t, planned.Report.Recomputed)
			}
			assert.Equal(t, lab.Compile(t, m, ways[0]).Run(t, 3, 1), planned.Run(t, 3, 2))
		})
	}
}

// TestInferenceHasNoTraceOfRemat: an inference program is the same file with and without a budget that it fits in, and says
// nothing of recomputation; training programs of the model that were made before change nothing in it.
func TestInferenceHasNoTraceOfRemat(t *testing.T) {
	spec := "builtin:gpt,layers=1,d=32,heads=2,seq=24,batch=2,vocab=40"
	m := testprog.Load(t, spec, false)
	alone, p := binary(t, m, compile.Options{})
	assert.Zero(t, p.Report.Recomputed)
	assert.Zero(t, p.Report.RecomputeNs)
	text := p.Step.String()
	assert.NotContains(t, strings.ReplaceAll(text, `stage="planned"`, ""), "remat")
	for _, op := range p.Ops {
		assert.Zero(t, op.Clone)
	}
	_, err := compile.Plan(context.Background(), testprog.Load(t, spec, true), compile.Options{Budget: compile.Budget{Min: true}, PlanSteps: sweepSteps})
	require.NoError(t, err)
	again, _ := binary(t, m, compile.Options{Budget: compile.Budget{Bytes: 1 << 40}})
	assert.Equal(t, alone, again)
}

// TestThirtyCompilationsAreOne: the same model thirty times: plan, program and explanation are the same bytes,
// and so is the executable.
func TestThirtyCompilationsAreOne(t *testing.T) {
	m := testprog.Load(t, small()[0], true)
	o := compile.Options{Budget: budget(t, "92%")}
	first, err := everything(m, o)
	require.NoError(t, err)
	for range 29 {
		got, err := everything(m, o)
		require.NoError(t, err)
		require.Equal(t, first, got)
	}
	n := 2
	if testprog.Long() {
		n = 30
	}
	want, _ := binary(t, m, o)
	for range n - 1 {
		got, _ := binary(t, m, o)
		require.Equal(t, want, got)
	}
}

// TestCompilationIsPure: models compiled in one process, in any order and from many goroutines, give
// the bytes that they give alone.
func TestCompilationIsPure(t *testing.T) {
	specs, budgets := []string{small()[0], "builtin:gpt,layers=1,d=32,heads=2,seq=24,batch=2,vocab=40", small()[5]}, []string{"min"}
	if testprog.Long() {
		specs, budgets = small(), []string{"100%", "min"}
	}
	sum := func(spec, b string) string {
		m, err := frontend.Load(spec, frontend.Options{Train: true})
		if err != nil {
			return err.Error()
		}
		bg, _ := compile.ParseBudget(b)
		p, err := compile.Make(context.Background(), m, compile.Options{Budget: bg, NoMinimum: true, PlanSteps: sweepSteps, Drivers: lab.Drivers()}, filepath.Join(t.TempDir(), "m"))
		if err != nil {
			return err.Error()
		}
		return p.Report.BinarySHA256
	}
	alone := map[string]string{}
	for _, s := range specs {
		for _, b := range budgets {
			alone[s+b] = sum(s, b)
		}
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	for i := len(specs) - 1; i >= 0; i-- {
		for _, b := range budgets {
			wg.Add(1)
			go func() {
				defer wg.Done()
				got := sum(specs[i], b)
				mu.Lock()
				defer mu.Unlock()
				assert.Len(t, got, 64)
				assert.Equal(t, alone[specs[i]+b], got, "%s at %s", specs[i], b)
			}()
		}
	}
	wg.Wait()
}
