package reports

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"reprise/frontend/nn"
	"reprise/internal/diag"
	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/ops"
	"reprise/passes/lower"
	"reprise/planner"
	"reprise/runtime/exe"
)

func i64(b []byte) int64   { return int64(binary.LittleEndian.Uint64(b)) }
func f32(b []byte) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(b)) }

func i32s(b []byte) []int32 {
	out := make([]int32, len(b)/4)
	for i := range out {
		out[i] = int32(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return out
}

// writers are the ops of the step whose launches write a state's bytes, in order.
func (o *outcome) writers(name string) []string {
	var v *exe.Value
	for i := range o.p.Exe.Values {
		if x := &o.p.Exe.Values[i]; x.Name == name && x.Role.IsState() {
			v = x
		}
	}
	require.NotNil(o.t, v, name)
	var out []string
	for _, in := range o.p.Exe.Step {
		for _, a := range in.Args {
			if a.Write && !a.Const && a.Offset < v.Offset+v.Bytes && v.Offset < a.Offset+a.Bytes {
				out = append(out, in.Layer)
			}
		}
	}
	return slices.Compact(out)
}

// once holds every state of a program to one writer, which is no recomputation.
func (o *outcome) once() {
	o.t.Helper()
	for _, p := range o.m.Module.Func("step").Body.Params {
		if !p.IsState() {
			continue
		}
		w := o.writers(p.Name)
		if o.m.Module.Func("step").Result(p.Name) == nil {
			assert.Empty(o.t, w, "%s has no new value, and is written", p.Name)
			continue
		}
		if assert.Len(o.t, w, 1, "writers of %s", p.Name) {
			assert.NotContains(o.t, w[0], "~remat")
		}
	}
}

// TestP032: running statistics were updated twice, and people halved the momentum so that two updates made one
// (pfnet/pytorch-pfn-extras#117), which no momentum can do for the cumulative average. State moves once,
// whatever its rule.
func TestP032(t *testing.T) {
	m := trained(t, "bn3", func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{64, 16}, nn.Normal01)
		for i, momentum := range []float64{0.1, 0.5} {
			l := s.Inf("layers.%d", i)
			x = l.Relu(l.BatchNorm("bn", l.Linear("fc", x, 16, nn.NoBias()), momentum))
		}
		// The cumulative average: mean += (batch mean - mean) / number of batches.
		l := s.In("layers.2")
		h := l.Linear("fc", x, 16, nn.NoBias())
		n := l.Add(l.Buffer("batches", dtype.I64, nil, nn.Zeros), l.Int(dtype.I64, 1))
		mean := l.Buffer("mean", dtype.F32, []int64{16}, nn.Zeros)
		l.Update("mean", l.Add(mean, l.Div(l.Sub(l.Mean(h, 0), mean), l.Cast(n, dtype.F32))))
		l.Update("batches", n)
		return meanSquare(s, s.Linear("out", s.Tanh(h), 16, nn.NoBias()))
	})
	all := run(t, m, setup{steps: 4})
	least := run(t, m, setup{Options: smallest().Options, steps: 4})
	same(t, all.steps, least.steps)
	require.NotEmpty(t, least.clones())
	least.once()
	for k, st := range least.steps {
		for _, name := range []string{"layers.0.bn.batches", "layers.1.bn.batches", "layers.2.batches"} {
			assert.EqualValues(t, k+1, i64(st[name]), name)
		}
	}
}

// TestP033: a compiler that recomputes updated batch-norm statistics in every copy
// (pfnet-research/chainer-compiler#98). A state's new value is a result of the step: a clone has none to give, and a
// plan that would run an update twice is refused.
func TestP033(t *testing.T) {
	least := run(t, bn(t, 3, 64, 16, 0.1), smallest())
	least.once()
	for _, c := range least.clones() {
		for _, r := range c.Results {
			assert.NotContains(t, least.p.Step.Func("step").Body.Results, r, "a clone of %s gives a result of the step", c.Loc)
		}
	}
	pr, tried := least.p.Problem(), 0
	for i := range pr.Ops {
		for _, pair := range pr.Ops[i].InPlace {
			if !pr.Values[pair[0]].Resident {
				continue
			}
			plan := *least.p.Plan()
			plan.Order = append(slices.Clone(plan.Order), i)
			_, err := planner.Check(pr, &plan, -1)
			var v *planner.Violation
			assert.ErrorAs(t, err, &v, "%s may update its state twice", pr.Ops[i].Name)
			tried++
		}
	}
	assert.Positive(t, tried)
}

// TestP034: the load-balancing loss was logged twice a step under recomputation (NVIDIA/Megatron-LM#1478). A
// metric is a result, or a state that is added to: the stream has one value a step, the sum is that of its values.
func TestP034(t *testing.T) {
	m := trained(t, "metric", func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{64, 16}, nn.Normal01)
		for i := range 2 {
			x = moeLayer(s.Inf("layers.%d", i), x, 4, 1)
		}
		aux := s.In("aux").MeanAll(s.Square(s.Tanh(x)))
		s.Output("aux", aux)
		s.Update("sum", s.Add(s.Buffer("sum", dtype.F32, nil, nn.Zeros), aux))
		return s.Add(meanSquare(s, x), aux)
	})
	all := run(t, m, setup{steps: 3})
	least := run(t, m, setup{Options: smallest().Options, steps: 3})
	same(t, all.steps, least.steps)
	least.once()
	sum := float32(0)
	for _, st := range least.steps {
		sum += f32(st["aux"])
		assert.Equal(t, sum, f32(st["sum"]))
	}
}

// TestP037: OLMo-core tracks by thread whether it is inside a recomputation, so that metrics are not repeated
// (allenai/OLMo-core#720). No op can ask, and none needs to: a clone is the same kernel as its original, and
// what has an effect has no clone.
func TestP037(t *testing.T) {
	least := run(t, mlp(t, 4, 32, 64, 0.5), smallest())
	require.NotEmpty(t, least.clones())
	least.sameKernels()

	f := ir.NewModule("m").NewFunc("step")
	x := f.Body.AddParam("x", ir.T(dtype.F32, 4), ir.A("role", ir.RoleInput))
	b := ir.NewBuilder(ops.Table(), f.Body, ir.Loc{Layer: "metrics"})
	sinks := []*ir.Op{
		b.Multi("print", []*ir.Value{x}, nil, ir.A("message", "loss")),
		b.Multi("foreign", []*ir.Value{x}, nil, ir.A("symbol", "log_it"), ir.A("results", []string{}), ir.A("effect", "host"), ir.A("determinism", "exact")),
		b.Multi("all_reduce", []*ir.Value{x}, nil),
	}
	for _, op := range sinks {
		c := f.NewOp(op.Def, op.Operands, typesOf(op), op.Attrs, nil, op.Loc.With("remat"))
		c.Remat = op
		f.Body.Append(c)
		e := diag.As(ir.Verify(f.Module))
		require.NotNil(t, e, op.Name())
		assert.Contains(t, e.Message, "(V6)")
		assert.Equal(t, "metrics", e.Layer)
		f.Body.Ops = f.Body.Ops[:len(f.Body.Ops)-1]
	}
}

func typesOf(op *ir.Op) []ir.Type {
	var out []ir.Type
	for _, r := range op.Results {
		out = append(out, r.Type)
	}
	return out
}

// sameKernels holds every clone to the functions that its original runs, in the same order, with the same constants.
func (o *outcome) sameKernels() {
	o.t.Helper()
	symbols := map[*ir.Op][]string{}
	for _, r := range o.p.Runs {
		if r.Sub != 0 {
			continue
		}
		for _, in := range o.p.Exe.Step[r.First : r.Last+1] {
			what := in.Symbol
			for _, a := range in.Args {
				if a.Const {
					what += fmt.Sprintf(" %x", sha256.Sum256(o.p.Exe.Consts[a.Offset:a.Offset+a.Bytes]))
				}
			}
			symbols[r.IR] = append(symbols[r.IR], what)
		}
	}
	for _, c := range o.clones() {
		if !lower.IsView(c) {
			require.NotEmpty(o.t, symbols[c], "%s does not run", c.Loc)
			require.Equal(o.t, symbols[c.Remat], symbols[c], "the clone of %s runs other kernels", c.Remat.Loc)
		}
	}
}

// TestP038: with FP8 under checkpointing the scales' history moved in recomputation, or did not for backward
// (NVIDIA/TransformerEngine#1190). A scale is a value: the recomputation reads the one that its forward read, and the
// history moves once a step.
func TestP038(t *testing.T) {
	m := trained(t, "scaled", func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{64, 32}, nn.Normal01)
		for i := range 3 {
			l := s.Inf("layers.%d", i)
			hist := l.Buffer("amax", dtype.F32, []int64{4}, nn.Ones)
			q, next := quantised(l, s.Tanh(x), hist)
			l.Update("amax", next)
			x = l.Add(x, l.Linear("fc", q, 32, nn.NoBias()))
		}
		return meanSquare(s, x)
	})
	all := run(t, m, setup{steps: 6})
	least := run(t, m, setup{Options: smallest().Options, steps: 6})
	same(t, all.steps, least.steps)
	require.NotEmpty(t, least.clones())
	least.once()
	assert.NotEqual(t, all.steps[4]["layers.0.amax"], all.steps[5]["layers.0.amax"])
}

// quantised rounds x to 127 steps of the greatest of a history of maxima, straight through for the gradient, and
// gives the history with this maximum in front.
func quantised(s *nn.Scope, x, hist *nn.Tensor) (q, next *nn.Tensor) {
	max := func(x *nn.Tensor) *nn.Tensor {
		axes := make([]int64, x.Type.Rank())
		for i := range axes {
			axes[i] = int64(i)
		}
		return s.Op("reduce", []*nn.Tensor{x}, ir.A("kind", "max"), ir.A("axes", axes))
	}
	still := func(x *nn.Tensor) *nn.Tensor { return s.Op("stop_gradient", []*nn.Tensor{x}) }
	scale := still(s.Div(max(hist), s.Const(dtype.F32, 127)))
	y := s.Mul(s.Op("round_even", []*nn.Tensor{s.Div(still(x), scale)}), scale)
	q = s.Mul(s.Add(x, still(s.Sub(y, x))), s.AddScalar(scale, 1))
	amax := still(max(s.Op("abs", []*nn.Tensor{x})))
	return q, s.Concat(0, s.Reshape(amax, 1), s.Slice(hist, 0, 0, 3))
}

// TestP039: the same, with the history shared by layers, so that it has moved on between a forward and its
// recomputation (NVIDIA/TransformerEngine#415). Each layer's recomputation reads the version of its forward.
func TestP039(t *testing.T) {
	m := trained(t, "sharedscale", func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{64, 32}, nn.Normal01)
		hist := s.Buffer("amax", dtype.F32, []int64{4}, nn.Ones)
		for i := range 3 {
			l := s.Inf("layers.%d", i)
			var q *nn.Tensor
			q, hist = quantised(l, s.Tanh(x), hist)
			x = l.Add(x, l.Linear("fc", q, 32, nn.NoBias()))
		}
		s.Update("amax", hist)
		return meanSquare(s, x)
	})
	all := run(t, m, setup{steps: 4})
	least := run(t, m, setup{Options: smallest().Options, steps: 4})
	same(t, all.steps, least.steps)
	least.once()
	// Versions are told apart: one shared scale for all layers would give other gradients.
	assert.NotEqual(t, all.steps[0]["amax"], all.steps[1]["amax"])
}

// TestP041: recomputation appended to the KV cache a second time (huggingface/transformers#28056). The append gives a
// new version; recomputed attention reads the one that its forward read.
func TestP041(t *testing.T) {
	const S, d = 4, 16
	m := trained(t, "cache", func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{S, d}, nn.Normal01)
		n := s.Buffer("length", dtype.I32, nil, nn.Zeros)
		zero := s.Int(dtype.I32, 0)
		for i := range 2 {
			l := s.Inf("layers.%d", i)
			k, v := l.Linear("k", x, d, nn.NoBias()), l.Linear("v", x, d, nn.NoBias())
			grown := func(name string, new *nn.Tensor) *nn.Tensor {
				c := l.Op("dynamic_update_slice", []*nn.Tensor{l.Buffer(name, dtype.F32, []int64{2 * S, d}, nn.Zeros), new, n, zero})
				l.Update(name, c)
				return c
			}
			k, v = grown("kcache", k), grown("vcache", v)
			w := l.Softmax(l.MatMulT(l.Linear("q", x, d, nn.NoBias()), k))
			x = l.Add(x, l.Linear("o", l.MatMul(w, v), d, nn.NoBias()))
		}
		s.Update("length", s.Add(n, s.Int(dtype.I32, S)))
		return meanSquare(s, x)
	})
	all, least := exact(t, m)
	least.once()
	for k, st := range least.steps {
		assert.EqualValues(t, S*(k+1), i32s(st["length"])[0])
		rows := zeros(st["layers.1.kcache"])
		assert.Equal(t, k == 0, !slices.Contains(rows[S*d:], false), "rows beyond the length are untouched in step %d", k)
	}
	half := run(t, m, atBudget((all.p.Report.ArenaBytes+least.p.Report.ArenaBytes)/2))
	half.once()
}

// TestP044: the hook of a shared parameter fired once for each recomputed region (pytorch/pytorch#81296). Gradients of
// a tied weight are added up in one fixed order, and used once.
func TestP044(t *testing.T) {
	m := trained(t, "tied", func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{64, 32}, nn.Normal01)
		w := s.Param("w", []int64{32, 32}, nn.Normal(0.2))
		for i := range 4 {
			l := s.Inf("layers.%d", i)
			if i == 0 || i == 3 {
				x = l.Add(x, l.Gelu(l.MatMul(x, w)))
			} else {
				x = mlpLayer(l, x, 0)
			}
		}
		return meanSquare(s, x)
	})
	all, least := exact(t, m)
	for _, o := range []*outcome{all, least} {
		o.once()
		// One gradient, from one sum of two.
		var uses []string
		o.each(func(op *ir.Op) {
			if strings.HasPrefix(op.Loc.Layer, "layers.") && slices.Contains(op.Loc.Prov, "vjp") && op.Name() == "contract" && op.Out(0).Equal(ir.T(dtype.F32, 32, 32)) {
				uses = append(uses, op.Loc.Layer)
			}
		})
		slices.Sort(uses)
		assert.Equal(t, []string{"layers.0", "layers.3"}, slices.Compact(uses))
	}
}
