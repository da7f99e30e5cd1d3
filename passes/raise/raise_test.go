package raise_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/interp"
	"reprise/ir/ops"
	"reprise/ir/tensor"
	"reprise/passes/canon"
	"reprise/passes/dce"
	"reprise/passes/raise"
)

type V = *ir.Value

// g writes programs with short names.
type g struct{ *ir.Builder }

func (b g) un(name string, x V, attrs ...ir.Attr) V { return b.Op(name, []V{x}, attrs...) }
func (b g) bin(name string, x, y V) V               { return b.Op(name, []V{x, y}) }
func (b g) add(x, y V) V                            { return b.bin("add", x, y) }
func (b g) sub(x, y V) V                            { return b.bin("sub", x, y) }
func (b g) mul(x, y V) V                            { return b.bin("mul", x, y) }
func (b g) div(x, y V) V                            { return b.bin("div", x, y) }
func (b g) exp(x V) V                               { return b.un("exp", x) }
func (b g) neg(x V) V                               { return b.un("neg", x) }
func (b g) like(x V, c float64) V                   { return ops.Full(b.Builder, x.Type, c) }
func (b g) times(x V, c float64) V                  { return b.mul(x, b.like(x, c)) }
func (b g) plus(x V, c float64) V                   { return b.add(x, b.like(x, c)) }
func (b g) over(x V, c float64) V                   { return b.div(x, b.like(x, c)) }
func (b g) pow(x V, c float64) V                    { return b.bin("pow", x, b.like(x, c)) }
func (b g) convert(x V, d dtype.Type) V             { return b.un("convert", x, ir.A("to", d)) }
func (b g) reshape(x V, shape ...int64) V           { return b.un("reshape", x, ir.A("shape", shape)) }
func (b g) transpose(x V, perm ...int64) V          { return b.un("transpose", x, ir.A("perm", perm)) }
func (b g) reduce(kind string, x V, axes ...int64) V {
	return b.un("reduce", x, ir.A("kind", kind), ir.A("axes", axes))
}

// spread broadcasts as numpy does: missing dimensions in front, sizes of 1 repeated.
func (b g) spread(x V, shape []int64) V {
	dims := []int64{}
	for i := range x.Type.Shape {
		dims = append(dims, int64(len(shape)-x.Type.Rank()+i))
	}
	return b.un("broadcast", x, ir.A("shape", shape), ir.A("dims", dims))
}

// keep is a reduction that keeps the axis with size 1.
func (b g) keep(kind string, x V, axis int64) V {
	shape := slices.Clone(x.Type.Shape)
	shape[axis] = 1
	return b.reshape(b.reduce(kind, x, axis), shape...)
}

// back is a reduction along one axis, broadcast to the shape of its operand, in one step.
func (b g) back(r V, x V, axis int64) V {
	var dims []int64
	for d := range int64(x.Type.Rank()) {
		if d != axis {
			dims = append(dims, d)
		}
	}
	return b.un("broadcast", r, ir.A("shape", x.Type.Shape), ir.A("dims", dims))
}

func (b g) slice(x V, dim, lo, hi, step int64) V {
	start, limit, stride := make([]int64, x.Type.Rank()), slices.Clone(x.Type.Shape), slices.Repeat([]int64{1}, x.Type.Rank())
	start[dim], limit[dim], stride[dim] = lo, hi, step
	return b.un("slice", x, ir.A("start", start), ir.A("limit", limit), ir.A("stride", stride))
}

func (b g) concat(dim int64, xs ...V) V { return b.Op("concat", xs, ir.A("dim", dim)) }
func (b g) iota(dim int64, shape ...int64) V {
	return b.Op("iota", nil, ir.A("dim", dim), ir.A("shape", shape), ir.A("dtype", dtype.I32))
}
func (b g) compare(dir string, x, y V) V {
	return b.Op("compare", []V{x, y}, ir.A("dir", dir))
}
func (b g) where(p, x, y V) V { return b.Op("select", []V{p, x, y}) }

func (b g) contract(x, y V, lb, rb, lc, rc []int64) V {
	return b.Op("contract", []V{x, y}, ir.A("lhs_batch", lb), ir.A("rhs_batch", rb), ir.A("lhs_contract", lc), ir.A("rhs_contract", rc))
}

// program is a function of parameters of the given types.
func program(t *testing.T, params []ir.Type, body func(b g, x []V) []V) *ir.Module {
	t.Helper()
	m := ir.NewModule("case")
	f := m.NewFunc("step")
	var xs []V
	for i, p := range params {
		xs = append(xs, f.Body.AddParam(string(rune('a'+i)), p))
	}
	f.Body.Results = body(g{ir.NewBuilder(ops.Table(), f.Body, ir.Loc{Layer: "case"})}, xs)
	for i := range f.Body.Results {
		f.Results = append(f.Results, "r"+string(rune('0'+i)))
	}
	require.NoError(t, ir.Verify(m))
	require.NoError(t, canon.Run(m, ops.Table()))
	dce.Run(m)
	return m
}

// draw makes arguments: floats around 0, small integers, keys.
func draw(f *ir.Func, r *rand.Rand) []*tensor.Tensor {
	var out []*tensor.Tensor
	for _, p := range f.Body.Params {
		switch d := p.Type.DType; {
		case d == dtype.Key:
			out = append(out, tensor.Key(7, 3, 0))
		case d.IsFloat():
			t := tensor.New(dtype.F64, p.Type.Shape...)
			for i := range t.F64() {
				t.F64()[i] = r.NormFloat64()
			}
			out = append(out, ops.ConvertTensor(t, d))
		default:
			t := tensor.New(dtype.I64, p.Type.Shape...)
			for i := range t.I64() {
				t.I64()[i] = r.Int64N(3)
			}
			out = append(out, ops.ConvertTensor(t, d))
		}
	}
	return out
}

func names(m *ir.Module) []string {
	var out []string
	m.Funcs[0].Body.Walk(func(op *ir.Op) { out = append(out, op.Name()) })
	return out
}

// equal holds the raised program against the original on random arguments.
func equal(t *testing.T, before, after *ir.Module) {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	for range 2 {
		args := draw(before.Funcs[0], r)
		want, err := interp.Run(before.Funcs[0], args)
		require.NoError(t, err)
		got, err := interp.Run(after.Funcs[0], args)
		require.NoError(t, err)
		for i := range want {
			require.Equal(t, want[i].DType, got[i].DType)
			require.Equal(t, want[i].Shape, got[i].Shape)
			tol := map[dtype.Type]float64{dtype.F64: 1e-12, dtype.F32: 2e-5, dtype.F16: 1e-2, dtype.BF16: 6e-2}[want[i].DType]
			a, b := ops.ConvertTensor(want[i], dtype.F64).F64(), ops.ConvertTensor(got[i], dtype.F64).F64()
			for k := range a {
				if !(math.Abs(a[k]-b[k]) <= tol*(1+math.Abs(a[k]))) {
					t.Fatalf("result %d, element %d: %v raised to %v\n%s", i, k, a[k], b[k], after)
				}
			}
		}
	}
}

// pat is a program that holds one or more composite ops in parts.
type pat struct {
	name   string
	params []ir.Type
	body   func(b g, x []V) []V
	op     string // what is to be found; "": nothing may be raised
	attrs  string // of it
	only   bool   // nothing else is left, moves and constants apart
	exact  bool   // no variations: they would gather at labels that are no class
}

// check raises and compares.
func check(t *testing.T, c pat) *ir.Module {
	t.Helper()
	before := program(t, c.params, c.body)
	after := before.Clone()
	require.NoError(t, raise.Run(after, ops.Table()))
	require.NoError(t, ir.Verify(after))
	equal(t, before, after)
	if !c.exact {
		mutants(t, before)
	}
	if c.op == "" {
		require.Equal(t, before.String(), after.String(), "nothing is to be raised")
		return after
	}
	found := 0
	after.Funcs[0].Body.Walk(func(op *ir.Op) {
		switch {
		case op.Name() == c.op:
			found++
			if c.attrs != "" {
				require.Contains(t, op.String(), c.attrs)
			}
		case !c.only:
		case !slices.Contains([]string{"constant", "broadcast", "reshape", "transpose", "slice"}, op.Name()):
			t.Errorf("%s is left:\n%s", op.Name(), after)
		}
	})
	require.Positive(t, found, "no %s in\n%s", c.op, after)
	// A second time nothing more is found.
	again := after.Clone()
	require.NoError(t, raise.Run(again, ops.Table()))
	require.Equal(t, after.String(), again.String())
	return after
}

func run(t *testing.T, cases []pat) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { check(t, c) })
	}
}

// forTypes is a case for f32 and f64 operands.
func forTypes(c pat) []pat {
	var out []pat
	for _, d := range []dtype.Type{dtype.F32, dtype.F64} {
		k := c
		k.name += "/" + d.String()
		k.params = nil
		for _, p := range c.params {
			if p.DType.IsFloat() {
				p.DType = d
			}
			k.params = append(k.params, p)
		}
		out = append(out, k)
	}
	return out
}

var f32x = []ir.Type{ir.T(dtype.F32, 3, 5)}

func one(f func(b g, x V) V) func(b g, x []V) []V {
	return func(b g, x []V) []V { return []V{f(b, x[0])} }
}

func TestActivations(t *testing.T) {
	onePlusExpNeg := func(b g, x V) V { return b.plus(b.exp(b.neg(x)), 1) }
	erf := func(b g, x V) V { return b.un("erf", b.over(x, math.Sqrt2)) }
	inner := func(b g, x V) V {
		return b.times(b.add(x, b.times(b.pow(x, 3), 0.044715)), math.Sqrt(2/math.Pi))
	}
	var cases []pat
	is := func(name, op, attrs string, f func(b g, x V) V) {
		cases = append(cases, forTypes(pat{name, f32x, one(f), op, attrs, true, false})...)
	}
	not := func(name string, f func(b g, x []V) []V) {
		cases = append(cases, forTypes(pat{name: name, params: f32x, body: f})...)
	}
	is("logistic/div", "logistic", "", func(b g, x V) V { return b.div(b.like(x, 1), onePlusExpNeg(b, x)) })
	is("logistic/swapped", "logistic", "", func(b g, x V) V {
		return b.div(b.like(x, 1), b.add(b.like(x, 1), b.exp(b.sub(b.like(x, 0), x))))
	})
	is("logistic/pow", "logistic", "", func(b g, x V) V { return b.pow(onePlusExpNeg(b, x), -1) })
	is("logistic/ratio", "logistic", "", func(b g, x V) V { e := b.exp(x); return b.div(e, b.plus(e, 1)) })
	is("logistic/tanh", "logistic", "", func(b g, x V) V { return b.times(b.plus(b.un("tanh", b.times(x, 0.5)), 1), 0.5) })
	is("silu/mul", "silu", "", func(b g, x V) V { return b.mul(b.un("logistic", x), x) })
	is("silu/parts", "silu", "", func(b g, x V) V { return b.mul(x, b.div(b.like(x, 1), onePlusExpNeg(b, x))) })
	is("silu/div", "silu", "", func(b g, x V) V { return b.div(x, onePlusExpNeg(b, x)) })
	not("silu/two readers", func(b g, x []V) []V { s := b.un("logistic", x[0]); return []V{b.mul(x[0], s), s} })
	not("silu/another x", func(b g, x []V) []V { return []V{b.mul(b.times(x[0], 2), b.un("logistic", x[0]))} })
	not("logistic/two", func(b g, x []V) []V { return []V{b.div(b.like(x[0], 2), onePlusExpNeg(b, x[0]))} })
	not("logistic/no sign", func(b g, x []V) []V { return []V{b.div(b.like(x[0], 1), b.plus(b.exp(x[0]), 1))} })

	is("gelu/erf", "gelu", "", func(b g, x V) V { return b.mul(b.times(x, 0.5), b.plus(erf(b, x), 1)) })
	is("gelu/outer", "gelu", "", func(b g, x V) V { return b.times(b.mul(x, b.plus(erf(b, x), 1)), 0.5) })
	is("gelu/inner", "gelu", "", func(b g, x V) V { return b.mul(b.times(b.add(b.like(x, 1), erf(b, x)), 0.5), x) })
	is("gelu/half", "gelu", "", func(b g, x V) V { return b.over(b.mul(b.plus(erf(b, x), 1), x), 2) })
	is("gelu/cdf", "gelu", "", func(b g, x V) V { return b.mul(x, b.plus(b.times(erf(b, x), 0.5), 0.5)) })
	is("gelu/constant", "gelu", "", func(b g, x V) V {
		return b.mul(b.times(x, 0.5), b.plus(b.un("erf", b.times(x, 0.7071067811865476)), 1))
	})
	is("gelu/tanh", "gelu", `approx="tanh"`, func(b g, x V) V {
		return b.mul(b.times(x, 0.5), b.plus(b.un("tanh", inner(b, x)), 1))
	})
	is("gelu/cube by products", "gelu", `approx="tanh"`, func(b g, x V) V {
		u := b.times(b.mul(x, b.plus(b.times(b.mul(x, x), 0.044715), 1)), 0.7978845608028654)
		return b.times(b.mul(b.plus(b.un("tanh", u), 1), x), 0.5)
	})
	cases = append(cases, pat{"gelu/x is a product", f32x, one(func(b g, x V) V {
		y := b.times(b.mul(x, x), 0.3)
		return b.mul(b.times(y, 0.5), b.plus(erf(b, y), 1))
	}), "gelu", "", false, false})
	is("gelu/complement", "gelu", "", func(b g, x V) V {
		return b.times(b.mul(x, b.sub(b.like(x, 1), b.un("erf", b.times(b.neg(x), math.Sqrt(0.5))))), 0.5)
	})
	not("gelu/other constant", func(b g, x []V) []V {
		return []V{b.mul(b.times(x[0], 0.5), b.plus(b.un("erf", b.times(x[0], 0.7)), 1))}
	})
	not("gelu/quick", func(b g, x []V) []V {
		return []V{b.mul(x[0], b.un("logistic", b.times(x[0], 1.702)))}
	})
	not("gelu/two readers", func(b g, x []V) []V {
		e := erf(b, x[0])
		return []V{b.mul(b.times(x[0], 0.5), b.plus(e, 1)), e}
	})
	not("gelu/two inputs", func(b g, x []V) []V {
		return []V{b.mul(b.times(b.un("sin", x[0]), 0.5), b.plus(erf(b, x[0]), 1))}
	})
	run(t, cases)
}

func TestSoftmax(t *testing.T) {
	var cases []pat
	is := func(name, op, attrs string, f func(b g, x V) V) {
		cases = append(cases, forTypes(pat{name, []ir.Type{ir.T(dtype.F32, 2, 3, 5)}, one(f), op, attrs, true, false})...)
	}
	not := func(name string, f func(b g, x []V) []V) {
		cases = append(cases, forTypes(pat{name: name, params: []ir.Type{ir.T(dtype.F32, 2, 3, 5)}, body: f})...)
	}
	shift := func(b g, x V, axis int64) V { return b.sub(x, b.back(b.reduce("max", x, axis), x, axis)) }
	ratio := func(b g, e V, axis int64) V { return b.div(e, b.back(b.reduce("sum", e, axis), e, axis)) }
	is("last", "softmax", "axis=2", func(b g, x V) V { return ratio(b, b.exp(shift(b, x, 2)), 2) })
	is("middle", "softmax", "axis=1", func(b g, x V) V { return ratio(b, b.exp(shift(b, x, 1)), 1) })
	is("first", "softmax", "axis=0", func(b g, x V) V { return ratio(b, b.exp(shift(b, x, 0)), 0) })
	is("kept dimensions", "softmax", "axis=2", func(b g, x V) V {
		e := b.exp(b.sub(x, b.spread(b.keep("max", x, 2), x.Type.Shape)))
		return b.div(e, b.spread(b.keep("sum", e, 2), x.Type.Shape))
	})
	is("no shift", "softmax", "axis=2", func(b g, x V) V { return ratio(b, b.exp(x), 2) })
	is("stopped gradient", "softmax", "axis=2", func(b g, x V) V {
		mx := b.un("stop_gradient", b.keep("max", x, 2))
		return ratio(b, b.exp(b.sub(x, b.spread(mx, x.Type.Shape))), 2)
	})
	is("guarded maximum", "softmax", "axis=2", func(b g, x V) V {
		mx := b.reduce("max", x, 2)
		mx = b.bin("max", b.like(mx, math.Inf(-1)), mx)
		mx = b.where(b.un("is_finite", mx), mx, b.like(mx, 0))
		return ratio(b, b.exp(b.sub(x, b.back(b.un("stop_gradient", mx), x, 2))), 2)
	})
	is("reciprocal", "softmax", "axis=2", func(b g, x V) V {
		e := b.exp(shift(b, x, 2))
		s := b.reduce("sum", e, 2)
		return b.mul(b.back(b.div(b.like(s, 1), s), e, 2), e)
	})
	is("computed twice", "softmax", "axis=2", func(b g, x V) V {
		e := b.exp(shift(b, x, 2))
		return b.div(b.exp(shift(b, x, 2)), b.back(b.reduce("sum", e, 2), e, 2))
	})
	is("log", "log_softmax", "axis=2", func(b g, x V) V {
		d := shift(b, x, 2)
		return b.sub(d, b.back(b.un("log", b.reduce("sum", b.exp(d), 2)), x, 2))
	})
	is("log, middle, no shift", "log_softmax", "axis=1", func(b g, x V) V {
		return b.sub(x, b.back(b.un("log", b.reduce("sum", b.exp(x), 1)), x, 1))
	})
	is("log by logsumexp", "log_softmax", "axis=2", func(b g, x V) V {
		mx := b.reduce("max", x, 2)
		e := b.exp(b.sub(x, b.back(mx, x, 2)))
		return b.sub(x, b.back(b.add(b.un("log", b.reduce("sum", e, 2)), mx), x, 2))
	})
	is("log of softmax", "log_softmax", "axis=2", func(b g, x V) V { return b.un("log", ratio(b, b.exp(shift(b, x, 2)), 2)) })
	is("exp of log_softmax", "softmax", "axis=2", func(b g, x V) V {
		return b.exp(b.un("log_softmax", x, ir.A("axis", 2)))
	})
	not("sum along another axis", func(b g, x []V) []V { return []V{ratio(b, shift(b, x[0], 2), 1)} })
	not("sum over two axes", func(b g, x []V) []V {
		e := b.exp(x[0])
		return []V{b.div(e, b.un("broadcast", b.reduce("sum", e, 1, 2), ir.A("shape", e.Type.Shape), ir.A("dims", []int64{0})))}
	})
	not("exponentials read elsewhere", func(b g, x []V) []V {
		e := b.exp(shift(b, x[0], 2))
		return []V{ratio(b, e, 2), e}
	})
	not("sum plus eps", func(b g, x []V) []V {
		e := b.exp(shift(b, x[0], 2))
		return []V{b.div(e, b.back(b.plus(b.reduce("sum", e, 2), 1e-6), e, 2))}
	})
	not("another numerator", func(b g, x []V) []V {
		e := b.exp(shift(b, x[0], 2))
		return []V{b.div(b.un("sin", x[0]), b.back(b.reduce("sum", e, 2), e, 2))}
	})
	run(t, cases)
	// A shift by something else is part of x.
	m := check(t, pat{"shift by the minimum", f32x, one(func(b g, x V) V {
		return ratio(b, b.exp(b.sub(x, b.back(b.reduce("min", x, 1), x, 1))), 1)
	}), "softmax", "axis=1", false, false})
	require.Contains(t, names(m), "sub")
	// A square shape does not mislead: the sum is spread along the other axis.
	check(t, pat{name: "transposed spread", params: []ir.Type{ir.T(dtype.F32, 4, 4)}, body: one(func(b g, x V) V {
		e := b.exp(x)
		return b.div(e, b.back(b.reduce("sum", e, 1), e, 0))
	})})
	// In f32 between conversions.
	for _, d := range []dtype.Type{dtype.BF16, dtype.F16} {
		m := check(t, pat{"narrow", []ir.Type{ir.T(d, 3, 5)}, one(func(b g, x V) V {
			return b.convert(ratio(b, b.exp(shift(b, b.convert(x, dtype.F32), 1)), 1), d)
		}), "softmax", "axis=1", true, false})
		require.Equal(t, []string{"softmax"}, names(m))
	}
}

func TestNorms(t *testing.T) {
	var cases []pat
	params := []ir.Type{ir.T(dtype.F32, 2, 3, 6), ir.T(dtype.F32, 6), ir.T(dtype.F32, 6)}
	is := func(name, op, attrs string, f func(b g, x, w, c V) V) {
		cases = append(cases, forTypes(pat{name, params, func(b g, x []V) []V { return []V{f(b, x[0], x[1], x[2])} }, op, attrs, true, false})...)
	}
	not := func(name string, f func(b g, x, w, c V) []V) {
		cases = append(cases, forTypes(pat{name: name, params: params, body: func(b g, x []V) []V { return f(b, x[0], x[1], x[2]) }})...)
	}
	mean := func(b g, x V) V { return b.over(b.reduce("sum", x, 2), 6) }
	back := func(b g, s, x V) V { return b.back(s, x, 2) }
	centre := func(b g, x V) V { return b.sub(x, back(b, mean(b, x), x)) }
	rstd := func(b g, v V, eps float64) V { return b.un("rsqrt", b.plus(v, eps)) }
	affine := func(b g, y, w, c V) V {
		return b.add(b.mul(y, b.spread(w, y.Type.Shape)), b.spread(c, y.Type.Shape))
	}
	xhat := func(b g, x V, eps float64) V {
		d := centre(b, x)
		return b.mul(d, back(b, rstd(b, mean(b, b.mul(d, d)), eps), x))
	}
	is("layer/affine", "layer_norm", "", func(b g, x, w, c V) V { return affine(b, xhat(b, x, 1e-5), w, c) })
	is("layer/eps", "layer_norm", "eps=0.001", func(b g, x, w, c V) V { return affine(b, xhat(b, x, 1e-3), w, c) })
	is("layer/plain", "layer_norm", "", func(b g, x, w, c V) V { return xhat(b, x, 1e-5) })
	is("layer/gain only", "layer_norm", "", func(b g, x, w, c V) V { return b.mul(b.spread(w, x.Type.Shape), xhat(b, x, 1e-5)) })
	is("layer/fma", "layer_norm", "", func(b g, x, w, c V) V {
		return b.Op("fma", []V{xhat(b, x, 1e-5), b.spread(w, x.Type.Shape), b.spread(c, x.Type.Shape)})
	})
	is("layer/kept dimensions, 1 over n", "layer_norm", "", func(b g, x, w, c V) V {
		m := func(x V) V { return b.times(b.keep("sum", x, 2), 1.0/6) }
		d := b.sub(x, b.spread(m(x), x.Type.Shape))
		s := b.un("sqrt", b.plus(m(b.pow(d, 2)), 1e-5))
		return affine(b, b.div(d, b.spread(s, x.Type.Shape)), b.reshape(w, 1, 1, 6), c)
	})
	is("layer/gain into scale", "layer_norm", "", func(b g, x, w, c V) V {
		d := centre(b, x)
		s := b.mul(back(b, rstd(b, mean(b, b.mul(d, d)), 1e-5), x), b.spread(w, x.Type.Shape))
		return b.add(b.spread(c, x.Type.Shape), b.mul(s, d))
	})
	is("layer/centred twice", "layer_norm", "", func(b g, x, w, c V) V {
		d := centre(b, x)
		v := mean(b, b.mul(d, d))
		return affine(b, b.div(centre(b, x), back(b, b.pow(b.plus(v, 1e-5), 0.5), x)), w, c)
	})
	is("layer/mean of squares", "layer_norm", "", func(b g, x, w, c V) V {
		mu := mean(b, x)
		v := b.bin("max", b.sub(mean(b, b.mul(x, x)), b.mul(mu, mu)), b.like(mu, 0))
		return affine(b, b.mul(b.sub(x, back(b, mu, x)), back(b, b.pow(b.plus(v, 1e-5), -0.5), x)), w, c)
	})
	is("layer/no eps", "layer_norm", "eps=0", func(b g, x, w, c V) V {
		d := centre(b, x)
		return affine(b, b.div(d, back(b, b.un("sqrt", mean(b, b.mul(d, d))), x)), w, c)
	})
	square := func(b g, x V) V { return mean(b, b.mul(x, x)) }
	is("rms/gain", "rms_norm", "", func(b g, x, w, c V) V {
		return b.mul(b.mul(x, back(b, rstd(b, square(b, x), 1e-6), x)), b.spread(w, x.Type.Shape))
	})
	is("rms/eps", "rms_norm", "eps=1e-05", func(b g, x, w, c V) V {
		return b.mul(b.spread(w, x.Type.Shape), b.div(x, back(b, b.un("sqrt", b.plus(square(b, x), 1e-5)), x)))
	})
	is("rms/plain", "rms_norm", "", func(b g, x, w, c V) V { return b.mul(x, back(b, rstd(b, square(b, x), 1e-6), x)) })
	is("rms/reciprocal", "rms_norm", "", func(b g, x, w, c V) V {
		s := b.un("sqrt", b.plus(mean(b, b.pow(x, 2)), 1e-6))
		return b.mul(back(b, b.div(b.like(s, 1), s), x), x)
	})
	cases = append(cases, pat{"rms/x is a product", params, func(b g, x []V) []V {
		y := b.mul(x[0], b.spread(x[2], x[0].Type.Shape))
		return []V{b.mul(b.mul(y, back(b, rstd(b, square(b, y), 1e-6), y)), b.spread(x[1], y.Type.Shape))}
	}, "rms_norm", "", false, false})

	not("layer/eps outside the root", func(b g, x, w, c V) []V {
		d := centre(b, x)
		return []V{affine(b, b.div(d, back(b, b.plus(b.un("sqrt", mean(b, b.mul(d, d))), 1e-5), x)), w, c)}
	})
	not("layer/unbiased", func(b g, x, w, c V) []V {
		d := centre(b, x)
		return []V{affine(b, b.mul(d, back(b, rstd(b, b.over(b.reduce("sum", b.mul(d, d), 2), 5), 1e-5), x)), w, c)}
	})
	not("layer/another axis", func(b g, x, w, c V) []V {
		mean := func(x V) V { return b.over(b.reduce("sum", x, 1), 3) }
		d := b.sub(x, b.back(mean(x), x, 1))
		return []V{b.mul(d, b.back(rstd(b, mean(b.mul(d, d)), 1e-5), x, 1))}
	})
	not("rms/of something else", func(b g, x, w, c V) []V {
		return []V{b.mul(b.un("sin", x), back(b, rstd(b, square(b, x), 1e-6), x))}
	})
	not("rms/statistic read elsewhere", func(b g, x, w, c V) []V {
		s := rstd(b, square(b, x), 1e-6)
		return []V{b.mul(x, back(b, s, x)), s}
	})
	not("rms/twice", func(b g, x, w, c V) []V {
		s := back(b, rstd(b, square(b, x), 1e-6), x)
		return []V{b.mul(b.mul(x, s), s)}
	})
	run(t, cases)

	// As Llama does it in half precision: in f32, rounded, then the gain.
	for _, d := range []dtype.Type{dtype.BF16, dtype.F16} {
		m := check(t, pat{"narrow", []ir.Type{ir.T(d, 2, 3, 6), ir.T(d, 6)}, func(b g, x []V) []V {
			u := b.convert(x[0], dtype.F32)
			y := b.convert(b.mul(u, back(b, rstd(b, square(b, u), 1e-6), u)), d)
			return []V{b.mul(b.spread(x[1], y.Type.Shape), y)}
		}, "rms_norm", "", true, false})
		require.Equal(t, []string{"rms_norm"}, names(m))
	}
}
