package ops

// Ops that make, move and select elements without computing with them.

import (
	"fmt"
	"slices"

	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/kern"
	"reprise/ir/tensor"
)

func shapeOps() []*ir.OpDef {
	return []*ir.OpDef{
		constantRow(), iotaRow(), broadcastRow(), reshapeRow(), transposeRow(), sliceRow(), padRow(),
		concatRow(), reverseRow(), stopGradientRow(), copyRow(),
	}
}

// moves is the row of an op that moves elements: no arithmetic, only traffic.
func moves(d *ir.OpDef) *ir.OpDef {
	d.Family, d.Cost = "shape", trafficOf
	return d
}

// checkedInfer makes the Infer of a row whose conditions are check and whose type is typ;
// the conditions are the row's constraints too.
func checked(d *ir.OpDef, cs []ir.Constraint, typ func(op *ir.Op) ir.Type) *ir.OpDef {
	d.Constraints = cs
	d.Infer = func(op *ir.Op) ([]ir.Type, error) {
		for _, c := range cs {
			if err := c.Check(op); err != nil {
				return nil, fmt.Errorf("%v (constraint %s/%s: %s)", err, d.Name, c.Label, c.Text)
			}
		}
		return oneType(typ(op))
	}
	return d
}

// floatGrad guards a VJP: no cotangents for values that are not floats.
func floatGrad(vjp func(b *ir.Builder, op *ir.Op, dy *ir.Value) []*ir.Value) func(b *ir.Builder, op *ir.Op, douts []*ir.Value) ([]*ir.Value, error) {
	return func(b *ir.Builder, op *ir.Op, douts []*ir.Value) ([]*ir.Value, error) {
		if !op.Out(0).DType.IsFloat() {
			return make([]*ir.Value, len(op.Operands)), nil
		}
		return vjp(b, op, douts[0]), nil
	}
}

// IsSplat reports whether every element of t has the same bits; false for keys and
// for tensors without elements.
func IsSplat(t *tensor.Tensor) bool {
	if t.DType == dtype.Key || t.Len() == 0 {
		return false
	}
	for i := range t.Len() {
		if t.Bits(i) != t.Bits(0) {
			return false
		}
	}
	return true
}

func constantRow() *ir.OpDef {
	return moves(checked(&ir.OpDef{
		Name: "constant", Doc: "A tensor known at compile time.",
		Results: []string{"y"},
		Attrs:   []ir.AttrDef{{Name: "value", Kind: "tensor", Doc: "the tensor"}},
		VJP: func(*ir.Builder, *ir.Op, []*ir.Value) ([]*ir.Value, error) {
			return nil, nil
		},
		Ref: func(_ ir.Eval, op *ir.Op, _ []*tensor.Tensor) ([]*tensor.Tensor, error) {
			return one(op.Attrs.Tensor("value").Clone())
		},
		// A splat needs no memory. Any other constant is data of the compiled model.
		HandScheduled: "constant",
		Elem: func(_ ir.ElemCtx, op *ir.Op, _ []*kern.Expr) []*kern.Expr {
			t := op.Attrs.Tensor("value")
			if !IsSplat(t) {
				panic("BUG: kernel body of a constant that is no splat")
			}
			x := kern.Bits(t.DType, t.Bits(0))
			if t.DType == dtype.F16 || t.DType == dtype.BF16 {
				x = kern.F32(readF32(t)[0])
			}
			return []*kern.Expr{x}
		},
	}, nil, func(op *ir.Op) ir.Type {
		t := op.Attrs.Tensor("value")
		return ir.Type{DType: t.DType, Shape: slices.Clone(t.Shape)}
	}))
}

// wantDims refuses a shape attribute with negative sizes.
func wantDims(shape []int64) error {
	for _, d := range shape {
		if d < 0 {
			return fmt.Errorf("shape %v has a negative size", shape)
		}
	}
	return nil
}

func iotaRow() *ir.OpDef {
	return moves(checked(&ir.OpDef{
		Name: "iota", Doc: "The index along dimension dim, as a number.",
		Results: []string{"y"},
		Attrs: []ir.AttrDef{
			{Name: "dim", Kind: "int", Default: int64(0), Doc: "the dimension"},
			{Name: "shape", Kind: "ints", Doc: "shape of the result"},
			{Name: "dtype", Kind: "dtype", Default: dtype.I32, Doc: "element type of the result"},
		},
		NoGrad: "an index does not vary", NoGradZero: true,
		Ref: func(_ ir.Eval, op *ir.Op, _ []*tensor.Tensor) ([]*tensor.Tensor, error) {
			shape, dim := op.Attrs.Ints("shape"), op.Attrs.Int("dim")
			out := make([]int64, tensor.Len(shape))
			eachIndex(shape, func(flat int64, idx []int64) { out[flat] = idx[dim] })
			return one(ConvertTensor(tensor.Of(out, shape...), op.Attrs.DType("dtype")))
		},
		Elem: func(c ir.ElemCtx, op *ir.Op, idx []*kern.Expr) []*kern.Expr {
			i, d := idx[op.Attrs.Int("dim")], op.Attrs.DType("dtype")
			if d == dtype.F16 || d == dtype.BF16 {
				return []*kern.Expr{c.Round(kern.Convert(i, dtype.F32), d)}
			}
			return []*kern.Expr{kern.Convert(i, d)}
		},
	}, []ir.Constraint{
		{Label: "C1", Text: "dim is a dimension of shape", Check: func(op *ir.Op) error {
			shape := op.Attrs.Ints("shape")
			if !inRange(op.Attrs.Int("dim"), len(shape)) {
				return fmt.Errorf("dim %d of shape %v", op.Attrs.Int("dim"), shape)
			}
			return wantDims(shape)
		}},
		{Label: "C2", Text: "elements are numbers", Check: func(op *ir.Op) error {
			if d := op.Attrs.DType("dtype"); !numbers.has(d) {
				return fmt.Errorf("dtype is %v", d)
			}
			return nil
		}},
	}, func(op *ir.Op) ir.Type { return ir.T(op.Attrs.DType("dtype"), op.Attrs.Ints("shape")...) }))
}

func broadcastRow() *ir.OpDef {
	return moves(checked(&ir.OpDef{
		Name: "broadcast", Doc: "x repeated into `shape`: dimension i of x becomes dimension dims[i] of the result, its size being the same or 1. " +
			"Result dimensions not in dims are new.",
		Operands: []string{"x"}, Results: []string{"y"},
		Attrs: []ir.AttrDef{
			{Name: "dims", Kind: "ints", Doc: "for each dimension of x, that of the result"},
			{Name: "shape", Kind: "ints", Doc: "shape of the result"},
		},
		VJP: floatGrad(func(b *ir.Builder, op *ir.Op, dy *ir.Value) []*ir.Value {
			x, dims, shape := op.In(0).Shape, op.Attrs.Ints("dims"), op.Attrs.Ints("shape")
			var keep, kept, order []int64 // result dims that x really has, ascending, and their sizes
			for i, d := range dims {
				if x[i] == shape[d] {
					keep = append(keep, d)
				}
			}
			order = slices.Clone(keep)
			slices.Sort(order)
			g := sumTo(b, dy, order)
			perm := make([]int64, len(keep)) // back to x's order of dimensions
			for i, d := range keep {
				perm[i] = int64(slices.Index(order, d))
				kept = append(kept, shape[d])
			}
			return []*ir.Value{reshaped(b, permuted(b, g, perm), x)}
		}),
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			dims, at := op.Attrs.Ints("dims"), make([]int64, len(in[0].Shape))
			return one(gatherElements(in[0], op.Attrs.Ints("shape"), func(idx []int64) int64 {
				for i, d := range dims {
					if at[i] = idx[d]; in[0].Shape[i] == 1 {
						at[i] = 0
					}
				}
				return flatten(in[0].Shape, at)
			}))
		},
		Elem: func(c ir.ElemCtx, op *ir.Op, idx []*kern.Expr) []*kern.Expr {
			var at []*kern.Expr
			for i, d := range op.Attrs.Ints("dims") {
				if op.In(0).Shape[i] == 1 {
					at = append(at, kern.I64(0))
				} else {
					at = append(at, idx[d])
				}
			}
			return []*kern.Expr{c.Arg(0, at...)}
		},
	}, []ir.Constraint{
		{Label: "C1", Text: "dims has a distinct dimension of shape for each dimension of x", Check: func(op *ir.Op) error {
			dims, shape := op.Attrs.Ints("dims"), op.Attrs.Ints("shape")
			if len(dims) != op.In(0).Rank() || !distinctAxes(dims, len(shape)) {
				return fmt.Errorf("dims %v for operand %v and shape %v", dims, op.In(0), shape)
			}
			return wantDims(shape)
		}},
		{Label: "C2", Text: "each size of x is 1 or that of its dimension of the result", Check: func(op *ir.Op) error {
			for i, d := range op.Attrs.Ints("dims") {
				if n, m := op.In(0).Shape[i], op.Attrs.Ints("shape")[d]; n != 1 && n != m {
					return fmt.Errorf("operand %v does not broadcast to %v: dimension %d has size %d, dimension %d has %d", op.In(0), op.Attrs.Ints("shape"), i, n, d, m)
				}
			}
			return nil
		}},
	}, func(op *ir.Op) ir.Type { return ir.T(op.In(0).DType, op.Attrs.Ints("shape")...) }))
}

func reshapeRow() *ir.OpDef {
	return moves(checked(&ir.OpDef{
		Name: "reshape", Doc: "The same elements in the same row-major order under another shape.",
		Operands: []string{"x"}, Results: []string{"y"},
		Attrs: []ir.AttrDef{{Name: "shape", Kind: "ints", Doc: "shape of the result"}},
		VJP: floatGrad(func(b *ir.Builder, op *ir.Op, dy *ir.Value) []*ir.Value {
			return []*ir.Value{reshaped(b, dy, op.In(0).Shape)}
		}),
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			return one(in[0].Clone().Reshaped(op.Attrs.Ints("shape")...))
		},
		Elem: func(c ir.ElemCtx, op *ir.Op, idx []*kern.Expr) []*kern.Expr {
			return []*kern.Expr{c.Arg(0, reindex(op.In(0).Shape, op.Out(0).Shape, idx)...)}
		},
	}, []ir.Constraint{{Label: "C1", Text: "both shapes have the same number of elements", Check: func(op *ir.Op) error {
		shape := op.Attrs.Ints("shape")
		if err := wantDims(shape); err != nil {
			return err
		}
		if tensor.Len(shape) != op.In(0).Len() {
			return fmt.Errorf("operand %v has %d elements, shape %v has %d", op.In(0), op.In(0).Len(), shape, tensor.Len(shape))
		}
		return nil
	}}}, func(op *ir.Op) ir.Type { return ir.T(op.In(0).DType, op.Attrs.Ints("shape")...) }))
}

// reindex takes an index of shape "to" to that of the same element in shape "from". Runs
// of dimensions whose products agree are taken apart, so that dimensions that did not
// change cost nothing.
func reindex(from, to []int64, idx []*kern.Expr) []*kern.Expr {
	out := make([]*kern.Expr, 0, len(from))
	i, j := 0, 0
	for i < len(from) || j < len(to) {
		// The least group from[i:i2], to[j:j2] of equal product.
		i2, j2 := i, j
		n, m := int64(1), int64(1)
		if i < len(from) {
			n, i2 = from[i], i+1
		}
		if j < len(to) {
			m, j2 = to[j], j+1
		}
		for n != m || n == 0 {
			if (n < m || n == 0) && i2 < len(from) {
				n *= from[i2]
				i2++
			} else if j2 < len(to) {
				m *= to[j2]
				j2++
			} else if i2 < len(from) {
				n *= from[i2]
				i2++
			} else {
				break
			}
		}
		if i2-i == 1 && j2-j == 1 {
			out = append(out, idx[j])
		} else {
			flat := kern.I64(0)
			for k := j; k < j2; k++ {
				flat = kern.Add(kern.Mul(flat, kern.I64(to[k])), idx[k])
			}
			digits := make([]*kern.Expr, i2-i)
			for k := i2 - 1; k >= i; k-- {
				if k == i {
					digits[0] = flat
					break
				}
				if from[k] == 1 {
					digits[k-i] = kern.I64(0)
					continue
				}
				digits[k-i] = kern.Rem(flat, kern.I64(from[k]))
				flat = kern.Div(flat, kern.I64(from[k]))
			}
			out = append(out, digits...)
		}
		i, j = i2, j2
	}
	return out
}

func transposeRow() *ir.OpDef {
	return moves(checked(&ir.OpDef{
		Name: "transpose", Doc: "Dimension i of the result is dimension perm[i] of x.",
		Operands: []string{"x"}, Results: []string{"y"},
		Attrs: []ir.AttrDef{{Name: "perm", Kind: "ints", Doc: "a permutation of the dimensions of x"}},
		VJP: floatGrad(func(b *ir.Builder, op *ir.Op, dy *ir.Value) []*ir.Value {
			return []*ir.Value{permuted(b, dy, inverse(op.Attrs.Ints("perm")))}
		}),
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			perm, at := op.Attrs.Ints("perm"), make([]int64, len(in[0].Shape))
			return one(gatherElements(in[0], op.Out(0).Shape, func(idx []int64) int64 {
				for i, p := range perm {
					at[p] = idx[i]
				}
				return flatten(in[0].Shape, at)
			}))
		},
		Elem: func(c ir.ElemCtx, op *ir.Op, idx []*kern.Expr) []*kern.Expr {
			at := make([]*kern.Expr, len(idx))
			for i, p := range op.Attrs.Ints("perm") {
				at[p] = idx[i]
			}
			return []*kern.Expr{c.Arg(0, at...)}
		},
	}, []ir.Constraint{{Label: "C1", Text: "perm is a permutation of the dimensions of x", Check: func(op *ir.Op) error {
		if perm := op.Attrs.Ints("perm"); len(perm) != op.In(0).Rank() || !distinctAxes(perm, len(perm)) {
			return fmt.Errorf("perm %v for operand %v", perm, op.In(0))
		}
		return nil
	}}}, func(op *ir.Op) ir.Type {
		t := ir.Type{DType: op.In(0).DType}
		for _, p := range op.Attrs.Ints("perm") {
			t.Shape = append(t.Shape, op.In(0).Shape[p])
		}
		return t
	}))
}

// inverse of a permutation.
func inverse(perm []int64) []int64 {
	inv := make([]int64, len(perm))
	for i, p := range perm {
		inv[p] = int64(i)
	}
	return inv
}

func sliceRow() *ir.OpDef {
	return moves(checked(&ir.OpDef{
		Name: "slice", Doc: "Elements start, start+stride, … below limit along each dimension.",
		Operands: []string{"x"}, Results: []string{"y"},
		Attrs: []ir.AttrDef{
			{Name: "start", Kind: "ints", Doc: "first index, for each dimension"},
			{Name: "limit", Kind: "ints", Doc: "end, for each dimension"},
			{Name: "stride", Kind: "ints", Default: []int64{}, Doc: "steps, for each dimension; empty: all 1"},
		},
		VJP: floatGrad(func(b *ir.Builder, op *ir.Op, dy *ir.Value) []*ir.Value {
			x, y := op.In(0).Shape, op.Out(0).Shape
			start, stride := op.Attrs.Ints("start"), sliceStride(op)
			high, interior := make([]int64, len(x)), make([]int64, len(x))
			for i := range x {
				interior[i] = stride[i] - 1
				high[i] = x[i] - start[i]
				if y[i] > 0 {
					high[i] -= (y[i]-1)*stride[i] + 1
				}
			}
			return []*ir.Value{padded(b, dy, start, high, interior)}
		}),
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			start, stride, at := op.Attrs.Ints("start"), sliceStride(op), make([]int64, len(in[0].Shape))
			return one(gatherElements(in[0], op.Out(0).Shape, func(idx []int64) int64 {
				for i := range at {
					at[i] = start[i] + idx[i]*stride[i]
				}
				return flatten(in[0].Shape, at)
			}))
		},
		Elem: func(c ir.ElemCtx, op *ir.Op, idx []*kern.Expr) []*kern.Expr {
			start, stride, at := op.Attrs.Ints("start"), sliceStride(op), make([]*kern.Expr, len(idx))
			for i := range at {
				at[i] = kern.Add(kern.Mul(idx[i], kern.I64(stride[i])), kern.I64(start[i]))
			}
			return []*kern.Expr{c.Arg(0, at...)}
		},
	}, []ir.Constraint{
		{Label: "C1", Text: "start, limit and stride have an entry for each dimension", Check: func(op *ir.Op) error {
			n, s := op.In(0).Rank(), len(op.Attrs.Ints("stride"))
			if len(op.Attrs.Ints("start")) != n || len(op.Attrs.Ints("limit")) != n || s != n && s != 0 {
				return fmt.Errorf("operand %v, start %v, limit %v, stride %v", op.In(0), op.Attrs.Ints("start"), op.Attrs.Ints("limit"), op.Attrs.Ints("stride"))
			}
			return nil
		}},
		{Label: "C2", Text: "0 ≤ start ≤ limit ≤ size and stride ≥ 1 along each dimension", Check: func(op *ir.Op) error {
			stride := sliceStride(op)
			for i, n := range op.In(0).Shape {
				if s, l := op.Attrs.Ints("start")[i], op.Attrs.Ints("limit")[i]; s < 0 || s > l || l > n || stride[i] < 1 {
					return fmt.Errorf("dimension %d of operand %v: start %d, limit %d, stride %d", i, op.In(0), s, l, stride[i])
				}
			}
			return nil
		}},
	}, func(op *ir.Op) ir.Type {
		t := ir.Type{DType: op.In(0).DType, Shape: make([]int64, op.In(0).Rank())}
		stride := sliceStride(op)
		for i := range t.Shape {
			t.Shape[i] = (op.Attrs.Ints("limit")[i] - op.Attrs.Ints("start")[i] + stride[i] - 1) / stride[i]
		}
		return t
	}))
}

func sliceStride(op *ir.Op) []int64 {
	if s := op.Attrs.Ints("stride"); len(s) > 0 {
		return s
	}
	return slices.Repeat([]int64{1}, op.In(0).Rank())
}

// sliced is the elements lo … hi-1 of x along one axis.
func sliced(b *ir.Builder, x *ir.Value, axis, lo, hi int64) *ir.Value {
	if lo == 0 && hi == x.Type.Shape[axis] {
		return x
	}
	start, limit := make([]int64, x.Type.Rank()), slices.Clone(x.Type.Shape)
	start[axis], limit[axis] = lo, hi
	return b.Op("slice", []*ir.Value{x}, ir.A("start", start), ir.A("limit", limit))
}

// padded surrounds x with zeros.
func padded(b *ir.Builder, x *ir.Value, low, high, interior []int64) *ir.Value {
	return b.Op("pad", []*ir.Value{x, scalarConst(b, x.Type.DType, 0)}, ir.A("low", low), ir.A("high", high), ir.A("interior", interior))
}

func padInterior(op *ir.Op) []int64 {
	if s := op.Attrs.Ints("interior"); len(s) > 0 {
		return s
	}
	return make([]int64, op.In(0).Rank())
}

// padSpread is the size of n elements with gaps between them.
func padSpread(n, interior int64) int64 {
	if n == 0 {
		return 0
	}
	return (n-1)*(interior+1) + 1
}

func padRow() *ir.OpDef {
	return moves(checked(&ir.OpDef{
		Name: "pad", Doc: "x with `value` put before (low), after (high) and between (interior) its elements along each dimension; negative low and high cut elements off.",
		Operands: []string{"x", "value"}, Results: []string{"y"},
		Attrs: []ir.AttrDef{
			{Name: "low", Kind: "ints", Doc: "elements put before, for each dimension"},
			{Name: "high", Kind: "ints", Doc: "elements put after, for each dimension"},
			{Name: "interior", Kind: "ints", Default: []int64{}, Doc: "elements put between, for each dimension; empty: none"},
		},
		VJP: floatGrad(func(b *ir.Builder, op *ir.Op, dy *ir.Value) []*ir.Value {
			x, y := op.In(0).Shape, op.Out(0).Shape
			low, interior := op.Attrs.Ints("low"), padInterior(op)
			// Cutting the padding off again is a pad by negative amounts and a slice.
			high, zeros := make([]int64, len(x)), make([]int64, len(x))
			lo, step, end := make([]int64, len(x)), make([]int64, len(x)), make([]int64, len(x))
			for i := range x {
				end[i] = padSpread(x[i], interior[i])
				lo[i], high[i], step[i] = -low[i], end[i]+low[i]-y[i], interior[i]+1
			}
			g := b.Op("slice", []*ir.Value{padded(b, dy, lo, high, zeros)}, ir.A("start", zeros), ir.A("limit", end), ir.A("stride", step))
			// What did not come from x came from value.
			bools := op.In(0).With(dtype.Bool)
			own := b.Op("pad", []*ir.Value{full(b, bools, 1), scalarConst(b, dtype.Bool, 0)}, ir.A("low", low), ir.A("high", op.Attrs.Ints("high")), ir.A("interior", interior))
			dv := reduced(b, "sum", choose(b, own, full(b, dy.Type, 0), dy), seq(len(x)))
			return []*ir.Value{g, dv}
		}),
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			low, interior := op.Attrs.Ints("low"), padInterior(op)
			src := tensor.New(in[0].DType, in[0].Len()+1) // the elements, then value
			copy(src.Data, in[0].Data)
			copy(src.Data[len(in[0].Data):], in[1].Data)
			at := make([]int64, len(low))
			return one(gatherElements(src, op.Out(0).Shape, func(idx []int64) int64 {
				for i := range at {
					p := idx[i] - low[i]
					if p < 0 || p%(interior[i]+1) != 0 || p/(interior[i]+1) >= in[0].Shape[i] {
						return in[0].Len()
					}
					at[i] = p / (interior[i] + 1)
				}
				return flatten(in[0].Shape, at)
			}))
		},
		Elem: func(c ir.ElemCtx, op *ir.Op, idx []*kern.Expr) []*kern.Expr {
			low, high, interior := op.Attrs.Ints("low"), op.Attrs.Ints("high"), padInterior(op)
			inside, at := kern.Bool(true), make([]*kern.Expr, len(idx))
			for i := range at {
				p := kern.Sub(idx[i], kern.I64(low[i]))
				if low[i] > 0 {
					inside = kern.And(inside, kern.Ge(p, kern.I64(0)))
				}
				if interior[i] > 0 {
					inside = kern.And(inside, kern.Eq(kern.Rem(p, kern.I64(interior[i]+1)), kern.I64(0)))
					p = kern.Div(p, kern.I64(interior[i]+1))
				}
				if high[i] > 0 {
					inside = kern.And(inside, kern.Lt(p, kern.I64(op.In(0).Shape[i])))
				}
				at[i] = p
			}
			return []*kern.Expr{c.ArgIf(inside, 0, c.Arg(1), at...)}
		},
	}, []ir.Constraint{
		{Label: "C1", Text: "low, high and interior have an entry for each dimension, interior ≥ 0", Check: func(op *ir.Op) error {
			n, s := op.In(0).Rank(), len(op.Attrs.Ints("interior"))
			if len(op.Attrs.Ints("low")) != n || len(op.Attrs.Ints("high")) != n || s != n && s != 0 {
				return fmt.Errorf("operand %v, low %v, high %v, interior %v", op.In(0), op.Attrs.Ints("low"), op.Attrs.Ints("high"), op.Attrs.Ints("interior"))
			}
			return wantDims(op.Attrs.Ints("interior"))
		}},
		{Label: "C2", Text: "value is a scalar of the type of x", Check: func(op *ir.Op) error { return wantScalar(op, 1, op.In(0).DType) }},
		{Label: "C3", Text: "the result's sizes are not negative", Check: func(op *ir.Op) error {
			if t := padType(op); wantDims(t.Shape) != nil {
				return fmt.Errorf("operand %v, low %v and high %v give %v", op.In(0), op.Attrs.Ints("low"), op.Attrs.Ints("high"), t)
			}
			return nil
		}},
	}, padType))
}

func padType(op *ir.Op) ir.Type {
	t := ir.Type{DType: op.In(0).DType, Shape: make([]int64, op.In(0).Rank())}
	interior := padInterior(op)
	for i, n := range op.In(0).Shape {
		t.Shape[i] = op.Attrs.Ints("low")[i] + padSpread(n, interior[i]) + op.Attrs.Ints("high")[i]
	}
	return t
}

func concatRow() *ir.OpDef {
	return moves(checked(&ir.OpDef{
		Name: "concat", Doc: "The operands one after another along dimension dim.",
		Operands: []string{"x…"}, Results: []string{"y"},
		Attrs: []ir.AttrDef{{Name: "dim", Kind: "int", Doc: "the dimension"}},
		VJP: floatGrad(func(b *ir.Builder, op *ir.Op, dy *ir.Value) []*ir.Value {
			dim, at := op.Attrs.Int("dim"), int64(0)
			out := make([]*ir.Value, len(op.Operands))
			for i := range op.Operands {
				n := op.In(i).Shape[dim]
				out[i] = sliced(b, dy, dim, at, at+n)
				at += n
			}
			return out
		}),
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			dim, out := op.Attrs.Int("dim"), tensor.New(op.Out(0).DType, op.Out(0).Shape...)
			w := out.DType.Size()
			inner := tensor.Len(out.Shape[dim+1:]) * w
			at := int64(0)
			for _, t := range in {
				run := t.Shape[dim] * inner
				for o := range tensor.Len(out.Shape[:dim]) {
					copy(out.Data[o*out.Shape[dim]*inner+at:], t.Data[o*run:(o+1)*run])
				}
				at += run
			}
			return one(out)
		},
		Elem: func(c ir.ElemCtx, op *ir.Op, idx []*kern.Expr) []*kern.Expr {
			dim := op.Attrs.Int("dim")
			at, y := op.Out(0).Shape[dim], (*kern.Expr)(nil)
			for i := len(op.Operands) - 1; i >= 0; i-- {
				n := op.In(i).Shape[dim]
				at -= n
				if n == 0 {
					continue
				}
				src := slices.Clone(idx)
				src[dim] = kern.Sub(idx[dim], kern.I64(at))
				if y == nil { // the last: everything that no earlier one claims
					inside := kern.Ge(idx[dim], kern.I64(at))
					if at == 0 {
						y = c.Arg(i, src...)
					} else {
						y = c.ArgIf(inside, i, carriedZero(op.Out(0).DType), src...)
					}
					continue
				}
				inside := kern.Lt(idx[dim], kern.I64(at+n))
				if at > 0 {
					inside = kern.And(kern.Ge(idx[dim], kern.I64(at)), inside)
				}
				y = c.ArgIf(inside, i, y, src...)
			}
			if y == nil {
				y = carriedZero(op.Out(0).DType) // no elements at all
			}
			return []*kern.Expr{y}
		},
	}, []ir.Constraint{
		{Label: "C1", Text: "there is an operand, and dim is a dimension", Check: func(op *ir.Op) error {
			if len(op.Operands) == 0 {
				return fmt.Errorf("no operands")
			}
			if dim := op.Attrs.Int("dim"); !inRange(dim, op.In(0).Rank()) {
				return fmt.Errorf("dim %d of operand %v", dim, op.In(0))
			}
			return nil
		}},
		{Label: "C2", Text: "operands have one element type, and equal sizes but along dim", Check: func(op *ir.Op) error {
			dim := op.Attrs.Int("dim")
			for i := range op.Operands {
				a, b := op.In(0), op.In(i)
				ok := a.DType == b.DType && a.Rank() == b.Rank()
				for d := 0; ok && d < a.Rank(); d++ {
					ok = int64(d) == dim || a.Shape[d] == b.Shape[d]
				}
				if !ok {
					return fmt.Errorf("operands 0 and %d are %v and %v, which do not join along dimension %d", i, a, b, dim)
				}
			}
			return nil
		}},
	}, func(op *ir.Op) ir.Type {
		t, dim := ir.Type{DType: op.In(0).DType, Shape: slices.Clone(op.In(0).Shape)}, op.Attrs.Int("dim")
		for i := range op.Operands[1:] {
			t.Shape[dim] += op.In(i + 1).Shape[dim]
		}
		return t
	}))
}

// carriedZero is a zero in the type in which kernel bodies carry d.
func carriedZero(d dtype.Type) *kern.Expr { return kern.Zero(d.Accum()) }

func reverseRow() *ir.OpDef {
	return moves(checked(&ir.OpDef{
		Name: "reverse", Doc: "The elements in opposite order along each dimension of dims.",
		Operands: []string{"x"}, Results: []string{"y"},
		Attrs: []ir.AttrDef{{Name: "dims", Kind: "ints", Doc: "the dimensions"}},
		VJP: floatGrad(func(b *ir.Builder, op *ir.Op, dy *ir.Value) []*ir.Value {
			return []*ir.Value{b.Op("reverse", []*ir.Value{dy}, ir.A("dims", op.Attrs.Ints("dims")))}
		}),
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			dims := op.Attrs.Ints("dims")
			return one(gatherElements(in[0], in[0].Shape, func(idx []int64) int64 {
				at := slices.Clone(idx)
				for _, d := range dims {
					at[d] = in[0].Shape[d] - 1 - at[d]
				}
				return flatten(in[0].Shape, at)
			}))
		},
		Elem: func(c ir.ElemCtx, op *ir.Op, idx []*kern.Expr) []*kern.Expr {
			at := slices.Clone(idx)
			for _, d := range op.Attrs.Ints("dims") {
				at[d] = kern.Sub(kern.I64(op.In(0).Shape[d]-1), idx[d])
			}
			return []*kern.Expr{c.Arg(0, at...)}
		},
	}, []ir.Constraint{{Label: "C1", Text: "dims are distinct dimensions of x", Check: func(op *ir.Op) error {
		if dims := op.Attrs.Ints("dims"); !distinctAxes(dims, op.In(0).Rank()) {
			return fmt.Errorf("dims %v for operand %v", dims, op.In(0))
		}
		return nil
	}}}, func(op *ir.Op) ir.Type { return op.In(0) }))
}

func identityRow(name, doc string) *ir.OpDef {
	return moves(checked(&ir.OpDef{
		Name: name, Doc: doc,
		Operands: []string{"x"}, Results: []string{"y"},
		Ref: func(_ ir.Eval, _ *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			return one(in[0].Clone())
		},
		Elem: func(c ir.ElemCtx, _ *ir.Op, idx []*kern.Expr) []*kern.Expr {
			return []*kern.Expr{c.Arg(0, idx...)}
		},
	}, nil, func(op *ir.Op) ir.Type { return op.In(0) }))
}

func stopGradientRow() *ir.OpDef {
	d := identityRow("stop_gradient", "x itself; differentiation stops here.")
	d.NoGrad, d.NoGradZero = "the model asks for it", true
	return d
}

func copyRow() *ir.OpDef {
	d := identityRow("copy", "x itself, in memory of its own.")
	d.VJP = floatGrad(func(_ *ir.Builder, _ *ir.Op, dy *ir.Value) []*ir.Value { return []*ir.Value{dy} })
	return d
}
