package lower

import (
	"slices"

	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/kern"
)

// Contractable: the contraction family takes it (floats; integers are maps with a loop).
func Contractable(op *ir.Op) bool {
	ok := func(d dtype.Type) bool { return d == dtype.F32 || d == dtype.BF16 || d == dtype.F16 }
	a, b, out := op.In(0).DType, op.In(1).DType, op.Out(0).DType
	return ok(a) && ok(b) && ok(out) || a == dtype.F64 && b == dtype.F64 && out == dtype.F64
}

// axis is a loop of a contraction together with the dimensions that it runs over, outermost first.
type axis struct {
	kern.Axis
	dims []int    // of the result; nil for K
	side [2][]int // of the operands; nil where an operand does not vary
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
				for i := range o.side {
					o.side[i] = append(o.side[i], a.side[i]...)
				}
				continue
			}
		}
		a.dims = slices.Clone(a.dims)
		for i := range a.side {
			a.side[i] = slices.Clone(a.side[i])
		}
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
		batch = append(batch, axis{kern.Axis{Size: cs[dim], StrideA: sa[lb[i]], StrideB: sb[rb[i]], StrideC: sc[dim]}, []int{dim}, [2][]int{{int(lb[i])}, {int(rb[i])}}})
		dim++
	}
	for i := range as {
		if d := int64(i); !slices.Contains(lb, d) && !slices.Contains(lc, d) {
			m = append(m, axis{kern.Axis{Size: as[i], StrideA: sa[i], StrideC: sc[dim]}, []int{dim}, [2][]int{{i}, nil}})
			dim++
		}
	}
	for i := range bs {
		if d := int64(i); !slices.Contains(rb, d) && !slices.Contains(rc, d) {
			n = append(n, axis{kern.Axis{Size: bs[i], StrideB: sb[i], StrideC: sc[dim]}, []int{dim}, [2][]int{nil, {i}}})
			dim++
		}
	}
	for i := range lc {
		k = append(k, axis{kern.Axis{Size: as[lc[i]], StrideA: sa[lc[i]], StrideB: sb[rc[i]]}, nil, [2][]int{{int(lc[i])}, {int(rc[i])}}})
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
	// An operand that the program computes becomes a prologue; its readers inside the epilogue
	// compute it for themselves.
	bd := newBody(p, p.name, 1)
	var args []Ref
	var always []int // operands of the program that are read all the time
	var blocks [2]*kern.Store
	for side, own := range []axis{am, an} {
		if i, ok := p.memory(op.Operands[side]); ok {
			args = append(args, Ref{Operand, i})
			always = append(always, i)
			continue
		}
		pro, block, reads := p.prologue(bd, op.Operands[side], side, own, batch, k)
		blocks[side] = block
		always = append(always, reads...)
		if side == 0 {
			c.ProA = pro
		} else {
			c.ProB = pro
		}
	}
	if len(p.outs) == 1 && p.outs[0] == op.Results[0] {
		bd.pop()
		c.Params = bd.b.K.Params
		p.closePrologues(c, blocks)
		return &Lowered{Launches: []Launch{{Contract: c, Args: append(append(args, Ref{Result, 0}), bd.args...)}}}, nil
	}

	e := &kern.Epilogue{Batch: kern.NewVar("batch", dtype.I64), M: kern.NewVar("m", dtype.I64), N: kern.NewVar("n", dtype.I64), Acc: kern.NewVar("acc", c.Acc)}
	idx := bd.operandIndex(cs, batch, kern.Get(e.Batch), func(a axis) []int { return a.dims })
	bd.placeAxis(idx, cs, am.dims, kern.Get(e.M))
	bd.placeAxis(idx, cs, an.dims, kern.Get(e.N))
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
	p.closePrologues(c, blocks)
	l := &Lowered{Launches: []Launch{{Contract: c, Args: append(args, bd.args...)}}}
	for _, i := range always {
		delete(bd.reads, i)
	}
	bd.inPlace(l, at)
	return l, nil
}

// memory is the operand of the program that v is, if v is in memory: an operand, or another shape of one.
func (p *program) memory(v *ir.Value) (int, bool) {
	for v.Op != nil && v.Op.Name() == "reshape" {
		if _, ok := p.leaves[v]; ok {
			break
		}
		v = v.Op.Operands[0]
	}
	i, ok := p.leaves[v]
	return i, ok
}

// operandIndex is the index into a buffer of the given shape at a flat batch index; the dimensions of
// other axes are 0 so far. dims gives the buffer's dimensions of an axis.
func (bd *body) operandIndex(shape []int64, batch []axis, flat *kern.Expr, dims func(a axis) []int) []*kern.Expr {
	idx := make([]*kern.Expr, len(shape))
	for i := range idx {
		idx[i] = kern.I64(0)
	}
	var sizes []int64
	for _, a := range batch {
		sizes = append(sizes, a.Size)
	}
	for i, x := range bd.unflatten(flat, sizes) {
		bd.placeAxis(idx, shape, dims(batch[i]), x)
	}
	return idx
}

// placeAxis writes the position at on an axis into the dimensions that it runs over.
func (bd *body) placeAxis(idx []*kern.Expr, shape []int64, dims []int, at *kern.Expr) {
	var sizes []int64
	for _, d := range dims {
		sizes = append(sizes, shape[d])
	}
	for i, x := range bd.unflatten(at, sizes) {
		idx[dims[i]] = x
	}
}
