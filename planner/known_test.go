package planner

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestKnown: searches that share what they know return what they return alone, whatever was searched for before
// them, and share nothing of another problem.
func TestKnown(t *testing.T) {
	var known Known
	used := 0
	for seed := uint64(0); seed < 6; seed++ {
		p := chainWithSkips(24, seed)
		all := SaveAll(p)
		low, err := MinBudget(context.Background(), p)
		require.NoError(t, err)
		for _, budget := range []int64{low.BudgetBytes - 1, (all.PeakBytes + low.BudgetBytes) / 2, low.BudgetBytes, 1} {
			opt := Options{Budget: budget, Steps: 200}
			want, wantErr := Solve(context.Background(), p, opt)
			opt.Known = &known
			got, gotErr := Solve(context.Background(), p, opt)
			require.Equal(t, wantErr, gotErr, "seed %d budget %d", seed, budget)
			if known.problem == p {
				used++
			}
			if want == nil {
				continue
			}
			want.Seconds, got.Seconds = 0, 0
			require.Equal(t, want, got, "seed %d budget %d", seed, budget)
		}
		again, err := MinBudgetOptions(context.Background(), p, Options{Known: &known})
		require.NoError(t, err)
		again.Seconds, low.Seconds = 0, 0
		require.Equal(t, low, again)
	}
	require.Greater(t, used, 12, "nothing was known in most searches")
}

// TestLeastBytes: no plan takes less, and where none fits Solve says the same number.
func TestLeastBytes(t *testing.T) {
	for seed := uint64(0); seed < 6; seed++ {
		p := chainWithSkips(24, seed)
		least, err := LeastBytes(p)
		require.NoError(t, err)
		low, err := MinBudget(context.Background(), p)
		require.NoError(t, err)
		require.LessOrEqual(t, least, low.PeakBytes)
		require.Positive(t, least)
		_, err = Solve(context.Background(), p, Options{Budget: 1})
		var inf *InfeasibleError
		require.ErrorAs(t, err, &inf)
		require.Equal(t, inf.LowerBoundBytes, least)
	}
}
