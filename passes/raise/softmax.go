package raise

import (
	"math"
	"slices"

	"reprise/ir"
	"reprise/ir/dtype"
)

// shifted matches exp(x - max(x)) along axes, or exp(x), where x is what is not shifted; e is that value.
// A shift by the greatest element has no effect on what softmax means, nor on its derivative, whether
// differentiation stops there or not.
func (m *match) shifted(e *ir.Value, axes []int64) (x *ir.Value) {
	op := m.op(e, "exp")
	if op == nil {
		return nil
	}
	return m.unshifted(op.Operands[0], axes)
}

// unshifted is x for d = x - max(x), else d.
func (m *match) unshifted(d *ir.Value, axes []int64) *ir.Value {
	x := d
	m.try(func() bool {
		op := m.op(d, "sub")
		if op == nil || !m.greatest(whole(op.Operands[1]), op.Operands[0], axes) {
			return false
		}
		x = op.Operands[0]
		return true
	})
	return x
}

// greatest matches the greatest element of x along axes, guarded or not: stop_gradient, max(-inf, m),
// m where it is finite.
func (m *match) greatest(c at, x *ir.Value, axes []int64) bool {
	return m.try(func() bool {
		for range 8 {
			c = m.peel(c)
			if r, got := m.row(c, "max", x.Type.Shape); r != nil {
				if s := m.op(r, "stop_gradient"); s != nil && !m.eq(r, x) {
					r = s.Operands[0]
				}
				return m.eq(r, x) && slices.Equal(got, axes)
			}
			op := m.op(c.v, "stop_gradient", "max", "select")
			if op == nil {
				return false
			}
			switch op.Name() {
			case "stop_gradient":
				c.v = op.Operands[0]
			case "max":
				a, b := op.Operands[0], op.Operands[1]
				if k, ok := splat(a); ok && least(k, a.Type.DType) {
					c.v = b
				} else if k, ok := splat(b); ok && least(k, b.Type.DType) {
					c.v = a
				} else {
					return false
				}
			case "select":
				p := m.op(op.Operands[0], "is_finite")
				if k, ok := splat(op.Operands[2]); p == nil || !m.eq(p.Operands[0], op.Operands[1]) || !ok || k != 0 {
					return false
				}
				c.v = op.Operands[1]
			}
		}
		return false
	})
}

// least: no element is below k.
func least(k float64, d dtype.Type) bool {
	return k == math.Inf(-1) || d == dtype.F32 && k <= -math.MaxFloat32 || d == dtype.F64 && k <= -math.MaxFloat64
}

// expSum matches sum(exp(x - max(x))) or sum(exp(x)) seen row by row: the exponentials, x and the axis.
func (m *match) expSum(c at, shape []int64) (e, x *ir.Value, axis int64) {
	n := len(m.in)
	e, axes := m.row(c, "sum", shape)
	if e != nil && len(axes) == 1 {
		if x = m.shifted(e, axes); x != nil {
			return e, x, axes[0]
		}
	}
	m.in = m.in[:n]
	return nil, nil, 0
}

// softmax: e/sum(e), e·(1/sum(e)).
func softmax(m *match) write {
	if !m.isFloat() || m.root.Name() != "div" && m.root.Name() != "mul" {
		return nil
	}
	shape := m.root.Out(0).Shape
	var w write
	ratio := func(num *ir.Value, den at) bool {
		e, x, axis := m.expSum(den, shape)
		if e == nil || !m.eq(e, num) {
			return false
		}
		if e != num && m.shifted(num, []int64{axis}) == nil {
			return false
		}
		w = call("softmax", []*ir.Value{x}, ir.A("axis", axis))
		return true
	}
	if m.root.Name() == "div" {
		m.try(func() bool { return ratio(m.root.Operands[0], whole(m.root.Operands[1])) })
		return w
	}
	m.swap(m.root, func(num, r *ir.Value) bool {
		c := m.peel(whole(r))
		op := m.op(c.v, "div", "pow")
		if op == nil {
			return false
		}
		if op.Name() == "div" {
			k, ok := splat(op.Operands[0])
			return ok && k == 1 && ratio(num, at{op.Operands[1], c.view})
		}
		k, ok := splat(op.Operands[1])
		return ok && k == -1 && ratio(num, at{op.Operands[0], c.view})
	})
	return w
}

// logSoftmax: d - log(sum(exp(d))) for d = x - max(x) or x; x - (max(x) + log(sum(exp(x - max(x))))).
func logSoftmax(m *match) write {
	if !m.isFloat() || m.root.Name() != "sub" {
		return nil
	}
	d, shape := m.root.Operands[0], m.root.Out(0).Shape
	var w write
	m.try(func() bool {
		x, axis, exact := m.logSumExp(whole(m.root.Operands[1]), shape)
		if x == nil {
			return false
		}
		if exact && m.eq(d, x) { // the logarithm of the sum of x itself
			w = call("log_softmax", []*ir.Value{d}, ir.A("axis", axis))
			return true
		}
		if exact {
			return false
		}
		// The sum was of d = x - max(x).
		if u := m.unshifted(d, []int64{axis}); u != d && m.eq(u, x) {
			w = call("log_softmax", []*ir.Value{u}, ir.A("axis", axis))
			return true
		}
		return false
	})
	return w
}

// logSumExp matches the logarithm of sum(exp(x)), seen row by row, either exactly or (not exact) less
// the greatest element of x.
func (m *match) logSumExp(c at, shape []int64) (x *ir.Value, axis int64, exact bool) {
	n := len(m.in)
	c = m.peel(c)
	log := func(c at) (x *ir.Value, axis int64, shifted bool) {
		c = m.peel(c)
		l := m.op(c.v, "log")
		if l == nil {
			return nil, 0, false
		}
		e, x, axis := m.expSum(at{l.Operands[0], c.view}, shape)
		return x, axis, e != nil && e.Op.Operands[0] != x
	}
	m.either(c.v, "add", func(a, b *ir.Value) bool {
		u, ax, shifted := log(at{a, c.view})
		if u == nil || !shifted || !m.greatest(at{b, c.view}, u, []int64{ax}) {
			return false
		}
		x, axis, exact = u, ax, true
		return true
	})
	if x != nil {
		return x, axis, true
	}
	if u, ax, shifted := log(c); u != nil {
		return u, ax, !shifted
	}
	m.in = m.in[:n]
	return nil, 0, false
}

// expLog: the logarithm of softmax, and the exponential of log_softmax.
func expLog(m *match) write {
	from, to := "softmax", "log_softmax"
	switch m.root.Name() {
	case "log":
	case "exp":
		from, to = to, from
	default:
		return nil
	}
	op := m.op(m.root.Operands[0], from)
	if op == nil {
		return nil
	}
	return call(to, op.Operands, op.Attrs...)
}

// narrow: an op that computes in f32 of an operand that was widened for it, and whose result is
// rounded back, is that op on the narrow type, to the bit.
func narrow(m *match) write {
	half := m.root.Out(0).DType
	if m.root.Name() != "convert" || half != dtype.F16 && half != dtype.BF16 {
		return nil
	}
	op := m.op(m.root.Operands[0], "softmax", "log_softmax", "gelu", "silu", "layer_norm")
	if op == nil || op.Out(0).DType != dtype.F32 {
		return nil
	}
	wide := m.op(op.Operands[0], "convert")
	if wide == nil || wide.In(0).DType != half {
		return nil
	}
	operands := slices.Clone(op.Operands)
	operands[0] = wide.Operands[0]
	return call(op.Name(), operands, op.Attrs...)
}
