package planner

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBoundOfAnyPlan: the bound at a budget is one that Solve's plan there respects, is never below the base
// cost, and does not grow with the budget.
func TestBoundOfAnyPlan(t *testing.T) {
	raised := 0
	for seed := uint64(0); seed < 12; seed++ {
		p := chainWithSkips(30, seed)
		all := SaveAll(p)
		low, err := MinBudget(context.Background(), p)
		require.NoError(t, err)
		last := int64(0)
		for k := int64(0); k <= 3; k++ {
			budget := all.PeakBytes - (all.PeakBytes-low.BudgetBytes)*k/3
			bound, proof, err := Bound(context.Background(), p, Options{Budget: budget, Steps: 5_000})
			require.NoError(t, err)
			require.NotEmpty(t, proof)
			require.GreaterOrEqual(t, bound, all.BaseCost)
			require.GreaterOrEqual(t, bound, last)
			last = bound
			plan, err := Solve(context.Background(), p, Options{Budget: budget, Steps: 5_000})
			require.NoError(t, err)
			require.LessOrEqual(t, bound, plan.Cost, "seed %d budget %d", seed, budget)
		}
		require.LessOrEqual(t, last, low.Cost)
		if last > all.BaseCost {
			raised++
		}
	}
	require.Greater(t, raised, 3, "the bound says something at the smallest budget")
}

// chainWithSkips is a forward chain of n ops and a backward one that reads it.
func chainWithSkips(n int, seed uint64) *Problem {
	p := &Problem{}
	x := seed*0x9E3779B97F4A7C15 + 1
	next := func(k uint64) int64 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		return int64(x % k)
	}
	value := func(bytes int64) int {
		p.Values = append(p.Values, Value{Bytes: bytes})
		return len(p.Values) - 1
	}
	op := func(cost int64, in ...int) int {
		v := value(64 * (1 + next(8)))
		p.Ops = append(p.Ops, Op{Cost: cost, Inputs: in, Outputs: []int{v}, Det: DetExact})
		return v
	}
	p.Values = append(p.Values, Value{Bytes: 64, Resident: true})
	var forward []int
	last := 0
	for range n / 2 {
		last = op(1+next(20), last)
		forward = append(forward, last)
	}
	for k := n/2 - 1; k >= 0; k-- {
		last = op(1+next(20), last, forward[k])
	}
	p.Values[last].Output = true
	return p
}
