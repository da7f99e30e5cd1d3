package reports

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"reprise/frontend/nn"
	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/passes/remat"
)

// There is no runtime of several machines yet: these tests hold the programs of each rank, planned and compiled for one
// participant, against each other.

// collectives are the collectives of the planned step, in order.
func (o *outcome) collectives() []string {
	var out []string
	for _, op := range o.p.Step.Func("step").Body.Ops {
		if op.Effect() == ir.EffectComm {
			out = append(out, op.Loc.Layer+":"+op.Name())
		}
	}
	return out
}

// gathered has weights that are gathered in each layer before they are used.
func gathered(t testing.TB, batch int64, rearranged bool) *frontendModel {
	t.Helper()
	return trained(t, fmt.Sprintf("gathered%v", rearranged), func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{batch, 32}, nn.Normal01)
		for i := range 3 {
			l := s.Inf("layers.%d", i)
			g := l.In("gather")
			w := g.Op("all_gather", []*nn.Tensor{l.Param("w", []int64{32, 64}, nn.Normal(0.2))}, ir.A("axis", 0))
			if rearranged { // gather, permute, reshape, product
				w = g.Reshape(g.Transpose(g.Reshape(g.Transpose(w, 1, 0), 8, 8, 32), 1, 0, 2), 64, 32)
				w = g.Transpose(w, 1, 0)
			}
			x = l.Add(x, l.Linear("out", l.Gelu(l.MatMul(x, w)), 32, nn.NoBias()))
		}
		return meanSquare(s, x)
	})
}

// TestP095: ranks with slightly different shapes chose differently what to recompute, collectives among it, and hung
// (pytorch/pytorch#147561). Collectives run once on every rank, in one order; where people ask for more, the request is by
// layer, which is the same everywhere; ranks with one module have one plan.
func TestP095(t *testing.T) {
	var orders [][]string
	for _, batch := range []int64{63, 65} { // an uneven batch
		m := gathered(t, batch, false)
		all := run(t, m, setup{})
		for _, s := range []setup{smallest(), under(t, "full"), atBudget(all.p.Report.ArenaBytes * 9 / 10)} {
			o := run(t, m, s)
			same(t, all.steps, o.steps)
			assert.Equal(t, all.collectives(), o.collectives(), "batch %d", batch)
			orders = append(orders, o.collectives())
		}
	}
	for _, o := range orders {
		assert.Equal(t, orders[0], o, "ranks disagree")
	}
	require.NotEmpty(t, orders[0])
	// Asked for by layer, the gathers run again on both ranks alike.
	var again [][]string
	for _, batch := range []int64{63, 65} {
		p := planned(t, gathered(t, batch, false), under(t, "", "allow-recompute layer=layers.*.gather", "must recompute op=all_gather").Options)
		assert.NotEmpty(t, p.Report.Warnings)
		again = append(again, (&outcome{t: t, p: p}).collectives())
	}
	assert.Equal(t, again[0], again[1])
	// Equal modules have equal plans, whoever makes them.
	a, b := planned(t, gathered(t, 64, false), smallest().Options), planned(t, gathered(t, 64, false), smallest().Options)
	assert.Equal(t, planText(t, a), planText(t, b))
}

// TestP096: an all-to-all of which only the shape is used ran again in recomputation on one rank, and the job hung
// (dylanyunlon/Neuron_SP#81). A shape is no value, so nothing needs the exchange: it goes from the program, once for
// forward and recomputation. Those that are needed have the same place in the sequence at every budget.
func TestP096(t *testing.T) {
	m := trained(t, "exchange", func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{128, 32}, nn.Normal01)
		for i := range 3 {
			l := s.Inf("layers.%d", i)
			h := l.Gelu(l.Linear("fc", x, 32, nn.NoBias()))
			swap := func(name string, x *nn.Tensor) *nn.Tensor {
				return l.In(name).Op("all_to_all", []*nn.Tensor{x}, ir.A("split_axis", 0), ir.A("concat_axis", 0))
			}
			y := swap("shape", h)
			h = l.Scale(swap("exchange", h), 1/float64(y.Type.Shape[0])) // of y the shape alone
			x = l.Add(x, l.Linear("out", h, 32, nn.NoBias()))
		}
		return meanSquare(s, x)
	})
	all := run(t, m, setup{})
	want := all.collectives()
	assert.Len(t, want, 6, "three exchanges and those of their gradients: %v", want)
	for _, s := range []setup{{}, smallest(), under(t, "full")} {
		o := run(t, m, s)
		same(t, all.steps, o.steps)
		assert.Equal(t, want, o.collectives())
		assert.Zero(t, o.runs("all_to_all", "layers.0.shape"))
		for _, v := range o.saved() {
			assert.NotContains(t, v.Op.Loc.Layer, "shape")
		}
	}
}

// TestP097: to recompute a gathered weight was to no avail, since the rearranged copies between gather and use were kept
// (meta-pytorch/autoparallel#469). A rule for the gather holds for what is only its result in another order.
func TestP097(t *testing.T) {
	m := gathered(t, 64, true)
	all := run(t, m, setup{})
	s := under(t, "", "allow-recompute layer=layers.*.gather", "must recompute op=all_gather")
	o := run(t, m, s)
	same(t, all.steps, o.steps)
	for _, v := range o.saved() {
		assert.NotContains(t, v.Op.Loc.Layer, "gather", "%s of %s (%d bytes) is kept", v.Type, remat.Name(v.Op), v.Type.Bytes())
	}
	before, after := int64(0), o.savedBytes()
	for _, v := range all.saved() {
		if strings.Contains(v.Op.Loc.Layer, "gather") {
			before += v.Type.Bytes()
		}
	}
	assert.Positive(t, before)
	assert.LessOrEqual(t, after, all.savedBytes()-before)
	assert.Contains(t, strings.Join(o.p.Report.Warnings, "\n"), "all_gather")
}

// TestP100: with checkpointing gradients were not synchronised across ranks (pytorch/pytorch#109191). The reduction is an op of
// the step, which stands behind the last addition to its gradient, once for each parameter, in one order.
func TestP100(t *testing.T) {
	build := func() *frontendModel {
		sync := nn.Recipe{Optimizer: reducing{}, Schedule: nn.Constant{LR: 0.05}, Micro: 2}
		mod, err := nn.Train(nn.Model{Name: "parallel", Loss: func(s *nn.Scope) *nn.Tensor {
			x := s.Input("x", dtype.F32, []int64{128, 32}, nn.Normal01)
			w := s.Param("tied", []int64{32, 32}, nn.Normal(0.2))
			for i := range 3 {
				l := s.Inf("layers.%d", i)
				x = l.Add(x, l.Linear("out", l.Gelu(l.MatMul(x, w)), 32, nn.NoBias()))
			}
			return meanSquare(s, x)
		}}, sync)
		require.NoError(t, err)
		return of(mod, true)
	}
	m := build()
	all := run(t, m, setup{})
	for _, s := range []setup{{}, smallest(), under(t, "full")} {
		o := run(t, m, s)
		same(t, all.steps, o.steps)
		assert.Equal(t, all.collectives(), o.collectives())
		assert.Len(t, o.collectives(), 4, "one for each parameter")
		body := o.p.Step.Func("step").Body.Ops
		for i, op := range body {
			if op.Effect() != ir.EffectComm {
				continue
			}
			// What is reduced is complete: no op behind it makes another gradient of that parameter.
			for _, later := range body[i+1:] {
				if backward(later) && slices.ContainsFunc(later.Results, func(v *ir.Value) bool { return v.Type.Equal(op.Out(0)) && later.Loc.Layer == op.Loc.Layer }) {
					assert.Fail(t, "a gradient after its reduction", "%s after %s", remat.Name(later), remat.Name(op))
				}
			}
		}
	}
	// A second rank: the same module gives the same plan, and, from the same data, the same gradients.
	rank1 := run(t, build(), smallest())
	assert.Equal(t, all.collectives(), rank1.collectives())
	same(t, all.steps, rank1.steps)
}

// reducing is showing with each gradient reduced over all ranks first.
type reducing struct{}

func (reducing) Start(_ *nn.Scope, _, lr *nn.Tensor) func(w *nn.Weight) *nn.Tensor {
	return func(w *nn.Weight) *nn.Tensor {
		g := w.Op("all_reduce", []*nn.Tensor{w.Grad})
		w.Output("grad."+w.Param.Name, g)
		return w.Op("sgd", []*nn.Tensor{w.Param, g, lr}, ir.A("wd", 0.0))
	}
}

// TestP084: memory grew step by step where a recomputed region ended in one half of a pair of asynchronous ops
// (pytorch/torchtitan#1467). There are no such pairs: a collective is one op. And nothing is allocated while steps run: after
// twenty of them the arena is what it was, and all around it.
func TestP084(t *testing.T) {
	for _, d := range tableRows() {
		for _, half := range []string{"_start", "_wait", "_done"} {
			assert.False(t, strings.HasSuffix(d, half), d)
		}
	}
	m := gathered(t, 64, false)
	all := run(t, m, setup{})
	least := run(t, m, smallest())
	n := least.p.Report.ArenaBytes
	same(t, all.again(setup{steps: 20}), least.again(setup{steps: 20})) // the bytes past the arena are looked at
	assert.Equal(t, n, least.p.Exe.ArenaBytes)
}
