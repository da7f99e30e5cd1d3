package reports

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"reprise/frontend/nn"
	"reprise/internal/compile"
	"reprise/internal/diag"
	"reprise/ir/dtype"
	"reprise/ir/ops"
	"reprise/planner"
)

// Memory of this target is the host's, so that nothing is gained by moving a value there: asking for it is an error. What
// the planner does where there is a link is held on graphs.

func tableRows() []string {
	var out []string
	for _, d := range ops.Table().All() {
		out = append(out, d.Name)
	}
	return out
}

// refused holds a rule that offloads to an error that says why.
func refused(t testing.TB, m *frontendModel, rule string) {
	t.Helper()
	_, err := tryPlan(m, under(t, "", rule).Options)
	e := diag.As(err)
	require.NotNil(t, e, rule)
	assert.Equal(t, "offload", e.Code)
	assert.Contains(t, e.Message, "moving a value there frees nothing")
	assert.NotEmpty(t, e.Layer)
	assert.NotEmpty(t, e.Hint)
}

// TestP047: offloading took a square tensor and its transpose for one, since they share storage, and gradients were wrong
// (modelscope/ms-swift#10157). A transpose is read by its own strides, from one array that is kept once.
func TestP047(t *testing.T) {
	m := trained(t, "transpose", func(s *nn.Scope) *nn.Tensor {
		w := s.Param("w", []int64{4, 4}, nn.Normal(0.5))
		a := nn.Name(s.MatMul(s.Input("x", dtype.F32, []int64{4, 4}, nn.Normal01), w), "a")
		b := s.Transpose(a, 1, 0)
		return s.In("loss").SumAll(s.MatMul(s.MatMul(a, b), a)) // both are read in backward
	})
	all, _ := exact(t, m)
	n := int64(0)
	for _, v := range all.saved() {
		if strings.HasPrefix(v.Op.Loc.Layer, "transpose") && v.Type.Len() == 16 && v.Attrs.Str("name") == "a" {
			n += v.Type.Bytes()
		}
		assert.NotEqual(t, "transpose", v.Op.Name(), "the transpose is kept as well")
	}
	assert.EqualValues(t, 64, n)
	refused(t, m, "must offload value=a")
}

// tower is a chain of n forward ops whose results a backward chain reads, the last first: values of b bytes, forward ops of cost
// c. A link of one byte a unit of cost each way, if linked.
func tower(n int, b, c int64, linked bool) *planner.Problem {
	p := &planner.Problem{Values: []planner.Value{{Name: "x", Resident: true}}}
	add := func(cost int64, in ...int) int {
		p.Values = append(p.Values, planner.Value{Bytes: b})
		p.Ops = append(p.Ops, planner.Op{Cost: cost, Det: planner.DetExact, Inputs: in, Outputs: []int{len(p.Values) - 1}})
		return len(p.Values) - 1
	}
	chain := []int{0}
	for range n {
		chain = append(chain, add(c, chain[len(chain)-1]))
	}
	back := chain[n]
	for i := n - 1; i >= 0; i-- {
		back = add(c, back, chain[i])
	}
	p.Values[back].Output = true
	if linked {
		p.Offload = &planner.Offload{BytesPerNsOut: 1, BytesPerNsIn: 1, HostBytes: 1 << 40}
	}
	return p
}

// TestP108: offloading on streams gave NaN: memory was reused while a copy was still under way (meta-pytorch/torchtune#1867). A
// copy takes time on the plan's clock, and memory is free when it has ended: the checker runs its own clock and counts what a
// slow link holds.
func TestP108(t *testing.T) {
	refused(t, mlp(t, 4, 32, 64, 0.5), "must offload layer=layers.*")
	p := tower(8, 100, 10, true)
	all := planner.SaveAll(p)
	for _, slow := range []float64{10, 1, 0.1} {
		p.Offload.BytesPerNsOut, p.Offload.BytesPerNsIn = slow, slow
		plan, err := planner.Solve(context.Background(), p, planner.Options{Budget: all.PeakBytes * 6 / 10, Steps: 20_000})
		require.NoError(t, err)
		rep, err := planner.Check(p, plan, all.PeakBytes*6/10)
		require.NoError(t, err, "link of %v bytes a unit", slow)
		assert.LessOrEqual(t, rep.PeakBytes, all.PeakBytes*6/10)
		for _, x := range plan.Transfers {
			assert.Less(t, x.Out, x.Use)
			assert.LessOrEqual(t, x.Out, x.Free)
			assert.LessOrEqual(t, x.Free, x.In)
			assert.LessOrEqual(t, x.In, x.Use)
			// Memory that is taken back before its copy can have ended is no plan.
			early := *plan
			early.Transfers = append([]planner.Transfer{}, plan.Transfers...)
			for i := range early.Transfers {
				early.Transfers[i].Free = early.Transfers[i].Out - 1
			}
			_, err := planner.Check(p, &early, -1)
			assert.Error(t, err)
		}
	}
}

// TestP111: a policy that offloads did nothing, and did not say so (openxla/xla#17541). Here it is an error that says why; where
// there is a link, what is moved is counted, and device memory is lower by it.
func TestP111(t *testing.T) {
	m := trained(t, "residual", func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{64, 32}, nn.Normal01)
		for i := range 3 {
			l := s.Inf("layers.%d", i)
			x = nn.Name(l.Add(x, l.Linear("out", l.Gelu(l.Linear("fc", x, 64)), 32)), "residual")
		}
		return meanSquare(s, x)
	})
	for _, rule := range []string{"must offload layer=layers.*", "prefer offload value=residual", "must offload value=residual"} {
		refused(t, m, rule)
	}
	p := tower(8, 100, 1000, true)
	all := planner.SaveAll(p)
	for _, v := range []int{1, 2, 3} {
		p.Values[v].Policy = planner.MustOffload
	}
	plan, err := planner.Solve(context.Background(), p, planner.Options{Steps: 20_000})
	require.NoError(t, err)
	moved := map[int]bool{}
	for _, x := range plan.Transfers {
		moved[x.Value] = true
	}
	assert.True(t, moved[1] && moved[2] && moved[3], "%v", plan.Transfers)
	assert.EqualValues(t, 100*len(moved), plan.HostBytes, "the sum of the sizes")
	assert.Less(t, plan.PeakBytes, all.PeakBytes)
}

// TestP112: a plan of what to offload beat offloading everything, and declined where all fits (deepspeedai/DeepSpeed#8255). The
// planner moves nothing that fits, and below that the cheapest by time of recomputation or of the copy; the measured peak of a
// program is the planned one, so that planning with it changes nothing.
func TestP112(t *testing.T) {
	p := tower(8, 100, 1000, true) // recomputing costs 1000, a copy takes 100 each way beside the compute
	all := planner.SaveAll(p)
	plan, err := planner.Solve(context.Background(), p, planner.Options{Budget: all.PeakBytes, Steps: 20_000})
	require.NoError(t, err)
	assert.Empty(t, plan.Transfers, "it fits, and is moved")
	assert.Equal(t, plan.BaseCost, plan.Cost)
	tight := all.PeakBytes * 9 / 10
	plan, err = planner.Solve(context.Background(), p, planner.Options{Budget: tight, Steps: 20_000})
	require.NoError(t, err)
	assert.NotEmpty(t, plan.Transfers, "a copy is cheaper than running again")
	assert.Less(t, len(plan.Transfers), 8, "no more than must be")
	dry, err := planner.Solve(context.Background(), tower(8, 100, 1000, false), planner.Options{Budget: tight, Steps: 20_000})
	require.NoError(t, err)
	assert.Less(t, plan.Cost, dry.Cost)
	slow := tower(8, 100, 10, true) // now running again is the cheaper
	slow.Offload.BytesPerNsOut, slow.Offload.BytesPerNsIn = 0.001, 0.001
	plan, err = planner.Solve(context.Background(), slow, planner.Options{Budget: tight, Steps: 20_000})
	require.NoError(t, err)
	assert.Empty(t, plan.Transfers)

	m := mlp(t, 4, 32, 64, 0.5)
	least := run(t, m, smallest()) // its peak was measured, and is the promise
	again := planned(t, m, compile.Options{Budget: compile.Budget{Bytes: least.p.Report.ArenaBytes}})
	assert.Equal(t, least.p.Report.CostNs, again.Report.CostNs)
	assert.Equal(t, least.p.Report.ArenaBytes, again.Report.ArenaBytes)
}
