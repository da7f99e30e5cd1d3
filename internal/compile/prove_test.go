package compile

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"reprise/frontend"
	"reprise/internal/diag"
	"reprise/ir"
	"reprise/ir/ops"
	"reprise/passes/lower"
	"reprise/passes/pinned"
)

// planOf plans a model at its smallest budget.
func planOf(t *testing.T, m *frontend.Model, o Options) *Program {
	t.Helper()
	o.Budget, o.PlanSteps = Budget{Min: true}, 2000
	p, err := Plan(context.Background(), m, o)
	require.NoError(t, err)
	return p
}

func builtin(t *testing.T, spec string) *frontend.Model {
	t.Helper()
	m, err := frontend.Load("builtin:"+spec, frontend.Options{Train: true})
	require.NoError(t, err)
	return m
}

// text is a model in the text form.
func text(t *testing.T, src string) *frontend.Model {
	t.Helper()
	mod, err := ir.Parse(ops.Table(), "test.ir", src)
	require.NoError(t, err)
	return &frontend.Model{Name: "test", Kind: "ir", Spec: "test.ir", Module: mod, Train: mod.Func("step").Result("loss") != nil}
}

const tinyMoE = "moe,layers=1,d=16,heads=2,seq=8,batch=2,experts=3,vocab=11,dropout=0.1"

// TestProveOnceFinds: each kind of damage to a planned program is found by the rule that forbids it, and the
// error names the layer and the op.
func TestProveOnceFinds(t *testing.T) {
	find := func(t *testing.T, p *Program, what string, ok func(*ir.Op) bool) *ir.Op {
		ops := p.planned.applied.Func.Body.Ops
		i := slices.IndexFunc(ops, ok)
		require.GreaterOrEqual(t, i, 0, "the program has no %s", what)
		return ops[i]
	}
	for _, c := range []struct {
		name, label string
		damage      func(t *testing.T, p *Program) *ir.Op // the op that the error must name, if not nil
	}{
		{"decision cloned", "P1", func(t *testing.T, p *Program) *ir.Op {
			op := find(t, p, "decision", func(op *ir.Op) bool { return op.Name() == "top_k" })
			p.planned.applied.Func.Body.CloneOp(op, ir.Mapping{}).Remat = op
			return op
		}},
		{"decision repeated as an original", "P1", func(t *testing.T, p *Program) *ir.Op {
			op := find(t, p, "decision", func(op *ir.Op) bool { return op.Name() == "argsort" })
			p.planned.applied.Func.Body.CloneOp(op, ir.Mapping{})
			return op
		}},
		{"decision gone", "P2", func(t *testing.T, p *Program) *ir.Op {
			op := find(t, p, "decision", func(op *ir.Op) bool { return op.Name() == "histogram" })
			b := p.planned.applied.Func.Body
			b.Ops = slices.DeleteFunc(b.Ops, func(o *ir.Op) bool { return o == op })
			return op
		}},
		{"a clone that reads something else", "P3", func(t *testing.T, p *Program) *ir.Op {
			var other *ir.Value
			op := find(t, p, "clone", func(op *ir.Op) bool {
				if op.Remat == nil || len(op.Operands) == 0 {
					return false
				}
				for _, o := range p.planned.applied.Func.Body.Ops {
					if o == op {
						return false
					}
					if r := o.Results[0]; r.Type.Equal(op.In(0)) && base(r) != base(op.Operands[0]) && o.Remat == nil && op.Operands[0].Op != nil && op.Operands[0].Op.Remat != o {
						other = r
						return true
					}
				}
				return false
			})
			op.Operands = slices.Clone(op.Operands)
			op.Operands[0] = other
			return nil // the first inner op that is another
		}},
		{"another random op id", "P3", func(t *testing.T, p *Program) *ir.Op {
			var hit *ir.Op
			p.planned.applied.Func.Body.Walk(func(op *ir.Op) {
				if op.Name() == "dropout" && op.Attrs.Float("p") > 0 {
					hit = op
				}
			})
			hit.Attrs = hit.Attrs.Set("rng", 4711)
			return hit
		}},
		{"a state keeps its old value", "P4", func(t *testing.T, p *Program) *ir.Op {
			f := p.planned.applied.Func
			i := slices.Index(f.Results, "layers.0.moe.tokens")
			f.Body.Results[i] = f.Param("layers.0.moe.tokens")
			return nil
		}},
		{"two random ops with one id", "P5", func(t *testing.T, p *Program) *ir.Op {
			// In both programs, as if the model had it so and the verifier had not looked.
			for _, f := range []*ir.Func{p.planned.before.Func("step"), p.planned.applied.Func} {
				f.Body.Walk(func(op *ir.Op) {
					if op.Attrs.Get("rng") != nil {
						op.Attrs = op.Attrs.Set("rng", 3)
					}
				})
			}
			return nil
		}},
		{"a state written twice", "P6", func(t *testing.T, p *Program) *ir.Op {
			f := p.planned.applied.Func
			op := find(t, p, "op to misplace", func(op *ir.Op) bool {
				return !lower.IsView(op) && !lower.IsConstant(op) && p.planned.frame.Homes[op.Results[0]].Param == nil
			})
			h := p.planned.frame.Homes[op.Results[0]]
			h.Param = f.Param("wte.w")
			p.planned.frame.Homes[op.Results[0]] = h
			return nil
		}},
		{"live memory used again", "P7", func(t *testing.T, p *Program) *ir.Op {
			f := p.planned.frame
			for v, h := range f.Homes {
				if h.Param == nil && h.Const == nil && h.Offset != 0 {
					h.Offset = 0
					f.Homes[v] = h
				}
			}
			return nil
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := planOf(t, builtin(t, tinyMoE), Options{})
			require.NoError(t, p.ProveOnce())
			op := c.damage(t, p)
			err := p.ProveOnce()
			require.Error(t, err)
			e := diag.As(err)
			assert.Equal(t, "pinned", e.Code)
			assert.True(t, strings.HasSuffix(e.Message, "("+c.label+")"), e.Message)
			assert.NotEmpty(t, e.Layer)
			assert.NotEmpty(t, e.Op)
			if op != nil {
				assert.Equal(t, op.Loc.Layer, e.Layer)
				assert.Equal(t, op.Name(), e.Op)
			}
		})
	}
}

// TestProofCounts: the counts of a mixture of experts, at the smallest budget: one top-k, one histogram and
// two sorts for each layer, planned as often as in the model.
func TestProofCounts(t *testing.T) {
	p := planOf(t, builtin(t, tinyMoE), Options{})
	assert.Equal(t, []Count{
		{"top_k", "choice", 1, 1, 0}, {"histogram", "choice", 1, 1, 0}, {"argsort", "choice", 2, 2, 0}},
		slices.DeleteFunc(slices.Clone(p.Proof.Once), func(c Count) bool { return c.Why != "choice" }))
	assert.Zero(t, p.Proof.Twice)
	assert.Positive(t, p.Proof.Clones)
	assert.Equal(t, p.Report.Recomputed > 0, p.Proof.Clones > 0)
	assert.Positive(t, p.Proof.Random)
}

// routed compares in floats and takes rows by the outcome: no row of the table says that it decides.
const routed = `module "routed"
func @step(%x: f32[64,64], %w: f32[64,64] {role="param"}, %table: f32[2,64] {role="param"}) -> (loss, w, table) {
  %h = contract %x, %w {lhs_contract=[1], rhs_contract=[0]} : f32[64,64] loc(enc)
  %s = reduce %h {axes=[1], kind="sum"} : f32[64] loc(router)
  %c0 = constant {value=dense(f32[]: 0)} : f32[] loc(router)
  %zero = broadcast %c0 {dims=[], shape=[64]} : f32[64] loc(router)
  %m = compare %s, %zero {dir="gt"} : bool[64] loc(router)
  %i = convert %m {to=i32} : i32[64] loc(router)
  %e = take %table, %i {axis=0} : f32[64,64] loc(expert)
  %y = mul %h, %e : f32[64,64] loc(expert)
  %a = tanh %y : f32[64,64] loc(expert)
  %q = mul %a, %a : f32[64,64] loc(out)
  %loss = reduce %q {axes=[0,1], kind="sum"} : f32[] loc(out)
  %gw, %gt = gradient %loss, %w, %table : f32[64,64], f32[2,64] loc(out)
  %nw = sub %w, %gw : f32[64,64] loc(opt)
  %nt = sub %table, %gt : f32[2,64] loc(opt)
  return %loss, %nw, %nt
}
`

// TestComparisonThatRoutes: it is pinned because its result is an index, its unit ends there, and it runs once
// although its readers could compute it again; a mask used element by element would not be pinned.
func TestComparisonThatRoutes(t *testing.T) {
	p := planOf(t, text(t, routed), Options{})
	var kinds []string
	for op, pin := range p.planned.problem.Pins {
		assert.Equal(t, pinned.Choice, pin.Kind)
		kinds = append(kinds, op.Loc.Layer)
	}
	assert.Equal(t, []string{"router"}, kinds)
	assert.Contains(t, p.Proof.Once, Count{"compare", "choice", 1, 1, 0})

	masked := strings.NewReplacer("%e = take %table, %i {axis=0}", "%f = convert %m {to=f32} : f32[64] loc(router)\n  %e = broadcast %f {dims=[0], shape=[64,64]}",
		"  %i = convert %m {to=i32} : i32[64] loc(router)\n", "").Replace(routed)
	masked = strings.NewReplacer(", %table: f32[2,64] {role=\"param\"}", "", ", table)", ")", "%gw, %gt = gradient %loss, %w, %table : f32[64,64], f32[2,64]", "%gw = gradient %loss, %w : f32[64,64]",
		"  %nt = sub %table, %gt : f32[2,64] loc(opt)\n", "", ", %nt", "").Replace(masked)
	p = planOf(t, text(t, masked), Options{})
	assert.Empty(t, p.planned.problem.Pins)
}

// TestOptingOut: a layer that is opted out may run its decisions again, with a warning that names it; without,
// it is not even possible to ask. The proof accepts what was allowed and nothing else.
func TestOptingOut(t *testing.T) {
	m := builtin(t, tinyMoE)
	p := planOf(t, m, Options{})
	assert.Empty(t, p.Report.Warnings)
	p = planOf(t, m, Options{AllowRecompute: func(layer string) bool { return layer == "layers.0.moe.router" }})
	assert.Equal(t, []string{"layers.0.moe.router"}, p.Report.RecomputeAllowed)
	require.Len(t, p.Report.Warnings, 1)
	assert.Contains(t, p.Report.Warnings[0], "layers.0.moe.router")
	assert.Contains(t, p.Report.Warnings[0], "top_k")
	f := p.planned.applied.Func
	assert.Equal(t, []string{"layers.0.moe.router"}, f.Module.Attrs.Strs(ir.RecomputeAllowed))
	for _, op := range f.Body.Ops {
		if op.Name() == "argsort" && op.Remat == nil { // of another layer
			f.Body.CloneOp(op, ir.Mapping{}).Remat = op
			assert.ErrorContains(t, p.ProveOnce(), "(P1)")
			return
		}
	}
}

// varied has an exact foreign kernel of a variant, whose result is used forward and backward.
const varied = `module "varied"
func @step(%x: f32[256,64], %w: f32[64,64] {role="param"}, %v: f32[64,64] {role="param"}) -> (loss, w, v) {
  %h = contract %x, %w {lhs_contract=[1], rhs_contract=[0]} : f32[256,64] loc(a)
  %y = foreign %h {symbol="f", vjp="f_vjp", variant="warps=4", determinism="exact", cost_ns=10, results=strs["f32[256,64]"]} : f32[256,64] loc(kernel)
  %g = contract %y, %v {lhs_contract=[1], rhs_contract=[0]} : f32[256,64] loc(b)
  %a = tanh %g : f32[256,64] loc(b)
  %z = contract %a, %v {lhs_contract=[1], rhs_contract=[0]} : f32[256,64] loc(c)
  %q = mul %z, %z : f32[256,64] loc(out)
  %loss = reduce %q {axes=[0,1], kind="sum"} : f32[] loc(out)
  %gw, %gv = gradient %loss, %w, %v : f32[64,64], f32[64,64] loc(out)
  %nw = sub %w, %gw : f32[64,64] loc(opt)
  %nv = sub %v, %gv : f32[64,64] loc(opt)
  return %loss, %nw, %nv
}
`

// TestVariantIsIdentity: a clone takes its original's kernel variant, and one that does not is refused, by the verifier
// and by the proof. (P023)
func TestVariantIsIdentity(t *testing.T) {
	p := planOf(t, text(t, varied), Options{})
	f := p.planned.applied.Func
	i := slices.IndexFunc(f.Body.Ops, func(op *ir.Op) bool { return op.Name() == "foreign" && op.Attrs.Str("symbol") == "f" })
	op := f.Body.CloneOp(f.Body.Ops[i], ir.Mapping{})
	op.Remat = f.Body.Ops[i]
	require.NoError(t, ir.Verify(f.Module))
	assert.Equal(t, "warps=4", op.Attrs.Str("variant"))
	op.Attrs = op.Attrs.Set("variant", "warps=8")
	e := diag.As(p.ProveOnce())
	assert.True(t, strings.HasSuffix(e.Message, "(P3)"), e.Message)
	assert.Equal(t, "kernel", e.Layer)
	assert.Equal(t, "foreign", e.Op)
	assert.ErrorContains(t, ir.Verify(f.Module), "(V6)")
}
