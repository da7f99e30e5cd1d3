package reports

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"reprise/frontend"
	"reprise/frontend/nn"
	"reprise/internal/compile"
	"reprise/internal/diag"
	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/interp"
	"reprise/ir/ops"
	"reprise/ir/tensor"
	"reprise/passes/buffer"
	"reprise/passes/lower"
	"reprise/passes/remat"
	"reprise/planner"
)

// selu is scale·(x > 0 ? x : alpha·(eˣ − 1)), from ops of the table.
func selu(s *nn.Scope, x *nn.Tensor) *nn.Tensor {
	zero := s.Const(dtype.F32, 0)
	neg := s.Scale(s.Op("expm1", []*nn.Tensor{s.Min(x, zero)}), 1.6732632)
	return s.Scale(s.Add(s.Max(x, zero), neg), 1.0507010)
}

// TestP016: an activation that fills a side buffer in passing was replayed with the buffer of another moment: the
// forward had the right bits, the gradients had not (pytorch/pytorch#193671). An auxiliary is a result like any other,
// and a use before its definition does not verify.
func TestP016(t *testing.T) {
	m := trained(t, "rrelu", func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{64, 32}, nn.Normal01)
		for i := range 3 {
			l := s.Inf("layers.%d", i)
			h := l.Linear("fc", x, 64, nn.NoBias())
			// A draw in [1/8, 1/3) is the slope of the negative side: dropout of ones gives the draws an id.
			u := l.In("noise").Dropout(s.Full(h.Type, 0.5), 0.5)
			slope := l.Select(l.Less(h, l.Const(dtype.F32, 0)), l.AddScalar(l.Scale(u, 0.2), 0.125), l.Const(dtype.F32, 1))
			x = l.Add(x, l.Linear("out", l.Mul(h, slope), 32, nn.NoBias()))
		}
		return meanSquare(s, x)
	})
	_, least := exact(t, m)
	require.NotEmpty(t, least.clones())

	mod := m.Module.Clone()
	body := mod.Func("step").Body
	k := slices.IndexFunc(body.Ops, func(op *ir.Op) bool { return op.Name() == "dropout" })
	filled := body.Ops[k]
	body.Ops = append(slices.Delete(body.Ops, k, k+1), filled)
	e := diag.As(ir.Verify(mod))
	require.NotNil(t, e, "a use before its definition verifies")
	assert.Contains(t, e.Message, "(V1)")
}

// TestP045: selective checkpointing with an in-place activation gave another result than none
// (pytorch/pytorch#119590). No op of the table writes an operand; memory is taken over only behind the last reader, and
// recomputations are readers.
func TestP045(t *testing.T) {
	for _, d := range ops.Table().All() {
		if d.Effect == nil || d.Name == "foreign" || d.Family == "control" { // a foreign kernel says itself what it does, control flow has what is in it
			continue
		}
		op := &ir.Op{Def: d}
		assert.NotEqual(t, ir.EffectWrites, d.Effect(op), "%s writes something", d.Name)
	}
	m := trained(t, "selu", func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{64, 32}, nn.Normal01)
		for i := range 3 {
			l := s.Inf("layers.%d", i)
			x = selu(l, l.Linear("fc", x, 48, nn.NoBias()))
		}
		return meanSquare(s, x)
	})
	all, least := exact(t, m)
	for _, o := range []*outcome{all, least} {
		o.aliasing()
	}
}

// aliasing shows on a fresh layout of the planned step that no op writes memory in which a value lies that is
// read at or behind it, unless it is an operand that this op takes over element by element.
func (o *outcome) aliasing() {
	o.t.Helper()
	f := o.p.Step.Func("step")
	at := map[*ir.Value]int64{}
	frame, err := buffer.Layout(f.Body, buffer.Options{Lowered: lower.Op, Workspace: func(*ir.Op, *lower.Lowered) int64 { return 0 }})
	require.NoError(o.t, err)
	last := map[*ir.Value]int{}
	for i, op := range f.Body.Ops {
		for _, v := range op.Operands {
			for {
				last[v] = i
				if v.Op == nil || !lower.IsView(v.Op) {
					break
				}
				v = v.Op.Operands[v.Index]
			}
		}
	}
	for _, v := range f.Body.Results {
		last[v] = len(f.Body.Ops)
	}
	var live []*ir.Value
	for i, op := range f.Body.Ops {
		if lower.IsConstant(op) || lower.IsView(op) {
			continue
		}
		for _, r := range op.Results {
			h := frame.Homes[r]
			if h.Param != nil || h.Const != nil {
				continue
			}
			for _, v := range live {
				meet := at[v] < h.Offset+r.Type.Bytes() && h.Offset < at[v]+v.Type.Bytes()
				if meet && last[v] > i {
					assert.Fail(o.t, "memory in use is written", "%s writes over %%%s, which position %d reads", op.Loc, v.Name, last[v])
				}
			}
			at[r] = h.Offset
			live = append(live, r)
		}
	}
}

// tangle grows a random program of n ops with views (reshapes, transposes, slices) over [4, 4] values.
func tangle(t testing.TB, seed uint64, n int) *frontend.Model {
	t.Helper()
	return trained(t, fmt.Sprintf("tangle%d", seed), func(s *nn.Scope) *nn.Tensor {
		r := rand.New(rand.NewPCG(seed, 1))
		vs := []*nn.Tensor{s.Input("x", dtype.F32, []int64{16, 16}, nn.Normal01), s.Param("w", []int64{16, 16}, nn.Normal(0.3))}
		for i := range n {
			l := s.Inf("op%d", i)
			pick := func() *nn.Tensor { return vs[max(0, len(vs)-1-r.IntN(4))] }
			x := pick()
			switch r.IntN(8) {
			case 0:
				x = l.MatMul(x, pick())
			case 1:
				x = selu(l, x)
			case 2:
				x = l.Transpose(x, 1, 0)
			case 3: // a view of another shape, used as such
				x = l.Reshape(l.Tanh(l.Reshape(x, 8, 32)), 16, 16)
			case 4: // a part of it, written back
				part := l.Slice(x, 0, 0, 8)
				x = l.Op("dynamic_update_slice", []*nn.Tensor{x, l.Sigmoid(part), l.Int(dtype.I32, 8), l.Int(dtype.I32, 0)})
			case 5:
				x = l.Mul(l.Softmax(x), pick())
			case 6:
				x = l.Add(x, l.Reshape(l.Reshape(pick(), 256), 16, 16))
			case 7:
				x = l.Dropout(l.Gelu(x), 0.25)
			}
			vs = append(vs, x)
		}
		return meanSquare(s, s.MatMul(vs[len(vs)-1], s.Param("out", []int64{16, 16}, nn.Normal(0.3))))
	})
}

// TestP046: in-place ops inside a selectively checkpointed region were lost from the joint graph, and what was saved
// changed the result (pytorch/pytorch#113737). Here every choice of what to save gives the same bits: of random
// programs full of views the planned steps run in the interpreter for all choices, and compiled for some.
func TestP046(t *testing.T) {
	plans := 0
	for seed := range uint64(6) {
		m := tangle(t, seed, 12)
		want, orders := map[string]*tensor.Tensor(nil), map[string]bool{}
		grouped, err := compile.Prepare(m.Module, compile.Options{})
		require.NoError(t, err)
		free := -1 // number of values that may be recomputed
		for mask := 0; free < 0 || mask < 1<<min(free, 5); mask++ {
			mod := grouped.Clone()
			pr, err := remat.Build(mod.Func("step"), flat{}, remat.Options{})
			require.NoError(t, err)
			choose(pr, mask, &free)
			plan, err := planner.Solve(context.Background(), pr.Problem, planner.Options{Steps: 200})
			require.NoError(t, err)
			pr.Apply(plan)
			require.NoError(t, ir.Verify(mod))
			orders[fmt.Sprint(plan.Order)] = true
			got := interpreted(t, mod)
			if want == nil {
				want = got
				continue
			}
			for name := range want {
				require.Equal(t, want[name].Data, got[name].Data, "seed %d, recomputed %b: %s", seed, mask, name)
			}
		}
		plans += len(orders)
		if seed < 2 {
			exact(t, m)
		}
	}
	assert.Greater(t, plans, 30, "different plans tried")
}

// flat costs: every op the same.
type flat struct{}

func (flat) Nanoseconds(*ir.Op, *lower.Lowered) int64 { return 100 }
func (flat) Workspace(*ir.Op, *lower.Lowered) int64   { return 0 }

// choose forbids to keep those values with two or more readers that mask has a bit for. It counts the candidates.
func choose(pr *remat.Problem, mask int, free *int) {
	readers := map[int]int{}
	for i := range pr.Problem.Ops {
		seen := map[int]bool{}
		for _, v := range pr.Problem.Ops[i].Inputs {
			if !seen[v] {
				readers[v]++
			}
			seen[v] = true
		}
	}
	n := 0
	for i := range pr.Problem.Ops {
		op := &pr.Problem.Ops[i]
		if op.RunsOnce() || len(op.Outputs) != 1 || len(op.InPlace) > 0 && pr.Problem.Values[op.InPlace[0][0]].Resident {
			continue
		}
		v := op.Outputs[0]
		if readers[v] < 2 || pr.Problem.Values[v].Storage != 0 || pr.Problem.Values[v].Output {
			continue
		}
		if mask>>n&1 == 1 && n < 5 {
			pr.Problem.Values[v].Policy = planner.MustRecompute
		}
		n++
	}
	*free = n
}

// interpreted runs a planned step once by the ops' reference semantics.
func interpreted(t testing.TB, mod *ir.Module) map[string]*tensor.Tensor {
	t.Helper()
	state, err := interp.RunNamed(mod.Func("init"), map[string]*tensor.Tensor{"key": tensor.Key(3, 0xFFFFFFFF, 0)}, interp.Options{})
	require.NoError(t, err)
	step := mod.Func("step")
	in := map[string]*tensor.Tensor{}
	for _, p := range step.Body.Params {
		switch p.Role() {
		case ir.RoleKey:
			in[p.Name] = tensor.Key(3, 0, 0)
		case ir.RoleStep:
			in[p.Name] = tensor.New(p.Type.DType, p.Type.Shape...)
		case ir.RoleInput:
			x, err := compile.SyntheticInput(p, 7, 0)
			require.NoError(t, err)
			in[p.Name] = x
		default:
			in[p.Name] = state[p.Name]
		}
	}
	out, err := interp.RunNamed(step, in, interp.Options{})
	require.NoError(t, err)
	return out
}
