package planner

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// hostile is a small chain with a far reader of its first value.
func hostile() *Problem {
	return &Problem{
		Ops: []Op{
			{Name: "f", Cost: 3, Det: DetExact, Outputs: []int{0}},
			{Name: "g", Cost: 5, Det: DetExact, Inputs: []int{0}, Outputs: []int{1}},
			{Name: "h", Cost: 4, Det: DetExact, Inputs: []int{1}, Outputs: []int{2}},
			{Name: "dg", Cost: 9, Det: DetExact, Inputs: []int{0, 2}, Outputs: []int{3}},
		},
		Values: []Value{{Name: "x", Bytes: 100}, {Name: "y", Bytes: 80}, {Name: "z", Bytes: 80}, {Name: "dx", Bytes: 100, Output: true}},
	}
}

// Whatever a plan says of itself is checked, not only its cost and peak.
func TestFalseClaims(t *testing.T) {
	p := hostile()
	p.Values[0].Policy = MustRecompute
	plan, err := Solve(context.Background(), p, Options{Budget: 300})
	require.NoError(t, err)
	require.Positive(t, plan.Overhead)
	_, err = Check(p, plan, 300)
	require.NoError(t, err)
	for name, lie := range map[string]func(*Plan){
		"cost": func(pl *Plan) { pl.Cost-- }, "peak": func(pl *Plan) { pl.PeakBytes-- }, "base": func(pl *Plan) { pl.BaseCost-- },
		"bound": func(pl *Plan) { pl.LowerBound = pl.Cost + 1 }, "budget": func(pl *Plan) { pl.BudgetBytes = 3 },
		"negative budget": func(pl *Plan) { pl.BudgetBytes = -3 }, "arena": func(pl *Plan) { pl.ArenaBytes = 1 },
		"overhead": func(pl *Plan) { pl.Overhead /= 2 }, "gap": func(pl *Plan) { pl.Gap = -7 },
	} {
		lying := *plan
		lie(&lying)
		_, err := Check(p, &lying, -1)
		var v *Violation
		if assert.ErrorAs(t, err, &v, name) {
			assert.Equal(t, RuleClaim, v.Rule, name)
		}
	}
}

// An exhaustive search that does not know a rule proves nothing about it.
func TestExactKnowsNoRules(t *testing.T) {
	p := hostile()
	p.Values[0].Policy = MustRecompute
	plan, err := Solve(context.Background(), p, Options{Budget: 300})
	require.NoError(t, err)
	assert.True(t, plan.Proof != ProofExact || plan.Gap == 0, "proof %s, gap %g", plan.Proof, plan.Gap)
}

// A plan without a budget names none, with a link and without.
func TestNoBudgetIsZero(t *testing.T) {
	p := hostile()
	for range 2 {
		for _, b := range []int64{0, -1} {
			plan, err := Solve(context.Background(), p, Options{Budget: b})
			require.NoError(t, err)
			assert.Zero(t, plan.BudgetBytes)
		}
		p.Offload = &Offload{BytesPerNsOut: 100, BytesPerNsIn: 100, HostBytes: 1000}
	}
}

// Where host memory is too small for what must be offloaded, no budget helps, and none is recommended.
func TestHostMemoryTooSmall(t *testing.T) {
	p := hostile()
	p.Values[0].Policy = MustOffload
	p.Offload = &Offload{BytesPerNsOut: 100, BytesPerNsIn: 100, HostBytes: 5}
	for _, b := range []int64{0, 280, 10_000} {
		_, err := Solve(context.Background(), p, Options{Budget: b})
		require.Error(t, err)
		var inf *InfeasibleError
		assert.NotErrorAs(t, err, &inf)
		assert.True(t, strings.Contains(err.Error(), "host memory has 5 bytes"), err.Error())
	}
}
