package compile_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"reprise/internal/compile"
	"reprise/internal/testprog"
)

// TestBoundAtTheSmallestBudget: the plan of the smallest budget carries a bound on all plans of that budget, not the cost of
// computing everything once, so that its gap says something. A bound at a larger budget holds at it too.
func TestBoundAtTheSmallestBudget(t *testing.T) {
	raised := 0
	for _, spec := range []string{small()[1], small()[3], small()[4]} {
		m := testprog.Load(t, spec, true)
		o := compile.Options{Budget: compile.Budget{Min: true}, PlanSteps: 1000}
		least, err := compile.Plan(context.Background(), m, o)
		require.NoError(t, err)
		r := least.Report
		require.Equal(t, r.MinBudgetBytes, r.BudgetBytes)
		assert.LessOrEqual(t, r.LowerBoundNs, r.CostNs)
		assert.InDelta(t, float64(r.CostNs-r.LowerBoundNs)/float64(r.BaseCostNs), r.Gap, 1e-9)
		o = compile.Options{Budget: compile.Budget{Bytes: r.BudgetBytes + (r.SaveAllPeakBytes-r.BudgetBytes)/8}, NoMinimum: true, PlanSteps: 1000}
		above, err := compile.Plan(context.Background(), m, o)
		require.NoError(t, err)
		assert.GreaterOrEqual(t, r.LowerBoundNs, above.Report.LowerBoundNs, spec)
		if r.LowerBoundNs > r.BaseCostNs {
			raised++
			assert.NotEqual(t, "base", r.Proof)
		}
	}
	assert.Positive(t, raised)
}
