package reports

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"reprise/frontend/nn"
	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/passes/remat"
)

// There is no runtime of several machines: a collective of one participant is the identity, and collectives of two
// ranks are foreign kernels here (ranksC), through which two programs that run at once do meet.

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

// sharded has weights of which each rank holds half; they are gathered in each layer before they are used.
func sharded(t testing.TB, batch int64, rearranged bool) *frontendModel {
	t.Helper()
	return trained(t, fmt.Sprintf("sharded%v%d", rearranged, batch), func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{batch, 32}, nn.Normal01)
		rank := rankInput(s)
		for i := range 3 {
			l := s.Inf("layers.%d", i)
			g := l.In("gather")
			w := collective(g, "gather2", fmt.Sprint("gather ", i), l.Param("w", []int64{16, 64}, nn.Normal(0.2)), rank)
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
// (pytorch/pytorch#147561). Two ranks with an uneven batch run together: each collective once on both, in one order, also at
// their smallest budgets, which they plan by themselves; where people ask for more, the request is by layer, which is the
// same everywhere, and so is the plan.
func TestP095(t *testing.T) {
	a, b := sharded(t, 63, false), sharded(t, 65, false)
	all, calls := together(t, a, b, setup{})
	assert.Equal(t, 2*(3+3), calls, "in two steps the gathers of three layers and those of their gradients")
	asked := under(t, "", "allow-recompute layer=layers.*.gather", "must recompute op=foreign layer=layers.*.gather")
	for k, s := range []setup{smallest(), under(t, "full"), asked} {
		ranks, n := together(t, a, b, s)
		for r, o := range ranks {
			same(t, all[r].steps, o.steps)
			assert.Equal(t, all[0].collectives()[:3], o.collectives()[:3])
			if k > 0 { // a policy alone: the same order of the same ops on both ranks
				assert.Equal(t, ranks[0].p.Plan().Order, o.p.Plan().Order)
			}
		}
		assert.Equal(t, ranks[0].collectives(), ranks[1].collectives())
		if k < 2 {
			assert.Equal(t, calls, n)
			continue
		}
		assert.Equal(t, calls+2*3, n, "asked for, the gathers run again, on both ranks alike")
		assert.NotEmpty(t, ranks[0].p.Report.Warnings)
	}
	// Equal modules have equal plans, whoever makes them.
	p, q := planned(t, gathered(t, 64, false), smallest().Options), planned(t, gathered(t, 64, false), smallest().Options)
	assert.Equal(t, planText(t, p), planText(t, q))
}

// TestP096: an all-to-all of which only the shape is used ran again in recomputation on one rank, and the job hung
// (dylanyunlon/Neuron_SP#81). A shape is no value, so nothing needs the exchange: it goes from the program, once for
// forward and recomputation. Two ranks with different data, one at its smallest budget and one that keeps everything, take
// part in the others alike.
func TestP096(t *testing.T) {
	m := trained(t, "exchange", func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{128, 32}, nn.Normal01)
		rank := rankInput(s)
		for i := range 3 {
			l := s.Inf("layers.%d", i)
			h := l.Gelu(l.Linear("fc", x, 32, nn.NoBias()))
			y := collective(l.In("shape"), "swap2", fmt.Sprint("shape ", i), h, rank)
			h = l.Scale(collective(l.In("exchange"), "swap2", fmt.Sprint("exchange ", i), h, rank), 1/float64(y.Type.Shape[0])) // of y the shape alone
			x = l.Add(x, l.Linear("out", h, 32, nn.NoBias()))
		}
		return meanSquare(s, x)
	})
	all, calls := together(t, m, m, setup{})
	assert.Equal(t, 2*6, calls, "in two steps three exchanges and those of their gradients")
	for _, s := range []setup{smallest(), under(t, "full")} {
		ranks, n := together(t, m, m, s)
		assert.Equal(t, calls, n)
		for r, o := range ranks {
			same(t, all[r].steps, o.steps)
			assert.Equal(t, all[r].collectives(), o.collectives())
			assert.Zero(t, o.runs("foreign", "layers.0.shape"))
			for _, v := range o.saved() {
				assert.NotContains(t, v.Op.Loc.Layer, "shape")
			}
		}
	}
}

// TestP097: to recompute a gathered weight was to no avail, since the rearranged copies between gather and use were kept
// (meta-pytorch/autoparallel#469). A rule for the gather holds for what is only its result in another order, on both ranks.
func TestP097(t *testing.T) {
	m := sharded(t, 64, true)
	all, calls := together(t, m, m, setup{})
	s := under(t, "", "allow-recompute layer=layers.*.gather", "must recompute op=foreign layer=layers.*.gather")
	ranks, n := together(t, m, m, s)
	assert.Equal(t, calls+2*3, n)
	for r, o := range ranks {
		same(t, all[r].steps, o.steps)
		for _, v := range o.saved() {
			assert.NotContains(t, v.Op.Loc.Layer, "gather", "%s of %s (%d bytes) is kept", v.Type, remat.Name(v.Op), v.Type.Bytes())
		}
		before, after := int64(0), o.savedBytes()
		for _, v := range all[r].saved() {
			if strings.Contains(v.Op.Loc.Layer, "gather") {
				before += v.Type.Bytes()
			}
		}
		assert.Positive(t, before)
		assert.LessOrEqual(t, after, all[r].savedBytes()-before)
		assert.Contains(t, strings.Join(o.p.Report.Warnings, "\n"), "layers.0.gather")
	}
}

// TestP100: with checkpointing gradients were not synchronised across ranks (pytorch/pytorch#109191). The reduction is an op of
// the step, which stands behind the last addition to its gradient, once for each parameter, in one order. Two ranks with
// different data have the same gradients, each the sum of what both have by themselves.
func TestP100(t *testing.T) {
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
	m := of(mod, true)
	all, calls := together(t, m, m, setup{})
	assert.Equal(t, 2*4, calls, "one for each parameter in each of two steps")
	for _, s := range []setup{{}, smallest(), under(t, "full")} {
		ranks, n := together(t, m, m, s)
		assert.Equal(t, calls, n)
		for r, o := range ranks {
			same(t, all[r].steps, o.steps)
			assert.Equal(t, all[r].collectives(), o.collectives())
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
	}
	grads := 0
	for k := range all[0].steps {
		a, b := all[0].steps[k], all[1].steps[k]
		assert.NotEqual(t, a["loss"], b["loss"], "the ranks have the same data")
		for _, name := range sorted(a) {
			sum, ok := strings.CutPrefix(name, "grad.")
			if !ok {
				continue
			}
			grads++
			assert.Equal(t, a[name], b[name], "%s differs between the ranks", name)
			x, y := f32s(a["own."+sum]), f32s(b["own."+sum])
			assert.NotEqual(t, x, y)
			for i, g := range f32s(a[name]) {
				require.Equal(t, x[i]+y[i], g, "%s %d", name, i)
			}
			assert.Equal(t, a[sum], b[sum], "parameter %s", sum)
		}
	}
	assert.Equal(t, 2*4, grads)
}

func f32s(b []byte) []float32 { return unsafe.Slice((*float32)(unsafe.Pointer(&b[0])), len(b)/4) }

// reducing is showing with each gradient reduced over both ranks first.
type reducing struct{}

func (reducing) Start(s *nn.Scope, _, lr *nn.Tensor) func(w *nn.Weight) *nn.Tensor {
	rank := rankInput(s)
	return func(w *nn.Weight) *nn.Tensor {
		w.Output("own."+w.Param.Name, w.Grad)
		g := collective(s.In(w.Param.Name), "sum2", w.Param.Name, w.Grad, rank)
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
