package compile_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/internal/compile"
	"reprise/internal/testprog"
	"reprise/passes/policy"
)

// TestNoPolicyBelowMinimum: no named policy takes less memory than --budget min finds.
func TestNoPolicyBelowMinimum(t *testing.T) {
	specs, names := small(), []string{"full", "every:1", "every:2", "uniform:2", "block:1", "selective:op", "dots_saveable"}
	if !testprog.Long() {
		specs, names = []string{"builtin:qwen,layers=2,d=16,heads=2,kv_heads=1,hidden=24,seq=8,batch=2,vocab=17"}, names[:3]
	}
	for _, spec := range specs {
		t.Run(name(spec), func(t *testing.T) {
			m := testprog.Load(t, spec, true)
			of := func(p *policy.Policy, b compile.Budget) int64 {
				out, err := compile.Plan(context.Background(), m, compile.Options{Policy: p, Budget: b, NoMinimum: !b.Min, PlanSteps: sweepSteps, AllowUnmatched: true})
				require.NoError(t, err)
				return out.Report.ArenaBytes
			}
			least := of(nil, compile.Budget{Min: true})
			for _, n := range names {
				require.LessOrEqual(t, least, of(rules(t, n), compile.Budget{}), n)
			}
		})
	}
}

// TestReportedMinimumIsMet: the smallest budget that --budget min reports is one that can be given in bytes, whichever search
// found it.
func TestReportedMinimumIsMet(t *testing.T) {
	specs := small()
	if !testprog.Long() {
		specs = []string{"builtin:mlp,in=12,hidden=64,layers=6,batch=32,dropout=0.3"}
	}
	for _, spec := range specs {
		t.Run(name(spec), func(t *testing.T) {
			t.Parallel()
			m := testprog.Load(t, spec, true)
			for _, p := range []*policy.Policy{nil, rules(t, "full")} {
				o := compile.Options{Policy: p, Budget: compile.Budget{Min: true}, PlanSteps: sweepSteps}
				least, err := compile.Plan(context.Background(), m, o)
				require.NoError(t, err)
				o.Budget, o.NoMinimum = compile.Budget{Bytes: least.Report.MinBudgetBytes}, true
				again, err := compile.Plan(context.Background(), m, o)
				require.NoError(t, err)
				require.LessOrEqual(t, again.Report.ArenaBytes, least.Report.MinBudgetBytes)
			}
		})
	}
}
