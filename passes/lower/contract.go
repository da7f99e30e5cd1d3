package lower

import (
	"slices"

	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/kern"
)

// contractable: the contraction family takes it (floats; integers are maps with a loop).
func contractable(op *ir.Op) bool {
	ok := func(d dtype.Type) bool { return d == dtype.F32 || d == dtype.BF16 || d == dtype.F16 }
	a, b, out := op.In(0).DType, op.In(1).DType, op.Out(0).DType
	return ok(a) && ok(b) && ok(out) || a == dtype.F64 && b == dtype.F64 && out == dtype.F64
}

// axis is a loop of a contraction together with the result's dimensions that it runs over.
type axis struct {
	kern.Axis
	dims []int // dimensions of the result, outermost first; nil for K
}

func strides(shape []int64) []int64 {
	s := make([]int64, len(shape))
	n := int64(1)
	for i := len(shape) - 1; i >= 0; i-- {
		s[i] = n
		n *= shape[i]
	}
	return s
}

// merge joins neighbours that every operand walks as one, and drops axes of size 1.
func merge(axes []axis) []axis {
	var out []axis
	for _, a := range axes {
		if a.Size == 1 {
			continue
		}
		if n := len(out); n > 0 {
			o := &out[n-1]
			if o.StrideA == a.StrideA*a.Size && o.StrideB == a.StrideB*a.Size && o.StrideC == a.StrideC*a.Size {
				o.Size *= a.Size
				o.StrideA, o.StrideB, o.StrideC = a.StrideA, a.StrideB, a.StrideC
				o.dims = append(o.dims, a.dims...)
				continue
			}
		}
		a.dims = slices.Clone(a.dims)
		out = append(out, a)
	}
	return out
}

func (p *program) lowerContract(op *ir.Op) (*Lowered, error) {
	as, bs, cs := op.In(0).Shape, op.In(1).Shape, op.Out(0).Shape
	sa, sb, sc := strides(as), strides(bs), strides(cs)
	lb, rb := op.Attrs.Ints("lhs_batch"), op.Attrs.Ints("rhs_batch")
	lc, rc := op.Attrs.Ints("lhs_contract"), op.Attrs.Ints("rhs_contract")
	var batch, m, n, k []axis
	dim := 0
	for i := range lb {
		batch = append(batch, axis{kern.Axis{Size: cs[dim], StrideA: sa[lb[i]], StrideB: sb[rb[i]], StrideC: sc[dim]}, []int{dim}})
		dim++
	}
	for i := range as {
		if d := int64(i); !slices.Contains(lb, d) && !slices.Contains(lc, d) {
			m = append(m, axis{kern.Axis{Size: as[i], StrideA: sa[i], StrideC: sc[dim]}, []int{dim}})
			dim++
		}
	}
	for i := range bs {
		if d := int64(i); !slices.Contains(rb, d) && !slices.Contains(rc, d) {
			n = append(n, axis{kern.Axis{Size: bs[i], StrideB: sb[i], StrideC: sc[dim]}, []int{dim}})
			dim++
		}
	}
	for i := range lc {
		k = append(k, axis{kern.Axis{Size: as[lc[i]], StrideA: sa[lc[i]], StrideB: sb[rc[i]]}, nil})
	}
	batch, m, n, k = merge(batch), merge(m), merge(n), merge(k)
	// One M and one N axis are blocked; others are walked like batch axes.
	last := func(list []axis) (axis, []axis) {
		if len(list) == 0 {
			return axis{Axis: kern.Axis{Size: 1}}, nil
		}
		return list[len(list)-1], list[:len(list)-1]
	}
	am, restM := last(m)
	an, restN := last(n)
	batch = append(append(batch, restM...), restN...)

	c := &kern.Contract{Name: p.name, A: op.In(0).DType, B: op.In(1).DType, Acc: op.In(0).DType.Accum(), Out: op.Out(0).DType,
		M: am.Axis, N: an.Axis, LenA: op.In(0).Len(), LenB: op.In(1).Len(), LenC: op.Out(0).Len()}
	for _, a := range batch {
		c.Batch = append(c.Batch, a.Axis)
	}
	for _, a := range k {
		c.K = append(c.K, a.Axis)
	}
	if len(c.K) == 0 {
		size := int64(1)
		for i := range lc {
			size *= as[lc[i]]
		}
		c.K = []kern.Axis{{Size: size}}
	}
	ia, ib := p.leaves[op.Operands[0]], p.leaves[op.Operands[1]]
	args := []Ref{{Operand, ia}, {Operand, ib}}
	if len(p.ops) == 1 {
		return &Lowered{Launches: []Launch{{Contract: c, Args: append(args, Ref{Result, 0})}}}, nil
	}

	bd := newBody(p, p.name, 1)
	e := &kern.Epilogue{Batch: kern.NewVar("batch", dtype.I64), M: kern.NewVar("m", dtype.I64), N: kern.NewVar("n", dtype.I64), Acc: kern.NewVar("acc", c.Acc)}
	idx := make([]*kern.Expr, len(cs))
	for i := range idx {
		idx[i] = kern.I64(0)
	}
	place := func(a axis, at *kern.Expr) {
		var shape []int64
		for _, d := range a.dims {
			shape = append(shape, cs[d])
		}
		for i, x := range bd.unflatten(at, shape) {
			idx[a.dims[i]] = x
		}
	}
	var sizes []int64
	for _, a := range batch {
		sizes = append(sizes, a.Size)
	}
	for i, x := range bd.unflatten(kern.Get(e.Batch), sizes) {
		place(batch[i], x)
	}
	place(am, kern.Get(e.M))
	place(an, kern.Get(e.N))
	idx = bd.internAll(idx)
	acc := (&elemCtx{bd, op}).Round(kern.Get(e.Acc), op.Out(0).DType)
	bd.given[op.Results[0]] = given{idx, bd.bind(acc)}
	at := bd.flatten(idx, cs)
	vals := make([]*kern.Expr, len(p.outs))
	for i, o := range p.outs {
		oi := idx
		if !sameShape(o.Type.Shape, cs) {
			oi = bd.unflatten(at, o.Type.Shape)
		}
		vals[i] = bd.value(o, oi)
	}
	for i, o := range p.outs {
		buf := bd.result(i, o.Type)
		bd.emit(buf.Set(at, narrow(vals[i], o.Type.DType)))
	}
	e.Body = bd.pop()
	c.Epilogue, c.Params = e, bd.b.K.Params
	c.EpilogueFlops = int64(len(e.Body))
	l := &Lowered{Launches: []Launch{{Contract: c, Args: append(args, bd.args...)}}}
	// The contraction's own operands are read all the time.
	delete(bd.reads, ia)
	delete(bd.reads, ib)
	bd.inPlace(l, at)
	return l, nil
}
