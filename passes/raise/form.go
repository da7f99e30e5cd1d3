package raise

import (
	"math"
	"slices"
	"strconv"

	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/ops"
	"reprise/ir/tensor"
)

// near reports whether got is the number want as a person or another compiler writes it in type d.
func near(got, want float64, d dtype.Type) bool {
	tol := 1e-9
	switch d {
	case dtype.F32:
		tol = 1e-6
	case dtype.F16:
		tol = 1e-3
	case dtype.BF16:
		tol = 8e-3
	}
	return math.Abs(got-want) <= tol*math.Abs(want)
}

// decimal is the shortest number that rounds to x in type d: what was meant.
func decimal(x float64, d dtype.Type) float64 {
	if d == dtype.F32 {
		if s, err := strconv.ParseFloat(strconv.FormatFloat(x, 'g', -1, 32), 64); err == nil {
			return s
		}
	}
	return x
}

// splat is the one number of which v is made, if it is known now.
func splat(v *ir.Value) (float64, bool) { return splatAt(v, 8) }

func splatAt(v *ir.Value, depth int) (float64, bool) {
	op := v.Op
	if op == nil || depth == 0 || v.Type.Len() == 0 {
		return 0, false
	}
	arg := func(i int) (float64, bool) { return splatAt(op.Operands[i], depth-1) }
	two := func(f func(a, b float64) float64) (float64, bool) {
		a, ok := arg(0)
		b, ok2 := arg(1)
		return f(a, b), ok && ok2 && v.Type.DType.IsFloat()
	}
	one := func(f func(a float64) float64) (float64, bool) {
		a, ok := arg(0)
		return f(a), ok && v.Type.DType.IsFloat()
	}
	switch op.Name() {
	case "constant":
		t := op.Attrs.Tensor("value")
		if t.DType == dtype.Bool || !ops.IsSplat(t) {
			return 0, false
		}
		return number(t, 0), true
	case "broadcast", "reshape", "copy", "transpose", "stop_gradient":
		return arg(0)
	case "convert":
		x, ok := arg(0)
		if v.Type.DType == dtype.F32 {
			x = float64(float32(x))
		}
		return x, ok && v.Type.DType.IsFloat()
	case "neg":
		return one(func(a float64) float64 { return -a })
	case "sqrt":
		return one(math.Sqrt)
	case "rsqrt":
		return one(func(a float64) float64 { return 1 / math.Sqrt(a) })
	case "add":
		return two(func(a, b float64) float64 { return a + b })
	case "sub":
		return two(func(a, b float64) float64 { return a - b })
	case "mul":
		return two(func(a, b float64) float64 { return a * b })
	case "div":
		return two(func(a, b float64) float64 { return a / b })
	case "pow":
		return two(math.Pow)
	}
	return 0, false
}

// number is element i of t.
func number(t *tensor.Tensor, i int64) float64 {
	switch t.DType {
	case dtype.F32:
		return float64(t.F32()[i])
	case dtype.F64:
		return t.F64()[i]
	}
	return ops.ConvertTensor(&tensor.Tensor{DType: t.DType, Shape: []int64{1}, Data: t.Data[i*t.DType.Size() : (i+1)*t.DType.Size()]}, dtype.F64).F64()[0]
}

// at is a value as it is seen from the full shape of a pattern: view has, for each dimension
// of v that is not of size 1, the dimension of the full shape along which it runs.
type at struct {
	v    *ir.Value
	view []int64
}

// long is the dimensions of a shape that are not of size 1.
func long(shape []int64) []int64 {
	var out []int64
	for i, n := range shape {
		if n != 1 {
			out = append(out, int64(i))
		}
	}
	return out
}

func sizes(shape []int64) []int64 {
	return slices.DeleteFunc(slices.Clone(shape), func(n int64) bool { return n == 1 })
}

// whole is v as the full shape itself.
func whole(v *ir.Value) at { return at{v, long(v.Type.Shape)} }

// peel looks through ops that only repeat and reshape, while the dimensions can be told.
func (m *match) peel(c at) at {
	for {
		n := len(m.in)
		op := m.op(c.v, "broadcast", "reshape", "copy")
		if op == nil {
			return c
		}
		x := op.Operands[0]
		switch op.Name() {
		case "broadcast":
			dims, outer := op.Attrs.Ints("dims"), long(op.Out(0).Shape)
			var view []int64
			for i, d := range dims {
				if x.Type.Shape[i] != 1 {
					view = append(view, c.view[slices.Index(outer, d)])
				}
			}
			c = at{x, view}
		case "reshape":
			if !slices.Equal(sizes(x.Type.Shape), sizes(c.v.Type.Shape)) {
				m.in = m.in[:n]
				return c
			}
			c.v = x
		default:
			c.v = x
		}
	}
}

// row matches a reduction of a value of the given shape along axes, seen row by row: x.
func (m *match) row(c at, kind string, shape []int64) (x *ir.Value, axes []int64) {
	n := len(m.in)
	c = m.peel(c)
	op := m.op(c.v, "reduce")
	if op == nil || op.Attrs.Str("kind") != kind || !slices.Equal(op.In(0).Shape, shape) {
		m.in = m.in[:n]
		return nil, nil
	}
	axes = op.Attrs.Ints("axes")
	kept := slices.DeleteFunc(long(shape), func(d int64) bool { return slices.Contains(axes, d) })
	if !slices.Equal(kept, c.view) {
		m.in = m.in[:n]
		return nil, nil
	}
	return op.Operands[0], axes
}

// count is the number of elements along axes.
func count(shape, axes []int64) float64 {
	n := 1.0
	for _, a := range axes {
		n *= float64(shape[a])
	}
	return n
}

// mean matches a mean of a value of the given shape: a sum divided by, or multiplied by one over, the count.
func (m *match) mean(c at, shape []int64) (x *ir.Value, axes []int64) {
	n := len(m.in)
	c = m.peel(c)
	d := c.v.Type.DType
	switch op := m.op(c.v, "mul", "div"); {
	case op == nil:
	case op.Name() == "div":
		if k, ok := splat(op.Operands[1]); ok {
			if x, axes = m.row(at{op.Operands[0], c.view}, "sum", shape); x != nil && near(k, count(shape, axes), d) {
				return x, axes
			}
		}
	default:
		for i := range 2 {
			if k, ok := splat(op.Operands[i]); ok {
				if x, axes = m.row(at{op.Operands[1-i], c.view}, "sum", shape); x != nil && near(k, 1/count(shape, axes), d) {
					return x, axes
				}
			}
		}
	}
	m.in = m.in[:n]
	return nil, nil
}

// square matches u·u.
func (m *match) square(v *ir.Value) *ir.Value {
	n := len(m.in)
	op := m.op(v, "mul", "pow")
	if op != nil {
		a, b := op.Operands[0], op.Operands[1]
		if op.Name() == "mul" && m.eq(a, b) {
			return a
		}
		if k, ok := splat(b); ok && op.Name() == "pow" && k == 2 {
			return a
		}
	}
	m.in = m.in[:n]
	return nil
}

// mono is the powers of the (at most two) atoms of a polynomial's term.
type mono [2]int

// poly writes v as a polynomial in atoms, of degree 3 at most; false where it is none.
func (m *match) poly(v *ir.Value, atoms ...*ir.Value) (map[mono]float64, bool) {
	n := len(m.in)
	p := m.polyAt(v, atoms, 10)
	if p == nil {
		m.in = m.in[:n]
	}
	for k, c := range p {
		if c == 0 {
			delete(p, k)
		}
	}
	return p, p != nil
}

func (m *match) polyAt(v *ir.Value, atoms []*ir.Value, depth int) map[mono]float64 {
	for i, a := range atoms {
		if m.eq(v, a) {
			if v.Op != a.Op { // a second op that computes the atom goes too
				m.op(v, "erf", "tanh")
			}
			var k mono
			k[i] = 1
			return map[mono]float64{k: 1}
		}
	}
	if c, ok := splat(v); ok {
		return map[mono]float64{{}: c}
	}
	if depth == 0 {
		return nil
	}
	op := m.op(v, "add", "sub", "mul", "div", "neg", "fma", "pow")
	if op == nil {
		return nil
	}
	var arg []map[mono]float64
	for _, o := range op.Operands {
		p := m.polyAt(o, atoms, depth-1)
		if p == nil {
			return nil
		}
		arg = append(arg, p)
	}
	switch op.Name() {
	case "add":
		return combine(arg[0], arg[1], 1)
	case "sub":
		return combine(arg[0], arg[1], -1)
	case "neg":
		return combine(nil, arg[0], -1)
	case "mul":
		return product(arg[0], arg[1])
	case "fma":
		if p := product(arg[0], arg[1]); p != nil {
			return combine(p, arg[2], 1)
		}
	case "div":
		if k, ok := splat(op.Operands[1]); ok && k != 0 {
			return combine(nil, arg[0], 1/k)
		}
	case "pow":
		k, ok := splat(op.Operands[1])
		p := arg[0]
		switch {
		case ok && k == 2:
			return product(p, p)
		case ok && k == 3:
			if q := product(p, p); q != nil {
				return product(q, p)
			}
		}
	}
	return nil
}

// combine is a + f·b.
func combine(a, b map[mono]float64, f float64) map[mono]float64 {
	out := map[mono]float64{}
	for k, c := range a {
		out[k] = c
	}
	for k, c := range b {
		out[k] += f * c
	}
	return out
}

func product(a, b map[mono]float64) map[mono]float64 {
	// Terms are added up in a fixed order, so that rounding does not depend on map order.
	out := map[mono]float64{}
	for _, k := range monos() {
		for _, l := range monos() {
			x, ok := a[k]
			y, ok2 := b[l]
			if !ok || !ok2 {
				continue
			}
			s := mono{k[0] + l[0], k[1] + l[1]}
			if s[0]+s[1] > 3 {
				return nil
			}
			out[s] += x * y
		}
	}
	return out
}

func monos() []mono {
	var out []mono
	for i := range 4 {
		for j := range 4 - i {
			out = append(out, mono{i, j})
		}
	}
	return out
}

// is reports whether p has exactly the terms of want, in type d.
func is(p, want map[mono]float64, d dtype.Type) bool {
	if len(p) != len(want) {
		return false
	}
	for k, c := range want {
		if got, ok := p[k]; !ok || !near(got, c, d) {
			return false
		}
	}
	return true
}

// cone lists the values from v on through arithmetic, v first, without repetition.
func cone(v *ir.Value, depth int) []*ir.Value {
	var out []*ir.Value
	var visit func(v *ir.Value, depth int)
	visit = func(v *ir.Value, depth int) {
		if slices.Contains(out, v) {
			return
		}
		out = append(out, v)
		if v.Op == nil || depth == 0 {
			return
		}
		switch v.Op.Name() {
		case "add", "sub", "mul", "div", "neg", "fma", "pow":
			for _, o := range v.Op.Operands {
				visit(o, depth-1)
			}
		}
	}
	visit(v, depth)
	return out
}

// call is the writer of a raised op with one result.
func call(name string, operands []*ir.Value, attrs ...ir.Attr) write {
	return func(b *ir.Builder, val func(*ir.Value) *ir.Value) *ir.Value {
		in := make([]*ir.Value, len(operands))
		for i, v := range operands {
			in[i] = val(v)
		}
		return b.Op(name, in, attrs...)
	}
}
