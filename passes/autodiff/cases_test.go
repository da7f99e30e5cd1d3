package autodiff_test

import (
	"math/rand/v2"
	"slices"

	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/tensor"
)

type (
	B = *ir.Builder
	V = *ir.Value
)

// dims draws a shape of the given rank.
func dims(r *rand.Rand, rank int) []int64 {
	s := make([]int64, rank)
	for i := range s {
		s[i] = 1 + r.Int64N(4)
	}
	return s
}

func gradCases(r *rand.Rand) []gradCase {
	var cs []gradCase
	un := func(name string, lo, hi float64) {
		cs = append(cs, gradCase{name: name, params: []param{f64p(lo, hi, dims(r, r.IntN(4))...)},
			build: func(b B, x []V) []V { return []V{b.Op(name, x)} }})
	}
	un("neg", -2, 2)
	un("abs", 0.1, 2)
	un("exp", -2, 2)
	un("exp2", -2, 2)
	un("expm1", -2, 2)
	un("log", 0.2, 3)
	un("log2", 0.2, 3)
	un("log1p", -0.6, 3)
	un("sqrt", 0.2, 3)
	un("rsqrt", 0.4, 3)
	un("cbrt", 0.2, 3)
	un("sin", -4, 4)
	un("cos", -4, 4)
	un("tan", -1, 1)
	un("tanh", -2, 2)
	un("sinh", -2, 2)
	un("cosh", -2, 2)
	un("asin", -0.8, 0.8)
	un("acos", -0.8, 0.8)
	un("atan", -3, 3)
	un("asinh", -3, 3)
	un("acosh", 1.3, 3)
	un("atanh", -0.8, 0.8)
	un("erf", -2, 2)
	un("erf_inv", -0.8, 0.8)
	un("logistic", -3, 3)
	un("softplus", -3, 3)
	un("silu", -3, 3)
	un("relu", 0.1, 2)
	un("gelu", -3, 3)
	un("copy", -3, 3)
	bin := func(name string, lo, hi, lo2, hi2 float64) {
		s := dims(r, r.IntN(4))
		cs = append(cs, gradCase{name: name, params: []param{f64p(lo, hi, s...), f64p(lo2, hi2, s...)},
			build: func(b B, x []V) []V { return []V{b.Op(name, x)} }})
	}
	bin("add", -2, 2, -2, 2)
	bin("sub", -2, 2, -2, 2)
	bin("mul", -2, 2, -2, 2)
	bin("div", -2, 2, 0.5, 2)
	bin("rem", 5.1, 5.9, 2.1, 2.4)
	bin("pow", 0.5, 2, -2, 2)
	bin("max", -2, 0, 0.1, 2)
	bin("min", -2, 0, 0.1, 2)
	bin("atan2", -2, 2, 0.5, 2)
	bin("mse", -2, 2, -2, 2)
	add := func(name string, ps []param, build func(b B, x []V) []V) {
		cs = append(cs, gradCase{name: name, params: ps, build: build})
	}
	ps := func(p ...param) []param { return p }
	s3 := []int64{3, 4}
	add("fma", ps(f64p(-2, 2, s3...), f64p(-2, 2, s3...), f64p(-2, 2, s3...)), func(b B, x []V) []V { return []V{b.Op("fma", x)} })
	add("gelu/tanh", ps(f64p(-3, 3, 7)), func(b B, x []V) []V { return []V{b.Op("gelu", x, ir.A("approx", "tanh"))} })
	add("clamp", ps(f64p(-0.5, 0, 8), f64p(-1, 2, 8), f64p(0.5, 1, 8)), func(b B, x []V) []V { return []V{b.Op("clamp", x)} })
	add("select", ps(param{t: ir.T(dtype.Bool, 3, 4)}, f64p(-2, 2, s3...), f64p(-2, 2, s3...)), func(b B, x []V) []V { return []V{b.Op("select", x)} })
	add("square of one value twice", ps(f64p(-2, 2, 5)), func(b B, x []V) []V { return []V{b.Op("mul", []V{x[0], x[0]})} })
	add("fan-out", ps(f64p(-2, 2, 5), f64p(-1, 1, 5)), func(b B, x []V) []V {
		s := b.Op("sin", x[:1])
		return []V{b.Op("mul", []V{s, x[1]}), b.Op("exp", []V{s}), b.Op("add", []V{s, x[0]})}
	})
	cs = append(cs, gradCase{name: "convert", params: ps(f64p(1, 2, 5)), tol: 5e-2, wideOnly: true, build: func(b B, x []V) []V {
		y := b.Op("convert", x, ir.A("to", dtype.F32))
		return []V{b.Op("mul", []V{y, y})}
	}})
	add("broadcast", ps(f64p(-2, 2, 3, 1, 2), f64p(-1, 1, 4, 2, 5, 3)), func(b B, x []V) []V {
		y := b.Op("broadcast", x[:1], ir.A("dims", []int64{3, 2, 1}), ir.A("shape", []int64{4, 2, 5, 3}))
		return []V{b.Op("mul", []V{y, x[1]})}
	})
	add("broadcast of a scalar", ps(f64p(-2, 2), f64p(-1, 1, 4, 2)), func(b B, x []V) []V {
		y := b.Op("broadcast", x[:1], ir.A("dims", []int64{}), ir.A("shape", []int64{4, 2}))
		return []V{b.Op("mul", []V{y, x[1]})}
	})
	// Linear ops are squared, so that a second derivative exists.
	lin := func(name string, p param, attrs ...ir.Attr) {
		add(name, ps(p), func(b B, x []V) []V {
			y := b.Op(name, x, attrs...)
			return []V{b.Op("mul", []V{y, y})}
		})
	}
	lin("reshape", f64p(-2, 2, 3, 4), ir.A("shape", []int64{2, 6}))
	lin("transpose", f64p(-2, 2, 3, 4, 2), ir.A("perm", []int64{2, 0, 1}))
	lin("slice", f64p(-2, 2, 7, 4), ir.A("start", []int64{1, 0}), ir.A("limit", []int64{6, 3}), ir.A("stride", []int64{2, 1}))
	lin("reverse", f64p(-2, 2, 3, 4), ir.A("dims", []int64{1}))
	for _, pad := range [][]int64{{1, 2, 0}, {0, 0, 2}, {-1, 2, 1}, {2, -2, 0}, {-1, -1, 2}} {
		add("pad", ps(f64p(-2, 2, 4, 3), f64p(-1, 1)), func(b B, x []V) []V {
			y := b.Op("pad", x, ir.A("low", []int64{pad[0], 0}), ir.A("high", []int64{pad[1], 1}), ir.A("interior", []int64{pad[2], 0}))
			return []V{b.Op("mul", []V{y, y})}
		})
	}
	add("concat", ps(f64p(-2, 2, 2, 3), f64p(-2, 2, 2, 1), f64p(-2, 2, 2, 4)), func(b B, x []V) []V {
		y := b.Op("concat", []V{x[0], x[1], x[2], x[0]}, ir.A("dim", 1))
		return []V{b.Op("mul", []V{y, y})}
	})
	for _, c := range []struct{ a, b, lb, rb, lc, rc []int64 }{
		{[]int64{3, 4}, []int64{4, 5}, nil, nil, []int64{1}, []int64{0}},
		{[]int64{3, 4}, []int64{5, 4}, nil, nil, []int64{1}, []int64{1}},
		{[]int64{2, 3, 4}, []int64{4, 5}, nil, nil, []int64{2}, []int64{0}},
		{[]int64{2, 3, 4}, []int64{2, 4, 5}, []int64{0}, []int64{0}, []int64{2}, []int64{1}},
		{[]int64{4, 2, 3}, []int64{5, 4, 2}, []int64{1}, []int64{2}, []int64{0}, []int64{1}},
		{[]int64{2, 3, 4}, []int64{4, 3, 2}, nil, nil, []int64{2, 0}, []int64{0, 2}},
		{[]int64{2, 3}, []int64{4}, nil, nil, nil, nil},
		{[]int64{3}, []int64{3}, nil, nil, []int64{0}, []int64{0}},
	} {
		add("contract", ps(f64p(-1, 1, c.a...), f64p(-1, 1, c.b...)), func(b B, x []V) []V {
			return []V{b.Op("contract", x, ir.A("lhs_batch", c.lb), ir.A("rhs_batch", c.rb), ir.A("lhs_contract", c.lc), ir.A("rhs_contract", c.rc))}
		})
	}
	add("dropout", ps(f64p(-2, 2, 4, 70), param{t: ir.T(dtype.Key)}), func(b B, x []V) []V {
		y := b.Op("dropout", x, ir.A("p", 0.3), ir.A("rng", 5))
		return []V{b.Op("mul", []V{y, y})}
	})
	add("dropout of nothing", ps(f64p(-2, 2, 4)), func(b B, x []V) []V {
		y := b.Op("dropout", x, ir.A("p", 0.0), ir.A("rng", 5))
		return []V{b.Op("mul", []V{y, y})}
	})
	for _, axis := range []int64{0, 1, 2} {
		add("softmax", ps(f64p(-2, 2, 3, 4, 2)), func(b B, x []V) []V { return []V{b.Op("softmax", x, ir.A("axis", axis))} })
		add("log_softmax", ps(f64p(-2, 2, 3, 4, 2)), func(b B, x []V) []V { return []V{b.Op("log_softmax", x, ir.A("axis", axis))} })
	}
	add("layer_norm", ps(f64p(-2, 2, 2, 3, 5), f64p(0.5, 2, 5), f64p(-1, 1, 5)), func(b B, x []V) []V { return []V{b.Op("layer_norm", x)} })
	add("rms_norm", ps(f64p(-2, 2, 2, 3, 5), f64p(0.5, 2, 5)), func(b B, x []V) []V { return []V{b.Op("rms_norm", x)} })
	for _, unbiased := range []bool{true, false} {
		add("batch_norm", ps(f64p(-2, 2, 4, 3, 2), f64p(0.5, 2, 3), f64p(-1, 1, 3), f64p(-1, 1, 3), f64p(0.5, 2, 3)), func(b B, x []V) []V {
			return b.Multi("batch_norm", x, nil, ir.A("axis", 1), ir.A("unbiased", unbiased)).Results
		})
	}
	add("batch_norm/y only", ps(f64p(-2, 2, 4, 3), f64p(0.5, 2, 3), f64p(-1, 1, 3), f64p(-1, 1, 3), f64p(0.5, 2, 3)), func(b B, x []V) []V {
		return b.Multi("batch_norm", x, nil, ir.A("axis", 1)).Results[:1]
	})
	add("batch_norm_inference", ps(f64p(-2, 2, 4, 3, 2), f64p(0.5, 2, 3), f64p(-1, 1, 3), f64p(-1, 1, 3), f64p(0.5, 2, 3)), func(b B, x []V) []V {
		return []V{b.Op("batch_norm_inference", x, ir.A("axis", 1))}
	})
	for _, style := range []string{"halves", "interleaved"} {
		add("rope/"+style, ps(f64p(-2, 2, 2, 3, 2, 4), f64p(-1, 1, 3, 2), f64p(-1, 1, 3, 2)), func(b B, x []V) []V {
			return []V{b.Op("rope", x, ir.A("style", style))}
		})
	}
	labels := param{t: ir.T(dtype.I32, 2, 3), lo: 0, hi: 5}
	add("cross_entropy", ps(f64p(-2, 2, 2, 3, 5), labels), func(b B, x []V) []V { return []V{b.Op("cross_entropy", x)} })
	add("cross_entropy/ignore", ps(f64p(-2, 2, 2, 3, 5), labels), func(b B, x []V) []V {
		return []V{b.Op("cross_entropy", x, ir.A("ignore_index", 2))}
	})
	add("reduce", ps(f64p(0.5, 1.5, 3, 4)), func(b B, x []V) []V {
		return []V{b.Op("reduce", x, ir.A("kind", "sum"), ir.A("axes", []int64{1}))}
	})
	counts := func(b B) V { return b.Op("constant", nil, ir.A("value", tensor.Of([]int32{2, 0, 3}, 3))) }
	for _, tr := range []bool{false, true} {
		w := f64p(-1, 1, 3, 2, 4)
		if tr {
			w = f64p(-1, 1, 3, 4, 2)
		}
		add("grouped_contract", ps(f64p(-1, 1, 6, 2), w), func(b B, x []V) []V {
			return []V{b.Op("grouped_contract", []V{x[0], x[1], counts(b)}, ir.A("transpose", tr))}
		})
	}
	add("grouped_outer", ps(f64p(-1, 1, 6, 2), f64p(-1, 1, 6, 3)), func(b B, x []V) []V {
		return []V{b.Op("grouped_outer", []V{x[0], x[1], counts(b)})}
	})
	// Attention is f32 alone: coarser differences.
	f32p := func(shape ...int64) param { return param{t: ir.T(dtype.F32, shape...), lo: -1, hi: 1} }
	for _, causal := range []bool{false, true} {
		cs = append(cs, gradCase{name: "attention", params: ps(f32p(1, 3, 4, 2), f32p(1, 5, 2, 2), f32p(1, 5, 2, 2)), tol: 3e-2, wideOnly: true,
			build: func(b B, x []V) []V { return b.Multi("attention", x, nil, ir.A("causal", causal)).Results[:1] }})
		cs = append(cs, gradCase{name: "attention/lse", params: ps(f32p(1, 3, 2, 2), f32p(1, 3, 2, 2), f32p(1, 3, 2, 2)), tol: 3e-2, wideOnly: true,
			build: func(b B, x []V) []V { return b.Multi("attention", x, nil, ir.A("causal", causal)).Results }})
	}
	cs = append(cs, gradCase{name: "attention/dropout", params: ps(f32p(1, 4, 2, 2), f32p(1, 4, 2, 2), f32p(1, 4, 2, 2), param{t: ir.T(dtype.Key)}), tol: 3e-2, wideOnly: true,
		build: func(b B, x []V) []V {
			return b.Multi("attention", x, nil, ir.A("p", 0.25), ir.A("rng", 9)).Results[:1]
		}})
	cs = append(cs, gradCase{name: "attention_at", params: ps(f32p(1, 2, 2, 2), f32p(1, 5, 2, 2), f32p(1, 5, 2, 2)), tol: 3e-2, wideOnly: true,
		build: func(b B, x []V) []V {
			at := b.Op("constant", nil, ir.A("value", tensor.Of([]int32{2}).Reshaped()))
			return b.Multi("attention_at", append(x, at), nil).Results[:1]
		}})
	scalar := f64p(0.01, 0.1)
	step := param{t: ir.T(dtype.I64), lo: 0, hi: 5}
	v := func() param { return f64p(0.5, 1, 4) }
	first := len(cs)
	add("adamw", ps(v(), v(), v(), v(), scalar, step), func(b B, x []V) []V { return b.Multi("adamw", x, nil, ir.A("wd", 0.1)).Results })
	add("sgd", ps(v(), v(), scalar), func(b B, x []V) []V { return b.Multi("sgd", x, nil, ir.A("wd", 0.1)).Results })
	for _, nesterov := range []bool{false, true} {
		add("sgd_momentum", ps(v(), v(), v(), scalar), func(b B, x []V) []V {
			return b.Multi("sgd_momentum", x, nil, ir.A("nesterov", nesterov)).Results
		})
	}
	add("lion", ps(v(), v(), v(), scalar), func(b B, x []V) []V { return b.Multi("lion", x, nil).Results })
	for i := range cs[first:] {
		cs[first+i].wideOnly = true // state is f32 whatever the parameter's type
	}
	return append(cs, controlCases()...)
}

// region makes a region with parameters like vs, whose body build writes.
func region(b B, vs []V, build func(b B, p []V) []V) *ir.Block {
	r := b.Block.Func.NewRegion()
	for _, v := range vs {
		r.AddParam("", v.Type)
	}
	r.Results = build(ir.NewBuilder(b.Table, r, b.Loc), r.Params)
	return r
}

func i64c(b B, v int64) V { return b.Op("constant", nil, ir.A("value", tensor.Of([]int64{v}))) }

// counted is a while that runs body on carried values n times; the counter comes first.
func counted(b B, n int64, carried []V, body func(b B, i V, p []V) []V) []V {
	args := append([]V{i64c(b, 0)}, carried...)
	cond := region(b, args, func(b B, p []V) []V {
		return []V{b.Op("compare", []V{p[0], i64c(b, n)}, ir.A("dir", "lt"))}
	})
	turn := region(b, args, func(b B, p []V) []V {
		return append([]V{b.Op("add", []V{p[0], i64c(b, 1)})}, body(b, p[0], p[1:])...)
	})
	return b.Multi("while", args, []*ir.Block{cond, turn}).Results[1:]
}

func controlCases() []gradCase {
	var cs []gradCase
	for _, n := range []int64{0, 1, 3, 20} { // 20 is beyond unrolling
		cs = append(cs, gradCase{name: "while", params: []param{f64p(-1, 1, 3), f64p(0.2, 0.9, 3), f64p(-1, 1, 3)},
			build: func(b B, x []V) []V {
				return counted(b, n, x, func(b B, i V, p []V) []V {
					s := b.Op("sin", []V{b.Op("fma", []V{p[0], p[1], p[2]})})
					return []V{s, p[1], b.Op("mul", []V{p[2], p[1]})}
				})
			}})
	}
	cs = append(cs, gradCase{name: "while/one result, invariant only", params: []param{f64p(-1, 1, 3), f64p(0.2, 0.9, 3)},
		build: func(b B, x []V) []V {
			return counted(b, 18, x, func(b B, i V, p []V) []V {
				return []V{b.Op("tanh", []V{b.Op("add", []V{p[0], p[1]})}), p[1]}
			})[:1]
		}})
	cs = append(cs, gradCase{name: "while/scan over rows", params: []param{f64p(-1, 1, 20, 3), f64p(-1, 1, 3)},
		build: func(b B, x []V) []V {
			return counted(b, 20, x, func(b B, i V, p []V) []V {
				row := b.Op("dynamic_slice", []V{p[0], i, i64c(b, 0)}, ir.A("sizes", []int64{1, 3}))
				h := b.Op("tanh", []V{b.Op("fma", []V{b.Op("reshape", []V{row}, ir.A("shape", []int64{3})), p[1], p[1]})})
				return []V{p[0], h}
			})
		}})
	cs = append(cs, gradCase{name: "while/nested", first: "slow", params: []param{f64p(-1, 1, 2), f64p(0.2, 0.9, 2)},
		build: func(b B, x []V) []V {
			return counted(b, 17, x, func(b B, _ V, p []V) []V {
				return counted(b, 18, p, func(b B, _ V, p []V) []V {
					return []V{b.Op("sin", []V{b.Op("mul", p)}), p[1]}
				})
			})
		}})
	// A decision inside of a loop or branch is made once, and read by the way back.
	route := func(b B, p []V) []V { // the two greatest of w·h, squared, at their places
		h := b.Op("mul", p)
		top := b.Multi("top_k", []V{h}, nil, ir.A("k", 2)).Results
		s := b.Op("scatter_along", []V{b.Op("mul", []V{top[0], top[0]}), top[1]}, ir.A("axis", 0), ir.A("size", 5))
		return []V{b.Op("sin", []V{b.Op("add", []V{s, p[0]})}), p[1]}
	}
	spread := func() []param {
		x, w := f64p(0.1, 1, 5), f64p(0.5, 1.5, 5)
		x.apart, w.apart = 0.2, 0.1
		return []param{x, w}
	}
	for _, n := range []int64{2, 20} {
		cs = append(cs, gradCase{name: "while/decides", params: spread(), build: func(b B, x []V) []V {
			return counted(b, n, x, func(b B, _ V, p []V) []V { return route(b, p) })
		}})
		// Each turn drops others: the key is folded with the counter.
		cs = append(cs, gradCase{name: "while/dropout", params: []param{f64p(-1, 1, 5), {t: ir.T(dtype.Key)}}, build: func(b B, x []V) []V {
			return counted(b, n, x, func(b B, i V, p []V) []V {
				k := b.Op("key_fold", []V{p[1], b.Op("convert", []V{i}, ir.A("to", dtype.I32))})
				d := b.Op("dropout", []V{p[0], k}, ir.A("p", 0.2), ir.A("rng", 3))
				return []V{b.Op("sin", []V{d}), p[1]}
			})[:1]
		}})
	}
	for _, first := range []bool{true, false} {
		cs = append(cs, gradCase{name: "if/decides", params: spread(), build: func(b B, x []V) []V {
			pred := b.Op("constant", nil, ir.A("value", tensor.Of([]bool{first})))
			other := func(b B, p []V) []V { return []V{b.Op("exp", p[:1]), p[1]} }
			return b.Multi("if", append([]V{pred}, x...), []*ir.Block{region(b, x, route), region(b, x, other)}).Results
		}})
	}
	branch := []func(b B, p []V) []V{
		func(b B, p []V) []V { return []V{b.Op("mul", p), b.Op("exp", p[:1])} },
		func(b B, p []V) []V { return []V{b.Op("sin", p[:1]), p[1]} },
		func(b B, p []V) []V { return slices.Clone(p) },
	}
	for _, pick := range []int{0, 1, 2} {
		cs = append(cs, gradCase{name: "case", params: []param{f64p(-1, 1, 3), f64p(-1, 1, 3)},
			build: func(b B, x []V) []V {
				index := b.Op("constant", nil, ir.A("value", tensor.Of([]int32{int32(pick)})))
				var rs []*ir.Block
				for _, f := range branch {
					rs = append(rs, region(b, x, f))
				}
				return b.Multi("case", append([]V{index}, x...), rs).Results
			}})
	}
	for _, first := range []bool{true, false} {
		cs = append(cs, gradCase{name: "if", params: []param{f64p(-1, 1, 3), f64p(-1, 1, 3)},
			build: func(b B, x []V) []V {
				pred := b.Op("constant", nil, ir.A("value", tensor.Of([]bool{first})))
				return b.Multi("if", append([]V{pred}, x...), []*ir.Block{region(b, x, branch[0]), region(b, x, branch[1])}).Results[:1]
			}})
	}
	return cs
}
