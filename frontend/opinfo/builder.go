package opinfo

import (
	"math"
	"slices"

	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/tensor"
)

// builder writes PyTorch's operators in ops of the IR: broadcasting, axes that count from
// the end, keepdim.
type builder struct {
	*ir.Builder
	c    *Case
	in   []*ir.Value      // the case's tensors
	data []*tensor.Tensor // and what they hold, for those that are really attributes
}

type value = *ir.Value

// arg is positional argument i: the operator's first argument is 0.
func (b *builder) arg(i int) any {
	if i == 0 {
		return b.c.Input
	}
	if i-1 < len(b.c.Args) {
		return b.c.Args[i-1]
	}
	return nil
}

// param is positional argument i, or the keyword of that name; nil where neither is given.
func (b *builder) param(i int, name string) any {
	if v := b.arg(i); v != nil && i > 0 {
		return v
	}
	return b.c.Kwargs[name]
}

// tensorOf is the value of an argument {"tensor": i}, nil for anything else.
func (b *builder) tensorOf(a any) value {
	if m, ok := a.(map[string]any); ok {
		if i, ok := m["tensor"].(float64); ok {
			return b.in[int(i)]
		}
	}
	return nil
}

// x is tensor argument i.
func (b *builder) x(i int) value {
	v := b.tensorOf(b.arg(i))
	if v == nil {
		refuse("%s with argument %d being %v", b.c.Op, i, b.arg(i))
	}
	return v
}

// tensors is an argument that is a list of tensors.
func (b *builder) tensors(a any) []value {
	var out []value
	list, _ := a.([]any)
	for _, e := range list {
		out = append(out, b.tensorOf(e))
	}
	return out
}

// number reads an argument that is a number (or a tensor of one element), with a default.
func (b *builder) number(a any, def float64) float64 {
	switch v := a.(type) {
	case float64:
		return v
	case bool:
		if v {
			return 1
		}
		return 0
	case string:
		switch v {
		case "inf":
			return math.Inf(1)
		case "-inf":
			return math.Inf(-1)
		}
	case map[string]any:
		if i, ok := v["tensor"].(float64); ok {
			return b.data[int(i)].Float(0)
		}
	}
	return def
}

func (b *builder) int(a any, def int64) int64 { return int64(b.number(a, float64(def))) }

func (b *builder) flag(a any) bool { v, _ := a.(bool); return v }

// ints reads a list of integers; a lone number is repeated n times.
func ints(a any, n int) []int64 {
	switch v := a.(type) {
	case float64:
		return slices.Repeat([]int64{int64(v)}, n)
	case []any:
		var out []int64
		for _, e := range v {
			f, _ := e.(float64)
			out = append(out, int64(f))
		}
		if len(out) == 1 && n > 1 {
			return slices.Repeat(out, n)
		}
		return out
	}
	return nil
}

// axis makes an axis that may count from the end one of v's.
func axis(v value, a int64) int64 {
	if a < 0 {
		a += int64(max(1, v.Type.Rank()))
	}
	return a
}

func allAxes(v value) []int64 {
	axes := make([]int64, v.Type.Rank())
	for i := range axes {
		axes[i] = int64(i)
	}
	return axes
}

// axesOf reads axes: a number, a list, or (nil, empty) all.
func axesOf(v value, a any) []int64 {
	axes := ints(a, 1)
	if len(axes) == 0 {
		return allAxes(v)
	}
	if v.Type.Rank() == 0 {
		return nil
	}
	for i := range axes {
		axes[i] = axis(v, axes[i])
	}
	slices.Sort(axes)
	return axes
}

func (b *builder) un(name string, x value) value { return b.Op(name, []value{x}) }

// bin is an elementwise op of two values that broadcast to each other.
func (b *builder) bin(name string, x, y value, attrs ...ir.Attr) value {
	shape := broadcastShape(x.Type.Shape, y.Type.Shape)
	return b.Op(name, []value{b.expand(x, shape), b.expand(y, shape)}, attrs...)
}

func broadcastShape(x, y []int64) []int64 {
	n := max(len(x), len(y))
	out := make([]int64, n)
	at := func(s []int64, i int) int64 {
		if k := i - (n - len(s)); k >= 0 {
			return s[k]
		}
		return 1
	}
	for i := range out {
		if out[i] = at(x, i); out[i] == 1 {
			out[i] = at(y, i)
		}
	}
	return out
}

// expand broadcasts x to a shape by PyTorch's rule: dimensions align at the end.
func (b *builder) expand(x value, shape []int64) value {
	if slices.Equal(x.Type.Shape, shape) {
		return x
	}
	dims, skip := make([]int64, x.Type.Rank()), len(shape)-x.Type.Rank()
	for i := range dims {
		dims[i] = int64(i + skip)
	}
	return b.Op("broadcast", []value{x}, ir.A("dims", dims), ir.A("shape", shape))
}

// num is a number in x's type and shape.
func (b *builder) num(x value, v float64) value {
	var t *tensor.Tensor
	switch {
	case x.Type.DType == dtype.F32:
		t = tensor.Of([]float32{float32(v)})
	case x.Type.DType == dtype.I64:
		t = tensor.Of([]int64{int64(v)})
	default:
		t = tensor.Of([]float64{v})
	}
	return b.expand(b.Op("constant", nil, ir.A("value", t.Reshaped())), x.Type.Shape)
}

func (b *builder) array(vals []float64, shape ...int64) value {
	return b.Op("constant", nil, ir.A("value", tensor.Of(vals, shape...)))
}

func (b *builder) indices(vals []int64, shape ...int64) value {
	if shape == nil {
		shape = []int64{int64(len(vals))}
	}
	return b.Op("constant", nil, ir.A("value", tensor.Of(vals, shape...)))
}

func (b *builder) add(x, y value) value             { return b.bin("add", x, y) }
func (b *builder) sub(x, y value) value             { return b.bin("sub", x, y) }
func (b *builder) mul(x, y value) value             { return b.bin("mul", x, y) }
func (b *builder) div(x, y value) value             { return b.bin("div", x, y) }
func (b *builder) times(x value, v float64) value   { return b.bin("mul", x, b.num(x, v)) }
func (b *builder) plus(x value, v float64) value    { return b.bin("add", x, b.num(x, v)) }
func (b *builder) pow(x value, p float64) value     { return b.bin("pow", x, b.num(x, p)) }
func (b *builder) atLeast(x value, v float64) value { return b.bin("max", x, b.num(x, v)) }

func (b *builder) compare(dir string, x, y value) value {
	return b.bin("compare", x, y, ir.A("dir", dir))
}

// choose is a where p, else c; all broadcast.
func (b *builder) choose(p, a, c value) value {
	shape := broadcastShape(broadcastShape(p.Type.Shape, a.Type.Shape), c.Type.Shape)
	return b.Op("select", []value{b.expand(p, shape), b.expand(a, shape), b.expand(c, shape)})
}

func (b *builder) reshape(x value, shape ...int64) value {
	if slices.Equal(x.Type.Shape, shape) {
		return x
	}
	return b.Op("reshape", []value{x}, ir.A("shape", shape))
}

func (b *builder) reduce(kind string, x value, axes []int64, keep bool) value {
	if x.Type.Rank() == 0 {
		axes = nil // a scalar may be reduced along dimension 0
	}
	shape := slices.Clone(x.Type.Shape)
	for _, a := range axes {
		shape[a] = 1
	}
	if len(axes) > 0 {
		x = b.Op("reduce", []value{x}, ir.A("kind", kind), ir.A("axes", axes))
	}
	if keep {
		return b.reshape(x, shape...)
	}
	return x
}

func (b *builder) sum(x value, axes []int64, keep bool) value { return b.reduce("sum", x, axes, keep) }

func count(x value, axes []int64) float64 {
	n := 1.0
	for _, a := range axes {
		n *= float64(x.Type.Shape[a])
	}
	return n
}

func (b *builder) mean(x value, axes []int64, keep bool) value {
	s := b.sum(x, axes, keep)
	return b.bin("div", s, b.num(s, count(x, axes)))
}

// variance is the sum of squared differences from the mean over count - correction.
func (b *builder) variance(x value, axes []int64, correction float64, keep bool) value {
	d := b.sub(x, b.mean(x, axes, true))
	s := b.sum(b.mul(d, d), axes, keep)
	return b.bin("div", s, b.num(s, count(x, axes)-correction))
}

func (b *builder) transpose(x value, perm ...int64) value {
	return b.Op("transpose", []value{x}, ir.A("perm", perm))
}

// slice is elements lo … hi-1 along an axis.
func (b *builder) slice(x value, a, lo, hi int64) value {
	start, limit := make([]int64, x.Type.Rank()), slices.Clone(x.Type.Shape)
	start[a], limit[a] = lo, hi
	return b.Op("slice", []value{x}, ir.A("start", start), ir.A("limit", limit))
}

// take is the listed indices along an axis.
func (b *builder) take(x value, a int64, idx []int64) value {
	return b.Op("take", []value{x, b.indices(idx)}, ir.A("axis", a))
}

// contract is Σ over pairs of axes, result batch, free of x, free of y.
func (b *builder) contract(x, y value, lb, rb, lc, rc []int64) value {
	return b.Op("contract", []value{x, y}, ir.A("lhs_batch", lb), ir.A("rhs_batch", rb), ir.A("lhs_contract", lc), ir.A("rhs_contract", rc))
}

// matmul is PyTorch's, of any ranks from 1.
func (b *builder) matmul(x, y value) value {
	xs, ys := x.Type.Shape, y.Type.Shape
	switch {
	case len(xs) == 1 && len(ys) == 1:
		return b.contract(x, y, nil, nil, []int64{0}, []int64{0})
	case len(ys) <= 2:
		return b.contract(x, y, nil, nil, []int64{int64(len(xs) - 1)}, []int64{0})
	case len(xs) == 1:
		y := b.matmul(b.reshape(x, 1, xs[0]), y)
		s := slices.Clone(y.Type.Shape)
		return b.reshape(y, slices.Delete(s, len(s)-2, len(s)-1)...)
	}
	batch := broadcastShape(xs[:len(xs)-2], ys[:len(ys)-2])
	x = b.expand(x, slices.Concat(batch, xs[len(xs)-2:]))
	y = b.expand(y, slices.Concat(batch, ys[len(ys)-2:]))
	n := int64(len(batch))
	var dims []int64
	for i := range n {
		dims = append(dims, i)
	}
	return b.contract(x, y, dims, dims, []int64{n + 1}, []int64{n})
}

// alongAxis multiplies by a matrix [size, new size] along an axis.
func (b *builder) alongAxis(x value, a int64, m value) value {
	y := b.contract(x, m, nil, nil, []int64{a}, []int64{0})
	last := int64(y.Type.Rank() - 1)
	perm := []int64{}
	for i := range last {
		perm = append(perm, i)
	}
	return b.transpose(y, slices.Insert(perm, int(a), last)...)
}

// concat joins along an axis.
func (b *builder) concat(a int64, xs ...value) value { return b.Op("concat", xs, ir.A("dim", a)) }

// where a tensor that has no gradient is needed as numbers.
func (b *builder) numbers(a any) []float64 {
	m, ok := a.(map[string]any)
	if !ok {
		refuse("%s with argument %v", b.c.Op, a)
	}
	i, _ := m["tensor"].(float64)
	t := b.data[int(i)]
	out := make([]float64, t.Len())
	for k := range out {
		out[k] = t.Float(int64(k))
	}
	return out
}

// reduction ends a loss by its reduction argument: mean, sum or none.
func (b *builder) reduction(loss value) value {
	r, _ := b.c.Kwargs["reduction"].(string)
	switch r {
	case "none":
		return loss
	case "sum":
		return b.sum(loss, allAxes(loss), false)
	case "batchmean":
		s := b.sum(loss, allAxes(loss), false)
		return b.bin("div", s, b.num(s, float64(loss.Type.Shape[0])))
	case "", "mean":
		return b.mean(loss, allAxes(loss), false)
	}
	refuse("reduction %q", r)
	return nil
}
