package compile

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/frontend"
	"reprise/planner"
)

// TestRefined: what is fused is chosen anew when there is a plan. Any part of it can be turned over and back: the plan carried over
// is legal, and where a value was fused it is the plan that it was. Programs get smaller and cheaper, not
// dearer, and stay what they are.
func TestRefined(t *testing.T) {
	m, err := frontend.Load("builtin:qwen,layers=1,d=64,heads=4,kv_heads=2,hidden=96,seq=16,batch=2,vocab=64", frontend.Options{Train: true})
	require.NoError(t, err)
	opt := Options{PlanSteps: 200}
	grouped, err := Prepare(m.Module, opt)
	require.NoError(t, err)
	pl := newPlanning(context.Background(), grouped, opt)
	vs, err := pl.chain()
	require.NoError(t, err)
	least, err := pl.smallest()
	require.NoError(t, err)
	var first *planned
	for _, i := range picks(len(vs), minVariants) {
		out, err := pl.smallestOf(vs[i])
		require.NoError(t, err)
		require.LessOrEqual(t, least.arena, out.arena)
		if first == nil || out.arena < first.arena {
			first = out
		}
	}
	require.LessOrEqual(t, least.arena, first.arena)

	parts, err := pl.parts()
	require.NoError(t, err)
	require.Greater(t, len(parts), 2)
	at, err := pl.stated(least.variant)
	require.NoError(t, err)
	for _, part := range parts {
		there, err := pl.stated(least.variant.turned(part))
		require.NoError(t, err)
		order := carried(at, there, least.plan.Order)
		_, err = planner.Check(there.Problem.Problem, &planner.Plan{Order: order}, -1)
		require.NoError(t, err)
		back, err := pl.stated(least.variant.turned(part).turned(part))
		require.NoError(t, err)
		rep, err := planner.Check(back.Problem.Problem, &planner.Plan{Order: carried(there, back, order)}, -1)
		require.NoError(t, err)
		if len(there.Ops) > len(at.Ops) { // it was fused, so that every reader gets an instance of its own, and none after all
			require.Equal(t, least.plan.Cost, rep.Cost)
		}
	}

	all, err := pl.saveAll()
	require.NoError(t, err)
	limit := least.arena + (all.arena-least.arena)/3
	plain, _, err := pl.withinOf(pl.whole, limit, nil)
	require.NoError(t, err)
	out, _, err := pl.within(limit, nil)
	require.NoError(t, err)
	require.LessOrEqual(t, out.arena, limit)
	require.Less(t, out.plan.Cost, plain.plan.Cost)
	require.False(t, slices.Contains(vs, out.variant), "what is best here is no variant of the chain")
	for _, p := range []*planned{least, out} {
		require.NoError(t, (&Program{planned: p, Step: p.module}).ProveOnce())
		requireCounts(t, p)
		require.LessOrEqual(t, p.plan.LowerBound, p.plan.Cost)
	}
}
