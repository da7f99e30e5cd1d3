package fuzz

import (
	"slices"

	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/ops"
	"reprise/ir/tensor"
)

// templates are the ways to grow a program, by weight.
func templates() []template {
	return []template{
		{8, true, (*grower).unary},
		{12, true, (*grower).binary},
		{4, true, (*grower).choose},
		{3, true, (*grower).ternary},
		{3, true, (*grower).converted},
		{2, false, (*grower).bitwise},
		{8, true, (*grower).reshaped},
		{5, true, (*grower).moved},
		{8, true, (*grower).reduced},
		{10, true, (*grower).contraction},
		{6, true, (*grower).row},
		{4, true, (*grower).indexed},
		{3, false, (*grower).general},
		{2, false, (*grower).sorted},
		{2, true, (*grower).scanned},
		{3, true, (*grower).random},
		{2, true, (*grower).window},
		{1, true, (*grower).attended},
		{3, true, (*grower).control},
		{1, true, (*grower).barrier},
		{1, false, (*grower).grouped},
		{1, false, (*grower).optimizer},
		{2, true, (*grower).routed},
		{1, true, (*grower).collective},
	}
}

func (g *grower) oneOf(names ...string) string { return names[g.r.IntN(len(names))] }

func (g *grower) unary() {
	v := g.pick(isNumber)
	if !isFloat(v) {
		g.add(g.op(g.oneOf("neg", "abs", "sign", "not", "popcnt", "clz"), []*ir.Value{v}))
		return
	}
	if g.chance(15) {
		g.add(g.op(g.oneOf("floor", "ceil", "trunc", "round_even", "round_afz", "sign", "log", "sqrt", "rsqrt", "exp", "cbrt", "log1p", "acosh", "exp2"), []*ir.Value{v}))
		return
	}
	if g.chance(20) {
		g.add(g.op("log", []*ir.Value{g.op("add", []*ir.Value{g.op("abs", []*ir.Value{v}), ops.Full(g.b, v.Type, 1)})}))
		return
	}
	g.add(g.op(g.oneOf("neg", "abs", "sin", "cos", "tanh", "erf", "logistic", "gelu", "relu", "silu", "softplus", "atan", "asinh", "expm1", "cbrt"), []*ir.Value{v}))
}

func (g *grower) binary() {
	v := g.pick(notKey)
	if v.Type.DType == dtype.Bool {
		g.add(g.op(g.oneOf("and", "or", "xor", "max"), []*ir.Value{v, g.of(v.Type)}))
		return
	}
	name := g.oneOf("add", "sub", "mul", "add", "sub", "mul", "max", "min")
	if g.chance(15) {
		name = g.oneOf("div", "rem", "pow", "atan2")
	}
	w := g.of(v.Type)
	if g.chance(50) {
		v, w = w, v
	}
	x := g.op(name, []*ir.Value{v, w})
	if name == "div" || name == "rem" || name == "pow" {
		x = g.tame(x)
	}
	g.add(x)
}

func (g *grower) choose() {
	v := g.pick(notKey)
	p := g.op("compare", []*ir.Value{v, g.of(v.Type)}, ir.A("dir", g.oneOf("eq", "ne", "lt", "le", "gt", "ge")))
	if g.chance(40) {
		g.add(p)
	}
	w := g.pick(func(w *ir.Value) bool { return slices.Equal(w.Type.Shape, v.Type.Shape) && notKey(w) })
	g.add(g.op("select", []*ir.Value{p, w, g.of(w.Type)}))
}

func (g *grower) ternary() {
	v := g.pick(isNumber)
	if isFloat(v) && g.chance(60) {
		g.add(g.op("fma", []*ir.Value{v, g.of(v.Type), g.of(v.Type)}))
		return
	}
	g.add(g.op("clamp", []*ir.Value{g.of(v.Type), v, g.of(v.Type)}))
}

func (g *grower) converted() {
	v := g.pick(notKey)
	if isFloat(v) && g.chance(15) {
		g.add(g.op("is_finite", []*ir.Value{v}))
		return
	}
	g.add(g.op("convert", []*ir.Value{v}, ir.A("to", g.dtype())))
}

func (g *grower) bitwise() {
	v := g.pick(isIndex)
	g.add(g.op(g.oneOf("and", "or", "xor", "shl", "shr_logical", "shr_arith", "rem", "div"), []*ir.Value{v, g.of(v.Type)}))
}

// reshaped: reshape, broadcast, transpose.
func (g *grower) reshaped() {
	switch g.r.IntN(4) {
	case 0:
		v := g.pick(notKey)
		g.add(g.op("reshape", []*ir.Value{v}, ir.A("shape", g.factor(v.Type))))
	case 1, 2:
		v := g.pick(ranked(0, 3, notKey))
		shape := slices.Clone(v.Type.Shape)
		dims := all(v)
		for range 1 + g.r.IntN(2) {
			if len(shape) >= 4 {
				break
			}
			at := g.r.IntN(len(shape) + 1)
			shape = slices.Insert(shape, at, g.size())
			for i := range dims {
				if dims[i] >= int64(at) {
					dims[i]++
				}
			}
		}
		for i := range dims {
			if v.Type.Shape[i] == 1 && g.chance(40) {
				shape[dims[i]] = g.size()
			}
		}
		if tensor.Len(shape) > 2*g.limit {
			giveUp()
		}
		if len(dims) >= 2 && g.chance(10) && v.Type.Shape[0] == v.Type.Shape[1] {
			dims[0], dims[1] = dims[1], dims[0]
		}
		g.add(g.op("broadcast", []*ir.Value{v}, ir.A("dims", dims), ir.A("shape", shape)))
	default:
		v := g.pick(ranked(2, 4, notKey))
		perm := all(v)
		g.r.Shuffle(len(perm), func(i, j int) { perm[i], perm[j] = perm[j], perm[i] })
		g.add(g.op("transpose", []*ir.Value{v}, ir.A("perm", perm)))
	}
}

// factor is another shape of as many elements.
func (g *grower) factor(t ir.Type) []int64 {
	n := t.Len()
	if n == 0 {
		return []int64{0, g.size()}
	}
	var s []int64
	for _, p := range []int64{2, 3, 4, 5, 7, 8, 16, 33} {
		if n%p == 0 && g.chance(40) && len(s) < 3 {
			s, n = append(s, p), n/p
		}
	}
	s = append(s, n)
	if g.chance(20) && len(s) < 4 {
		s = append(s, 1)
	}
	g.r.Shuffle(len(s), func(i, j int) { s[i], s[j] = s[j], s[i] })
	return s
}

// moved: slice, pad, concat, reverse, dynamic slices.
func (g *grower) moved() {
	v := g.pick(ranked(1, 4, notKey))
	rank := v.Type.Rank()
	switch g.r.IntN(6) {
	case 0, 1:
		start, limit, stride := make([]int64, rank), slices.Clone(v.Type.Shape), make([]int64, rank)
		for i := range start {
			stride[i] = 1
			if g.chance(60) {
				start[i] = g.r.Int64N(limit[i]/2 + 1)
				limit[i] -= g.r.Int64N((limit[i]-start[i])/2 + 1)
				stride[i] = []int64{1, 1, 2, 3}[g.r.IntN(4)]
			}
		}
		g.add(g.op("slice", []*ir.Value{v}, ir.A("start", start), ir.A("limit", limit), ir.A("stride", stride)))
	case 2:
		low, high, interior := make([]int64, rank), make([]int64, rank), make([]int64, rank)
		for i := range low {
			if g.chance(60) {
				low[i], high[i] = g.r.Int64N(4)-1, g.r.Int64N(4)-1
			}
			if g.chance(15) {
				interior[i] = 1
			}
		}
		g.add(g.op("pad", []*ir.Value{v, g.of(ir.T(v.Type.DType))}, ir.A("low", low), ir.A("high", high), ir.A("interior", interior)))
	case 3:
		dim := g.r.IntN(rank)
		parts := []*ir.Value{v}
		for range 1 + g.r.IntN(2) {
			s := slices.Clone(v.Type.Shape)
			if g.chance(60) {
				s[dim] = g.size()
			}
			if tensor.Len(s) > g.limit {
				giveUp()
			}
			parts = append(parts, g.of(ir.T(v.Type.DType, s...)))
		}
		g.r.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
		g.add(g.op("concat", parts, ir.A("dim", dim)))
	case 4:
		dims := []int64{g.r.Int64N(int64(rank))}
		g.add(g.op("reverse", []*ir.Value{v}, ir.A("dims", dims)))
	default:
		var at []*ir.Value
		sizes := slices.Clone(v.Type.Shape)
		for i := range sizes {
			if sizes[i] > 0 && g.chance(60) {
				sizes[i] = 1 + g.r.Int64N(sizes[i])
			}
			if g.chance(50) {
				at = append(at, g.index(g.r.Int64N(6)-1))
			} else {
				at = append(at, g.of(ir.T(dtype.I32)))
			}
		}
		if g.chance(50) {
			g.add(g.op("dynamic_slice", append([]*ir.Value{v}, at...), ir.A("sizes", sizes)))
			return
		}
		g.add(g.op("dynamic_update_slice", append([]*ir.Value{v, g.of(ir.T(v.Type.DType, sizes...))}, at...)))
	}
}

func (g *grower) axes(v *ir.Value) []int64 {
	switch g.r.IntN(4) {
	case 0: // trailing ones
		return all(v)[g.r.IntN(v.Type.Rank()+1):]
	case 1: // leading ones
		return all(v)[:g.r.IntN(v.Type.Rank()+1)]
	case 2:
		return all(v)
	}
	return slices.DeleteFunc(all(v), func(int64) bool { return g.chance(50) })
}

func (g *grower) reduced() {
	v := g.pick(notKey)
	kind := g.oneOf("sum", "sum", "sum", "max", "min", "prod")
	switch {
	case v.Type.DType == dtype.Bool:
		kind = g.oneOf("and", "or", "xor")
	case v.Type.DType.IsInt() && g.chance(40):
		kind = g.oneOf("and", "or", "xor")
	}
	if g.chance(8) && !g.grad && v.Type.Rank() > 0 && notBool(v) {
		g.add(g.op(g.oneOf("argmax", "argmin"), []*ir.Value{v}, ir.A("axis", g.r.IntN(v.Type.Rank()))))
		return
	}
	axes := g.axes(v)
	x := g.op("reduce", []*ir.Value{v}, ir.A("kind", kind), ir.A("axes", axes))
	g.add(x)
	if g.chance(50) && len(axes) < v.Type.Rank() { // a statistic goes back over what it is of
		var dims []int64
		for i := range v.Type.Shape {
			if !slices.Contains(axes, int64(i)) {
				dims = append(dims, int64(i))
			}
		}
		w := g.op("broadcast", []*ir.Value{x}, ir.A("dims", dims), ir.A("shape", v.Type.Shape))
		name := "sub"
		if !isNumber(v) {
			name = "xor"
		}
		g.add(g.tame(g.op(name, []*ir.Value{v, w})))
	}
}

func notBool(v *ir.Value) bool { return v.Type.DType != dtype.Bool }

// contraction of anything with something that fits, and often an epilogue.
func (g *grower) contraction() {
	a := g.pick(ranked(0, 4, isNumber))
	if g.chance(70) {
		a = g.pick(ranked(1, 4, isFloat))
	}
	dims := all(a)
	g.r.Shuffle(len(dims), func(i, j int) { dims[i], dims[j] = dims[j], dims[i] })
	var lb, lc []int64
	for _, d := range dims {
		switch c := g.r.IntN(10); {
		case c < 2:
			lb = append(lb, d)
		case c < 6 || len(lc) == 0 && c < 9:
			lc = append(lc, d)
		}
	}
	type part struct{ kind, at int } // 0 batch, 1 contract, 2 free
	var parts []part
	for i := range lb {
		parts = append(parts, part{0, i})
	}
	for i := range lc {
		parts = append(parts, part{1, i})
	}
	for range g.r.IntN(3) {
		parts = append(parts, part{2, 0})
	}
	if len(parts) > 4 {
		giveUp()
	}
	g.r.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
	rb, rc := make([]int64, len(lb)), make([]int64, len(lc))
	var shape []int64
	free := int64(1)
	for i, p := range parts {
		switch p.kind {
		case 0:
			rb[p.at], shape = int64(i), append(shape, a.Type.Shape[lb[p.at]])
		case 1:
			rc[p.at], shape = int64(i), append(shape, a.Type.Shape[lc[p.at]])
		default:
			n := g.size()
			free *= n
			shape = append(shape, n)
		}
	}
	if a.Type.Len()*free > g.work {
		giveUp()
	}
	b := g.of(ir.T(a.Type.DType, shape...))
	attrs := []ir.Attr{ir.A("lhs_batch", lb), ir.A("rhs_batch", rb), ir.A("lhs_contract", lc), ir.A("rhs_contract", rc)}
	if d := a.Type.DType; (d == dtype.BF16 || d == dtype.F16) && g.chance(40) {
		attrs = append(attrs, ir.A("out", dtype.F32))
	}
	x := g.op("contract", []*ir.Value{a, b}, attrs...)
	if x.Type.Len() > 2*g.limit || x.Type.Rank() > 4 {
		giveUp()
	}
	if isFloat(x) && g.chance(60) { // bias, activation, mask, residual
		for range 1 + g.r.IntN(3) {
			t := x.Type
			switch g.r.IntN(5) {
			case 0:
				if t.Rank() == 0 {
					continue
				}
				bias := g.of(ir.T(t.DType, t.Shape[t.Rank()-1]))
				x = g.op("add", []*ir.Value{x, g.op("broadcast", []*ir.Value{bias}, ir.A("dims", []int64{int64(t.Rank() - 1)}), ir.A("shape", t.Shape))})
			case 1:
				x = g.op(g.oneOf("gelu", "tanh", "relu", "silu"), []*ir.Value{x})
			case 2:
				if g.key != nil {
					x = g.op("dropout", []*ir.Value{x, g.key}, g.nextRNG(), ir.A("p", 0.25))
				}
			case 3:
				x = g.op("add", []*ir.Value{x, g.of(t)})
			default:
				x = g.op("convert", []*ir.Value{x}, ir.A("to", g.float()))
			}
			if g.chance(15) {
				g.add(x)
			}
		}
	}
	g.add(g.tame(x))
}

// row: softmax, norms, losses.
func (g *grower) row() {
	v := g.pick(ranked(1, 4, isFloat))
	t, last := v.Type, v.Type.Shape[v.Type.Rank()-1]
	vec := func(n int64) *ir.Value { return g.of(ir.T(t.DType, n)) }
	switch g.r.IntN(9) {
	case 0, 1:
		g.add(g.op(g.oneOf("softmax", "log_softmax"), []*ir.Value{v}, ir.A("axis", g.r.IntN(t.Rank()))))
	case 2:
		g.add(g.op("layer_norm", []*ir.Value{v, vec(last), vec(last)}))
	case 3:
		g.add(g.op("rms_norm", []*ir.Value{v, vec(last)}))
	case 4:
		axis := g.r.IntN(t.Rank())
		n := t.Shape[axis]
		variance := g.op("abs", []*ir.Value{vec(n)})
		if g.chance(50) {
			g.add(g.b.Multi("batch_norm", []*ir.Value{v, vec(n), vec(n), vec(n), variance}, nil, ir.A("axis", axis), ir.A("unbiased", g.chance(50))).Results...)
			return
		}
		g.add(g.op("batch_norm_inference", []*ir.Value{v, vec(n), vec(n), vec(n), variance}, ir.A("axis", axis)))
	case 5:
		labels := g.of(ir.T(dtype.I32, t.Shape[:t.Rank()-1]...))
		labels = g.op("clamp", []*ir.Value{ops.Full(g.b, labels.Type, 0), labels, ops.Full(g.b, labels.Type, float64(last-1))})
		g.add(g.op("cross_entropy", []*ir.Value{v, labels}))
	case 6:
		g.add(g.op("mse", []*ir.Value{v, g.of(t)}))
	default:
		// A row program by hand: (x - mean) * rsqrt(var) with something odd in between.
		lead := all(v)[:t.Rank()-1]
		last := []int64{int64(t.Rank() - 1)}
		back := func(x *ir.Value) *ir.Value {
			return g.op("broadcast", []*ir.Value{x}, ir.A("dims", lead), ir.A("shape", t.Shape))
		}
		m := g.op("reduce", []*ir.Value{v}, ir.A("kind", g.oneOf("sum", "max")), ir.A("axes", last))
		c := g.op("sub", []*ir.Value{v, back(m)})
		s := g.op("reduce", []*ir.Value{g.op("mul", []*ir.Value{c, c})}, ir.A("kind", "sum"), ir.A("axes", last))
		if g.chance(40) {
			s = g.op("add", []*ir.Value{s, g.of(s.Type)})
		}
		r := g.op("rsqrt", []*ir.Value{g.op("add", []*ir.Value{g.op("abs", []*ir.Value{s}), ops.Full(g.b, s.Type, 1)})})
		y := g.op("mul", []*ir.Value{c, back(r)})
		for _, x := range []*ir.Value{m, c, r, s} {
			if g.chance(20) {
				g.add(x)
			}
		}
		g.add(y)
	}
}

func (g *grower) indexed() {
	v := g.pick(ranked(1, 4, notKey))
	axis := g.r.IntN(v.Type.Rank())
	idx := func(shape ...int64) *ir.Value {
		return g.of(ir.T([]dtype.Type{dtype.I32, dtype.I32, dtype.I64, dtype.U8}[g.r.IntN(4)], shape...))
	}
	switch g.r.IntN(6) {
	case 0, 1:
		n := v.Type.Shape[axis]
		x := idx(g.shape(g.r.IntN(3))...)
		if n > 0 && v.Type.Len()/n*x.Type.Len() > 2*g.limit {
			giveUp()
		}
		g.add(g.op("take", []*ir.Value{v, x}, ir.A("axis", axis)))
	case 2:
		s := slices.Clone(v.Type.Shape)
		if g.chance(50) {
			s[axis] = 1 + g.r.Int64N(9)
		}
		g.add(g.op("take_along", []*ir.Value{v, idx(s...)}, ir.A("axis", axis)))
	case 3:
		if g.grad {
			giveUp()
		}
		g.add(g.tame(g.op("take_grad", []*ir.Value{v, idx(v.Type.Shape[axis])}, ir.A("axis", axis), ir.A("size", 1+g.r.IntN(20)))))
	case 4:
		if g.grad {
			giveUp()
		}
		g.add(g.tame(g.op("scatter_along", []*ir.Value{v, idx(v.Type.Shape...)}, ir.A("axis", axis), ir.A("size", 1+g.r.IntN(20)))))
	default:
		x := idx(g.shape(1)...)
		g.add(g.op("one_hot", []*ir.Value{x}, ir.A("depth", 1+g.r.IntN(20)), ir.A("dtype", g.float())))
	}
}

// general: gather, scatter, histogram.
func (g *grower) general() {
	v := g.pick(ranked(2, 2, notKey))
	m, n := v.Type.Shape[0], v.Type.Shape[1]
	if m == 0 || n == 0 {
		giveUp()
	}
	k := 1 + g.r.Int64N(7)
	switch g.r.IntN(4) {
	case 0:
		sizes := []int64{1 + g.r.Int64N(m), 1 + g.r.Int64N(n)}
		g.add(g.op("gather", []*ir.Value{v, g.of(ir.T(dtype.I32, k, 2))}, ir.A("offset_dims", []int64{1, 2}), ir.A("start_index_map", []int64{0, 1}),
			ir.A("index_vector_dim", 1), ir.A("slice_sizes", sizes), ir.A("mode", g.oneOf("clamp", "fill"))))
	case 1:
		g.add(g.op("gather", []*ir.Value{v, g.of(ir.T(dtype.I32, k))}, ir.A("offset_dims", []int64{1}), ir.A("collapsed_slice_dims", []int64{0}),
			ir.A("start_index_map", []int64{0}), ir.A("index_vector_dim", 1), ir.A("slice_sizes", []int64{1, n})))
	case 2:
		kind := g.oneOf("set", "add", "mul", "min", "max")
		if v.Type.DType == dtype.Bool {
			kind = "set"
		}
		g.add(g.tame(g.op("scatter", []*ir.Value{v, g.of(ir.T(dtype.I32, k)), g.of(ir.T(v.Type.DType, k, n))}, ir.A("update_window_dims", []int64{1}),
			ir.A("inserted_window_dims", []int64{0}), ir.A("scatter_dims_to_operand_dims", []int64{0}), ir.A("index_vector_dim", 1),
			ir.A("kind", kind), ir.A("mode", g.oneOf("drop", "clamp")))))
	default:
		g.add(g.op("histogram", []*ir.Value{g.of(ir.T(dtype.I32, m, n))}, ir.A("bins", 1+g.r.IntN(12))))
	}
}

func (g *grower) sorted() {
	v := g.pick(ranked(1, 3, isNumber))
	axis := g.r.IntN(v.Type.Rank())
	switch g.r.IntN(4) {
	case 0:
		g.add(g.op("argsort", []*ir.Value{v}, ir.A("axis", axis), ir.A("descending", g.chance(50))))
	case 1:
		n := v.Type.Shape[v.Type.Rank()-1]
		if n == 0 {
			giveUp()
		}
		g.add(g.b.Multi("top_k", []*ir.Value{v}, nil, ir.A("k", 1+g.r.Int64N(n))).Results...)
	case 2:
		w := g.pick(func(w *ir.Value) bool { return slices.Equal(w.Type.Shape, v.Type.Shape) && isNumber(w) })
		g.add(g.b.Multi("sort", []*ir.Value{v, w}, nil, ir.A("axis", axis), ir.A("descending", g.chance(50))).Results...)
	default:
		g.add(g.b.Multi("sort", []*ir.Value{v}, nil, ir.A("axis", axis)).Results...)
	}
}

func (g *grower) scanned() {
	v := g.pick(ranked(1, 3, isNumber))
	axis := ir.A("axis", g.r.IntN(v.Type.Rank()))
	reverse := ir.A("reverse", g.chance(40))
	switch {
	case isFloat(v) && g.chance(25):
		g.add(g.tame(g.op("linear_scan", []*ir.Value{v, g.of(v.Type)}, axis, reverse)))
	case g.chance(50):
		g.add(g.tame(g.op(g.oneOf("cumsum", "cumprod"), []*ir.Value{v}, axis, reverse, ir.A("exclusive", g.chance(40)))))
	case !g.grad && g.chance(30):
		g.add(g.op("cumarg", []*ir.Value{v}, axis, reverse, ir.A("kind", g.oneOf("max", "min"))))
	default:
		g.add(g.op(g.oneOf("cummax", "cummin"), []*ir.Value{v}, axis, reverse))
	}
}

func (g *grower) random() {
	if g.key == nil {
		giveUp()
	}
	key := g.key
	if g.chance(15) {
		key = g.op(g.oneOf("key_micro", "key_fold"), []*ir.Value{key, g.index(g.r.Int64N(5))})
	}
	switch g.r.IntN(6) {
	case 0:
		g.add(g.op("rng_bits", []*ir.Value{key}, g.nextRNG(), ir.A("shape", g.anyShape())))
	case 1:
		g.add(g.op("bernoulli", []*ir.Value{key}, g.nextRNG(), ir.A("shape", g.anyShape()), ir.A("p", 0.3)))
	case 2:
		g.add(g.op(g.oneOf("uniform", "normal"), []*ir.Value{key}, g.nextRNG(), ir.A("shape", g.anyShape()), ir.A("dtype", g.float())))
	default:
		v := g.pick(isFloat)
		g.add(g.op("dropout", []*ir.Value{v, key}, g.nextRNG(), ir.A("p", []float64{0.1, 0.5, 0}[g.r.IntN(3)])))
	}
}

// window: convolutions and pools.
func (g *grower) window() {
	if g.chance(50) {
		v := g.pick(ranked(1, 4, isNumber))
		var win, strides, pad []int64
		for _, n := range v.Type.Shape {
			w := int64(1)
			if n > 1 && g.chance(60) {
				w = 2 + g.r.Int64N(2)
			}
			win, strides = append(win, min(w, max(n, 1))), append(strides, 1+g.r.Int64N(2))
			pad = append(pad, 0, 0)
			if w > 1 && g.chance(40) {
				pad[len(pad)-1-g.r.IntN(2)] = 1
			}
		}
		attrs := []ir.Attr{ir.A("window", win), ir.A("strides", strides), ir.A("padding", pad)}
		switch {
		case isFloat(v) && g.chance(40):
			g.add(g.op("avg_pool", []*ir.Value{v}, append(attrs, ir.A("count_padding", g.chance(50)))...))
		case g.chance(60):
			g.add(g.op("max_pool", []*ir.Value{v}, attrs...))
		default:
			g.add(g.op("reduce_window", []*ir.Value{v}, append(attrs, ir.A("kind", g.oneOf("sum", "max", "min")))...))
		}
		return
	}
	d := []dtype.Type{dtype.F32, dtype.F32, dtype.F32, dtype.BF16, dtype.F64}[g.r.IntN(5)]
	groups := int64(1)
	if g.chance(25) {
		groups = 2
	}
	b, c, o := 1+g.r.Int64N(3), groups*(1+g.r.Int64N(4)), groups*(1+g.r.Int64N(5))
	spatial := 1 + g.r.IntN(2)
	xs, ws := []int64{b, c}, []int64{o, c / groups}
	var strides, pad, dil []int64
	for range spatial {
		xs, ws = append(xs, 3+g.r.Int64N(8)), append(ws, 1+g.r.Int64N(3))
		strides, dil = append(strides, 1+g.r.Int64N(2)), append(dil, 1)
		pad = append(pad, g.r.Int64N(2), g.r.Int64N(2))
	}
	x, w := g.of(ir.T(d, xs...)), g.of(ir.T(d, ws...))
	y := g.op("conv", []*ir.Value{x, w}, ir.A("strides", strides), ir.A("padding", pad), ir.A("rhs_dilation", dil), ir.A("feature_groups", groups))
	if g.chance(50) {
		y = g.op(g.oneOf("relu", "tanh", "neg"), []*ir.Value{y})
	}
	g.add(g.tame(y))
}

func (g *grower) attended() {
	b, hk, d := 1+g.r.Int64N(2), 1+g.r.Int64N(2), []int64{1, 2, 4, 8, 16, 17}[g.r.IntN(6)]
	h := hk * (1 + g.r.Int64N(2))
	tk := []int64{1, 3, 7, 16, 65, 70}[g.r.IntN(6)]
	tq := tk
	if g.chance(30) {
		tq = 1 + g.r.Int64N(tk)
	}
	if b*h*tq*tk*d > 4*g.work {
		giveUp()
	}
	t := []dtype.Type{dtype.F32, dtype.F32, dtype.BF16, dtype.F16}[g.r.IntN(4)]
	q, k, v := g.of(ir.T(t, b, tq, h, d)), g.of(ir.T(t, b, tk, hk, d)), g.of(ir.T(t, b, tk, hk, d))
	args := []*ir.Value{q, k, v}
	attrs := []ir.Attr{ir.A("causal", g.chance(50))}
	if g.key != nil && g.chance(40) {
		args, attrs = append(args, g.key), append(attrs, ir.A("p", 0.2), g.nextRNG())
	}
	out := g.b.Multi("attention", args, nil, attrs...)
	g.add(out.Results[0])
	if g.chance(30) && !g.grad {
		g.add(out.Results[1])
	}
}

func (g *grower) barrier() {
	v := g.pick(notKey)
	switch g.r.IntN(3) {
	case 0:
		g.add(g.op("copy", []*ir.Value{v}))
	case 1:
		g.add(g.op("stop_gradient", []*ir.Value{v}))
	default:
		g.add(g.b.Multi("optimization_barrier", []*ir.Value{v, g.pick(notKey)}, nil).Results...)
	}
}

func (g *grower) grouped() {
	x := g.pick(ranked(2, 2, isFloat))
	t, e, n := x.Type, 1+g.r.Int64N(4), 1+g.r.Int64N(9)
	counts := g.op("abs", []*ir.Value{g.of(ir.T(dtype.I32, e))})
	counts = g.op("clamp", []*ir.Value{ops.Full(g.b, counts.Type, 0), counts, ops.Full(g.b, counts.Type, float64(t.Shape[0]/e))})
	if g.chance(50) {
		g.add(g.tame(g.op("grouped_contract", []*ir.Value{x, g.of(ir.T(t.DType, e, t.Shape[1], n)), counts})))
		return
	}
	g.add(g.tame(g.op("grouped_outer", []*ir.Value{x, g.of(ir.T(t.DType, t.Shape[0], n)), counts})))
}

// routed takes rows by a comparison of floats: a decision that no row of the table names.
func (g *grower) routed() {
	x, v := g.pick(isFloat), g.pick(ranked(1, 4, notKey))
	n := v.Type.Shape[0]
	if x.Type.Len() == 0 || n == 0 || v.Type.Len()/n*x.Type.Len() > 2*g.limit {
		giveUp()
	}
	m := g.op("compare", []*ir.Value{x, ops.Full(g.b, x.Type, 0)}, ir.A("dir", g.oneOf("gt", "le")))
	g.add(g.op("take", []*ir.Value{v, g.op("convert", []*ir.Value{m}, ir.A("to", dtype.I32))}, ir.A("axis", 0)))
}

// collective is one of a single participant.
func (g *grower) collective() {
	v := g.pick(ranked(1, 4, isFloat))
	switch g.r.IntN(3) {
	case 0:
		g.add(g.op("all_reduce", []*ir.Value{v}))
	case 1:
		g.add(g.op("all_gather", []*ir.Value{v}, ir.A("axis", 0)))
	default:
		g.add(g.op("collective_permute", []*ir.Value{v}, ir.A("pairs", []int64{0, 0})))
	}
}

func (g *grower) optimizer() {
	p := g.pick(func(v *ir.Value) bool { return v.Type.DType == dtype.F32 })
	lr := g.number(dtype.F32, 0.1)
	same := func() *ir.Value { return g.of(p.Type) }
	switch g.r.IntN(4) {
	case 0:
		t := g.op("constant", nil, ir.A("value", tensor.Of([]int64{3})))
		g.add(g.b.Multi("adamw", []*ir.Value{p, same(), same(), g.op("abs", []*ir.Value{same()}), lr, t}, nil, ir.A("wd", 0.1)).Results...)
	case 1:
		g.add(g.b.Multi("sgd_momentum", []*ir.Value{p, same(), same(), lr}, nil, ir.A("nesterov", g.chance(50))).Results...)
	case 2:
		g.add(g.b.Multi("lion", []*ir.Value{p, same(), same(), lr}, nil).Results...)
	default:
		g.add(g.op("sgd", []*ir.Value{p, same(), lr}))
	}
}

// control: while, if, case, call.
func (g *grower) control() {
	if g.called != nil && g.key != nil && g.chance(30) {
		args := []*ir.Value{g.key}
		for _, p := range g.called.Body.Params[1:] {
			args = append(args, g.of(p.Type))
		}
		g.add(g.b.Multi("call", args, nil, ir.A("callee", g.called.Name)).Results...)
		return
	}
	if g.depth > 1 {
		giveUp()
	}
	args := []*ir.Value{}
	for range 1 + g.r.IntN(3) {
		args = append(args, g.pick(func(v *ir.Value) bool { return notKey(v) && (!g.grad || isFloat(v)) }))
	}
	steps := 1 + g.r.IntN(5)
	same := func(in *grower, p []*ir.Value) []*ir.Value {
		var out []*ir.Value
		for i, v := range p {
			switch {
			case v.Type.DType == dtype.Key || in.chance(20):
				out = append(out, v)
			case in.chance(15):
				out = append(out, in.likeOf(p, i))
			default:
				w := in.of(v.Type)
				if isNumber(w) && in.chance(60) {
					w = in.op("add", []*ir.Value{w, v})
				}
				out = append(out, in.tame(w))
			}
		}
		return out
	}
	switch g.r.IntN(3) {
	case 0:
		if g.key != nil && g.chance(40) && !g.grad {
			args = append(args, g.key)
		}
		n := g.r.Int64N(4)
		limit := func(b *ir.Builder) *ir.Value {
			return b.Op("constant", nil, ir.A("value", tensor.Of([]int64{n})))
		}
		zero := g.op("constant", nil, ir.A("value", tensor.Of([]int64{0})))
		args = append([]*ir.Value{zero}, args...)
		cond := g.region(args, 0, func(in *grower, p []*ir.Value) []*ir.Value {
			return []*ir.Value{in.op("compare", []*ir.Value{p[0], limit(in.b)}, ir.A("dir", "lt"))}
		})
		body := g.region(args, steps, func(in *grower, p []*ir.Value) []*ir.Value {
			one := in.op("constant", nil, ir.A("value", tensor.Of([]int64{1})))
			return append([]*ir.Value{in.op("add", []*ir.Value{p[0], one})}, same(in, p[1:])...)
		})
		for _, v := range g.b.Multi("while", args, []*ir.Block{cond, body}).Results[1:] {
			if notKey(v) {
				g.add(v)
			}
		}
	case 1:
		pred := g.op("compare", []*ir.Value{g.of(ir.T(dtype.F32)), g.of(ir.T(dtype.F32))}, ir.A("dir", "lt"))
		rs := []*ir.Block{g.region(args, steps, same), g.region(args, steps, same)}
		g.add(g.b.Multi("if", append([]*ir.Value{pred}, args...), rs).Results...)
	default:
		var rs []*ir.Block
		for range 1 + g.r.IntN(3) {
			rs = append(rs, g.region(args, steps, same))
		}
		g.add(g.b.Multi("case", append([]*ir.Value{g.of(ir.T(dtype.I32))}, args...), rs).Results...)
	}
}

// likeOf is another parameter of the type of p[i], so that carried values trade places.
func (g *grower) likeOf(p []*ir.Value, i int) *ir.Value {
	for j, v := range p {
		if j != i && v.Type.Equal(p[i].Type) {
			return v
		}
	}
	return p[i]
}

// long reduces more elements than one chunk of a reduction holds.
func (g *grower) long() {
	shape := [][]int64{{70001}, {3, 2100}, {2100, 3}, {1030, 66}, {66, 1030}, {2, 66000}, {17, 1100}, {40000, 2}}[g.r.IntN(8)]
	v := g.op("iota", nil, ir.A("shape", shape), ir.A("dtype", dtype.F32), ir.A("dim", g.r.IntN(len(shape))))
	v = g.op("sin", []*ir.Value{v})
	if g.key != nil && g.chance(50) {
		v = g.op("uniform", []*ir.Value{g.key}, g.nextRNG(), ir.A("shape", shape))
	}
	if g.chance(30) {
		v = g.op("convert", []*ir.Value{v}, ir.A("to", g.float()))
	}
	axes := []int64{g.r.Int64N(int64(len(shape)))}
	if g.chance(30) {
		axes = all(v)
	}
	x := g.op("reduce", []*ir.Value{v}, ir.A("kind", g.oneOf("sum", "max", "prod")), ir.A("axes", axes))
	if x.Type.Len() > 4*g.limit {
		giveUp()
	}
	g.pool = append(g.pool, x)
	if len(axes) < len(shape) && v.Type.Len() < 20000 {
		w := g.op("broadcast", []*ir.Value{x}, ir.A("dims", []int64{1 - axes[0]}), ir.A("shape", shape))
		y := g.op("sub", []*ir.Value{v, w})
		g.pool = append(g.pool, g.op("reduce", []*ir.Value{y}, ir.A("kind", "sum"), ir.A("axes", axes)))
	}
}
