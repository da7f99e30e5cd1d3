package ops

// The general contraction: one chain of fma per output element, in increasing k.

import (
	"fmt"
	"math"
	"slices"

	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/kern"
	"reprise/ir/kern/scalar"
	"reprise/ir/tensor"
)

// ContractDims is how the dimensions of a contraction's operands pair up.
type ContractDims struct {
	LHSBatch, RHSBatch       []int64 // paired, kept first in the result
	LHSContract, RHSContract []int64 // paired, summed over; the last varies fastest
	LHSFree, RHSFree         []int64 // the rest, ascending: next in the result
}

// ContractDimsOf reads the dimensions of an op contract.
func ContractDimsOf(op *ir.Op) ContractDims {
	d := ContractDims{
		LHSBatch: op.Attrs.Ints("lhs_batch"), RHSBatch: op.Attrs.Ints("rhs_batch"),
		LHSContract: op.Attrs.Ints("lhs_contract"), RHSContract: op.Attrs.Ints("rhs_contract"),
	}
	d.LHSFree = otherAxes(op.In(0).Rank(), slices.Concat(d.LHSBatch, d.LHSContract))
	d.RHSFree = otherAxes(op.In(1).Rank(), slices.Concat(d.RHSBatch, d.RHSContract))
	return d
}

func contractOps() []*ir.OpDef { return []*ir.OpDef{contractRow()} }

func contractRow() *ir.OpDef {
	outType := func(op *ir.Op) dtype.Type {
		if d := op.Attrs.DType("out"); d != dtype.Invalid {
			return d
		}
		return op.In(0).DType
	}
	pairs := func(op *ir.Op, kind string) error {
		l, r := op.Attrs.Ints("lhs_"+kind), op.Attrs.Ints("rhs_"+kind)
		if len(l) != len(r) {
			return fmt.Errorf("lhs_%s %v and rhs_%s %v differ in number", kind, l, kind, r)
		}
		for i := range l {
			if n, m := op.In(0).Shape[l[i]], op.In(1).Shape[r[i]]; n != m {
				return fmt.Errorf("operands are %v and %v: dimension %d of a has size %d, dimension %d of b has %d (%s)", op.In(0), op.In(1), l[i], n, r[i], m, kind)
			}
		}
		return nil
	}
	d := checked(&ir.OpDef{
		Name: "contract", Family: "contract",
		Doc: "The sum over paired dimensions of products, `Σ_k a[batch…, m…, k…] · b[batch…, n…, k…]`; dimensions of the result: batch, then the free " +
			"ones of a, then those of b.\n\nPer element one chain `acc = fma(a_k, b_k, acc)` from +0 in increasing k (several: nested, the last fastest), " +
			"in f32 for f16 and f32; f64 and integers (wrapping) in the result's type. bf16 in pairs, the odd element first: " +
			"`acc = fma(a_2i, b_2i, fma(a_2i+1, b_2i+1, acc))`, denormal operands and results taken as zero, an odd tail paired with zeros. Then rounded to `out`.",
		Operands: []string{"a", "b"}, Results: []string{"y"},
		Attrs: []ir.AttrDef{
			{Name: "lhs_batch", Kind: "ints", Default: []int64{}, Doc: "batch dimensions of a"},
			{Name: "rhs_batch", Kind: "ints", Default: []int64{}, Doc: "those of b, paired with them"},
			{Name: "lhs_contract", Kind: "ints", Default: []int64{}, Doc: "dimensions of a that are summed over"},
			{Name: "rhs_contract", Kind: "ints", Default: []int64{}, Doc: "those of b, paired with them"},
			{Name: "out", Kind: "dtype", Default: dtype.Invalid, Doc: "element type of the result; default: that of a"},
		},
		Cost: func(op *ir.Op) ir.Cost {
			c := trafficOf(op)
			c.Flops = 2 * op.Out(0).Len()
			for _, k := range op.Attrs.Ints("lhs_contract") {
				c.Flops *= op.In(0).Shape[k]
			}
			return c
		},
		VJP: func(b *ir.Builder, op *ir.Op, douts []*ir.Value) ([]*ir.Value, error) {
			if !op.Out(0).DType.IsFloat() {
				return make([]*ir.Value, 2), nil
			}
			return contractVJP(b, op, douts[0]), nil
		},
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			return one(contractRef(op, in[0], in[1]))
		},
		Elem:          contractElem,
		HandScheduled: "contract",
	}, []ir.Constraint{
		{Label: "C1", Text: "operands have one numeric element type", Check: func(op *ir.Op) error {
			if op.In(0).DType != op.In(1).DType {
				return fmt.Errorf("operands are %v and %v: element types differ", op.In(0), op.In(1))
			}
			return wantClass(op, 0, numbers)
		}},
		{Label: "C2", Text: "dimensions exist and have one use each", Check: func(op *ir.Op) error {
			for i, side := range []string{"lhs", "rhs"} {
				all := slices.Concat(op.Attrs.Ints(side+"_batch"), op.Attrs.Ints(side+"_contract"))
				if !distinctAxes(all, op.In(i).Rank()) {
					return fmt.Errorf("%s_batch %v and %s_contract %v for operand %v", side, op.Attrs.Ints(side+"_batch"), side, op.Attrs.Ints(side+"_contract"), op.In(i))
				}
			}
			return nil
		}},
		{Label: "C3", Text: "paired batch dimensions have equal sizes", Check: func(op *ir.Op) error { return pairs(op, "batch") }},
		{Label: "C4", Text: "paired contracted dimensions have equal sizes", Check: func(op *ir.Op) error { return pairs(op, "contract") }},
		{Label: "C5", Text: "out is a float for floats (f64 for f64 only), an integer for integers", Check: func(op *ir.Op) error {
			in, out := op.In(0).DType, outType(op)
			if in.IsFloat() != out.IsFloat() || in.IsInt() != out.IsInt() || in == dtype.F64 && out != dtype.F64 || in != dtype.F64 && out == dtype.F64 {
				return fmt.Errorf("operands of %v, out %v", in, out)
			}
			return nil
		}},
	}, func(op *ir.Op) ir.Type {
		op.Attrs = op.Attrs.Set("out", outType(op))
		dims := ContractDimsOf(op)
		t := ir.Type{DType: outType(op)}
		for _, d := range dims.LHSBatch {
			t.Shape = append(t.Shape, op.In(0).Shape[d])
		}
		for _, d := range dims.LHSFree {
			t.Shape = append(t.Shape, op.In(0).Shape[d])
		}
		for _, d := range dims.RHSFree {
			t.Shape = append(t.Shape, op.In(1).Shape[d])
		}
		return t
	})
	return d
}

// contracted appends a contraction.
func contracted(b *ir.Builder, x, y *ir.Value, lb, rb, lc, rc []int64, out dtype.Type) *ir.Value {
	return b.Op("contract", []*ir.Value{x, y},
		ir.A("lhs_batch", lb), ir.A("rhs_batch", rb), ir.A("lhs_contract", lc), ir.A("rhs_contract", rc), ir.A("out", out))
}

// contractVJP: da contracts dy with b over b's free dimensions, db dy with a over a's.
// Where out is wider than the operands, dy is first rounded to their type.
func contractVJP(b *ir.Builder, op *ir.Op, dy *ir.Value) []*ir.Value {
	d := ContractDimsOf(op)
	x, y := op.Operands[0], op.Operands[1]
	dy = cast(b, dy, x.Type.DType)
	nb, nl := len(d.LHSBatch), len(d.LHSFree)
	batch := seq(nb) // in dy
	lfree, rfree := offset(nl, nb), offset(len(d.RHSFree), nb+nl)
	// dx of the operand that has dims (batch, free, contract), the other one's being
	// (obatch, ofree, ocontract); dyFree is where dy has free, dyOther where it has ofree.
	side := func(self, other *ir.Value, sBatch, sFree, sContract, oBatch, oFree, oContract, dyFree, dyOther []int64) *ir.Value {
		// With dy first the result is batch, free (of dy), contract (ascending in other);
		// with other first it is batch, contract, free. Take the one that needs no transpose.
		var byOther []int64 // self's contracted dims in the order in which they are ascending in other
		order := seq(len(oContract))
		slices.SortFunc(order, func(i, j int64) int { return int(oContract[i] - oContract[j]) })
		for _, i := range order {
			byOther = append(byOther, sContract[i])
		}
		dyFirst := slices.Concat(sBatch, sFree, byOther)
		otherFirst := slices.Concat(sBatch, byOther, sFree)
		if !isSeq(dyFirst) && isSeq(otherFirst) {
			return contracted(b, other, dy, oBatch, batch, oFree, dyOther, self.Type.DType)
		}
		g := contracted(b, dy, other, batch, oBatch, dyOther, oFree, self.Type.DType)
		return permuted(b, g, inverse(dyFirst))
	}
	return []*ir.Value{
		side(x, y, d.LHSBatch, d.LHSFree, d.LHSContract, d.RHSBatch, d.RHSFree, d.RHSContract, lfree, rfree),
		side(y, x, d.RHSBatch, d.RHSFree, d.RHSContract, d.LHSBatch, d.LHSFree, d.LHSContract, rfree, lfree),
	}
}

// offset is from, from+1, … (n numbers).
func offset(n, from int) []int64 {
	s := seq(n)
	for i := range s {
		s[i] += int64(from)
	}
	return s
}

func isSeq(s []int64) bool { return slices.Equal(s, seq(len(s))) }

// gatherStrides lists, in row-major order over dims, the offsets of a shape's elements.
func gatherStrides(shape, dims []int64) []int64 {
	strides, sizes := stridesOf(shape), make([]int64, len(dims))
	for i, d := range dims {
		sizes[i] = shape[d]
	}
	out := make([]int64, 0, tensor.Len(sizes))
	eachIndex(sizes, func(_ int64, idx []int64) {
		at := int64(0)
		for i, d := range dims {
			at += idx[i] * strides[d]
		}
		out = append(out, at)
	})
	return out
}

func contractRef(op *ir.Op, a, b *tensor.Tensor) *tensor.Tensor {
	d := ContractDimsOf(op)
	aBatch, bBatch := gatherStrides(a.Shape, d.LHSBatch), gatherStrides(b.Shape, d.RHSBatch)
	aFree, bFree := gatherStrides(a.Shape, d.LHSFree), gatherStrides(b.Shape, d.RHSFree)
	aK, bK := gatherStrides(a.Shape, d.LHSContract), gatherStrides(b.Shape, d.RHSContract)
	out := op.Out(0)
	n := out.Len()
	// visit calls f with the offsets of each output element's operands.
	visit := func(f func(i, pa, pb int64)) {
		i := int64(0)
		for k := range aBatch {
			for _, m := range aFree {
				for _, c := range bFree {
					f(i, aBatch[k]+m, bBatch[k]+c)
					i++
				}
			}
		}
	}
	switch {
	case a.DType == dtype.F64:
		x, y, z := a.F64(), b.F64(), make([]float64, n)
		visit(func(i, pa, pb int64) {
			acc := 0.0
			for k := range aK {
				acc = math.FMA(x[pa+aK[k]], y[pb+bK[k]], acc)
			}
			z[i] = acc
		})
		return makeF64(out.Shape, z)
	case a.DType == dtype.BF16:
		x, y, z := readF32(a), readF32(b), make([]float32, n)
		visit(func(i, pa, pb int64) {
			acc := float32(0)
			for k := 0; k < len(aK); k += 2 {
				var a1, b1 float32
				if k+1 < len(aK) {
					a1, b1 = x[pa+aK[k+1]], y[pb+bK[k+1]]
				}
				acc = scalar.FmaFlush32(a1, b1, acc)
				acc = scalar.FmaFlush32(x[pa+aK[k]], y[pb+bK[k]], acc)
			}
			z[i] = acc
		})
		return makeF32(out.DType, out.Shape, z)
	case a.DType.IsFloat():
		x, y, z := readF32(a), readF32(b), make([]float32, n)
		visit(func(i, pa, pb int64) {
			acc := float32(0)
			for k := range aK {
				acc = scalar.Fma32(x[pa+aK[k]], y[pb+bK[k]], acc)
			}
			z[i] = acc
		})
		return makeF32(out.DType, out.Shape, z)
	}
	x, y, z := readInts(a), readInts(b), make([]int64, n)
	visit(func(i, pa, pb int64) {
		acc := int64(0)
		for k := range aK {
			acc += x[pa+aK[k]] * y[pb+bK[k]]
		}
		z[i] = acc
	})
	return makeInts(out.DType, out.Shape, z)
}

// contractElem is the body for contractions that no hand-scheduled kernel takes: a loop
// over k for each element. bf16 has no such body: only the hand-scheduled kernels set the
// processor's treatment of denormals.
func contractElem(c ir.ElemCtx, op *ir.Op, idx []*kern.Expr) []*kern.Expr {
	d := ContractDimsOf(op)
	in, out := op.In(0).DType, op.Out(0).DType
	acc := in.Accum()
	if in.IsInt() {
		acc = out
	}
	n := int64(1)
	for _, k := range d.LHSContract {
		n *= op.In(0).Shape[k]
	}
	res := c.Loop(n, []*kern.Expr{kern.Zero(acc)}, func(k *kern.Expr, carried []*kern.Expr) []*kern.Expr {
		pa, pb := make([]*kern.Expr, op.In(0).Rank()), make([]*kern.Expr, op.In(1).Rank())
		at := 0
		for i := range d.LHSBatch {
			pa[d.LHSBatch[i]], pb[d.RHSBatch[i]] = idx[at], idx[at]
			at++
		}
		for _, f := range d.LHSFree {
			pa[f] = idx[at]
			at++
		}
		for _, f := range d.RHSFree {
			pb[f] = idx[at]
			at++
		}
		for i := len(d.LHSContract) - 1; i >= 0; i-- {
			digit, size := k, op.In(0).Shape[d.LHSContract[i]]
			if i > 0 {
				digit, k = kern.Rem(k, kern.I64(size)), kern.Div(k, kern.I64(size))
			}
			pa[d.LHSContract[i]], pb[d.RHSContract[i]] = digit, digit
		}
		x, y := c.Arg(0, pa...), c.Arg(1, pb...)
		if in.IsInt() {
			return []*kern.Expr{kern.Add(carried[0], kern.Mul(kern.Convert(x, acc), kern.Convert(y, acc)))}
		}
		return []*kern.Expr{kern.Fma(x, y, carried[0])}
	})
	return []*kern.Expr{c.Round(res[0], out)}
}
