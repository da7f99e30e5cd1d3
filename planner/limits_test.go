package planner

import (
	"context"
	"errors"
	"math"
	"math/rand"
	randv2 "math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// limitedStep is a random step with a limit on some of its forward values, of a share of what keeping everything keeps of them.
func limitedStep(r *rand.Rand, n int) *Problem {
	p := randomStep(r, n)
	var l Limit
	for v := 1; v <= n; v++ {
		if r.Intn(4) > 0 {
			l.Values = append(l.Values, v)
		}
	}
	l.Name, l.Bytes = "some", math.MaxInt32
	p.Limits = []Limit{l}
	rep, err := Check(p, SaveAll(p), -1)
	if err != nil {
		panic(err)
	}
	p.Limits[0].Bytes = rep.LimitBytes[0] * int64(r.Intn(5)) / 5
	return p
}

// TestLimitsInCheck: a plan that keeps more of a limit's values than it allows is rejected with both numbers, however it
// comes to keep them; what is made again behind the gate, and what only the gate reads, does not count.
func TestLimitsInCheck(t *testing.T) {
	p := chainStep(3) // a0 a1 a2 loss dloss g2 g1 g0; the backward part reads a0, a1
	p.Limits = []Limit{{Name: "acts", Values: []int{value(t, p, "a0"), value(t, p, "a1"), value(t, p, "a2")}, Bytes: 16}}
	rep, err := Check(p, SaveAll(p), -1)
	require.NoError(t, err)
	require.Equal(t, []int64{16}, rep.LimitBytes)
	p.Limits[0].Bytes = 15
	_, err = Check(p, SaveAll(p), -1)
	var v *Violation
	require.ErrorAs(t, err, &v)
	require.Equal(t, RuleLimit, v.Rule)
	require.EqualError(t, err, `planner: limit: limit 0 "acts": the plan keeps 16 bytes of its values across gates, 15 are allowed`)
	_, err = Check(p, &Plan{Order: []int{0, 1, 2, 0, 3, 4, 5, 6, 7}}, -1) // an early copy is kept all the same
	require.ErrorAs(t, err, &v)
	rep, err = Check(p, &Plan{Order: []int{0, 1, 2, 3, 4, 0, 5, 6, 7}}, -1)
	require.NoError(t, err)
	require.Equal(t, []int64{8}, rep.LimitBytes)
	for _, bad := range []struct {
		l    Limit
		says string
	}{
		{Limit{Values: []int{99}}, "limit 0 names value 99; there are values 0 to "},
		{Limit{Values: []int{1, 1}}, `limit 0 names value 1 "a0" twice`},
		{Limit{Name: "x", Bytes: -1}, `limit 0 "x" is of -1 bytes`},
	} {
		p.Limits = []Limit{bad.l}
		require.ErrorContains(t, p.Validate(), bad.says)
	}
}

// TestLimitsInFiles: a graph file keeps limits, by index or by name, and says what is wrong with one.
func TestLimitsInFiles(t *testing.T) {
	p := chainStep(3)
	p.Limits = []Limit{{Name: "acts", Values: []int{1, 2}, Bytes: 8}}
	var b strings.Builder
	require.NoError(t, WriteGraph(&b, p))
	text := b.String()
	g, err := ReadGraph(strings.NewReader(text))
	require.NoError(t, err)
	require.Equal(t, p.Limits, g.Problem.Limits)
	is := `"limits":[{"name":"acts","values":[1,2],"bytes":8}]`
	require.Contains(t, text, is)
	g, err = ReadGraph(strings.NewReader(strings.Replace(text, is, `"limits":[{"values":["a1"],"bytes":1e3}]`, 1)))
	require.NoError(t, err)
	require.Equal(t, []Limit{{Values: []int{2}, Bytes: 1000}}, g.Problem.Limits)
	for with, says := range map[string]string{
		`"limits":[{"name":"z","values":["zz"],"bytes":8}]`: `limit 0 "z" names value "zz", which does not exist`,
		`"limits":[{"values":[77],"bytes":8}]`:              "limit 0 names value 77; there are values 0 to ",
		`"limits":[{"value":[1],"bytes":8}]`:                `unknown field "value"`,
	} {
		_, err = ReadGraph(strings.NewReader(strings.Replace(text, is, with, 1)))
		require.ErrorContains(t, err, says)
	}
}

// cheapest is the least cost of all legal orders of p with up to extra repeats, as Check sees them; -1 where there is none.
func cheapest(p *Problem, budget int64, extra int) int64 {
	best := int64(-1)
	ready := make([]int, len(p.Values)) // instances made
	for v := range p.Values {
		if p.Values[v].Resident {
			ready[v] = 1
		}
	}
	runs := make([]int, len(p.Ops))
	var order []int
	var visit func(missing, extra int)
	visit = func(missing, extra int) {
		if missing == 0 {
			if rep, err := Check(p, &Plan{Order: order}, budget); err == nil && (best < 0 || rep.Cost < best) {
				best = rep.Cost
			}
			return // whatever follows only adds
		}
		for i := range p.Ops {
			o := &p.Ops[i]
			if runs[i] > 1 || runs[i] > 0 && (extra == 0 || o.RunsOnce()) {
				continue
			}
			ok := true
			for _, v := range o.Inputs {
				ok = ok && ready[v] > 0
			}
			if !ok {
				continue
			}
			less, more := 0, 1
			if runs[i] == 0 {
				less, more = 1, 0
			}
			runs[i]++
			ready[o.Outputs[0]]++
			order = append(order, i)
			visit(missing-less, extra-more)
			order = order[:len(order)-1]
			ready[o.Outputs[0]]--
			runs[i]--
		}
	}
	visit(len(p.Ops), extra)
	return best
}

// TestLimitsByBruteForce: on small steps no order with up to three repeats that Check accepts is cheaper than the plan, with and without
// a budget for the whole, and where there is none within both, the planner has none either, or one that takes more repeats.
func TestLimitsByBruteForce(t *testing.T) {
	r := rand.New(rand.NewSource(11))
	bound, dearer := 0, 0
	for trial := range 30 {
		n := 3
		if trial%8 == 0 {
			n = 4
		}
		p := limitedStep(r, n)
		free := *p
		free.Limits = nil
		for _, share := range []int64{0, 90, 75} {
			budget := SaveAll(p).PeakBytes * share / 100
			limit := budget
			if budget == 0 {
				limit = -1
			}
			best := cheapest(p, limit, 3)
			plan, err := Solve(context.Background(), p, Options{Budget: budget, Steps: 2000})
			if err != nil {
				require.EqualValues(t, -1, best, "trial %d, %d %%: %v", trial, share, err)
				continue
			}
			rep, err := Check(p, plan, limit)
			require.NoError(t, err)
			require.LessOrEqual(t, rep.LimitBytes[0], p.Limits[0].Bytes)
			require.LessOrEqual(t, plan.LowerBound, plan.Cost)
			if best >= 0 {
				require.LessOrEqual(t, plan.Cost, best, "trial %d, %d %%", trial, share)
			}
			bound++
			if other, err := Solve(context.Background(), &free, Options{Budget: budget, Steps: 2000}); err == nil && other.Cost < plan.Cost {
				dearer++
			}
		}
	}
	require.Greater(t, bound, 30)
	require.Greater(t, dearer, 10, "limits that cost nothing test nothing")
}

// TestLimitsNearOptimum: steps that are too large to be solved outright, against the exhaustive search.
func TestLimitsNearOptimum(t *testing.T) {
	r := rand.New(rand.NewSource(12))
	solved, best := 0, 0
	var sum, least int64
	for solved < 24 {
		p := limitedStep(r, 7)
		budget := SaveAll(p).PeakBytes * int64(75+5*r.Intn(6)) / 100
		m := newModel(p)
		_, cost, known := exact(m, budget, 1<<16, func() bool { return false })
		plan, err := Solve(context.Background(), p, Options{Budget: budget, Steps: 4000})
		var inf *InfeasibleError
		var pe *ProblemError
		if errors.As(err, &inf) || errors.As(err, &pe) || !known || cost == 0 {
			continue
		}
		require.NoError(t, err)
		require.GreaterOrEqual(t, plan.Cost, cost, "the exhaustive search is not")
		solved++
		if plan.Cost == cost {
			best++
		}
		sum, least = sum+plan.Cost, least+cost
	}
	t.Logf("%d of %d at the optimum, %d against %d", best, solved, sum, least)
	require.GreaterOrEqual(t, best, solved*9/10)
	require.LessOrEqual(t, float64(sum), 1.01*float64(least))
}

// TestChoiceOfMany: what is chosen to be kept of more values than are tried in all combinations is as good as the best
// combination.
func TestChoiceOfMany(t *testing.T) {
	r := rand.New(rand.NewSource(13))
	same := 0
	for range 30 {
		p := limitedStep(r, 14)
		c := newChooser(newModel(p))
		if len(c.open) <= chooseAll {
			continue
		}
		got := c.choose()
		best := c.eval(make([]bool, len(c.m.size)))
		for set := range 1 << len(c.open) {
			keep := make([]bool, len(c.m.size))
			for i, b := range c.open {
				keep[b] = set>>i&1 != 0
			}
			if d := c.eval(keep); d.better(&best) {
				best = d
			}
		}
		require.Equal(t, best.over, got.over)
		if require.LessOrEqual(t, float64(got.cost), 1.1*float64(best.cost)+1); got.cost == best.cost {
			same++
		}
	}
	require.Greater(t, same, 8)
}

// TestLimitsHoldEverywhere: every entry point keeps limits, several at once and with a link, and says which can't be met.
func TestLimitsHoldEverywhere(t *testing.T) {
	r := rand.New(rand.NewSource(14))
	planned := 0
	for trial := range 12 {
		p := limitedStep(r, 5+r.Intn(10))
		other := Limit{Values: []int{1, 2, 3}, Bytes: int64(r.Intn(30))}
		p.Limits = append(p.Limits, other)
		if trial%3 == 2 {
			p.Offload = &Offload{BytesPerNsOut: 1, BytesPerNsIn: 1, HostBytes: 1 << 20}
		}
		least, err := LeastKept(p)
		require.NoError(t, err)
		obey, err := Obey(p)
		if err != nil {
			require.ErrorContains(t, err, "are the fewest that were found to keep of its values")
			continue
		}
		rep, err := Check(p, obey, -1)
		require.NoError(t, err)
		for k, n := range rep.LimitBytes {
			require.LessOrEqual(t, least[k], n)
		}
		require.LessOrEqual(t, obey.LowerBound, obey.Cost)
		low, err := MinBudget(context.Background(), p)
		require.NoError(t, err, "trial %d", trial)
		_, err = Check(p, low, low.BudgetBytes)
		require.NoError(t, err)
		known := &Known{}
		for _, b := range []int64{low.BudgetBytes, (low.BudgetBytes + obey.PeakBytes) / 2, 0} {
			plan, err := Solve(context.Background(), p, Options{Budget: b, Steps: 2000, Known: known})
			require.NoError(t, err, "trial %d", trial)
			if b == 0 {
				b = -1
			}
			_, err = Check(p, plan, b)
			require.NoError(t, err)
			planned++
		}
		_, err = Solve(context.Background(), p, Options{Budget: low.BudgetBytes / 4, Steps: 2000, Known: known})
		var inf *InfeasibleError
		require.ErrorAs(t, err, &inf)
		baselinesAreLegal(t, p, trial)
	}
	require.Greater(t, planned, 15)
}

// TestLimitsOfAnyProblem: with everything in it that a problem can have, limits on any values (outputs, views, what is written over)
// and gates anywhere, no error is a fault of the planner's own, and no bound is above the cost of any order that Check accepts.
func TestLimitsOfAnyProblem(t *testing.T) {
	held := 0
	for seed := uint64(0); seed < 500; seed++ {
		rng := randv2.New(randv2.NewPCG(seed, 91))
		p := randomProblem(rng, 2+rng.IntN(3))
		p.Gates = []int{rng.IntN(len(p.Ops))}
		for range 1 + rng.IntN(2) {
			l := Limit{Bytes: max(0, rng.Int64N(16)-4)}
			for v := range p.Values {
				if rng.IntN(2) == 0 {
					l.Values = append(l.Values, v)
				}
			}
			p.Limits = append(p.Limits, l)
		}
		if v := rng.IntN(len(p.Values)); rng.IntN(2) == 0 {
			p.Values[v].Policy = []Policy{MustSave, MustRecompute, PreferRecompute}[rng.IntN(3)]
		}
		least := int64(math.MaxInt64)
		everyOrder(len(p.Ops), 1, func(order []int) {
			if rep, err := Check(p, &Plan{Order: order}, -1); err == nil {
				least = min(least, rep.Cost)
			}
		})
		solved, err := Solve(t.Context(), p, Options{Steps: 500})
		obeyed, errObey := Obey(p)
		_, errLeast := MinBudget(t.Context(), p)
		for _, err := range []error{err, errObey, errLeast} {
			if err != nil {
				require.NotContains(t, err.Error(), "BUG", "seed %d", seed)
			}
		}
		for _, plan := range []*Plan{solved, obeyed} {
			if plan != nil {
				held++
				require.LessOrEqual(t, plan.LowerBound, least, "seed %d, by %s", seed, plan.Solver)
			}
		}
	}
	require.Greater(t, held, 500)
}

// TestBoundWithOutputsInLimits: an output that is made behind the gate is not kept across it, and leaves its bytes of a limit
// to others, in the choice and in the bound.
func TestBoundWithOutputsInLimits(t *testing.T) {
	p := chainStep(3) // a0 a1 a2 loss dloss g2 g1 g0; the backward part reads a0, a1
	p.Limits = []Limit{{Bytes: 8}}
	for v := 1; v < len(p.Values); v++ {
		p.Limits[0].Values = append(p.Limits[0].Values, v)
	}
	require.True(t, slices.ContainsFunc(p.Values, func(v Value) bool { return v.Output }))
	plan, err := Obey(p)
	require.NoError(t, err)
	best := cheapest(p, -1, 1)
	require.LessOrEqual(t, plan.LowerBound, best)
	require.Equal(t, best, plan.Cost)
}
