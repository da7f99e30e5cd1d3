package raise

import (
	"math"
	"slices"

	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/ops"
)

// factor of a product that is seen from the full shape; inv: it divides.
type factor struct {
	at
	inv bool
}

// factors takes a product apart, up to what stop accepts. Constants are multiplied into k.
func (m *match) factors(c at, inv bool, depth int, stop func(c at) bool, k *float64) []factor {
	if stop(c) {
		return []factor{{c, inv}}
	}
	if x, ok := splat(c.v); ok {
		if inv {
			x = 1 / x
		}
		*k *= x
		return nil
	}
	c = m.peel(c)
	if stop(c) || depth == 0 {
		return []factor{{c, inv}}
	}
	op := m.op(c.v, "mul", "div")
	if op == nil {
		return []factor{{c, inv}}
	}
	return append(m.factors(at{op.Operands[0], c.view}, inv, depth-1, stop, k),
		m.factors(at{op.Operands[1], c.view}, inv != (op.Name() == "div"), depth-1, stop, k)...)
}

// spread is a matched 1/√(variance + eps) or 1/√(mean square + eps).
type spread struct {
	x   *ir.Value // what is normalised
	d   *ir.Value // x less its mean, where the variance is made of it
	eps float64
}

// rstd matches a factor 1/√(var + eps). With mean: variance, otherwise the mean square.
func (m *match) rstd(f factor, shape []int64, mean bool) (s spread, ok bool) {
	ok = m.try(func() bool {
		c := m.peel(f.at)
		op := m.op(c.v, "rsqrt", "sqrt", "pow")
		if op == nil {
			return false
		}
		down := op.Name() == "rsqrt"
		if op.Name() == "pow" {
			k, ok := splat(op.Operands[1])
			if !ok || math.Abs(k) != 0.5 {
				return false
			}
			down = k < 0
		}
		if down == f.inv {
			return false
		}
		v := m.peel(at{op.Operands[0], c.view})
		eps := m.try(func() bool {
			return m.either(v.v, "add", func(a, b *ir.Value) bool {
				e, ok := splat(b)
				if !ok || !(e >= 0) || math.IsInf(e, 0) || e > 0.1 {
					return false
				}
				s.eps = decimal(e, b.Type.DType)
				return m.variance(at{a, v.view}, shape, mean, &s)
			})
		})
		if eps {
			return true
		}
		s.eps = 0
		return m.variance(v, shape, mean, &s)
	})
	return s, ok
}

// variance matches the mean of d², d = x - mean(x), or E[x²] - E[x]² (not below 0, or as it is); or
// the mean of x², where the mean is not taken off. The last axis only.
func (m *match) variance(c at, shape []int64, mean bool, s *spread) bool {
	last := []int64{int64(len(shape) - 1)}
	c = m.peel(c)
	return m.try(func() bool {
		w, axes := m.mean(c, shape)
		if w == nil || !slices.Equal(axes, last) {
			return false
		}
		u := m.square(w)
		if u == nil {
			return false
		}
		if !mean {
			s.x = u
			return true
		}
		s.d = u
		s.x = m.centred(u, shape)
		return s.x != nil
	}) || mean && m.try(func() bool {
		m.either(c.v, "max", func(a, b *ir.Value) bool {
			k, ok := splat(b)
			if ok && k == 0 {
				c = m.peel(at{a, c.view})
			}
			return ok && k == 0
		})
		op := m.op(c.v, "sub")
		if op == nil {
			return false
		}
		w, axes := m.mean(at{op.Operands[0], c.view}, shape)
		if w == nil || !slices.Equal(axes, last) {
			return false
		}
		x := m.square(w)
		mu := m.peel(at{op.Operands[1], c.view})
		u := m.square(mu.v)
		if x == nil || u == nil {
			return false
		}
		if y, axes := m.mean(at{u, mu.view}, shape); y == nil || !m.eq(x, y) || !slices.Equal(axes, last) {
			return false
		}
		s.x = x
		return true
	})
}

// centred matches d = x - mean(x) along the last axis: x.
func (m *match) centred(d *ir.Value, shape []int64) (x *ir.Value) {
	m.try(func() bool {
		op := m.op(d, "sub")
		if op == nil {
			return false
		}
		y, axes := m.mean(whole(op.Operands[1]), shape)
		if y == nil || !m.eq(y, op.Operands[0]) || !slices.Equal(axes, []int64{int64(len(shape) - 1)}) {
			return false
		}
		x = op.Operands[0]
		return true
	})
	return x
}

// vector is c as a parameter along the last axis: a value that, reshaped, is [n].
func vector(c at, shape []int64) bool {
	n := shape[len(shape)-1]
	return c.v.Type.Len() == n && c.v.Type.DType.IsFloat() && (n == 1 || slices.Equal(c.view, []int64{int64(len(shape) - 1)}))
}

// norm is a matched x·rstd·g (+ b).
type norm struct {
	spread
	g, b *ir.Value // nil: none
}

// normalised matches the product of values (seen from the full shape) as one of a norm.
func (m *match) normalised(shape []int64, mean bool, values ...at) (out norm, ok bool) {
	d := values[0].v.Type.DType
	all := func(stop func(c at) bool, k *float64) (fs []factor) {
		for _, v := range values {
			fs = append(fs, m.factors(v, false, 4, stop, k)...)
		}
		return fs
	}
	var candidates []factor
	m.try(func() bool {
		k := 1.0
		candidates = all(func(at) bool { return false }, &k)
		return false
	})
	for _, f := range candidates {
		ok = m.try(func() bool {
			s, ok := m.rstd(f, shape, mean)
			if !ok {
				return false
			}
			// Once more, now that x is known: it may be a product itself.
			isX := func(v *ir.Value) bool {
				if !mean {
					return m.eq(v, s.x)
				}
				if s.d != nil && m.eq(v, s.d) {
					return true
				}
				return m.try(func() bool { x := m.centred(v, shape); return x != nil && m.eq(x, s.x) })
			}
			k, xs, rs := 1.0, 0, 0
			stop := func(c at) bool {
				return c.v == f.v || len(c.view) == len(long(shape)) && slices.Equal(c.v.Type.Shape, shape) && isX(c.v)
			}
			out = norm{spread: s}
			for _, g := range all(stop, &k) {
				switch {
				case g.v == f.v && g.inv == f.inv:
					rs++
				case !g.inv && slices.Equal(g.v.Type.Shape, shape) && isX(g.v):
					xs++
				case !g.inv && out.g == nil && vector(g.at, shape):
					out.g = g.v
				default:
					return false
				}
			}
			return xs == 1 && rs == 1 && near(k, 1, d)
		})
		if ok {
			return out, true
		}
	}
	return out, false
}

// affineNorm matches a norm at the root, with what is added to it.
func (m *match) affineNorm(mean, bias bool) (out norm, ok bool) {
	t := m.root.Out(0)
	if !t.DType.IsFloat() || t.Rank() == 0 || t.Len() == 0 {
		return out, false
	}
	root := whole(m.root.Results[0])
	withBias := func(b *ir.Value, values ...at) bool {
		c := m.peel(whole(b))
		if !vector(c, t.Shape) {
			return false
		}
		if out, ok = m.normalised(t.Shape, mean, values...); ok {
			out.b = c.v
		}
		return ok
	}
	switch m.root.Name() {
	case "mul", "div":
		m.try(func() bool { out, ok = m.normalised(t.Shape, mean, root); return ok })
	case "add":
		if bias {
			m.swap(m.root, func(a, b *ir.Value) bool { return withBias(b, whole(a)) })
		}
	case "fma":
		if bias {
			o := m.root.Operands
			m.try(func() bool { return withBias(o[2], whole(o[0]), whole(o[1])) })
		}
	}
	return out, ok
}

// layerNorm: over the last axis, with or without gain and bias.
func layerNorm(m *match) write {
	n, ok := m.affineNorm(true, true)
	if !ok {
		return nil
	}
	return func(b *ir.Builder, val func(*ir.Value) *ir.Value) *ir.Value {
		x := val(n.x)
		return b.Op("layer_norm", []*ir.Value{x, param(b, val, n.g, x, 1), param(b, val, n.b, x, 0)}, ir.A("eps", n.eps))
	}
}

// param is v as a vector of x's last axis, or one filled with a number where there is none.
func param(b *ir.Builder, val func(*ir.Value) *ir.Value, v, x *ir.Value, otherwise float64) *ir.Value {
	n := x.Type.Shape[x.Type.Rank()-1]
	if v == nil {
		return ops.Full(b, ir.T(x.Type.DType, n), otherwise)
	}
	return reshaped(b, val(v), n)
}

func reshaped(b *ir.Builder, v *ir.Value, shape ...int64) *ir.Value {
	if slices.Equal(v.Type.Shape, shape) {
		return v
	}
	return b.Op("reshape", []*ir.Value{v}, ir.A("shape", shape))
}

// rmsNorm: over the last axis, with or without a gain; for f16 and bf16 also with the first product in
// f32, rounded before the gain, which is what the op means.
func rmsNorm(m *match) write {
	n, ok := m.affineNorm(false, false)
	if t := m.root.Out(0); !ok && m.root.Name() == "mul" && (t.DType == dtype.F16 || t.DType == dtype.BF16) && t.Rank() > 0 {
		m.swap(m.root, func(a, b *ir.Value) bool {
			g := m.peel(whole(b))
			down := m.op(a, "convert")
			if down == nil || down.In(0).DType != dtype.F32 || !vector(g, t.Shape) {
				return false
			}
			p, matched := m.normalised(t.Shape, false, whole(down.Operands[0]))
			if !matched || p.g != nil {
				return false
			}
			up := m.op(p.x, "convert")
			if up == nil || up.In(0).DType != t.DType {
				return false
			}
			n, ok = p, true
			n.x, n.g = up.Operands[0], g.v
			return true
		})
	}
	if !ok {
		return nil
	}
	return func(b *ir.Builder, val func(*ir.Value) *ir.Value) *ir.Value {
		x := val(n.x)
		return b.Op("rms_norm", []*ir.Value{x, param(b, val, n.g, x, 1)}, ir.A("eps", n.eps))
	}
}
