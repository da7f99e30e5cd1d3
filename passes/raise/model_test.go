package raise_test

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/ops"
	"reprise/ir/tensor"
	"reprise/passes/raise"
)

func TestCrossEntropy(t *testing.T) {
	const N, C = 6, 5
	params := []ir.Type{ir.T(dtype.F32, 2, 3, C), ir.T(dtype.I32, 2, 3)}
	hot := func(b g, l V) V { return b.Op("one_hot", []V{l}, ir.A("depth", C)) }
	isLabel := func(b g, x, l V) V {
		return b.compare("eq", b.un("broadcast", l, ir.A("shape", x.Type.Shape), ir.A("dims", []int64{0, 1})), b.iota(2, x.Type.Shape...))
	}
	logp := func(b g, x V) V {
		d := b.sub(x, b.back(b.reduce("max", x, 2), x, 2))
		return b.sub(d, b.back(b.un("log", b.reduce("sum", b.exp(d), 2)), x, 2))
	}
	take := func(b g, x, l V) V {
		return b.reshape(b.Op("take_along", []V{x, b.reshape(l, 2, 3, 1)}, ir.A("axis", 2)), 2, 3)
	}
	onehot := func(b g, x, l V) V { return b.reduce("sum", b.mul(hot(b, l), x), 2) }
	var cases []pat
	is := func(name string, f func(b g, x, l V) V) {
		cases = append(cases, pat{name, params, func(b g, x []V) []V { return []V{f(b, x[0], x[1])} }, "cross_entropy", "", false, false})
	}
	not := func(name string, f func(b g, x, l V) V) {
		cases = append(cases, pat{name: name, params: params, body: func(b g, x []V) []V { return []V{f(b, x[0], x[1])} }})
	}
	is("one-hot", func(b g, x, l V) V { return b.neg(onehot(b, logp(b, x), l)) })
	is("one-hot by comparison", func(b g, x, l V) V {
		return b.neg(b.reduce("sum", b.mul(logp(b, x), b.convert(isLabel(b, x, l), dtype.F32)), 2))
	})
	is("select", func(b g, x, l V) V {
		p := logp(b, x)
		return b.neg(b.reduce("sum", b.where(isLabel(b, x, l), p, b.like(p, 0)), 2))
	})
	is("take_along", func(b g, x, l V) V { return b.neg(take(b, logp(b, x), l)) })
	is("gather", func(b g, x, l V) V {
		return b.neg(b.Op("gather", []V{logp(b, x), l}, ir.A("slice_sizes", []int64{1, 1, 1}), ir.A("collapsed_slice_dims", []int64{2}),
			ir.A("operand_batching_dims", []int64{0, 1}), ir.A("start_indices_batching_dims", []int64{0, 1}), ir.A("start_index_map", []int64{2}), ir.A("index_vector_dim", 2)))
	})
	is("positive", func(b g, x, l V) V { return take(b, logp(b, x), l) })
	is("mean, then the sign", func(b g, x, l V) V {
		return b.neg(b.over(b.reduce("sum", take(b, logp(b, x), l), 0, 1), N))
	})
	is("mean with the sign", func(b g, x, l V) V {
		return b.times(b.reduce("sum", b.reshape(onehot(b, logp(b, x), l), N), 0), -1.0/N)
	})
	is("logsumexp", func(b g, x, l V) V {
		mx := b.reduce("max", x, 2)
		e := b.exp(b.sub(x, b.back(mx, x, 2)))
		return b.sub(b.add(mx, b.un("log", b.reduce("sum", e, 2))), take(b, x, l))
	})
	is("shifted logits", func(b g, x, l V) V {
		u := b.sub(x, b.back(b.un("stop_gradient", b.reduce("max", x, 2)), x, 2))
		return b.sub(b.un("log", b.reduce("sum", b.exp(u), 2)), onehot(b, u, l))
	})
	is("log of softmax", func(b g, x, l V) V {
		e := b.exp(b.sub(x, b.back(b.reduce("max", x, 2), x, 2)))
		return b.neg(onehot(b, b.un("log", b.div(e, b.back(b.reduce("sum", e, 2), x, 2))), l))
	})
	not("logsumexp of something else", func(b g, x, l V) V {
		return b.sub(b.un("log", b.reduce("sum", b.exp(b.un("sin", x)), 2)), take(b, x, l))
	})
	not("sum of all classes", func(b g, x, l V) V {
		return b.sub(b.un("log", b.reduce("sum", b.exp(x), 2)), b.reduce("sum", x, 2))
	})
	run(t, cases)

	// Of log_softmax itself only: a pick of something else, or soft targets, stay.
	check(t, pat{"soft targets", []ir.Type{params[0], params[0]}, func(b g, x []V) []V {
		return []V{b.neg(b.reduce("sum", b.mul(logp(b, x[0]), x[1]), 2))}
	}, "log_softmax", "", false, false})

	// Labels that are no class have no loss in a one-hot sum, and keep having none.
	for _, l := range []ir.Type{ir.T(dtype.I32, 2, 3), ir.T(dtype.I8, 2, 3), ir.T(dtype.I64, 2, 3)} {
		m := check(t, pat{"none of the classes", []ir.Type{params[0], l}, func(b g, x []V) []V {
			c := b.convert(b.Op("constant", nil, ir.A("value", tensor.Of([]int32{-1, 0, 4, 5, -100, 1}, 2, 3))), l.DType)
			return []V{b.neg(onehot(b, logp(b, x[0]), b.add(x[1], c)))}
		}, "cross_entropy", "", false, false})
		require.Contains(t, names(m), "select")
	}

	// Rows that don't count, with labels replaced for them or not.
	for _, replaced := range []bool{false, true} {
		m := check(t, pat{"ignore", params, func(b g, x []V) []V {
			l := b.sub(x[1], b.Op("constant", nil, ir.A("value", tensor.Of([]int32{1, 1, 1, 1, 1, 1}, 2, 3))))
			counts := b.compare("ne", l, b.like(l, -1))
			safe := l
			if replaced {
				safe = b.where(counts, l, b.like(l, 0))
			}
			loss := b.neg(take(b, logp(b, x[0]), safe))
			return []V{b.where(counts, loss, b.like(loss, 0))}
		}, "cross_entropy", "ignore_index=-1", false, true})
		require.NotContains(t, names(m), "select")
	}
}

func TestRope(t *testing.T) {
	const B, T, H, D = 2, 3, 2, 8
	angles := func() (cos, sin *tensor.Tensor) {
		cos, sin = tensor.New(dtype.F32, T, D/2), tensor.New(dtype.F32, T, D/2)
		for i := range cos.F32() {
			a := float64(i/(D/2)) * math.Pow(100, -float64(i%(D/2))/(D/2))
			cos.F32()[i], sin.F32()[i] = float32(math.Cos(a)), float32(math.Sin(a))
		}
		return cos, sin
	}
	twice := func(x *tensor.Tensor) *tensor.Tensor {
		out := tensor.New(dtype.F32, T, D)
		for i := range out.F32() {
			out.F32()[i] = x.F32()[i/D*(D/2)+i%(D/2)]
		}
		return out
	}
	constant := func(b g, x *tensor.Tensor) V { return b.Op("constant", nil, ir.A("value", x)) }
	bthd, bhtd := []int64{B, T, H, D}, []int64{B, H, T, D}
	at := func(b g, c V, shape []int64, time int64) V {
		return b.un("broadcast", c, ir.A("shape", shape), ir.A("dims", []int64{time, 3}))
	}
	rotateHalf := func(b g, x V) V {
		return b.concat(3, b.neg(b.slice(x, 3, D/2, D, 1)), b.slice(x, 3, 0, D/2, 1))
	}
	whole := func(b g, x, cos, sin V, time int64) V {
		return b.add(b.mul(x, at(b, cos, x.Type.Shape, time)), b.mul(rotateHalf(b, x), at(b, sin, x.Type.Shape, time)))
	}
	cos, sin := angles()
	var cases []pat
	is := func(name string, shape []int64, attrs string, f func(b g, x V) V) {
		cases = append(cases, pat{name, []ir.Type{ir.T(dtype.F32, shape...)}, one(f), "rope", attrs, true, false})
	}
	not := func(name string, shape []int64, f func(b g, x V) V) {
		cases = append(cases, pat{name: name, params: []ir.Type{ir.T(dtype.F32, shape...)}, body: one(f)})
	}
	is("constant tables", bthd, "", func(b g, x V) V { return whole(b, x, constant(b, twice(cos)), constant(b, twice(sin)), 1) })
	is("heads before time", bhtd, "", func(b g, x V) V { return whole(b, x, constant(b, twice(cos)), constant(b, twice(sin)), 2) })
	cases = append(cases, pat{"computed tables", []ir.Type{ir.T(dtype.F32, bthd...), ir.T(dtype.F32, T, D/2)}, func(b g, x []V) []V {
		f := b.concat(1, x[1], x[1])
		return []V{whole(b, x[0], b.un("cos", f), b.un("sin", f), 1)}
	}, "rope", "", false, false})
	part := func(b g, x V, i int64) V { return b.slice(x, 3, i*D/2, (i+1)*D/2, 1) }
	parts := func(b g, x, x1, x2 V, time int64) (V, V) {
		c, s := at(b, constant(b, cos), x1.Type.Shape, time), at(b, constant(b, sin), x1.Type.Shape, time)
		return b.sub(b.mul(x1, c), b.mul(s, x2)), b.add(b.mul(x1, s), b.mul(x2, c))
	}
	is("rotated parts", bthd, "", func(b g, x V) V {
		y1, y2 := parts(b, x, part(b, x, 0), part(b, x, 1), 1)
		return b.concat(3, y1, y2)
	})
	stack := func(b g, y1, y2 V) V {
		s := append([]int64{}, y1.Type.Shape...)
		y := b.concat(4, b.reshape(y1, append(s, 1)...), b.reshape(y2, append(s, 1)...))
		return b.reshape(y, s[0], s[1], s[2], D)
	}
	is("interleaved", bthd, `style="interleaved"`, func(b g, x V) V {
		y1, y2 := parts(b, x, b.slice(x, 3, 0, D, 2), b.slice(x, 3, 1, D, 2), 1)
		return stack(b, y1, y2)
	})
	is("interleaved pairs, heads before time", bhtd, `style="interleaved"`, func(b g, x V) V {
		p := b.reshape(x, B, H, T, D/2, 2)
		pick := func(i int64) V { return b.reshape(b.slice(p, 4, i, i+1, 1), B, H, T, D/2) }
		y1, y2 := parts(b, x, pick(0), pick(1), 2)
		return stack(b, y1, y2)
	})
	not("halves of the table differ", bthd, func(b g, x V) V {
		c := twice(cos)
		c.F32()[D-1]++
		return whole(b, x, constant(b, c), constant(b, twice(sin)), 1)
	})
	not("no sign", bthd, func(b g, x V) V {
		rot := b.concat(3, b.slice(x, 3, D/2, D, 1), b.slice(x, 3, 0, D/2, 1))
		return b.add(b.mul(x, at(b, constant(b, twice(cos)), bthd, 1)), b.mul(rot, at(b, constant(b, twice(sin)), bthd, 1)))
	})
	not("the other rotation", bthd, func(b g, x V) V {
		y1, y2 := parts(b, x, part(b, x, 1), part(b, x, 0), 1)
		return b.concat(3, y1, y2)
	})
	run(t, cases)
}

// heads are sizes of an attention; a zero KV means as many as H.
type heads struct{ B, Tq, Tk, H, KV, D int64 }

func (h heads) kv() int64 {
	if h.KV == 0 {
		return h.H
	}
	return h.KV
}

func (h heads) bthd() []ir.Type {
	kv := ir.T(dtype.F32, h.B, h.Tk, h.kv(), h.D)
	return []ir.Type{ir.T(dtype.F32, h.B, h.Tq, h.H, h.D), kv, kv, ir.T(dtype.Key)}
}

func (h heads) bhtd() []ir.Type {
	kv := ir.T(dtype.F32, h.B, h.kv(), h.Tk, h.D)
	return []ir.Type{ir.T(dtype.F32, h.B, h.H, h.Tq, h.D), kv, kv, ir.T(dtype.Key)}
}

// causal is the predicate on scores [..., Tq, Tk].
func causal(b g, s V) V {
	r := int64(s.Type.Rank())
	q, k := s.Type.Shape[r-2], s.Type.Shape[r-1]
	return b.compare("ge", b.plus(b.iota(r-2, s.Type.Shape...), float64(k-q)), b.iota(r-1, s.Type.Shape...))
}

func softmax(b g, s V) V {
	last := int64(s.Type.Rank() - 1)
	e := b.exp(b.sub(s, b.back(b.reduce("max", s, last), s, last)))
	return b.div(e, b.back(b.reduce("sum", e, last), s, last))
}

func TestAttention(t *testing.T) {
	h := heads{B: 2, Tq: 5, Tk: 5, H: 3, D: 4}
	scale := 1 / math.Sqrt(float64(h.D))
	scores := func(b g, q, k V) V { // of bthd: [B,H,Tq,Tk]
		return b.contract(q, k, []int64{0, 2}, []int64{0, 2}, []int64{3}, []int64{3})
	}
	weigh := func(b g, p, v V) V { // [B,H,Tq,D] to [B,Tq,H,D]
		return b.transpose(b.contract(p, v, []int64{0, 1}, []int64{0, 2}, []int64{3}, []int64{1}), 0, 2, 1, 3)
	}
	var cases []pat
	is := func(name string, h heads, attrs string, f func(b g, q, k, v, key V) V) {
		cases = append(cases, pat{name, h.bthd(), func(b g, x []V) []V { return []V{f(b, x[0], x[1], x[2], x[3])} }, "attention", attrs, true, false})
	}
	not := func(name string, h heads, f func(b g, q, k, v, key V) []V) {
		cases = append(cases, pat{name: name, params: h.bthd(), body: func(b g, x []V) []V { return f(b, x[0], x[1], x[2], x[3]) }, op: "softmax"})
	}
	hide := func(b g, s V, by float64) V { return b.where(causal(b, s), s, b.like(s, by)) }
	is("plain", h, "scale=0.5", func(b g, q, k, v, key V) V {
		return weigh(b, softmax(b, b.times(scores(b, q, k), scale)), v)
	})
	is("other sizes", heads{B: 1, Tq: 3, Tk: 7, H: 2, D: 4}, "scale=0.25", func(b g, q, k, v, key V) V {
		return weigh(b, softmax(b, b.over(scores(b, q, k), 4)), v)
	})
	is("no scale", h, "scale=1", func(b g, q, k, v, key V) V { return weigh(b, softmax(b, scores(b, q, k)), v) })
	is("query scaled", h, "scale=0.5", func(b g, q, k, v, key V) V {
		return weigh(b, softmax(b, scores(b, b.times(q, scale), k)), v)
	})
	is("both scaled", h, "scale=0.5", func(b g, q, k, v, key V) V {
		r := math.Sqrt(scale)
		return weigh(b, softmax(b, scores(b, b.times(q, r), b.times(k, r))), v)
	})
	for name, by := range map[string]float64{"-inf": math.Inf(-1), "-1e9": -1e9, "least": -math.MaxFloat32, "-1e4": -1e4} {
		is("causal/"+name, h, "causal=true", func(b g, q, k, v, key V) V {
			return weigh(b, softmax(b, hide(b, b.times(scores(b, q, k), scale), by)), v)
		})
	}
	is("causal/more keys", heads{B: 1, Tq: 3, Tk: 7, H: 2, D: 4}, "causal=true", func(b g, q, k, v, key V) V {
		return weigh(b, softmax(b, hide(b, b.times(scores(b, q, k), scale), math.Inf(-1))), v)
	})
	is("causal/then scaled", h, "causal=true", func(b g, q, k, v, key V) V {
		return weigh(b, softmax(b, b.times(hide(b, scores(b, q, k), -1e9), scale)), v)
	})
	is("causal/inverted", h, "causal=true", func(b g, q, k, v, key V) V {
		s := b.times(scores(b, q, k), scale)
		p := b.compare("gt", b.iota(3, s.Type.Shape...), b.iota(2, s.Type.Shape...))
		return weigh(b, softmax(b, b.where(p, b.like(s, -1e9), s)), v)
	})
	is("causal/not", h, "causal=true", func(b g, q, k, v, key V) V {
		s := b.times(scores(b, q, k), scale)
		return weigh(b, softmax(b, b.where(b.un("not", causal(b, s)), b.like(s, -1e9), s)), v)
	})
	small := func(b g) V { return b.compare("le", b.iota(1, 5, 5), b.iota(0, 5, 5)) }
	is("causal/small mask, broadcast", h, "causal=true", func(b g, q, k, v, key V) V {
		s := b.times(scores(b, q, k), scale)
		return weigh(b, softmax(b, b.where(b.spread(b.reshape(small(b), 1, 1, 5, 5), s.Type.Shape), s, b.like(s, -1e30))), v)
	})
	tril := tensor.New(dtype.F32, 5, 5)
	for i := range tril.F32() {
		if i%5 <= i/5 {
			tril.F32()[i] = 1
		}
	}
	is("causal/table", h, "causal=true", func(b g, q, k, v, key V) V {
		s := b.times(scores(b, q, k), scale)
		c := b.Op("constant", nil, ir.A("value", tril))
		on := b.compare("ne", c, b.like(c, 0))
		return weigh(b, softmax(b, b.where(b.spread(on, s.Type.Shape), s, b.like(s, -1e30))), v)
	})
	is("causal/added table", h, "causal=true", func(b g, q, k, v, key V) V {
		s := b.times(scores(b, q, k), scale)
		c := b.Op("constant", nil, ir.A("value", tril))
		return weigh(b, softmax(b, b.add(b.spread(b.times(b.sub(b.like(c, 1), c), -1e9), s.Type.Shape), s)), v)
	})
	is("causal/added select", h, "causal=true", func(b g, q, k, v, key V) V {
		s := b.times(scores(b, q, k), scale)
		zero := b.like(b.reduce("sum", s, 0, 1), 0)
		bias := b.where(small(b), zero, b.like(zero, math.Inf(-1)))
		return weigh(b, softmax(b, b.add(s, b.spread(bias, s.Type.Shape))), v)
	})
	is("dropout", h, "p=0.3", func(b g, q, k, v, key V) V {
		p := softmax(b, hide(b, b.times(scores(b, q, k), scale), math.Inf(-1)))
		return weigh(b, b.Op("dropout", []V{p, key}, ir.A("p", 0.3), ir.A("rng", 7)), v)
	})
	is("values first", h, "", func(b g, q, k, v, key V) V {
		p := softmax(b, b.times(scores(b, q, k), scale))
		y := b.contract(v, p, []int64{0, 2}, []int64{0, 1}, []int64{1}, []int64{3}) // [B,H,D,Tq]
		return b.transpose(y, 0, 3, 1, 2)
	})
	is("keys first", h, "causal=true", func(b g, q, k, v, key V) V {
		s := b.contract(k, q, []int64{0, 2}, []int64{0, 2}, []int64{3}, []int64{3}) // [B,H,Tk,Tq]
		s = b.transpose(b.times(s, scale), 0, 1, 3, 2)
		return weigh(b, softmax(b, hide(b, s, math.Inf(-1))), v)
	})
	is("transposed to heads first", h, "", func(b g, q, k, v, key V) V {
		front := func(x V) V { return b.transpose(x, 0, 2, 1, 3) }
		s := b.contract(front(q), front(k), []int64{0, 1}, []int64{0, 1}, []int64{3}, []int64{3})
		p := softmax(b, b.times(s, scale))
		return front(b.contract(p, front(v), []int64{0, 1}, []int64{0, 1}, []int64{3}, []int64{2}))
	})
	// Grouped heads.
	grouped := heads{B: 2, Tq: 5, Tk: 5, H: 6, KV: 2, D: 4}
	repeated := func(b g, x V) V { // [B,T,KV,D] to [B,T,H,D]
		s := x.Type.Shape
		y := b.un("broadcast", x, ir.A("shape", []int64{s[0], s[1], s[2], 3, s[3]}), ir.A("dims", []int64{0, 1, 2, 4}))
		return b.reshape(y, s[0], s[1], 6, s[3])
	}
	is("grouped/repeated", grouped, "causal=true", func(b g, q, k, v, key V) V {
		s := hide(b, b.times(scores(b, q, repeated(b, k)), scale), math.Inf(-1))
		return weigh(b, softmax(b, s), repeated(b, v))
	})
	is("grouped/expanded", grouped, "", func(b g, q, k, v, key V) V {
		rep := func(x V) V {
			s := x.Type.Shape
			y := b.un("broadcast", b.reshape(x, s[0], s[1], s[2], 1, s[3]), ir.A("shape", []int64{s[0], s[1], s[2], 3, s[3]}), ir.A("dims", []int64{0, 1, 2, 3, 4}))
			return b.reshape(y, s[0], s[1], 6, s[3])
		}
		return weigh(b, softmax(b, b.times(scores(b, q, rep(k)), scale)), rep(v))
	})
	is("grouped/five dimensions", grouped, "causal=true", func(b g, q, k, v, key V) V {
		q5 := b.reshape(q, 2, 5, 2, 3, 4)
		s := b.contract(q5, k, []int64{0, 2}, []int64{0, 2}, []int64{4}, []int64{3}) // [B,KV,Tq,G,Tk]
		s = b.transpose(b.times(s, scale), 0, 1, 3, 2, 4)
		p := softmax(b, hide(b, s, math.Inf(-1)))
		p = b.Op("dropout", []V{p, key}, ir.A("p", 0.3), ir.A("rng", 7))
		y := b.contract(p, v, []int64{0, 1}, []int64{0, 2}, []int64{4}, []int64{1}) // [B,KV,G,Tq,D]
		return b.reshape(b.transpose(y, 0, 3, 1, 2, 4), 2, 5, 6, 4)
	})
	shared := ir.T(dtype.F32, 2, 5, 4)
	cases = append(cases, pat{"one key head", []ir.Type{ir.T(dtype.F32, 2, 5, 3, 4), shared, shared, ir.T(dtype.Key)}, func(b g, x []V) []V {
		s := b.contract(x[0], x[1], []int64{0}, []int64{0}, []int64{3}, []int64{2}) // [B,Tq,H,Tk]
		s = hide(b, b.transpose(b.times(s, scale), 0, 2, 1, 3), math.Inf(-1))
		p := b.Op("dropout", []V{softmax(b, s), x[3]}, ir.A("p", 0.3), ir.A("rng", 7))
		return []V{b.transpose(b.contract(p, x[2], []int64{0}, []int64{0}, []int64{3}, []int64{1}), 0, 2, 1, 3)}
	}, "attention", "causal=true", true, false})
	cases = append(cases, pat{"no mask, queries and heads not told apart", []ir.Type{ir.T(dtype.F32, 2, 5, 3, 4), shared, shared}, func(b g, x []V) []V {
		s := b.contract(x[0], x[1], []int64{0}, []int64{0}, []int64{3}, []int64{2})
		return []V{b.contract(softmax(b, b.times(s, scale)), x[2], []int64{0}, []int64{0}, []int64{3}, []int64{1})}
	}, "attention", "", true, false})
	// Heads first in memory; one batch dimension for batch and heads; one head.
	cases = append(cases, pat{"heads first", h.bhtd(), func(b g, x []V) []V {
		s := b.contract(x[0], x[1], []int64{0, 1}, []int64{0, 1}, []int64{3}, []int64{3})
		return []V{b.contract(softmax(b, hide(b, b.times(s, scale), -1e9)), x[2], []int64{0, 1}, []int64{0, 1}, []int64{3}, []int64{2})}
	}, "attention", "causal=true", true, false})
	cases = append(cases, pat{"heads first, grouped", heads{B: 2, Tq: 5, Tk: 5, H: 6, KV: 2, D: 4}.bhtd(), func(b g, x []V) []V {
		rep := func(x V) V {
			y := b.un("broadcast", x, ir.A("shape", []int64{2, 2, 3, 5, 4}), ir.A("dims", []int64{0, 1, 3, 4}))
			return b.reshape(y, 2, 6, 5, 4)
		}
		s := b.contract(x[0], rep(x[1]), []int64{0, 1}, []int64{0, 1}, []int64{3}, []int64{3})
		return []V{b.contract(softmax(b, hide(b, b.times(s, scale), -1e9)), rep(x[2]), []int64{0, 1}, []int64{0, 1}, []int64{3}, []int64{2})}
	}, "attention", "causal=true", true, false})
	three := ir.T(dtype.F32, 6, 5, 4)
	cases = append(cases, pat{"batched matrices", []ir.Type{three, three, three, ir.T(dtype.Key)}, func(b g, x []V) []V {
		s := hide(b, b.times(b.contract(x[0], x[1], []int64{0}, []int64{0}, []int64{2}, []int64{2}), scale), -1e9)
		p := b.Op("dropout", []V{softmax(b, s), x[3]}, ir.A("p", 0.3), ir.A("rng", 7))
		return []V{b.contract(p, x[2], []int64{0}, []int64{0}, []int64{2}, []int64{1})}
	}, "attention", "causal=true", true, false})
	// As torch exports it: batch and heads joined for the products, apart for the mask.
	joined := func(b g, x V) V { // [B,T,H,D] to [B·H,T,D]
		s := x.Type.Shape
		return b.reshape(b.transpose(x, 0, 2, 1, 3), s[0]*s[2], s[1], s[3])
	}
	products := func(b g, q, k, v, key V, B, H, T int64) V {
		s := b.contract(q, k, []int64{0}, []int64{0}, []int64{2}, []int64{2})
		s = hide(b, b.times(b.reshape(s, B, H, T, T), scale), math.Inf(-1))
		p := softmax(b, s)
		if key != nil {
			p = b.Op("dropout", []V{p, key}, ir.A("p", 0.3), ir.A("rng", 7))
		}
		y := b.contract(b.reshape(p, B*H, T, T), v, []int64{0}, []int64{0}, []int64{2}, []int64{1})
		return b.transpose(b.reshape(y, B, H, T, 4), 0, 2, 1, 3)
	}
	is("joined", h, "causal=true", func(b g, q, k, v, key V) V {
		return products(b, joined(b, q), joined(b, k), joined(b, v), key, 2, 3, 5)
	})
	is("joined/repeated", grouped, "causal=true", func(b g, q, k, v, key V) V {
		rep := func(x V) V { // [B,T,KV,D] to [B·H,T,D]
			y := b.transpose(x, 0, 2, 1, 3)
			y = b.un("broadcast", b.reshape(y, 2, 2, 1, 5, 4), ir.A("shape", []int64{2, 2, 3, 5, 4}), ir.A("dims", []int64{0, 1, 2, 3, 4}))
			return b.reshape(b.reshape(y, 2, 6, 5, 4), 12, 5, 4)
		}
		return products(b, joined(b, q), rep(k), rep(v), nil, 2, 6, 5)
	})
	two := ir.T(dtype.F32, 5, 4)
	cases = append(cases, pat{"one head", []ir.Type{two, two, two}, func(b g, x []V) []V {
		s := hide(b, b.times(b.contract(x[0], x[1], nil, nil, []int64{1}, []int64{1}), scale), -1e9)
		return []V{b.contract(softmax(b, s), x[2], nil, nil, []int64{1}, []int64{0})}
	}, "attention", "causal=true", true, false})

	not("probabilities read elsewhere", h, func(b g, q, k, v, key V) []V {
		p := softmax(b, b.times(scores(b, q, k), scale))
		return []V{weigh(b, p, v), p}
	})
	not("scores read elsewhere", h, func(b g, q, k, v, key V) []V {
		s := scores(b, q, k)
		return []V{weigh(b, softmax(b, b.times(s, scale)), v), s}
	})
	not("dropout counted otherwise", h, func(b g, q, k, v, key V) []V {
		p := b.transpose(softmax(b, b.times(scores(b, q, k), scale)), 1, 0, 2, 3)
		p = b.Op("dropout", []V{p, key}, ir.A("p", 0.3), ir.A("rng", 7))
		y := b.contract(p, v, []int64{1, 0}, []int64{0, 2}, []int64{3}, []int64{1})
		return []V{b.transpose(y, 0, 2, 1, 3)}
	})
	not("other mask", h, func(b g, q, k, v, key V) []V {
		s := scores(b, q, k)
		p := b.compare("gt", b.iota(2, s.Type.Shape...), b.plus(b.iota(3, s.Type.Shape...), -1))
		p = b.bin("and", p, b.compare("lt", b.iota(2, s.Type.Shape...), b.plus(b.iota(3, s.Type.Shape...), 3)))
		return []V{weigh(b, softmax(b, b.where(p, s, b.like(s, -1e9))), v)}
	})
	not("mask with an offset", heads{B: 1, Tq: 3, Tk: 7, H: 2, D: 4}, func(b g, q, k, v, key V) []V {
		s := scores(b, q, k)
		p := b.compare("ge", b.iota(2, s.Type.Shape...), b.iota(3, s.Type.Shape...))
		return []V{weigh(b, softmax(b, b.where(p, s, b.like(s, -1e9))), v)}
	})
	not("small number", h, func(b g, q, k, v, key V) []V {
		return []V{weigh(b, softmax(b, hide(b, scores(b, q, k), -100)), v)}
	})
	not("softmax over queries", h, func(b g, q, k, v, key V) []V {
		s := scores(b, q, k)
		e := b.exp(b.sub(s, b.back(b.reduce("max", s, 2), s, 2)))
		return []V{weigh(b, b.div(e, b.back(b.reduce("sum", e, 2), s, 2)), v)}
	})
	not("scaled after", h, func(b g, q, k, v, key V) []V {
		return []V{weigh(b, b.times(softmax(b, scores(b, q, k)), 0.5), v)}
	})
	not("other heads' values", heads{B: 2, Tq: 5, Tk: 5, H: 2, D: 4}, func(b g, q, k, v, key V) []V {
		p := softmax(b, scores(b, q, k)) // [B,H,Tq,Tk] with B = H
		y := b.contract(p, v, []int64{1, 0}, []int64{0, 2}, []int64{3}, []int64{1})
		return []V{b.add(y, y)}
	})
	run(t, cases[:len(cases)-1])
	// Whatever way the heads went, the op reads q, k and v as they lie.
	for _, c := range cases {
		if strings.HasPrefix(c.name, "joined") || c.name == "plain" || c.name == "transposed to heads first" || c.name == "grouped/repeated" {
			require.Equal(t, []string{"attention"}, names(check(t, c)), c.name)
		}
	}
	// The last one pairs heads with batches: it is another attention, whose v is laid out otherwise. Whatever
	// becomes of it, it means the same.
	before := program(t, cases[len(cases)-1].params, cases[len(cases)-1].body)
	after := before.Clone()
	require.NoError(t, raise.Run(after, ops.Table()))
	equal(t, before, after)
}

// Names of values that a person gave survive, and the place of the last op.
func TestNamesAndPlaces(t *testing.T) {
	m, err := ir.Parse(ops.Table(), "m.ir", `
func @step(%x: f32[2,3]) -> (y) {
  %l = logistic %x : f32[2,3] loc(act.one)
  %out = mul %x, %l : f32[2,3] loc(act.two "m.py":9)
  return %out
}`)
	require.NoError(t, err)
	require.NoError(t, raise.Run(m, ops.Table()))
	require.Contains(t, m.String(), `%out = silu %x : f32[2,3] loc(act.two "m.py":9)`)
}

// Regions are raised as function bodies are; values do not cross their borders.
func TestRegions(t *testing.T) {
	m, err := ir.Parse(ops.Table(), "m.ir", `
func @step(%p: bool[], %x: f32[2,3]) -> (y) {
  %y = if %p, %x : f32[2,3] loc(a) (%a: f32[2,3]) {
    %l = logistic %a : f32[2,3] loc(a)
    %s = mul %a, %l : f32[2,3] loc(a)
    yield %s
  } (%b: f32[2,3]) {
    %l2 = logistic %b : f32[2,3] loc(a)
    yield %l2
  }
  return %y
}`)
	require.NoError(t, err)
	require.NoError(t, raise.Run(m, ops.Table()))
	require.NoError(t, ir.Verify(m))
	require.Equal(t, 1, strings.Count(m.String(), "silu"))
	require.Equal(t, 1, strings.Count(m.String(), "logistic"))
}
