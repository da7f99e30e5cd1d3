package ops

import (
	"fmt"
	"slices"

	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/kern"
	"reprise/ir/tensor"
)

// ReduceChunk is the number of consecutive elements that a reduction over n elements
// reduces with 64 partials and a tree before joining: a function of n alone.
func ReduceChunk(n int64) int64 {
	if n <= 65536 {
		return 1024
	}
	return 8192
}

// reduceLine reduces elements get(0) … get(n-1) in the normative order: each chunk with 64 partials
// (element i of the chunk to partial i mod 64) and the tree 32, 16, 8, 4, 2, 1; chunk
// results joined in order.
func reduceLine(op binary, identity uint64, n int64, get func(i int64) uint64) uint64 {
	if n == 0 {
		return identity
	}
	chunk := ReduceChunk(n)
	var r uint64
	for lo := int64(0); lo < n; lo += chunk {
		var p [64]uint64
		for l := range p {
			p[l] = identity
		}
		for i := lo; i < min(lo+chunk, n); i++ {
			l := (i - lo) % 64
			p[l] = op(p[l], get(i))
		}
		for s := 32; s > 0; s /= 2 {
			for l := range s {
				p[l] = op(p[l], p[l+s])
			}
		}
		if lo == 0 {
			r = p[0]
		} else {
			r = op(r, p[0])
		}
	}
	return r
}

// reduceDTypes reports a kind that does not fit the element type.
func reduceDTypes(kind string, d dtype.Type) error {
	switch kind {
	case "sum", "prod", "max", "min":
		if d.IsFloat() || d.IsInt() {
			return nil
		}
	case "and", "or", "xor":
		if d == dtype.Bool || d.IsInt() {
			return nil
		}
	default:
		return fmt.Errorf("unknown kind %q, want sum, prod, max, min, and, or, xor", kind)
	}
	return fmt.Errorf("kind %q does not exist for %s", kind, d)
}

func reduceOps() []*ir.OpDef {
	return []*ir.OpDef{
		{
			Name: "reduce", Family: "reduce",
			Doc: "Reduces `x` along `axes`, which the result lacks. The `n` elements of a reduction are taken in row-major " +
				"order of the reduced axes and cut into chunks of 1024 (8192 where n > 65536). Within a chunk element i joins partial " +
				"i mod 64 in order (partial = op(partial, element)), the 64 partials join by the tree p[i] = op(p[i], p[i+s]), s = 32 … 1, " +
				"and the chunks' results join in order. Partials start at +0, 1, −inf/least, +inf/greatest, all ones, 0, 0. max is a where a > b or a is NaN, " +
				"else b, so NaN wins; min likewise. f16 and bf16 are reduced in f32 and rounded once. No element: the start value.\n\n" +
				"Gradient of max and min: shared evenly by all elements that equal the result; of prod: the product of the others, zeros included.",
			Operands: []string{"x"}, Results: []string{"y"},
			Attrs: []ir.AttrDef{
				{Name: "kind", Kind: "string", Doc: "sum, prod, max, min (numbers); and, or, xor (bool, integers, bitwise)"},
				{Name: "axes", Kind: "ints", Doc: "reduced axes, increasing"},
			},
			Infer: func(op *ir.Op) ([]ir.Type, error) {
				x, axes := op.In(0), op.Attrs.Ints("axes")
				if err := axesOK(axes, x.Rank()); err != nil {
					return nil, fmt.Errorf("%v of operand %v", err, x)
				}
				return oneType(ir.T(x.DType, without(x.Shape, axes)...))
			},
			Constraints: []ir.Constraint{{Label: "C1", Text: "kind exists for the element type", Check: func(op *ir.Op) error {
				return reduceDTypes(op.Attrs.Str("kind"), op.In(0).DType)
			}}},
			Cost: func(op *ir.Op) ir.Cost {
				x := op.In(0)
				return ir.Cost{Flops: x.Len(), Bytes: x.Bytes() + op.Out(0).Bytes()}
			},
			VJP:           reduceVJP,
			Ref:           reduceRef,
			HandScheduled: "reduce",
		},
		argRow("argmax", "greatest", func(d dtype.Type, a, best uint64) bool { return lessBits(d, best, a) }),
		argRow("argmin", "least", func(d dtype.Type, a, best uint64) bool { return lessBits(d, a, best) }),
		reduceRegionRow(),
	}
}

func reduceRef(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
	x, axes := in[0], op.Attrs.Ints("axes")
	fn, identity := reducer(op.Attrs.Str("kind"), x.DType.Accum())
	kept := without(seq(len(x.Shape)), axes)
	strides := stridesOf(x.Shape)
	keptStr, redStr := pick(strides, kept), pick(strides, axes)
	redShape := pick(x.Shape, axes)
	n := tensor.Len(redShape)
	offsets := make([]int64, 0, n)
	eachIndex(redShape, func(_ int64, idx []int64) { offsets = append(offsets, dotIdx(idx, redStr)) })
	y := tensor.New(x.DType, pick(x.Shape, kept)...)
	eachIndex(y.Shape, func(flat int64, idx []int64) {
		base := dotIdx(idx, keptStr)
		accSet(y, flat, reduceLine(fn, identity, n, func(i int64) uint64 { return accGet(x, base+offsets[i]) }))
	})
	return one(y)
}

// argRow is argmax or argmin; better(a, best) replaces the element kept so far.
func argRow(name, word string, better func(d dtype.Type, a, best uint64) bool) *ir.OpDef {
	return &ir.OpDef{
		Name: name, Family: "reduce",
		Doc: fmt.Sprintf("Index of the %s element of `x` along `axis`, which the result lacks; the first one wins, and the first NaN beats all numbers. "+
			"Elements are read in order.", word),
		Operands: []string{"x"}, Results: []string{"index"},
		Attrs: []ir.AttrDef{{Name: "axis", Kind: "int", Doc: "reduced axis"}},
		Infer: func(op *ir.Op) ([]ir.Type, error) {
			x, axis := op.In(0), op.Attrs.Int("axis")
			if err := axisOK(axis, x.Rank()); err != nil {
				return nil, fmt.Errorf("%v of operand %v", err, x)
			}
			return oneType(ir.T(dtype.I32, without(x.Shape, []int64{axis})...))
		},
		Constraints: []ir.Constraint{
			{Label: "C1", Text: "the elements are numbers", Check: func(op *ir.Op) error {
				if d := op.In(0).DType; !d.IsFloat() && !d.IsInt() {
					return fmt.Errorf("operand %v", op.In(0))
				}
				return nil
			}},
			{Label: "C2", Text: "the axis has an element, and its indices fit i32", Check: func(op *ir.Op) error {
				if n := op.In(0).Shape[op.Attrs.Int("axis")]; n < 1 || n >= 1<<31 {
					return fmt.Errorf("axis %d of operand %v has %d elements", op.Attrs.Int("axis"), op.In(0), n)
				}
				return nil
			}},
		},
		Det: func(*ir.Op) ir.Det { return ir.Decides },
		Cost: func(op *ir.Op) ir.Cost {
			x := op.In(0)
			return ir.Cost{Flops: x.Len(), Bytes: x.Bytes() + op.Out(0).Bytes()}
		},
		NoGrad: "an index has no gradient", NoGradZero: true,
		Elem: func(c ir.ElemCtx, op *ir.Op, idx []*kern.Expr) []*kern.Expr {
			axis := op.Attrs.Int("axis")
			at := func(i *kern.Expr) *kern.Expr {
				return c.Arg(0, slices.Insert(slices.Clone(idx), int(axis), i)...)
			}
			out := c.Loop(op.In(0).Shape[axis]-1, []*kern.Expr{at(kern.I64(0)), kern.I64(0)}, func(i *kern.Expr, acc []*kern.Expr) []*kern.Expr {
				i = kern.Add(i, kern.I64(1))
				a, best := at(i), acc[0]
				take := kern.Lt(a, best)
				if name == "argmax" {
					take = kern.Gt(a, best)
				}
				if a.DType.IsFloat() {
					take = kern.And(kern.Eq(best, best), kern.Or(kern.Ne(a, a), take))
				}
				return []*kern.Expr{kern.Select(take, a, best), kern.Select(take, i, acc[1])}
			})
			return []*kern.Expr{kern.Convert(out[1], dtype.I32)}
		},
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			x, axis := in[0], op.Attrs.Int("axis")
			d := x.DType.Accum()
			kept := without(seq(len(x.Shape)), []int64{axis})
			strides := stridesOf(x.Shape)
			keptStr := pick(strides, kept)
			y := tensor.New(dtype.I32, pick(x.Shape, kept)...)
			eachIndex(y.Shape, func(flat int64, idx []int64) {
				base := dotIdx(idx, keptStr)
				best, at := accGet(x, base), int64(0)
				for i := int64(1); i < x.Shape[axis]; i++ {
					a := accGet(x, base+i*strides[axis])
					if !isNaNBits(d, best) && (isNaNBits(d, a) || better(d, a, best)) {
						best, at = a, i
					}
				}
				y.SetBits(flat, uint64(uint32(at)))
			})
			return one(y)
		},
	}
}

// reduceVJP: see the row's Doc.
func reduceVJP(bb *ir.Builder, op *ir.Op, douts []*ir.Value) ([]*ir.Value, error) {
	b, x, y, dy := em{bb}, op.Operands[0], op.Results[0], douts[0]
	axes, kind := op.Attrs.Ints("axes"), op.Attrs.Str("kind")
	if !x.Type.DType.IsFloat() {
		return []*ir.Value{nil}, nil
	}
	shape := x.Type.Shape
	kept := without(seq(len(shape)), axes)
	switch kind {
	case "sum":
		return []*ir.Value{b.spread(dy, shape, kept)}, nil
	case "max", "min":
		hit := b.eq(x, b.spread(y, shape, kept))
		count := b.sum(b.conv(hit, x.Type.DType), axes)
		share := b.spread(b.div(dy, count), shape, kept)
		return []*ir.Value{b.sel(hit, share, b.zeros(x.Type))}, nil
	case "prod":
		// The product of the others is that of those before times that of those after.
		perm := append(slices.Clone(kept), axes...)
		n := tensor.Len(pick(shape, axes))
		flat := append(pick(shape, kept), n)
		last := int64(len(kept))
		line := b.reshape(b.transpose(x, perm), flat)
		before := b.op1("cumprod", line, ir.A("axis", last), ir.A("exclusive", true))
		after := b.op1("cumprod", line, ir.A("axis", last), ir.A("exclusive", true), ir.A("reverse", true))
		dx := b.mul(b.spread(dy, flat, seq(len(kept))), b.mul(before, after))
		inv := make([]int64, len(perm))
		for i, p := range perm {
			inv[p] = int64(i)
		}
		return []*ir.Value{b.transpose(b.reshape(dx, pick(shape, perm)), inv)}, nil
	}
	return nil, fmt.Errorf("kind %q has no gradient", kind)
}
