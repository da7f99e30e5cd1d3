package planner

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// tower is a forward pass of n ops and a backward pass that reads their values in reverse.
func tower(n int, bytes, cost int64, link *Offload) *Problem {
	p := &Problem{Offload: link}
	value := func() int {
		p.Values = append(p.Values, Value{Bytes: bytes})
		return len(p.Values) - 1
	}
	var acts []int
	for k := range n {
		op := Op{Cost: cost, Det: DetExact, Outputs: []int{value()}}
		if k > 0 {
			op.Inputs = []int{acts[k-1]}
		}
		acts = append(acts, op.Outputs[0])
		p.Ops = append(p.Ops, op)
	}
	grad := -1
	for k := n - 1; k >= 0; k-- {
		op := Op{Cost: cost, Det: DetExact, Inputs: []int{acts[k]}, Outputs: []int{value()}}
		if grad >= 0 {
			op.Inputs = append(op.Inputs, grad)
		}
		grad = op.Outputs[0]
		p.Ops = append(p.Ops, op)
	}
	p.Values[grad].Output = true
	return p
}

func solveAt(t *testing.T, p *Problem, budget int64) *Plan {
	t.Helper()
	plan, err := Solve(context.Background(), p, Options{Budget: budget, Steps: 20_000})
	require.NoError(t, err)
	_, err = Check(p, plan, budget)
	require.NoError(t, err)
	return plan
}

// TestOffloadOnlyWhatIsNeeded: a budget that fits moves nothing; a smaller one moves what it must, and
// where the link is fast enough nothing waits; where it is slow, recomputing is chosen instead.
func TestOffloadOnlyWhatIsNeeded(t *testing.T) {
	fast := &Offload{BytesPerNsOut: 10, BytesPerNsIn: 10, HostBytes: 1 << 30}
	p := tower(12, 100, 100, fast)
	all := SaveAll(p)
	plan := solveAt(t, p, all.PeakBytes)
	assert.Empty(t, plan.Transfers)
	assert.Equal(t, plan.BaseCost, plan.Cost)

	plan = solveAt(t, p, all.PeakBytes*6/10)
	assert.NotEmpty(t, plan.Transfers)
	assert.Equal(t, plan.BaseCost, plan.Cost, "copies hide behind ops")
	for k := range plan.Transfers {
		fewer := *plan
		fewer.Cost, fewer.PeakBytes = 0, 0
		fewer.Transfers = slices.Delete(slices.Clone(plan.Transfers), k, k+1)
		_, err := Check(p, &fewer, all.PeakBytes*6/10)
		assert.Error(t, err, "transfer %d is needed", k)
	}

	slow := tower(12, 100, 100, &Offload{BytesPerNsOut: 0.001, BytesPerNsIn: 0.001, HostBytes: 1 << 30})
	plan = solveAt(t, slow, all.PeakBytes*6/10)
	assert.Empty(t, plan.Transfers, "a copy takes a thousand ops' time")
	assert.Greater(t, len(plan.Order), len(p.Ops))

	full := tower(12, 100, 100, &Offload{BytesPerNsOut: 10, BytesPerNsIn: 10, HostBytes: 150})
	plan = solveAt(t, full, all.PeakBytes*6/10)
	assert.LessOrEqual(t, plan.HostBytes, int64(150))
}

// TestMustOffload: what must move moves at every budget, views with it and once; without a link it is an error.
func TestMustOffload(t *testing.T) {
	p := tower(6, 64, 10, &Offload{BytesPerNsOut: 1, BytesPerNsIn: 1, HostBytes: 1 << 20})
	// A view of the first value, read at the end: one storage, two readers.
	p.Values = append(p.Values, Value{Bytes: 64, Storage: 1})
	view := len(p.Values) - 1
	p.Values[p.Ops[0].Outputs[0]].Storage = 1
	p.Ops = append(p.Ops[:1:1], append([]Op{{Det: DetExact, Inputs: []int{p.Ops[0].Outputs[0]}, Outputs: []int{view}}}, p.Ops[1:]...)...)
	last := &p.Ops[len(p.Ops)-1]
	last.Inputs = append(last.Inputs, view)
	p.Values[p.Ops[0].Outputs[0]].Policy = MustOffload
	for _, budget := range []int64{0, 400, 300} {
		plan, err := Solve(context.Background(), p, Options{Budget: budget, Steps: 5000, Layout: true, Align: 64})
		require.NoError(t, err, "budget %d", budget)
		limit := budget
		if limit == 0 {
			limit = -1
		}
		rep, err := Check(p, plan, limit)
		require.NoError(t, err)
		moved := int64(0)
		for _, tr := range plan.Transfers {
			if tr.Value == p.Ops[0].Outputs[0] {
				moved += 64
			}
		}
		assert.Equal(t, int64(64), moved, "one storage, however many views")
		assert.GreaterOrEqual(t, rep.MovedBytes, moved)
	}
	low, err := MinBudget(context.Background(), p)
	require.NoError(t, err)
	_, err = Check(p, low, low.BudgetBytes)
	require.NoError(t, err)

	p.Offload = nil
	_, err = Solve(context.Background(), p, Options{})
	var pe *ProblemError
	require.ErrorAs(t, err, &pe)
	assert.Contains(t, err.Error(), "no link to host memory")
}

// TestOffloadRandom: on random problems plans with moves pass the check, are no dearer than plans without,
// survive their file form, and their layouts hold.
func TestOffloadRandom(t *testing.T) {
	moves := 0
	for seed := uint64(0); seed < 300; seed++ {
		rng := rand.New(rand.NewPCG(seed, 77))
		p := randomProblem(rng, 6+rng.IntN(20))
		p.Offload = nil
		all := SaveAll(p)
		low, err := MinBudget(context.Background(), p)
		if err != nil {
			continue
		}
		budget := low.PeakBytes + rng.Int64N((all.PeakBytes-low.PeakBytes)/2+1)
		opt := Options{Budget: budget, Steps: 1000, Layout: seed%2 == 0}
		without, err := Solve(context.Background(), p, opt)
		var inf *InfeasibleError
		if err != nil && !errors.As(err, &inf) {
			t.Fatalf("seed %d: %v", seed, err)
		}
		p.Offload = &Offload{BytesPerNsOut: 0.01 + 5*rng.Float64(), BytesPerNsIn: 0.01 + 5*rng.Float64(), HostBytes: rng.Int64N(4*all.PeakBytes + 1)}
		if seed%3 == 0 {
			p.Values[rng.IntN(len(p.Values))].Policy = PreferOffload
		}
		opt.Steps *= int64(len(offloadShares))
		plan, err := Solve(context.Background(), p, opt)
		if errors.As(err, &inf) {
			if without != nil {
				t.Fatalf("seed %d: no plan with a link, one without", seed)
			}
			continue
		}
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if without != nil && !opt.Layout && plan.Cost > without.Cost {
			t.Errorf("seed %d: cost %d with a link, %d without", seed, plan.Cost, without.Cost)
		}
		var buf bytes.Buffer
		require.NoError(t, WritePlan(&buf, plan))
		back, err := ReadPlan(&buf)
		require.NoError(t, err)
		rep, err := Check(p, back, budget)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		assert.Equal(t, plan.Cost, rep.Cost)
		moves += len(plan.Transfers)
	}
	assert.Greater(t, moves, 50)
}

// TestTransferRules: each way to break a transfer is found.
func TestTransferRules(t *testing.T) {
	p := tower(8, 100, 100, &Offload{BytesPerNsOut: 1, BytesPerNsIn: 1, HostBytes: 1000})
	plan := solveAt(t, p, SaveAll(p).PeakBytes*7/10)
	require.NotEmpty(t, plan.Transfers)
	for name, f := range map[string]func(pl *Plan, q *Problem) Rule{
		"in use":       func(pl *Plan, _ *Problem) Rule { pl.Transfers[0].Out--; return RuleTransfer },
		"not in order": func(pl *Plan, _ *Problem) Rule { pl.Transfers[0].Free = pl.Transfers[0].Out; return RuleTransfer },
		"back late":    func(pl *Plan, _ *Problem) Rule { pl.Transfers[0].In = pl.Transfers[0].Use + 1; return RuleTransfer },
		"nothing":      func(pl *Plan, _ *Problem) Rule { pl.Transfers[0].Start++; return RuleTransfer },
		"twice": func(pl *Plan, _ *Problem) Rule {
			pl.Transfers = append(pl.Transfers[:1:1], pl.Transfers...)
			return RuleTransfer
		},
		"no link": func(_ *Plan, q *Problem) Rule { q.Offload = nil; return RuleTransfer },
		"host":    func(_ *Plan, q *Problem) Rule { q.Offload = &Offload{1, 1, 10}; return RuleTransfer },
		"early":   func(pl *Plan, _ *Problem) Rule { pl.Transfers[0].In = pl.Transfers[0].Free; return RuleBudget },
		"slow":    func(_ *Plan, q *Problem) Rule { q.Offload = &Offload{0.001, 1, 1000}; return RuleClaim },
		"must": func(pl *Plan, q *Problem) Rule {
			pl.Transfers = nil
			q.Values[0].Policy = MustOffload
			return RulePolicy
		},
	} {
		pl, q := *plan, *p
		pl.Transfers = slices.Clone(plan.Transfers)
		q.Values = slices.Clone(p.Values)
		want := f(&pl, &q)
		_, err := Check(&q, &pl, plan.PeakBytes)
		var v *Violation
		if assert.ErrorAs(t, err, &v, name) {
			assert.Equal(t, want, v.Rule, "%s: %v", name, err)
		}
	}
}

// TestOffloadBound holds the bound against the cheapest of many plans with moves: on every order with up to two
// recomputations of small problems, and on the planner's own for towers, where it must say something.
func TestOffloadBound(t *testing.T) {
	above, plans := 0, 0
	for seed := uint64(0); seed < 30; seed++ {
		rng := rand.New(rand.NewPCG(seed, 41))
		p := simpleProblem(rng, 3+rng.IntN(2))
		for i := range p.Values {
			p.Values[i].Bytes *= 8
		}
		p.Offload = &Offload{BytesPerNsOut: 0.1 + rng.Float64(), BytesPerNsIn: 0.1 + rng.Float64(), HostBytes: rng.Int64N(60)}
		q := onDevice(p)
		low, high := newModel(q).footprint(), SaveAll(q).PeakBytes
		for _, budget := range []int64{low, (low + high) / 2, high - 1} {
			least := int64(-1)
			everyOrder(len(p.Ops), 2, func(order []int) {
				if _, err := Check(q, &Plan{Order: order}, -1); err != nil {
					return
				}
				if pl := moveAway(p, &Plan{Order: order}, budget); pl != nil && (least < 0 || pl.Cost < least) {
					least = pl.Cost
				}
			})
			if least < 0 {
				continue
			}
			plans++
			lower := offloadBound(t.Context(), p, q, budget)
			require.LessOrEqual(t, lower, least, "seed %d budget %d", seed, budget)
			if lower > SaveAll(q).BaseCost {
				above++
			}
		}
	}
	t.Logf("%d budgets, %d bounds above the base cost", plans, above)
	require.Greater(t, above, 2)

	p := tower(12, 100, 100, &Offload{BytesPerNsOut: 0.15, BytesPerNsIn: 0.15, HostBytes: 1 << 30})
	plan := solveAt(t, p, SaveAll(p).PeakBytes*4/10)
	assert.Greater(t, plan.LowerBound, plan.BaseCost)
	assert.LessOrEqual(t, plan.LowerBound, plan.Cost)
	assert.Equal(t, ProofCut, plan.Proof)
	t.Logf("tower: cost %d, bound %d, base %d", plan.Cost, plan.LowerBound, plan.BaseCost)
}
