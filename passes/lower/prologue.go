package lower

import (
	"slices"

	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/kern"
)

// prologue makes what computes operand v of a contraction, side 0 or 1, while it is packed. Its
// parameters join those of bd, which goes on with the rest of the kernel. block is the store to the
// packed block, whose parameter's number is known when all parameters are; reads are the operands of
// the program that it reads, all of the time.
func (p *program) prologue(bd *body, v *ir.Value, side int, own axis, batch, k []axis) (pro *kern.Prologue, block *kern.Store, reads []int) {
	shape := v.Type.Shape
	pro = &kern.Prologue{Batch: kern.NewVar("batch", dtype.I64), Lo: kern.NewVar("lo", dtype.I64), Hi: kern.NewVar("hi", dtype.I64),
		Base: kern.NewVar("base", dtype.I64), N: kern.NewVar("n", dtype.I64), Ld: kern.NewVar("ld", dtype.I64)}
	// Strips run along the axis whose neighbours are neighbours in memory.
	st := strides(shape)
	last := func(a axis) int64 {
		if d := a.side[side]; len(d) > 0 {
			return st[d[len(d)-1]]
		}
		return 0
	}
	pro.AlongK = own.Size == 1 || last(own) != 1
	in := newBody(p, p.name, 1)
	in.b, in.args, in.param = bd.b, bd.args, bd.param
	r, c := kern.NewVar("r", dtype.I64), kern.NewVar("c", dtype.I64)
	in.push(r)
	in.push(c)
	row, col := kern.Get(r), kern.Add(kern.Mul(kern.Get(pro.Base), kern.I64(kern.Lanes)), kern.Get(c))
	chain, other := col, row
	if !pro.AlongK {
		chain, other = row, col
	}
	dims := func(a axis) []int { return a.side[side] }
	idx := in.operandIndex(shape, batch, kern.Get(pro.Batch), dims)
	in.placeAxis(idx, shape, dims(own), other)
	var sizes []int64
	for _, a := range k {
		sizes = append(sizes, a.Size)
	}
	for i, x := range in.unflatten(chain, sizes) {
		in.placeAxis(idx, shape, dims(k[i]), x)
	}
	val := narrow(in.value(v, in.internAll(idx)), v.Type.DType)
	block = &kern.Store{Param: -1, Index: kern.Add(kern.Mul(kern.Sub(row, kern.Get(pro.Lo)), kern.Get(pro.Ld)), kern.Get(c)), Value: val}
	strip := kern.Lane(c, kern.Get(pro.N), append(in.pop(), block)...)
	w := kern.StripWork(strip.Var, strip.Body)
	pro.Flops = int64(w.Lanes + kern.Costly*w.Divs + kern.Draw*w.Randoms)
	in.emit(strip)
	in.emit(&kern.For{Var: r, Lo: kern.Get(pro.Lo), Hi: kern.Get(pro.Hi), Step: 1, Body: in.pop()})
	pro.Body = in.pop()
	bd.args = in.args
	for i := range in.reads {
		reads = append(reads, i)
	}
	slices.Sort(reads)
	return pro, block, reads
}

// closePrologues gives the blocks of prologues their number among the parameters, which are complete.
func (p *program) closePrologues(c *kern.Contract, blocks [2]*kern.Store) {
	for _, b := range blocks {
		if b != nil {
			b.Param = len(c.Params)
		}
	}
}
