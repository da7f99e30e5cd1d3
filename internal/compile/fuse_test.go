package compile

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/frontend"
	"reprise/frontend/nn"
	"reprise/ir/dtype"
	"reprise/passes/lower"
)

// Fusing makes no plan worse: at every budget the program costs at most what the one with nothing fused
// does, it fits, and where memory binds it is faster. What is fused is reported, with its readers.
func TestFusing(t *testing.T) {
	for _, spec := range []string{
		"builtin:gpt,layers=1,d=32,heads=2,seq=64,batch=2,vocab=40,dropout=0.1",
		"builtin:llama,layers=1,d=32,heads=4,kv_heads=2,seq=32,batch=2,vocab=33",
	} {
		t.Run(spec[8:], func(t *testing.T) {
			t.Parallel()
			m, err := frontend.Load(spec, frontend.Options{Train: true})
			require.NoError(t, err)
			opt := Options{PlanSteps: 500}
			grouped, err := Prepare(m.Module, opt)
			require.NoError(t, err)
			before := grouped.String()
			pl := newPlanning(context.Background(), grouped, opt)
			pl.init, err = initBytes(grouped)
			require.NoError(t, err)
			all, err := pl.saveAll()
			require.NoError(t, err)
			least, err := pl.smallestOf(pl.whole)
			require.NoError(t, err)
			smaller, err := pl.smallest()
			require.NoError(t, err)
			require.LessOrEqual(t, smaller.arena, least.arena)
			better := 0
			for k := range int64(2) {
				b := least.arena + (all.arena-least.arena)*k/2
				plain, _, err := pl.withinOf(pl.whole, b, nil)
				require.NoError(t, err)
				p, _, err := pl.within(b, nil)
				require.NoError(t, err)
				if plain == nil {
					continue
				}
				require.NotNil(t, p)
				require.LessOrEqual(t, p.arena, b)
				require.LessOrEqual(t, p.plan.Cost, plain.plan.Cost)
				require.Equal(t, all.plan.Cost, p.plan.BaseCost)
				require.LessOrEqual(t, p.plan.LowerBound, p.plan.Cost)
				require.NoError(t, (&Program{planned: p, Step: p.module}).ProveOnce())
				requireCounts(t, p)
				if p.plan.Cost < plain.plan.Cost {
					better++
				}
				fused := 0
				for _, v := range explain(p, b).Values {
					require.NotEmpty(t, v.Name)
					if v.Fate == FateFused && v.Runs > 0 {
						fused++
						require.True(t, strings.HasPrefix(v.Reason, "never in memory: computed while it is read by "), v.Reason)
						require.Empty(t, v.Spans)
					}
				}
				require.Equal(t, len(p.variant.sites) > 0, fused > 0 || len(p.fusedReaders()) > 0)
			}
			require.Positive(t, better, "nothing is better for it")
			require.Equal(t, before, grouped.String(), "planning changed its input")
			// No floor is above what was found.
			floor, err := pl.floor(nil)
			require.NoError(t, err)
			require.LessOrEqual(t, floor, smaller.arena)
			require.Positive(t, floor)
		})
	}
}

// TestKnownOps: an op that lost a result, since its only reader was fused into others, is not taken for the op it
// was; its kernel would write a result that is not there.
func TestKnownOps(t *testing.T) {
	m, err := nn.Infer(nn.Model{Name: "chain", Predict: func(s *nn.Scope) {
		h := s.Linear("in", s.Input("x", dtype.F32, []int64{32, 64}, nn.Normal01), 32)
		for i := range 2 {
			l := s.In(fmt.Sprintf("layers.%d", i))
			h = nn.Name(l.Gelu(l.Linear("fc", h, 32)), "h")
			h = l.Softmax(l.Linear("fc2", h, 32))
		}
		s.Output("logits", s.Linear("out", h, 10))
	}})
	require.NoError(t, err)
	opt := Options{PlanSteps: 100}
	grouped, err := Prepare(m, opt)
	require.NoError(t, err)
	pl := newPlanning(context.Background(), grouped, opt)
	vs, err := pl.chain()
	require.NoError(t, err)
	require.Greater(t, len(vs), 1)
	for _, v := range vs {
		pr, err := pl.state(v)
		require.NoError(t, err)
		for i, low := range pr.Lowered {
			if low == nil {
				continue
			}
			for _, l := range low.Launches {
				for _, a := range l.Args {
					require.False(t, a.Kind == lower.Result && a.Index >= len(pr.Ops[i].Results), pr.Ops[i].String())
				}
			}
		}
	}
}

// requireCounts: every op is said to be planned as often as it stands in the program, whatever was fused.
func requireCounts(t *testing.T, p *planned) {
	t.Helper()
	stands := map[int]int{}
	for _, r := range p.applied.Runs {
		stands[r.ID]++
	}
	require.Equal(t, stands, (&Program{planned: p}).PlannedRuns())
	for op, r := range newRunTable(p).who {
		require.Equal(t, stands[r.ID], r.Planned, "%s", op.Name())
	}
}

func TestPicks(t *testing.T) {
	require.Equal(t, []int{0}, picks(1, 5))
	require.Equal(t, []int{0, 2, 1}, picks(3, 5))
	require.Equal(t, []int{0, 6, 3, 1, 4}, picks(7, 5))
	require.Equal(t, []int{0, 9}, picks(10, 2))
}
