package autodiff_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/interp"
	"reprise/ir/ops"
	"reprise/ir/tensor"
	"reprise/passes/autodiff"
)

// gradCase is a differentiable program of one op or a few.
type gradCase struct {
	name   string
	params []param
	build  func(b *ir.Builder, x []*ir.Value) []*ir.Value
	// first: no second derivative is checked, for the reason given.
	first string
	tol   float64 // relative; 0: the default of the element type
	// wideOnly: the case is made of f64 constants, or of f32 alone.
	wideOnly bool
}

// param is a parameter of a case with the range its elements are drawn from.
type param struct {
	t      ir.Type
	lo, hi float64
	apart  float64 // least distance of any two elements, for ops with kinks at ties
}

func f64p(lo, hi float64, shape ...int64) param {
	return param{t: ir.T(dtype.F64, shape...), lo: lo, hi: hi}
}

func (p param) draw(r *rand.Rand) *tensor.Tensor {
	if p.t.DType == dtype.Key {
		return tensor.Key(r.Uint64(), r.Uint32N(100), 0)
	}
	out := tensor.New(p.t.DType, p.t.Shape...)
	n := out.Len()
	vals := make([]float64, n)
	for i := range vals {
		vals[i] = p.lo + (p.hi-p.lo)*r.Float64()
	}
	if p.apart > 0 {
		for i, k := range r.Perm(int(n)) {
			vals[i] = p.lo + p.apart*(float64(k)+0.4*r.Float64())
		}
	}
	for i, v := range vals {
		switch p.t.DType {
		case dtype.F16, dtype.BF16:
			b := ops.F32ToHalf(float32(v))
			if p.t.DType == dtype.BF16 {
				b = ops.F32ToBF16(float32(v))
			}
			out.SetBits(int64(i), uint64(b))
		case dtype.F64:
			out.F64()[i] = v
		case dtype.F32:
			out.F32()[i] = float32(v)
		case dtype.Bool:
			out.SetBits(int64(i), uint64(r.IntN(2)))
		default:
			out.SetBits(int64(i), uint64(int64(math.Floor(v))))
		}
	}
	return out
}

// program builds loss = Σ outᵢ·wᵢ for random weights w, and its gradient by the float
// parameters; with second, the loss is Σ gradientᵢ·rᵢ instead.
func program(t *testing.T, tab *ir.Table, c gradCase, second bool, seed uint64) *ir.Module {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 1))
	m := ir.NewModule("case")
	f := m.NewFunc("step")
	var xs, floats []*ir.Value
	for i, p := range c.params {
		v := f.Body.AddParam(fmt.Sprintf("x%d", i), p.t)
		xs = append(xs, v)
		if p.t.DType.IsFloat() {
			floats = append(floats, v)
		}
	}
	b := ir.NewBuilder(tab, f.Body, ir.Loc{Layer: "case"})
	weigh := func(outs []*ir.Value) *ir.Value {
		var total *ir.Value
		for _, o := range outs {
			if !o.Type.DType.IsFloat() {
				continue
			}
			w := param{t: o.Type, lo: 0.5, hi: 1.5}.draw(r)
			p := b.Op("mul", []*ir.Value{o, b.Op("constant", nil, ir.A("value", w))})
			for p.Type.Rank() > 0 {
				p = b.Op("reduce", []*ir.Value{p}, ir.A("kind", "sum"), ir.A("axes", []int64{int64(p.Type.Rank() - 1)}))
			}
			if p.Type.DType != floats[0].Type.DType {
				p = b.Op("convert", []*ir.Value{p}, ir.A("to", floats[0].Type.DType))
			}
			if total == nil {
				total = p
			} else {
				total = b.Op("add", []*ir.Value{total, p})
			}
		}
		return total
	}
	loss := weigh(c.build(b, xs))
	if second {
		loss = weigh(b.Multi("gradient", append([]*ir.Value{loss}, floats...), nil).Results)
	}
	g := b.Multi("gradient", append([]*ir.Value{loss}, floats...), nil)
	f.Body.Results = append([]*ir.Value{loss}, g.Results...)
	f.Results = []string{"loss"}
	for i := range g.Results {
		f.Results = append(f.Results, fmt.Sprintf("g%d", i))
	}
	if err := ir.Verify(m); err != nil {
		t.Fatalf("before: %v", err)
	}
	if err := autodiff.Run(m, tab); err != nil {
		t.Fatal(err)
	}
	if err := ir.Verify(m); err != nil {
		t.Fatalf("after: %v\n%s", err, m)
	}
	return m
}

// checkGradient compares the gradients of a program with central differences.
func checkGradient(t *testing.T, c gradCase, m *ir.Module, seed uint64) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 2))
	f := m.Func("step")
	args := make([]*tensor.Tensor, len(c.params))
	for i, p := range c.params {
		args[i] = p.draw(r)
	}
	run := func() []*tensor.Tensor {
		out, err := interp.Run(f, args)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	grads := run()[1:]
	h, tol := 1e-5, 2e-6
	k := 0
	for i, p := range c.params {
		if !p.t.DType.IsFloat() {
			continue
		}
		g := grads[k]
		k++
		scale := 0.0
		for e := range g.Len() {
			scale = math.Max(scale, math.Abs(g.Float(e)))
		}
		for n := range min(6, p.t.Len()) {
			e := n
			if p.t.Len() > 6 {
				e = r.Int64N(p.t.Len())
			}
			step, limit := h, tol
			if p.t.DType == dtype.F32 {
				step, limit = 1e-2, 2e-2
			}
			if c.tol > 0 {
				limit = c.tol
			}
			x := args[i].Float(e)
			at := func(d float64) float64 {
				if p.t.DType == dtype.F32 {
					args[i].F32()[e] = float32(x + d)
				} else {
					args[i].F64()[e] = x + d
				}
				return run()[0].Float(0)
			}
			num := (at(step) - at(-step)) / (2 * step)
			at(0)
			got := g.Float(e)
			if err := math.Abs(num-got) / math.Max(1e-2, math.Max(scale, math.Abs(num))); err > limit || got != got {
				t.Errorf("parameter %d, element %d: gradient %.9g, central difference %.9g", i, e, got, num)
			}
		}
	}
}

func TestGradients(t *testing.T) {
	tab := ops.Table()
	for _, c := range gradCases(rand.New(rand.NewPCG(7, 7))) {
		t.Run(c.name, func(t *testing.T) {
			for seed := range uint64(2) {
				checkGradient(t, c, program(t, tab, c, false, seed), seed)
			}
		})
		if c.first != "" {
			continue
		}
		t.Run(c.name+"/second", func(t *testing.T) {
			checkGradient(t, c, program(t, tab, c, true, 3), 3)
		})
	}
}

// In narrower types the derivative has the types of its operands, and is that of f64 but
// for rounding.
func TestGradientsInOtherTypes(t *testing.T) {
	tab := ops.Table()
	eps := map[dtype.Type]float64{dtype.F32: 1e-4, dtype.F16: 0.03, dtype.BF16: 0.15}
	for _, c := range gradCases(rand.New(rand.NewPCG(7, 7))) {
		if c.wideOnly {
			continue
		}
		for _, d := range []dtype.Type{dtype.F32, dtype.F16, dtype.BF16} {
			t.Run(c.name+"/"+d.String(), func(t *testing.T) {
				narrow := c
				narrow.params = append([]param(nil), c.params...)
				for i, p := range narrow.params {
					if p.t.DType == dtype.F64 {
						narrow.params[i].t.DType = d
					}
				}
				r := rand.New(rand.NewPCG(1, 2))
				wide, args := program(t, tab, c, false, 1).Func("step"), []*tensor.Tensor{}
				f := program(t, tab, narrow, false, 1).Func("step")
				narrowArgs := []*tensor.Tensor{}
				for i, p := range narrow.params {
					a := c.params[i].draw(r)
					if a.DType != p.t.DType { // both start from the rounded value
						a = ops.ConvertTensor(a, d)
						narrowArgs = append(narrowArgs, a)
						a = ops.ConvertTensor(a, dtype.F64)
					} else {
						narrowArgs = append(narrowArgs, a)
					}
					args = append(args, a)
				}
				want, err := interp.Run(wide, args)
				if err != nil {
					t.Fatal(err)
				}
				got, err := interp.Run(f, narrowArgs)
				if err != nil {
					t.Fatal(err)
				}
				for k := range want {
					g := ops.ConvertTensor(got[k], dtype.F64).F64()
					scale := 0.5
					for _, v := range want[k].F64() {
						scale = math.Max(scale, math.Abs(v))
					}
					for i, w := range want[k].F64() {
						if !(math.Abs(g[i]-w) <= eps[d]*scale) {
							t.Errorf("result %d[%d] is %v, in f64 %v", k, i, g[i], w)
						}
					}
				}
			})
		}
	}
}

// Every row of the families of this package's author that has a derivative has a case.
func TestEveryDerivativeHasACase(t *testing.T) {
	tab := ops.Table()
	seen := map[string]bool{}
	for _, c := range gradCases(rand.New(rand.NewPCG(7, 7))) {
		m := ir.NewModule("case")
		f := m.NewFunc("step")
		var xs []*ir.Value
		for _, p := range c.params {
			xs = append(xs, f.Body.AddParam("", p.t))
		}
		c.build(ir.NewBuilder(tab, f.Body, ir.Loc{Layer: "case"}), xs)
		f.Body.Walk(func(op *ir.Op) { seen[op.Name()] = true })
	}
	families := "elementwise shape contract random nn loss attention optim"
	for _, d := range tab.All() {
		if strings.Contains(families, d.Family) && d.Name != "gradient" && d.Name != "constant" && d.Name != "attention_grad" && (d.VJP != nil || d.Expand != nil) && !seen[d.Name] {
			t.Errorf("no gradient case for %s", d.Name)
		}
	}
}
