package raise

import (
	"slices"

	"reprise/ir"
	"reprise/ir/tensor"
)

// rope: x·cos + rotate_half(x)·sin with tables [T,D] whose halves are equal; the rotated halves, joined;
// or the rotated pairs of neighbours, interleaved. x is [B,T,H,D] or [B,H,T,D].
func rope(m *match) write {
	t := m.root.Out(0)
	if !t.DType.IsFloat() || t.Rank() != 4 || t.Shape[3]%2 != 0 || t.Len() == 0 {
		return nil
	}
	switch m.root.Name() {
	case "add":
		return m.ropeWhole(t.Shape)
	case "concat":
		return m.ropeParts(m.root, 3, "halves", t.Shape)
	case "reshape":
		// [B,T,H,D/2,2] to [B,T,H,D]
		c := m.op(m.root.Operands[0], "concat")
		if c == nil || c.Out(0).Rank() != 5 || !slices.Equal(c.Out(0).Shape[:3], t.Shape[:3]) || c.Out(0).Shape[4] != 2 {
			return nil
		}
		return m.ropeParts(c, 4, "interleaved", t.Shape)
	}
	return nil
}

// table is the angles' values for one half of the features; write it with build.
type table struct {
	time  int64 // which dimension of x is time
	build write
}

// tableOf matches c as a table by time and feature, seen from the shape of x or half of it.
func (m *match) tableOf(c at, shape []int64, double bool) (out table, ok bool) {
	c = m.peel(c)
	n := shape[3]
	for _, time := range []int64{1, 2} {
		want := slices.DeleteFunc([]int64{time, 3}, func(d int64) bool { return shape[d] == 1 })
		if slices.Equal(c.view, want) {
			out.time, ok = time, true
			break
		}
	}
	if !ok {
		return out, false
	}
	rows := shape[out.time]
	build := func(b *ir.Builder, val func(*ir.Value) *ir.Value) *ir.Value { return val(c.v) }
	if double {
		if build, ok = m.half(c.v); !ok {
			return out, false
		}
		n /= 2
	}
	out.build = func(b *ir.Builder, val func(*ir.Value) *ir.Value) *ir.Value {
		return reshaped(b, build(b, val), rows, n)
	}
	return out, true
}

// half writes the first half of v along its last dimension, where both halves are known to be equal.
func (m *match) half(v *ir.Value) (func(b *ir.Builder, val func(*ir.Value) *ir.Value) *ir.Value, bool) {
	op := v.Op
	if op == nil || v.Type.Rank() == 0 {
		return nil, false
	}
	last := v.Type.Rank() - 1
	if op.Family() == "elementwise" && len(op.Operands) == 1 && (op.Name() != "bitcast") {
		inner, ok := m.half(op.Operands[0])
		return func(b *ir.Builder, val func(*ir.Value) *ir.Value) *ir.Value {
			return b.At(op.Loc).Op(op.Name(), []*ir.Value{inner(b, val)}, op.Attrs...)
		}, ok
	}
	switch op.Name() {
	case "concat":
		if int(op.Attrs.Int("dim")) == last && len(op.Operands) == 2 && m.eq(op.Operands[0], op.Operands[1]) {
			return func(_ *ir.Builder, val func(*ir.Value) *ir.Value) *ir.Value { return val(op.Operands[0]) }, true
		}
	case "reshape":
		x := op.In(0)
		if x.Rank() > 0 && x.Shape[x.Rank()-1] == v.Type.Shape[last] {
			inner, ok := m.half(op.Operands[0])
			return inner, ok // the caller gives it its shape
		}
	case "mul":
		for i := range 2 {
			if k, ok := splat(op.Operands[i]); ok && k == 1 {
				return m.half(op.Operands[1-i])
			}
		}
	case "constant":
		t := op.Attrs.Tensor("value")
		w, n := t.DType.Size(), t.Shape[last]
		out := tensor.New(t.DType, append(slices.Clone(t.Shape[:last]), n/2)...)
		for r := range t.Len() / n {
			line := t.Data[r*n*w : (r+1)*n*w]
			if !slices.Equal(line[:n/2*w], line[n/2*w:]) {
				return nil, false
			}
			copy(out.Data[r*n/2*w:], line[:n/2*w])
		}
		return func(b *ir.Builder, _ func(*ir.Value) *ir.Value) *ir.Value {
			return b.At(op.Loc).Op("constant", nil, ir.A("value", out))
		}, true
	}
	return nil, false
}

// part matches half number i of x: along the last dimension, or every second element.
func (m *match) part(v *ir.Value, i int64, style string) *ir.Value {
	n := len(m.in)
	if r := m.op(v, "reshape"); r != nil && r.In(0).Rank() == 5 && style == "interleaved" {
		s := m.op(r.Operands[0], "slice") // of [B,T,H,D/2,2]
		if s != nil && s.In(0).Rank() == 5 && cut(s, 4, i, i+1, 1) {
			if x := m.op(s.Operands[0], "reshape"); x != nil && x.In(0).Rank() == 4 && x.Out(0).Shape[4] == 2 && slices.Equal(x.In(0).Shape[:3], x.Out(0).Shape[:3]) {
				return x.Operands[0]
			}
		}
		m.in = m.in[:n]
		return nil
	}
	if s := m.op(v, "slice"); s != nil && s.In(0).Rank() == 4 {
		d := s.In(0).Shape[3]
		if style == "halves" && cut(s, 3, i*d/2, (i+1)*d/2, 1) || style == "interleaved" && s.Out(0).Shape[3] == d/2 && cut(s, 3, i, -1, 2) {
			return s.Operands[0]
		}
	}
	m.in = m.in[:n]
	return nil
}

// cut reports whether a slice takes lo … hi-1 (hi -1: to the end) by step along dim, and all of the rest.
func cut(s *ir.Op, dim, lo, hi, step int64) bool {
	shape, start, limit, stride := s.In(0).Shape, s.Attrs.Ints("start"), s.Attrs.Ints("limit"), s.Attrs.Ints("stride")
	for d, n := range shape {
		by := int64(1)
		if len(stride) > 0 {
			by = stride[d]
		}
		if int64(d) == dim {
			if start[d] != lo || hi >= 0 && limit[d] != hi || by != step {
				return false
			}
		} else if start[d] != 0 || limit[d] != n || by != 1 {
			return false
		}
	}
	return true
}

// ropeWhole matches x·cos + rotate_half(x)·sin at the root.
func (m *match) ropeWhole(shape []int64) (w write) {
	m.swap(m.root, func(a, b *ir.Value) bool {
		return m.either(b, "mul", func(rot, s *ir.Value) bool {
			// rot = (-x2, x1)
			c := m.op(rot, "concat")
			if c == nil || len(c.Operands) != 2 || c.Attrs.Int("dim") != 3 {
				return false
			}
			low := m.negated(c.Operands[0])
			if low == nil {
				return false
			}
			x, x1 := m.part(low, 1, "halves"), m.part(c.Operands[1], 0, "halves")
			if x == nil || x1 == nil || !m.eq(x, x1) {
				return false
			}
			sin, ok := m.tableOf(whole(s), shape, true)
			return ok && m.either(a, "mul", func(y, c *ir.Value) bool {
				cos, ok := m.tableOf(whole(c), shape, true)
				if !ok || !m.eq(y, x) || cos.time != sin.time {
					return false
				}
				w = rotated(x, cos, sin, "halves")
				return true
			})
		})
	})
	return w
}

// ropeParts matches the two rotated parts that c joins along dim: (x1·cos - x2·sin, x2·cos + x1·sin).
func (m *match) ropeParts(c *ir.Op, dim int64, style string, shape []int64) (w write) {
	if len(c.Operands) != 2 || c.Attrs.Int("dim") != dim {
		return nil
	}
	shape = slices.Clone(shape)
	shape[3] /= 2
	var y [2]*ir.Value
	for i, v := range c.Operands {
		if y[i] = v; dim == 4 {
			r := m.op(v, "reshape")
			if r == nil || !slices.Equal(r.In(0).Shape, shape) {
				return nil
			}
			y[i] = r.Operands[0]
		}
	}
	// term matches part i of x times a table.
	term := func(v *ir.Value, i int64, f func(x *ir.Value, t at) bool) bool {
		return m.either(v, "mul", func(p, t *ir.Value) bool {
			x := m.part(p, i, style)
			return x != nil && f(x, whole(t))
		})
	}
	m.try(func() bool {
		first, second := m.op(y[0], "sub"), m.op(y[1], "add")
		if first == nil || second == nil {
			return false
		}
		return term(first.Operands[0], 0, func(x *ir.Value, ct at) bool {
			return term(first.Operands[1], 1, func(x2 *ir.Value, st at) bool {
				return m.swap(second, func(p, q *ir.Value) bool {
					return term(p, 1, func(x3 *ir.Value, c2 at) bool {
						return term(q, 0, func(x4 *ir.Value, s2 at) bool {
							cos, ok := m.tableOf(ct, shape, false)
							sin, ok2 := m.tableOf(st, shape, false)
							if !ok || !ok2 || cos.time != sin.time || !m.eq(x, x2) || !m.eq(x, x3) || !m.eq(x, x4) ||
								!m.sameTable(ct, c2) || !m.sameTable(st, s2) {
								return false
							}
							w = rotated(x, cos, sin, style)
							return true
						})
					})
				})
			})
		})
	})
	return w
}

// sameTable reports whether two tables are one value, seen in the same way.
func (m *match) sameTable(a, b at) bool {
	a, b = m.peel(a), m.peel(b)
	return m.eq(a.v, b.v) && slices.Equal(a.view, b.view)
}

// rotated writes rope of x, whose time may be dimension 1 or 2.
func rotated(x *ir.Value, cos, sin table, style string) write {
	return func(b *ir.Builder, val func(*ir.Value) *ir.Value) *ir.Value {
		v := val(x)
		swap := func(v *ir.Value) *ir.Value {
			if cos.time == 1 {
				return v
			}
			return b.Op("transpose", []*ir.Value{v}, ir.A("perm", []int64{0, 2, 1, 3}))
		}
		y := b.Op("rope", []*ir.Value{swap(v), cos.build(b, val), sin.build(b, val)}, ir.A("style", style))
		return swap(y)
	}
}
