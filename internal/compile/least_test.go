package compile_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/internal/compile"
	"reprise/passes/policy"
)

// TestNoPolicyBelowMinimum: no named policy takes less memory than --budget min finds.
func TestNoPolicyBelowMinimum(t *testing.T) {
	specs, names := small(), []string{"full", "every:2"}
	if long() {
		names = nil
		for _, n := range policy.All() {
			if n.Args == "" && !strings.Contains(n.Name, "offload") { // of which this target has none
				names = append(names, n.Name)
			}
		}
		names = append(names, "every:1", "every:2", "uniform:2", "block:1", "selective:2", "selective:op")
	} else {
		specs = []string{"builtin:qwen,layers=2,d=16,heads=2,kv_heads=1,hidden=24,seq=8,batch=2,vocab=17"}
	}
	for _, spec := range specs {
		t.Run(name(spec), func(t *testing.T) {
			m := load(t, spec, true)
			of := func(p *policy.Policy, b compile.Budget) int64 {
				out, err := compile.Plan(context.Background(), m, compile.Options{Policy: p, Budget: b, NoMinimum: !b.Min, PlanSteps: sweepSteps})
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
