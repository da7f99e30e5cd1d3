package ops

import (
	"fmt"

	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/kern"
	"reprise/ir/tensor"
)

// reduceRegionRow: a reduction that is no reduce of a known kind, as imported models have them.
func reduceRegionRow() *ir.OpDef {
	half := func(op *ir.Op) int { return len(op.Operands) / 2 }
	accTypes := func(op *ir.Op) []ir.Type {
		ts := make([]ir.Type, half(op))
		for i := range ts {
			ts[i] = ir.T(op.In(i).DType)
		}
		return ts
	}
	return &ir.OpDef{
		Name: "reduce_region", Family: "reduce",
		Doc: "Reduces several operands at once along `axes` with a region of scalars: operands x1 … xn of one shape, then their start values i1 … in (rank 0). The region has parameters " +
			"(acc1 … accn, e1 … en) and gives the new accumulators. The elements are taken one after the other in row-major order of the reduced axes, from the start values: " +
			"a plain fold, without partials. Imported models need it; where the region is a known reduction, `reduce` and `argmax` are what it should become.",
		Operands: []string{"operands…"}, Results: []string{"results…"}, Regions: []string{"body"},
		Attrs: []ir.AttrDef{{Name: "axes", Kind: "ints", Doc: "reduced axes, increasing"}},
		Infer: func(op *ir.Op) ([]ir.Type, error) {
			n := half(op)
			if n == 0 || len(op.Operands)%2 != 0 {
				return nil, fmt.Errorf("%d operands, want as many start values as tensors", len(op.Operands))
			}
			ts := make([]ir.Type, n)
			for i := range ts {
				x, init := op.In(i), op.In(n+i)
				if !sameShape(x.Shape, op.In(0).Shape) {
					return nil, fmt.Errorf("operand %d is %v, the first is %v", i, x, op.In(0))
				}
				if !init.Equal(ir.T(x.DType)) {
					return nil, fmt.Errorf("start value %d is %v, want %v for operand %v", i, init, ir.T(x.DType), x)
				}
				if err := axesOK(op.Attrs.Ints("axes"), x.Rank()); err != nil {
					return nil, fmt.Errorf("%v of operand %v", err, x)
				}
				ts[i] = ir.T(x.DType, without(x.Shape, op.Attrs.Ints("axes"))...)
			}
			return ts, nil
		},
		Constraints: []ir.Constraint{
			{Label: "C1", Text: "the region has an accumulator and an element of each operand as parameters", Check: func(op *ir.Op) error {
				return sameTypes("parameters of the region", typesOf(op.Regions[0].Params), append(accTypes(op), accTypes(op)...))
			}},
			{Label: "C2", Text: "the region gives the accumulators", Check: func(op *ir.Op) error {
				return sameTypes("results of the region", typesOf(op.Regions[0].Results), accTypes(op))
			}},
			{Label: "C3", Text: "the region is of pure maps of scalars", Check: func(op *ir.Op) error {
				for _, o := range op.Regions[0].Ops {
					if o.Def.Elem == nil || o.Effect() != ir.EffectNone || len(o.Regions) > 0 || o.Det() == ir.Keyed {
						return fmt.Errorf("%s in the region", o.Name())
					}
					for _, t := range append(typesOf(o.Operands), typesOf(o.Results)...) {
						if t.Rank() != 0 || t.DType == dtype.Key {
							return fmt.Errorf("%s of %v in the region", o.Name(), t)
						}
					}
				}
				return nil
			}},
		},
		Det: func(op *ir.Op) ir.Det {
			for i := range half(op) {
				if !op.In(i).DType.IsFloat() { // the index of an argmax
					return ir.Decides
				}
			}
			return ir.Exact
		},
		Cost: func(op *ir.Op) ir.Cost {
			return ir.Cost{Flops: op.In(0).Len() * blockFlops(op.Regions[0]), Bytes: ownBytes(op)}
		},
		NoGrad: "the region is arbitrary: write the reduction as reduce, argmax or a loop",
		Elem: func(c ir.ElemCtx, op *ir.Op, idx []*kern.Expr) []*kern.Expr {
			n, x := half(op), op.In(0)
			axes := op.Attrs.Ints("axes")
			at := make([]*kern.Expr, x.Rank())
			for i, d := range without(seq(x.Rank()), axes) {
				at[d] = idx[i]
			}
			acc := make([]*kern.Expr, n)
			for i := range acc {
				acc[i] = c.Arg(n + i)
			}
			var loop func(k int, acc []*kern.Expr) []*kern.Expr
			loop = func(k int, acc []*kern.Expr) []*kern.Expr {
				if k == len(axes) {
					args := append([]*kern.Expr{}, acc...)
					for i := range n {
						args = append(args, c.Arg(i, append([]*kern.Expr{}, at...)...))
					}
					return scalarBlock(c, op.Regions[0], args)
				}
				return c.Loop(x.Shape[axes[k]], acc, func(i *kern.Expr, acc []*kern.Expr) []*kern.Expr {
					at[axes[k]] = i
					return loop(k+1, acc)
				})
			}
			return loop(0, acc)
		},
		Ref: func(e ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			n, axes := half(op), op.Attrs.Ints("axes")
			shape := in[0].Shape
			strides := stridesOf(shape)
			kept := without(seq(len(shape)), axes)
			out := make([]*tensor.Tensor, n)
			for i := range out {
				out[i] = tensor.New(in[i].DType, pick(shape, kept)...)
			}
			var failed error
			eachIndex(pick(shape, kept), func(flat int64, idx []int64) {
				acc := append([]*tensor.Tensor{}, in[n:]...)
				eachIndex(pick(shape, axes), func(_ int64, k []int64) {
					if failed != nil {
						return
					}
					from := dotIdx(idx, pick(strides, kept)) + dotIdx(k, pick(strides, axes))
					args := append([]*tensor.Tensor{}, acc...)
					for i := range n {
						s := tensor.New(in[i].DType)
						s.SetBits(0, in[i].Bits(from))
						args = append(args, s)
					}
					acc, failed = e.Block(op.Regions[0], args)
				})
				if failed != nil {
					return
				}
				for i := range out {
					out[i].SetBits(flat, acc[i].Bits(0))
				}
			})
			return out, failed
		},
	}
}

// scalarBlock is the kernel body of a block of maps of scalars: the values of its results.
func scalarBlock(c ir.ElemCtx, b *ir.Block, args []*kern.Expr) []*kern.Expr {
	vals := map[*ir.Value]*kern.Expr{}
	for i, p := range b.Params {
		vals[p] = args[i]
	}
	for _, op := range b.Ops {
		for i, e := range op.Def.Elem(&scalarCtx{c, op, vals}, op, nil) {
			vals[op.Results[i]] = e
		}
	}
	out := make([]*kern.Expr, len(b.Results))
	for i, r := range b.Results {
		out[i] = vals[r]
	}
	return out
}

// scalarCtx is the context of an op of such a block; loops and rounding are those of the context around.
type scalarCtx struct {
	ir.ElemCtx
	op   *ir.Op
	vals map[*ir.Value]*kern.Expr
}

func (c *scalarCtx) Arg(i int, _ ...*kern.Expr) *kern.Expr { return c.vals[c.op.Operands[i]] }

func (c *scalarCtx) ArgIf(cond *kern.Expr, i int, other *kern.Expr, _ ...*kern.Expr) *kern.Expr {
	return kern.Select(cond, c.Arg(i), other)
}
