package raise

import (
	"math"

	"reprise/ir"
	"reprise/ir/dtype"
)

// isFloat: the pattern's result is of a float type.
func (m *match) isFloat() bool { return m.root.Out(0).DType.IsFloat() }

// logistic: 1/(1+exp(-x)), its power -1, exp(x)/(1+exp(x)).
func logistic(m *match) write {
	if !m.isFloat() {
		return nil
	}
	var num, den *ir.Value
	switch m.root.Name() {
	case "div":
		num, den = m.root.Operands[0], m.root.Operands[1]
	case "pow":
		if k, ok := splat(m.root.Operands[1]); !ok || k != -1 {
			return nil
		}
		den = m.root.Operands[0]
	default:
		return nil
	}
	e := m.onePlusExp(den)
	if e == nil {
		return nil
	}
	one := num == nil
	if k, ok := splat(orSelf(num, den)); num != nil && ok && k == 1 {
		one = true
	}
	if one {
		if x := m.negated(e.Operands[0]); x != nil {
			return call("logistic", []*ir.Value{x})
		}
		return nil
	}
	if m.eq(num, e.Results[0]) {
		m.op(num, "exp")
		return call("logistic", []*ir.Value{e.Operands[0]})
	}
	return nil
}

func orSelf(v, other *ir.Value) *ir.Value {
	if v == nil {
		return other
	}
	return v
}

// onePlusExp matches 1 + exp(u): the op exp.
func (m *match) onePlusExp(v *ir.Value) (exp *ir.Op) {
	m.either(v, "add", func(a, b *ir.Value) bool {
		if k, ok := splat(b); !ok || k != 1 {
			return false
		}
		exp = m.op(a, "exp")
		return exp != nil
	})
	return exp
}

// negated matches -x, as neg, 0-x, or a product with -1.
func (m *match) negated(v *ir.Value) *ir.Value {
	n := len(m.in)
	if op := m.op(v, "neg", "sub", "mul"); op != nil {
		switch op.Name() {
		case "neg":
			return op.Operands[0]
		case "sub":
			if k, ok := splat(op.Operands[0]); ok && k == 0 {
				return op.Operands[1]
			}
		case "mul":
			for i := range 2 {
				if k, ok := splat(op.Operands[i]); ok && k == -1 {
					return op.Operands[1-i]
				}
			}
		}
	}
	m.in = m.in[:n]
	return nil
}

// silu: x·logistic(x), x/(1+exp(-x)).
func silu(m *match) write {
	if !m.isFloat() {
		return nil
	}
	var x *ir.Value
	switch m.root.Name() {
	case "mul":
		m.swap(m.root, func(a, b *ir.Value) bool {
			l := m.op(b, "logistic")
			if l == nil || !m.eq(l.Operands[0], a) {
				return false
			}
			x = a
			return true
		})
	case "div":
		e := m.onePlusExp(m.root.Operands[1])
		if e == nil {
			return nil
		}
		if u := m.negated(e.Operands[0]); u != nil && m.eq(u, m.root.Operands[0]) {
			x = m.root.Operands[0]
		}
	}
	if x == nil {
		return nil
	}
	return call("silu", []*ir.Value{x})
}

// gelu: x/2·(1 + erf(x/√2)) and x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³))), as polynomials: in
// any order of operands and however the constants are spread.
func gelu(m *match) write {
	switch m.root.Name() {
	case "mul", "div", "add", "fma":
	default:
		return nil
	}
	d := m.root.Out(0).DType
	if !d.IsFloat() {
		return nil
	}
	for _, t := range cone(m.root.Results[0], 4) {
		if t.Op == nil || t.Op.Name() != "erf" && t.Op.Name() != "tanh" || m.op(t, "erf", "tanh") == nil {
			continue
		}
		for _, x := range cone(t.Op.Operands[0], 6) {
			if w := m.geluOf(t, x, d); w != nil {
				return w
			}
		}
		m.in = nil
	}
	return nil
}

func (m *match) geluOf(t, x *ir.Value, d dtype.Type) (w write) {
	if !m.try(func() bool {
		arg, ok := m.poly(t.Op.Operands[0], x)
		if !ok {
			return false
		}
		if t.Op.Name() == "tanh" && is(arg, map[mono]float64{{1, 0}: 0.5}, d) {
			outer, ok := m.poly(m.root.Results[0], x, t)
			w = call("logistic", []*ir.Value{x}) // (1 + tanh(x/2))/2
			return ok && is(outer, map[mono]float64{{}: 0.5, {0, 1}: 0.5}, d)
		}
		approx, inner := "none", map[mono]float64{{1, 0}: math.Sqrt2 / 2}
		if t.Op.Name() == "tanh" {
			c := math.Sqrt(2 / math.Pi)
			approx, inner = "tanh", map[mono]float64{{1, 0}: c, {3, 0}: 0.044715 * c}
		}
		sign := 1.0 // both functions are odd: 1 - erf(-u) is as good
		if !is(arg, inner, d) {
			if sign = -1; !is(combine(nil, arg, -1), inner, d) {
				return false
			}
		}
		outer, ok := m.poly(m.root.Results[0], x, t)
		if !ok || !is(outer, map[mono]float64{{1, 0}: 0.5, {1, 1}: sign * 0.5}, d) {
			return false
		}
		w = call("gelu", []*ir.Value{x}, ir.A("approx", approx))
		return true
	}) {
		return nil
	}
	return w
}
