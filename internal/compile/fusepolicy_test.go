package compile

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/codegen/cpu"
	"reprise/frontend"
	"reprise/passes/policy"
	"reprise/planner"
)

// TestFusingUnderPolicy: fusing makes a policy's program no larger and no slower, and obeys it: what a line saves is in memory,
// what is kept without a budget is what no line is about, and all that is printed is about the program that runs.
func TestFusingUnderPolicy(t *testing.T) {
	spec := "builtin:gpt,layers=2,d=32,heads=2,seq=64,batch=2,vocab=40,dropout=0.1"
	m, err := frontend.Load(spec, frontend.Options{Train: true})
	require.NoError(t, err)
	for _, c := range []struct {
		name    string
		lines   []string
		percent float64 // 0: by the policy alone
		better  bool
	}{
		{name: "full", better: true},
		{name: "dots_saveable", better: true},
		{name: "full", lines: []string{"must save layer=layers.0.mlp", "prefer save layer=layers.0.*"}},
		{name: "full", lines: []string{"prefer save layer=layers.1.mlp.*"}, percent: 85},
	} {
		t.Run(c.name+strings.Join(c.lines, "+"), func(t *testing.T) {
			p, err := policy.Load(c.name)
			require.NoError(t, err)
			p, err = p.With(c.lines...)
			require.NoError(t, err)
			opt := Options{PlanSteps: 500, Policy: p, Budget: Budget{Percent: c.percent}}
			grouped, err := Prepare(m.Module, opt)
			require.NoError(t, err)
			pl := newPlanning(context.Background(), grouped, opt)
			whole, err := pl.stated(pl.whole)
			require.NoError(t, err)
			var plain, out *planned
			if pl.alone {
				plan, err := pl.obeyPlan(pl.whole)
				require.NoError(t, err)
				plain, err = pl.realise(pl.whole, plan, 0)
				require.NoError(t, err)
				out, err = pl.obeying()
				require.NoError(t, err)
			} else {
				all, err := pl.saveAll()
				require.NoError(t, err)
				limit := int64(float64(all.arena) * c.percent / 100)
				plain, _, err = pl.withinOf(pl.whole, limit, nil)
				require.NoError(t, err)
				out, _, err = pl.within(limit, nil)
				require.NoError(t, err)
				require.LessOrEqual(t, out.arena, limit)
			}
			require.LessOrEqual(t, out.plan.Cost, plain.plan.Cost)
			if pl.alone {
				require.LessOrEqual(t, out.arena, plain.arena)
			}
			if c.better {
				require.Less(t, out.arena, plain.arena)
				require.Less(t, out.plan.Cost, plain.plan.Cost)
			}
			require.NoError(t, (&Program{planned: out, Step: out.module}).ProveOnce())
			requireCounts(t, out)

			inMemory := map[int]bool{}
			for _, id := range out.ids {
				inMemory[id] = true
			}
			fused, kept := 0, map[string]int64{}
			x := newExplainer(out, out.arena)
			across := planner.KeptAcross(out.problem.Problem, out.plan.Order)
			for i, v := range out.problem.Values {
				why := x.rule(v)
				if at, ok := whole.index[out.ids[v]]; ok {
					why = whole.rules.Reason(at)
				}
				if across[i] {
					kept[why] += out.problem.Problem.Values[i].Bytes
				}
			}
			for i, v := range whole.Values {
				says := whole.Problem.Problem.Values[i].Policy
				if inMemory[v.ID] || v.Op == nil {
					continue
				}
				at := whole.at[v.Op.ID]
				if whole.Lowered[at] == nil { // a view
					continue
				}
				fused++
				require.False(t, says.Saves(), "%s", v.Name)
				require.False(t, v.Marked())
				require.NotContains(t, whole.rules.Reason(i), "saved", "%s", v.Name)
				if pl.alone && says == planner.PolicyNone {
					require.False(t, whole.Forward[at] && whole.backed[i], "%s is kept, no line is about it", v.Name)
				}
			}
			require.Positive(t, fused)
			said := 0
			e := explain(out, out.arena)
			for _, v := range e.Values {
				if v.Fate == FateFused && v.Rule != "" {
					said++
					require.Contains(t, v.Reason, "computed again for each ("+v.Rule+")")
				}
			}
			require.Positive(t, said)
			r := newReport(m, cpu.V3, out.arena, out, out, nil, e)
			require.Equal(t, plain.rules.Rules[0].Matched, r.Policy.Rules[0].Matched)
			for k, rule := range r.Policy.Rules {
				require.Equal(t, plain.rules.Rules[k].Decided, rule.Decided)
				require.Equal(t, plain.rules.Rules[k].FreedBytes+plain.rules.Rules[k].KeptBytes, rule.FreedBytes+rule.KeptBytes)
				var n int64
				for why, bytes := range kept {
					if strings.HasSuffix(why, fmt.Sprintf(": policy %s:%d", rule.File, rule.Line)) {
						n += bytes
					}
				}
				require.Equal(t, n, rule.KeptBytes, rule.Text)
			}
			require.Empty(t, r.Policy.Warnings)
		})
	}
}
