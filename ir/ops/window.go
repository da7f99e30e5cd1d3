package ops

import (
	"fmt"
	"slices"

	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/kern"
	"reprise/ir/kern/scalar"
	"reprise/ir/tensor"
)

func windowOps() []*ir.OpDef {
	return []*ir.OpDef{convRow(), reduceWindowRow(), maxPoolRow(), avgPoolRow(), selectAndScatterRow(), selectAndGatherRow()}
}

// span is the window of an op along one dimension: tap k of output p reads padded and dilated position
// p·stride + k·rdil − lo, which holds an element where lhs dilation divides it.
type span struct {
	in, win, stride, lo, hi, ldil, rdil int64
}

func dilated(n, d int64) int64 {
	if n == 0 {
		return 0
	}
	return (n-1)*d + 1
}

// out is the number of outputs.
func (s span) out() int64 {
	room := dilated(s.in, s.ldil) + s.lo + s.hi - dilated(s.win, s.rdil)
	if room < 0 {
		return 0
	}
	return room/s.stride + 1
}

// at is the element that tap k of output p reads, -1 for none.
func (s span) at(p, k int64) int64 {
	x := p*s.stride + k*s.rdil - s.lo
	if x < 0 || x >= dilated(s.in, s.ldil) || x%s.ldil != 0 {
		return -1
	}
	return x / s.ldil
}

// atExpr is at in a kernel: the element, and whether there is one.
func (s span) atExpr(p, k *kern.Expr) (x, ok *kern.Expr) {
	x = kern.Add(kern.Mul(p, kern.I64(s.stride)), kern.Mul(k, kern.I64(s.rdil)))
	x = kern.Sub(x, kern.I64(s.lo))
	if s.lo == 0 && (s.out()-1)*s.stride+dilated(s.win, s.rdil) <= dilated(s.in, s.ldil) {
		ok = kern.Bool(true)
	} else {
		ok = withinExpr(x, dilated(s.in, s.ldil))
	}
	if s.ldil > 1 {
		ok = kern.And(ok, kern.Eq(kern.Rem(x, kern.I64(s.ldil)), kern.I64(0)))
		x = kern.Div(x, kern.I64(s.ldil))
	}
	return x, ok
}

// ConvDims are the dimensions and windows of an op conv.
type ConvDims struct {
	X, W, Y       []int64 // places of [batch, feature, spatial…], [out, in, spatial…], [batch, feature, spatial…]
	Spans         []span
	FeatureGroups int64
	BatchGroups   int64
	Reverse       bool
	Batch         int64 // of the result
	Out           int64 // output features
	In            int64 // input channels that an output feature reads
	Taps          int64 // kernel positions
	Segment       int64 // input channels of one chain: see ConvSegment
}

// ConvSegment is how many of the input channels make one chain of fma in a convolution:
// all of them, unless channels × kernel positions exceed 8192; then as many as fill 8192 (at
// least one). The chains of the segments are joined in order. It is a function of
// shape alone, and cuts the weight gradients of convolutions, whose "channels" are the batch
// and whose "kernel" is a whole picture.
func ConvSegment(channels, taps int64) int64 {
	const limit = 8192
	if channels*taps <= limit {
		return max(1, channels)
	}
	return max(1, limit/max(1, taps))
}

// ConvDimsOf reads the attributes of an op conv; the error says what does not fit.
func ConvDimsOf(op *ir.Op) (ConvDims, error) {
	x, w, a := op.In(0), op.In(1), op.Attrs
	rank := x.Rank()
	d := ConvDims{FeatureGroups: a.Int("feature_groups"), BatchGroups: a.Int("batch_groups"), Reverse: a.Bool("reverse")}
	if rank < 2 || w.Rank() != rank {
		return d, fmt.Errorf("operands %v and %v: want two of the same rank, at least 2", x, w)
	}
	n := rank - 2
	for _, l := range []struct {
		name string
		to   *[]int64
	}{{"x_dims", &d.X}, {"w_dims", &d.W}, {"y_dims", &d.Y}} {
		*l.to = a.Ints(l.name)
		if len(*l.to) == 0 {
			*l.to = seq(rank)
		}
		if len(*l.to) != rank || !distinctAxes(*l.to, rank) {
			return d, fmt.Errorf("%s %v is no permutation of the dimensions of operands %v and %v", l.name, *l.to, x, w)
		}
	}
	ints := func(name string, n int, value int64) ([]int64, error) {
		v := a.Ints(name)
		if len(v) == 0 {
			v = slices.Repeat([]int64{value}, n)
		}
		if len(v) != n {
			return nil, fmt.Errorf("%s %v: want %d numbers for operands %v and %v", name, v, n, x, w)
		}
		return v, nil
	}
	strides, err1 := ints("strides", n, 1)
	pads, err2 := ints("padding", 2*n, 0)
	ldil, err3 := ints("lhs_dilation", n, 1)
	rdil, err4 := ints("rhs_dilation", n, 1)
	for _, err := range []error{err1, err2, err3, err4} {
		if err != nil {
			return d, err
		}
	}
	d.Taps = 1
	for i := range n {
		s := span{x.Shape[d.X[2+i]], w.Shape[d.W[2+i]], strides[i], pads[2*i], pads[2*i+1], ldil[i], rdil[i]}
		if s.stride < 1 || s.ldil < 1 || s.rdil < 1 {
			return d, fmt.Errorf("spatial dimension %d: stride %d, dilations %d and %d must be at least 1", i, s.stride, s.ldil, s.rdil)
		}
		d.Spans = append(d.Spans, s)
		d.Taps *= s.win
	}
	batch, feat := x.Shape[d.X[0]], x.Shape[d.X[1]]
	d.Out, d.In = w.Shape[d.W[0]], w.Shape[d.W[1]]
	fg, bg := d.FeatureGroups, d.BatchGroups
	switch {
	case fg < 1 || bg < 1 || fg > 1 && bg > 1:
		return d, fmt.Errorf("feature_groups %d, batch_groups %d: want both at least 1, one of them 1", fg, bg)
	case feat != d.In*fg:
		return d, fmt.Errorf("input %v has %d features, kernel %v reads %d in each of %d groups", x, feat, w, d.In, fg)
	case d.Out%fg != 0 || d.Out%bg != 0:
		return d, fmt.Errorf("%d output features of kernel %v do not divide into %d groups", d.Out, w, max(fg, bg))
	case batch%bg != 0:
		return d, fmt.Errorf("batch %d of input %v does not divide into %d groups", batch, x, bg)
	}
	d.Batch = batch / bg
	d.Segment = ConvSegment(d.In, d.Taps)
	return d, nil
}

// shape is that of the result.
func (d ConvDims) shape() []int64 {
	shape := make([]int64, len(d.Y))
	shape[d.Y[0]], shape[d.Y[1]] = d.Batch, d.Out
	for i, s := range d.Spans {
		shape[d.Y[2+i]] = s.out()
	}
	return shape
}

func convRow() *ir.OpDef {
	none := []int64{}
	return &ir.OpDef{
		Name: "conv", Family: "window",
		Doc: "Convolution (correlation: the kernel is not flipped) of `x` with kernel `w`, any number of spatial dimensions. Tap k of output position p reads x at " +
			"p·stride + k·rhs_dilation − low padding, in x spread out by lhs_dilation; taps outside of x or between its elements are skipped. Output feature o reads the " +
			"input channels of feature group o / (out / feature_groups), and the part of the batch of batch group o / (out / batch_groups).\n\n" +
			"Per element one chain acc = fma(x, w, acc) from +0: input channels in order, for each the kernel positions in row-major order. Where channels × positions exceed " +
			"8192, chains of as many whole channels as fill 8192 (at least one) are joined in order. f16 and bf16 accumulate in f32 (bf16 without pairs), integers wrap.",
		Operands: []string{"x", "w"}, Results: []string{"y"},
		Attrs: []ir.AttrDef{
			{Name: "strides", Kind: "ints", Default: none, Doc: "per spatial dimension; default 1"},
			{Name: "padding", Kind: "ints", Default: none, Doc: "low and high per spatial dimension, may be negative; default 0"},
			{Name: "lhs_dilation", Kind: "ints", Default: none, Doc: "per spatial dimension; default 1"},
			{Name: "rhs_dilation", Kind: "ints", Default: none, Doc: "per spatial dimension; default 1"},
			{Name: "feature_groups", Kind: "int", Default: int64(1), Doc: "groups of input and output features"},
			{Name: "batch_groups", Kind: "int", Default: int64(1), Doc: "groups of the batch and output features"},
			{Name: "reverse", Kind: "bool", Default: false, Doc: "the kernel is flipped in all spatial dimensions"},
			{Name: "x_dims", Kind: "ints", Default: none, Doc: "places of batch, feature, spatial… in x; default in order"},
			{Name: "w_dims", Kind: "ints", Default: none, Doc: "places of output feature, input feature, spatial… in w; default in order"},
			{Name: "y_dims", Kind: "ints", Default: none, Doc: "places of batch, feature, spatial… in the result; default in order"},
		},
		Infer: func(op *ir.Op) ([]ir.Type, error) {
			d, err := ConvDimsOf(op)
			if err != nil {
				return nil, err
			}
			return oneType(ir.T(op.In(0).DType, d.shape()...))
		},
		Constraints: []ir.Constraint{{Label: "C1", Text: "both operands have the same numeric element type", Check: func(op *ir.Op) error {
			if x, w := op.In(0), op.In(1); x.DType != w.DType || !x.DType.IsFloat() && !x.DType.IsInt() {
				return fmt.Errorf("operands %v and %v", x, w)
			}
			return nil
		}}},
		Cost: func(op *ir.Op) ir.Cost {
			d, err := ConvDimsOf(op)
			if err != nil {
				return ir.Cost{}
			}
			return ir.Cost{Flops: 2 * op.Out(0).Len() * d.In * d.Taps, Bytes: ownBytes(op)}
		},
		VJP:           convVJP,
		Elem:          convElem,
		HandScheduled: "conv",
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			d, err := ConvDimsOf(op)
			if err != nil {
				return nil, err
			}
			return one(convRef(d, in[0], in[1]))
		},
	}
}

// convRef is the reference: for every output position the list of taps that exist, then a chain over them for each
// image, output feature and input channel.
func convRef(d ConvDims, x, w *tensor.Tensor) *tensor.Tensor {
	y := tensor.New(x.DType, d.shape()...)
	xs, ws, ys := stridesOf(x.Shape), stridesOf(w.Shape), stridesOf(y.Shape)
	wins, outs := make([]int64, len(d.Spans)), make([]int64, len(d.Spans))
	for i, s := range d.Spans {
		wins[i], outs[i] = s.win, s.out()
	}
	chain := convChain(x, w)
	add, _ := reducer("sum", x.DType.Accum())
	var xt, wt []int64 // offsets of the taps in x and w
	eachIndex(outs, func(_ int64, p []int64) {
		xt, wt = xt[:0], wt[:0]
		eachIndex(wins, func(_ int64, k []int64) {
			px, pw := int64(0), int64(0)
			for i, s := range d.Spans {
				e, kw := s.at(p[i], k[i]), k[i]
				if e < 0 {
					return
				}
				if d.Reverse {
					kw = s.win - 1 - kw
				}
				px += e * xs[d.X[2+i]]
				pw += kw * ws[d.W[2+i]]
			}
			xt, wt = append(xt, px), append(wt, pw)
		})
		py := int64(0)
		for i := range p {
			py += p[i] * ys[d.Y[2+i]]
		}
		for n := range d.Batch {
			for o := range d.Out {
				group, part := o/(d.Out/d.FeatureGroups), o/(d.Out/d.BatchGroups)
				px := (part*d.Batch+n)*xs[d.X[0]] + group*d.In*xs[d.X[1]]
				pw := o * ws[d.W[0]]
				var sum, acc uint64
				for c := range d.In {
					if c > 0 && c%d.Segment == 0 { // a chain is complete
						if sum = add(sum, acc); c == d.Segment {
							sum = acc
						}
						acc = 0
					}
					acc = chain(acc, px+c*xs[d.X[1]], xt, pw+c*ws[d.W[1]], wt)
				}
				if d.In > d.Segment {
					acc = add(sum, acc)
				}
				accSet(y, py+n*ys[d.Y[0]]+o*ys[d.Y[1]], acc)
			}
		}
	})
	return y
}

// convChain continues the chain acc over the taps at px+xt[k] and pw+wt[k].
func convChain(x, w *tensor.Tensor) func(acc uint64, px int64, xt []int64, pw int64, wt []int64) uint64 {
	switch {
	case x.DType == dtype.F64:
		a, b := x.F64(), w.F64()
		return func(acc uint64, px int64, xt []int64, pw int64, wt []int64) uint64 {
			z := from64(acc)
			for k := range xt {
				z = scalar.Fma64(a[px+xt[k]], b[pw+wt[k]], z)
			}
			return bits64(z)
		}
	case x.DType.IsFloat():
		a, b := readF32(x), readF32(w)
		return func(acc uint64, px int64, xt []int64, pw int64, wt []int64) uint64 {
			z := from32(acc)
			for k := range xt {
				z = scalar.Fma32(a[px+xt[k]], b[pw+wt[k]], z)
			}
			return bits32(z)
		}
	}
	fma := fmaBits(x.DType)
	return func(acc uint64, px int64, xt []int64, pw int64, wt []int64) uint64 {
		for k := range xt {
			acc = fma(x.Bits(px+xt[k]), w.Bits(pw+wt[k]), acc)
		}
		return acc
	}
}

func convElem(c ir.ElemCtx, op *ir.Op, idx []*kern.Expr) []*kern.Expr {
	d, err := ConvDimsOf(op)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	acct := op.In(0).DType.Accum()
	o := idx[d.Y[1]]
	px, pw := make([]*kern.Expr, len(d.X)), make([]*kern.Expr, len(d.W))
	px[d.X[0]] = kern.Add(kern.Mul(kern.Div(o, kern.I64(d.Out/d.BatchGroups)), kern.I64(d.Batch)), idx[d.Y[0]])
	if d.BatchGroups == 1 {
		px[d.X[0]] = idx[d.Y[0]]
	}
	pw[d.W[0]] = o
	c0 := kern.I64(0)
	if d.FeatureGroups > 1 {
		c0 = kern.Mul(kern.Div(o, kern.I64(d.Out/d.FeatureGroups)), kern.I64(d.In))
	}
	// chain runs the taps of channel ch from spatial dimension i on.
	var chain func(i int, ok, acc *kern.Expr) *kern.Expr
	chain = func(i int, ok, acc *kern.Expr) *kern.Expr {
		if i == len(d.Spans) {
			x := c.ArgIf(ok, 0, kern.Zero(acct), slices.Clone(px)...)
			w := c.Arg(1, slices.Clone(pw)...)
			next := kern.Add(kern.Mul(x, w), acc)
			if acct.IsFloat() {
				next = kern.Fma(x, w, acc)
			}
			return kern.Select(ok, next, acc)
		}
		s := d.Spans[i]
		return c.Loop(s.win, []*kern.Expr{acc}, func(k *kern.Expr, acc []*kern.Expr) []*kern.Expr {
			x, in := s.atExpr(idx[d.Y[2+i]], k)
			px[d.X[2+i]], pw[d.W[2+i]] = x, k
			if d.Reverse {
				pw[d.W[2+i]] = kern.Sub(kern.I64(s.win-1), k)
			}
			return []*kern.Expr{chain(i+1, kern.And(ok, in), acc[0])}
		})[0]
	}
	channels := func(from *kern.Expr, n int64) *kern.Expr {
		return c.Loop(n, []*kern.Expr{kern.Zero(acct)}, func(i *kern.Expr, acc []*kern.Expr) []*kern.Expr {
			ch := kern.Add(from, i)
			px[d.X[1]], pw[d.W[1]] = kern.Add(c0, ch), ch
			return []*kern.Expr{chain(0, kern.Bool(true), acc[0])}
		})[0]
	}
	if d.Segment >= d.In {
		return []*kern.Expr{c.Round(channels(kern.I64(0), d.In), op.Out(0).DType)}
	}
	total := channels(kern.I64(0), d.Segment)
	whole, rest := d.In/d.Segment, d.In%d.Segment
	if whole > 1 {
		total = c.Loop(whole-1, []*kern.Expr{total}, func(i *kern.Expr, acc []*kern.Expr) []*kern.Expr {
			from := kern.Mul(kern.Add(i, kern.I64(1)), kern.I64(d.Segment))
			return []*kern.Expr{kern.Add(acc[0], channels(from, d.Segment))}
		})[0]
	}
	if rest > 0 {
		total = kern.Add(total, channels(kern.I64(whole*d.Segment), rest))
	}
	return []*kern.Expr{c.Round(total, op.Out(0).DType)}
}

// ConvKernel is the op conv as a kernel of the hand-scheduled family; nil where a size is zero.
func ConvKernel(op *ir.Op) *kern.Conv {
	d, err := ConvDimsOf(op)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	x, w, y := op.In(0), op.In(1), op.Out(0)
	if x.Len() == 0 || w.Len() == 0 || y.Len() == 0 {
		return nil
	}
	xs, ws, ys := stridesOf(x.Shape), stridesOf(w.Shape), stridesOf(y.Shape)
	k := &kern.Conv{
		Name: "conv", DType: x.DType, Batch: d.Batch, Channels: d.Out, InChannels: d.In,
		Groups: d.FeatureGroups, BatchGroups: d.BatchGroups, Segment: d.Segment,
		InBatch: xs[d.X[0]], InChannel: xs[d.X[1]], KerOut: ws[d.W[0]], KerIn: ws[d.W[1]], OutBatch: ys[d.Y[0]], OutChannel: ys[d.Y[1]],
		LenIn: x.Len(), LenKer: w.Len(), LenOut: y.Len(),
	}
	for i, s := range d.Spans {
		k.Spatial = append(k.Spatial, kern.ConvDim{
			In: s.in, Kernel: s.win, Out: s.out(), Stride: s.stride, InDilation: s.ldil, KernelDilation: s.rdil, PadLo: s.lo, Reverse: d.Reverse,
			StrideIn: xs[d.X[2+i]], StrideKer: ws[d.W[2+i]], StrideOut: ys[d.Y[2+i]],
		})
	}
	return k
}

// swapped exchanges the first two places.
func swapped(dims []int64) []int64 {
	d := slices.Clone(dims)
	d[0], d[1] = d[1], d[0]
	return d
}

// outOf cuts dim of x into groups and puts the group's number first in dim to: dim has size/groups then,
// and dim to groups·size.
func (e em) outOf(x *ir.Value, dim, to, groups int64) *ir.Value {
	if groups == 1 {
		return x
	}
	shape := x.Type.Shape
	split := slices.Insert(slices.Clone(shape), int(dim), groups)
	split[dim+1] = shape[dim] / groups
	// The dims of split, without the groups', in order; the groups' goes before to's.
	perm := []int64{}
	final := []int64{}
	for i := range int64(len(shape)) {
		at := i
		if i >= dim {
			at = i + 1
		}
		n := split[at]
		if i == to {
			perm = append(perm, dim)
			n *= groups
		}
		perm = append(perm, at)
		final = append(final, n)
	}
	return e.reshape(e.transpose(e.reshape(x, split), perm), final)
}

// convVJP: both gradients are convolutions. dx: dy, spread out by the strides, with the flipped
// kernel, its features exchanged. dw: x with dy as the kernel, batch and features exchanged. (The
// derivation of the paddings is that of jax.lax.conv_general_dilated.)
func convVJP(bb *ir.Builder, op *ir.Op, douts []*ir.Value) ([]*ir.Value, error) {
	if !op.In(0).DType.IsFloat() {
		return make([]*ir.Value, 2), nil
	}
	d, err := ConvDimsOf(op)
	if err != nil {
		return nil, err
	}
	b, x, w, dy := em{bb}, op.Operands[0], op.Operands[1], douts[0]
	if dy.Type.Len() == 0 || x.Type.Len() == 0 || w.Type.Len() == 0 {
		return []*ir.Value{b.zeros(x.Type), b.zeros(w.Type)}, nil
	}
	var strides, ldil, rdil, padX, padW []int64
	for _, s := range d.Spans {
		strides, ldil, rdil = append(strides, s.stride), append(ldil, s.ldil), append(rdil, s.rdil)
		in, win, out := dilated(s.in, s.ldil), dilated(s.win, s.rdil), dilated(s.out(), s.stride)
		before := win - s.lo - 1
		padX = append(padX, before, in+win-1-out-before)
		padW = append(padW, s.lo, out-in+win-s.lo-1)
	}
	groups := d.FeatureGroups * d.BatchGroups
	dx := b.op2("conv", dy, b.outOf(w, d.W[0], d.W[1], groups),
		ir.A("strides", ldil), ir.A("padding", padX), ir.A("lhs_dilation", strides), ir.A("rhs_dilation", rdil),
		ir.A("feature_groups", groups), ir.A("reverse", !d.Reverse),
		ir.A("x_dims", d.Y), ir.A("w_dims", swapped(d.W)), ir.A("y_dims", d.X))
	if d.BatchGroups > 1 {
		dx = b.outOf(dx, d.X[1], d.X[0], d.BatchGroups)
	}
	dw := b.op2("conv", x, dy,
		ir.A("strides", rdil), ir.A("padding", padW), ir.A("lhs_dilation", ldil), ir.A("rhs_dilation", strides),
		ir.A("feature_groups", d.BatchGroups), ir.A("batch_groups", d.FeatureGroups),
		ir.A("x_dims", swapped(d.X)), ir.A("w_dims", swapped(d.Y)), ir.A("y_dims", swapped(d.W)))
	if d.Reverse {
		dw = b.op1("reverse", dw, ir.A("dims", slices.Clone(d.W[2:])))
	}
	return []*ir.Value{dx, dw}, nil
}

// windowSpans reads the window attributes of an op on operand 0; each has a number for every dimension.
func windowSpans(op *ir.Op) ([]span, error) {
	x, a := op.In(0), op.Attrs
	get := func(name string, n int, value int64) ([]int64, error) {
		v := a.Ints(name)
		if len(v) == 0 {
			return slices.Repeat([]int64{value}, n), nil
		}
		if len(v) != n {
			return nil, fmt.Errorf("%s %v: want %d numbers for operand %v", name, v, n, x)
		}
		return v, nil
	}
	r := x.Rank()
	win, err1 := get("window", r, 1)
	strides, err2 := get("strides", r, 1)
	pads, err3 := get("padding", 2*r, 0)
	base, err4 := get("base_dilation", r, 1)
	wdil, err5 := get("window_dilation", r, 1)
	for _, err := range []error{err1, err2, err3, err4, err5} {
		if err != nil {
			return nil, err
		}
	}
	spans := make([]span, r)
	for i := range spans {
		spans[i] = span{x.Shape[i], win[i], strides[i], pads[2*i], pads[2*i+1], base[i], wdil[i]}
		if s := spans[i]; s.win < 1 || s.stride < 1 || s.ldil < 1 || s.rdil < 1 {
			return nil, fmt.Errorf("dimension %d of operand %v: window %d, stride %d, dilations %d and %d must be at least 1", i, x, s.win, s.stride, s.ldil, s.rdil)
		}
	}
	return spans, nil
}

// mustSpans is windowSpans of an op that was checked.
func mustSpans(op *ir.Op) []span {
	s, err := windowSpans(op)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return s
}

// windowAttrs are the attributes of an op over windows; base: x itself may be spread out.
func windowAttrs(base bool) []ir.AttrDef {
	none := []int64{}
	attrs := []ir.AttrDef{
		{Name: "window", Kind: "ints", Doc: "size of the window along each dimension of x"},
		{Name: "strides", Kind: "ints", Default: none, Doc: "step of the window along each dimension; default 1"},
		{Name: "padding", Kind: "ints", Default: none, Doc: "low and high for each dimension; default 0"},
		{Name: "window_dilation", Kind: "ints", Default: none, Doc: "spreads the window out along each dimension; default 1"},
	}
	if base {
		attrs = append(attrs, ir.AttrDef{Name: "base_dilation", Kind: "ints", Default: none, Doc: "spreads x out along each dimension; default 1"})
	}
	return attrs
}

func spanOuts(spans []span) []int64 {
	out := make([]int64, len(spans))
	for i, s := range spans {
		out[i] = s.out()
	}
	return out
}

func spanWins(spans []span) []int64 {
	win := make([]int64, len(spans))
	for i, s := range spans {
		win[i] = s.win
	}
	return win
}

func windowInfer(op *ir.Op) ([]ir.Type, error) {
	spans, err := windowSpans(op)
	if err != nil {
		return nil, err
	}
	return oneType(ir.T(op.In(0).DType, spanOuts(spans)...))
}

// eachTap calls f with the place in x (its flat index) of each element that window p holds, in row-major order.
func eachTap(spans []span, strides, p []int64, f func(flat int64)) {
	eachIndex(spanWins(spans), func(_ int64, k []int64) {
		flat := int64(0)
		for i, s := range spans {
			e := s.at(p[i], k[i])
			if e < 0 {
				return
			}
			flat += e * strides[i]
		}
		f(flat)
	})
}

// tapLoop is eachTap in a kernel: body gets the element's index in x and whether there is one.
func tapLoop(c ir.ElemCtx, spans []span, p []*kern.Expr, init []*kern.Expr, body func(at []*kern.Expr, ok *kern.Expr, acc []*kern.Expr) []*kern.Expr) []*kern.Expr {
	at := make([]*kern.Expr, len(spans))
	var loop func(i int, ok *kern.Expr, acc []*kern.Expr) []*kern.Expr
	loop = func(i int, ok *kern.Expr, acc []*kern.Expr) []*kern.Expr {
		if i == len(spans) {
			return body(slices.Clone(at), ok, acc)
		}
		s := spans[i]
		if s.win == 1 {
			x, in := s.atExpr(p[i], kern.I64(0))
			at[i] = x
			return loop(i+1, kern.And(ok, in), acc)
		}
		return c.Loop(s.win, acc, func(k *kern.Expr, acc []*kern.Expr) []*kern.Expr {
			x, in := s.atExpr(p[i], k)
			at[i] = x
			return loop(i+1, kern.And(ok, in), acc)
		})
	}
	return loop(0, kern.Bool(true), init)
}

func windowCost(op *ir.Op) ir.Cost {
	return ir.Cost{Flops: op.Out(0).Len() * tensor.Len(op.Attrs.Ints("window")), Bytes: ownBytes(op)}
}

// isUnit reports a window attribute that is all ones.
func isUnit(v []int64) bool {
	for _, x := range v {
		if x != 1 {
			return false
		}
	}
	return true
}

func reduceWindowRow() *ir.OpDef {
	return &ir.OpDef{
		Name: "reduce_window", Family: "window",
		Doc: "Reduces the elements of `x` in each window, one after the other in row-major order from the start value of `reduce`; padding is skipped. " +
			"f16 and bf16 in f32, rounded once.\n\nGradient of max and min: to the first element of a window that equals the result.",
		Operands: []string{"x"}, Results: []string{"y"},
		Attrs: append(windowAttrs(true), ir.AttrDef{Name: "kind", Kind: "string", Doc: "sum, prod, max, min, and, or, xor"}),
		Infer: windowInfer,
		Constraints: []ir.Constraint{{Label: "C1", Text: "kind exists for the element type", Check: func(op *ir.Op) error {
			return reduceDTypes(op.Attrs.Str("kind"), op.In(0).DType)
		}}},
		Cost: windowCost,
		VJP: func(bb *ir.Builder, op *ir.Op, douts []*ir.Value) ([]*ir.Value, error) {
			b, x := em{bb}, op.Operands[0]
			if !x.Type.DType.IsFloat() {
				return []*ir.Value{nil}, nil
			}
			a := op.Attrs
			switch kind := a.Str("kind"); kind {
			case "sum":
				return []*ir.Value{b.windowSumGrad(op, douts[0])}, nil
			case "max", "min":
				if !isUnit(a.Ints("base_dilation")) {
					return nil, fmt.Errorf("no gradient of a %s over spread out elements (base_dilation %v)", kind, a.Ints("base_dilation"))
				}
				return []*ir.Value{b.op2("select_and_scatter", x, douts[0], windowOf(op, kind)...)}, nil
			default:
				return nil, fmt.Errorf("no gradient of kind %q", kind)
			}
		},
		Elem: func(c ir.ElemCtx, op *ir.Op, idx []*kern.Expr) []*kern.Expr {
			kind, t := op.Attrs.Str("kind"), op.In(0).DType
			id := identityExpr(kind, t.Accum())
			out := tapLoop(c, mustSpans(op), idx, []*kern.Expr{id}, func(at []*kern.Expr, ok *kern.Expr, acc []*kern.Expr) []*kern.Expr {
				return []*kern.Expr{kern.Select(ok, accExpr(kind, acc[0], c.ArgIf(ok, 0, id, at...)), acc[0])}
			})
			return []*kern.Expr{c.Round(out[0], t)}
		},
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			x, spans := in[0], mustSpans(op)
			join, identity := reducer(op.Attrs.Str("kind"), x.DType.Accum())
			y := tensor.New(x.DType, spanOuts(spans)...)
			strides := stridesOf(x.Shape)
			eachIndex(y.Shape, func(flat int64, p []int64) {
				acc := identity
				eachTap(spans, strides, p, func(e int64) { acc = join(acc, accGet(x, e)) })
				accSet(y, flat, acc)
			})
			return one(y)
		},
	}
}

// windowSumGrad is the derivative of reduce_window{sum}: the sum of dy over the windows that hold an element, a
// window op itself.
func (e em) windowSumGrad(op *ir.Op, dy *ir.Value) *ir.Value {
	spans := mustSpans(op)
	var win, strides, pad, base, wdil []int64
	for _, s := range spans {
		in, w, out := dilated(s.in, s.ldil), dilated(s.win, s.rdil), dilated(s.out(), s.stride)
		before := w - s.lo - 1
		win, strides, base, wdil = append(win, s.win), append(strides, s.ldil), append(base, s.stride), append(wdil, s.rdil)
		pad = append(pad, before, in+w-1-out-before)
	}
	if dy.Type.Len() == 0 {
		return e.zeros(op.In(0))
	}
	return e.op1("reduce_window", dy, ir.A("kind", "sum"), ir.A("window", win), ir.A("strides", strides), ir.A("padding", pad),
		ir.A("base_dilation", base), ir.A("window_dilation", wdil))
}

// windowOf are the attributes of an op over the same windows as op.
func windowOf(op *ir.Op, kind string) []ir.Attr {
	as := []ir.Attr{ir.A("kind", kind)}
	for _, name := range []string{"window", "strides", "padding", "window_dilation"} {
		as = append(as, ir.A(name, op.Attrs.Ints(name)))
	}
	return as
}

func maxPoolRow() *ir.OpDef {
	return &ir.OpDef{
		Name: "max_pool", Family: "window",
		Doc: "The greatest element of each window: `reduce_window` of kind max. The window has a size for every dimension of x, 1 for batch and features, so the layout is free. " +
			"The gradient goes to the first greatest element.",
		Operands: []string{"x"}, Results: []string{"y"}, Attrs: windowAttrs(false),
		Infer:       windowInfer,
		Constraints: []ir.Constraint{wantNumbers("C1", 0)},
		Cost:        windowCost,
		VJP: func(b *ir.Builder, op *ir.Op, douts []*ir.Value) ([]*ir.Value, error) {
			if !op.In(0).DType.IsFloat() {
				return []*ir.Value{nil}, nil
			}
			return []*ir.Value{em{b}.op2("select_and_scatter", op.Operands[0], douts[0], windowOf(op, "max")...)}, nil
		},
		Expand: func(b *ir.Builder, op *ir.Op) []*ir.Value {
			return []*ir.Value{em{b}.op1("reduce_window", op.Operands[0], windowOf(op, "max")...)}
		},
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			x, spans := in[0], mustSpans(op)
			join, least := reducer("max", x.DType.Accum())
			y := tensor.New(x.DType, spanOuts(spans)...)
			eachIndex(y.Shape, func(flat int64, p []int64) {
				acc := least
				eachTap(spans, stridesOf(x.Shape), p, func(e int64) { acc = join(acc, accGet(x, e)) })
				accSet(y, flat, acc)
			})
			return one(y)
		},
	}
}

func avgPoolRow() *ir.OpDef {
	// divisor is the number of elements that each window is divided by, as a tensor.
	divisor := func(op *ir.Op) *tensor.Tensor {
		spans := mustSpans(op)
		n := make([]float64, tensor.Len(spanOuts(spans)))
		size := float64(tensor.Len(spanWins(spans)))
		strides := stridesOf(op.In(0).Shape)
		eachIndex(spanOuts(spans), func(flat int64, p []int64) {
			if n[flat] = size; !op.Attrs.Bool("count_padding") {
				n[flat] = 0
				eachTap(spans, strides, p, func(int64) { n[flat]++ })
			}
		})
		return ConvertTensor(tensor.Of(n, spanOuts(spans)...), op.In(0).DType)
	}
	// divisorValue is divisor as an op: a splat where it is uniform, and otherwise the product of what
	// each dimension counts, so that no constant of the result's size is held.
	divisorValue := func(b em, op *ir.Op, t ir.Type) *ir.Value {
		spans := mustSpans(op)
		size := float64(tensor.Len(spanWins(spans)))
		if op.Attrs.Bool("count_padding") {
			return b.fill(t, size)
		}
		var total *ir.Value
		rest := 1.0
		for i, s := range spans {
			counts := make([]float64, s.out())
			even := true
			for p := range counts {
				for k := range s.win {
					if s.at(int64(p), k) >= 0 {
						counts[p]++
					}
				}
				even = even && counts[p] == counts[0]
			}
			if even && len(counts) > 0 {
				rest *= counts[0]
				continue
			}
			c := b.Op("constant", nil, ir.A("value", ConvertTensor(tensor.Of(counts, s.out()), t.DType)))
			v := b.spread(c, t.Shape, []int64{int64(i)})
			if total == nil {
				total = v
			} else {
				total = b.mul(total, v)
			}
		}
		if total == nil {
			return b.fill(t, rest)
		}
		if rest != 1 {
			total = b.mul(total, b.fill(t, rest))
		}
		return total
	}
	return &ir.OpDef{
		Name: "avg_pool", Family: "window",
		Doc: "The mean of each window: `reduce_window` of kind sum, divided by the number of elements that the window holds, or with count_padding by its size. " +
			"The window has a size for every dimension of x.",
		Operands: []string{"x"}, Results: []string{"y"},
		Attrs: append(windowAttrs(false), ir.AttrDef{Name: "count_padding", Kind: "bool", Default: false, Doc: "padding counts as elements"}),
		Infer: windowInfer,
		Constraints: []ir.Constraint{
			{Label: "C1", Text: "elements are floats", Check: func(op *ir.Op) error {
				if !op.In(0).DType.IsFloat() {
					return fmt.Errorf("operand %v", op.In(0))
				}
				return nil
			}},
			{Label: "C2", Text: "a window has at most 256 elements in f16 and bf16, so that its size is exact", Check: func(op *ir.Op) error {
				if n := tensor.Len(op.Attrs.Ints("window")); op.In(0).DType.Size() == 2 && n > 256 {
					return fmt.Errorf("window %v of operand %v has %d", op.Attrs.Ints("window"), op.In(0), n)
				}
				return nil
			}},
		},
		Cost: windowCost,
		VJP: func(bb *ir.Builder, op *ir.Op, douts []*ir.Value) ([]*ir.Value, error) {
			b := em{bb}
			return []*ir.Value{b.windowSumGrad(op, b.div(douts[0], divisorValue(b, op, op.Out(0))))}, nil
		},
		Expand: func(bb *ir.Builder, op *ir.Op) []*ir.Value {
			b := em{bb}
			s := b.op1("reduce_window", op.Operands[0], windowOf(op, "sum")...)
			return []*ir.Value{b.div(s, divisorValue(b, op, s.Type))}
		},
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			x, spans, n := in[0], mustSpans(op), divisor(op)
			acct := x.DType.Accum()
			add, zero := reducer("sum", acct)
			quot := floatBin(acct, func(a, b float32) float32 { return a / b }, func(a, b float64) float64 { return a / b })
			y := tensor.New(x.DType, spanOuts(spans)...)
			eachIndex(y.Shape, func(flat int64, p []int64) {
				acc := zero
				eachTap(spans, stridesOf(x.Shape), p, func(e int64) { acc = add(acc, accGet(x, e)) })
				accSet(y, flat, acc) // the sum is rounded before it is divided
				accSet(y, flat, quot(accGet(y, flat), accGet(n, flat)))
			})
			return one(y)
		},
	}
}

// selects reports, for kind max or min, that element a replaces the best so far: the first one of equals stays,
// and the first NaN beats all numbers.
func selects(kind string, d dtype.Type, a, best uint64) bool {
	if isNaNBits(d, best) {
		return false
	}
	if kind == "max" {
		return isNaNBits(d, a) || lessBits(d, best, a)
	}
	return isNaNBits(d, a) || lessBits(d, a, best)
}

// selectsExpr is selects in a kernel.
func selectsExpr(kind string, a, best *kern.Expr) *kern.Expr {
	won := kern.Gt(a, best)
	if kind == "min" {
		won = kern.Lt(a, best)
	}
	if a.DType.IsFloat() {
		won = kern.And(kern.Eq(best, best), kern.Or(kern.Ne(a, a), won))
	}
	return won
}

// chosen gives, for window p, the flat place in x of the element that is selected; -1 for an empty window.
func chosen(kind string, x *tensor.Tensor, spans []span, strides, p []int64) int64 {
	at, best := int64(-1), uint64(0)
	eachTap(spans, strides, p, func(e int64) {
		if a := accGet(x, e); at < 0 || selects(kind, x.DType.Accum(), a, best) {
			at, best = e, a
		}
	})
	return at
}

// chosenExpr is chosen in a kernel, with flat to say what tells an element, at least 0, from others.
func chosenExpr(c ir.ElemCtx, op *ir.Op, spans []span, p []*kern.Expr, flat func(at []*kern.Expr) *kern.Expr) *kern.Expr {
	kind := op.Attrs.Str("kind")
	acct := op.In(0).DType.Accum()
	out := tapLoop(c, spans, p, []*kern.Expr{kern.I64(-1), kern.Zero(acct)}, func(at []*kern.Expr, ok *kern.Expr, acc []*kern.Expr) []*kern.Expr {
		a := c.ArgIf(ok, 0, kern.Zero(acct), at...)
		take := kern.And(ok, kern.Or(kern.Lt(acc[0], kern.I64(0)), selectsExpr(kind, a, acc[1])))
		return []*kern.Expr{kern.Select(take, flat(at), acc[0]), kern.Select(take, a, acc[1])}
	})
	return out[0]
}

func selectAndScatterRow() *ir.OpDef {
	return &ir.OpDef{
		Name: "select_and_scatter", Family: "window",
		Doc: "The derivative of a max or min over windows: each window of `x` selects its first greatest (least) element, to which the window's element of `source` is added; " +
			"where windows overlap, in the row-major order of windows, from +0. f16 and bf16 are added in f32 and rounded once.",
		Operands: []string{"x", "source"}, Results: []string{"y"},
		Attrs: append(windowAttrs(false), ir.AttrDef{Name: "kind", Kind: "string", Default: "max", Doc: "max or min"}),
		Infer: func(op *ir.Op) ([]ir.Type, error) {
			spans, err := windowSpans(op)
			if err != nil {
				return nil, err
			}
			if want := spanOuts(spans); !slices.Equal(want, op.In(1).Shape) || op.In(0).DType != op.In(1).DType {
				return nil, fmt.Errorf("source %v, want %v for operand %v", op.In(1), ir.T(op.In(0).DType, want...), op.In(0))
			}
			return oneType(op.In(0))
		},
		Constraints: []ir.Constraint{wantNumbers("C1", 0), oneOf("C2", "kind", "max", "min")},
		Cost: func(op *ir.Op) ir.Cost {
			return ir.Cost{Flops: op.In(1).Len() * tensor.Len(op.Attrs.Ints("window")), Bytes: ownBytes(op)}
		},
		VJP: func(b *ir.Builder, op *ir.Op, douts []*ir.Value) ([]*ir.Value, error) {
			if !op.In(0).DType.IsFloat() {
				return make([]*ir.Value, 2), nil
			}
			// What is selected does not vary with x.
			return []*ir.Value{nil, em{b}.op2("select_and_gather", op.Operands[0], douts[0], windowOf(op, op.Attrs.Str("kind"))...)}, nil
		},
		Elem: func(c ir.ElemCtx, op *ir.Op, idx []*kern.Expr) []*kern.Expr {
			spans, t := mustSpans(op), op.In(0)
			p := make([]*kern.Expr, len(spans))
			// A window has no extent along some dimensions, most often those of batch and channel: they don't tell its elements apart.
			flat := func(at []*kern.Expr) *kern.Expr {
				var shape []int64
				var some []*kern.Expr
				for i, s := range spans {
					if s.win > 1 || s.stride > 1 {
						shape, some = append(shape, t.Shape[i]), append(some, at[i])
					}
				}
				return flatExpr(shape, some)
			}
			// Where elements lie in one window at most along a dimension, and in none that is not there, nothing needs checking.
			sure := func(i int) bool {
				s := spans[i]
				return s.rdil == 1 && s.win <= s.stride && s.lo == 0 && (s.in-1)/s.stride < s.out()
			}
			inside := func(i int, q *kern.Expr) *kern.Expr {
				if sure(i) {
					return kern.Bool(true)
				}
				return withinExpr(q, spans[i].out())
			}
			// Windows that hold this element: along each dimension those that start in (x+lo−win, x+lo].
			var loop func(i int, ok, acc *kern.Expr) *kern.Expr
			loop = func(i int, ok, acc *kern.Expr) *kern.Expr {
				if i == len(spans) {
					at := slices.Clone(p)
					safe := make([]*kern.Expr, len(at))
					for j := range at {
						if safe[j] = at[j]; !sure(j) {
							safe[j] = clampExpr(at[j], max(0, spans[j].out()-1))
						}
					}
					hit := kern.And(ok, kern.Eq(chosenExpr(c, op, spans, safe, flat), flat(idx)))
					return kern.Select(hit, kern.Add(acc, c.ArgIf(hit, 1, kern.Zero(t.DType.Accum()), safe...)), acc)
				}
				s := spans[i]
				if s.win == 1 && s.stride == 1 {
					p[i] = kern.Add(idx[i], kern.I64(s.lo))
					return loop(i+1, kern.And(ok, inside(i, p[i])), acc)
				}
				if s.rdil > 1 { // the window in which this element is tap win−1−k, where there is one
					return c.Loop(s.win, []*kern.Expr{acc}, func(k *kern.Expr, acc []*kern.Expr) []*kern.Expr {
						at := kern.Sub(kern.Add(idx[i], kern.I64(s.lo)), kern.Mul(kern.Sub(kern.I64(s.win-1), k), kern.I64(s.rdil)))
						starts := kern.Eq(kern.Rem(at, kern.I64(s.stride)), kern.I64(0))
						p[i] = floorDivExpr(at, s.stride)
						return []*kern.Expr{loop(i+1, kern.And(kern.And(ok, starts), inside(i, p[i])), acc[0])}
					})[0]
				}
				// The last window starts at or before x+lo; before it there are ceil(win/stride)−1 more.
				n := ceilDiv(s.win, s.stride)
				if sure(i) {
					p[i] = kern.Div(idx[i], kern.I64(s.stride))
					return loop(i+1, ok, acc)
				}
				last := floorDivExpr(kern.Add(idx[i], kern.I64(s.lo)), s.stride)
				return c.Loop(n, []*kern.Expr{acc}, func(k *kern.Expr, acc []*kern.Expr) []*kern.Expr {
					p[i] = kern.Add(kern.Sub(last, kern.I64(n-1)), k)
					return []*kern.Expr{loop(i+1, kern.And(ok, inside(i, p[i])), acc[0])}
				})[0]
			}
			return []*kern.Expr{c.Round(loop(0, kern.Bool(true), kern.Zero(t.DType.Accum())), t.DType)}
		},
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			x, src, spans := in[0], in[1], mustSpans(op)
			add, zero := reducer("sum", x.DType.Accum())
			y := newAccTensor(op.In(0), zero)
			strides := stridesOf(x.Shape)
			eachIndex(src.Shape, func(flat int64, p []int64) {
				if at := chosen(op.Attrs.Str("kind"), x, spans, strides, p); at >= 0 {
					y.bits[at] = add(y.bits[at], accGet(src, flat))
				}
			})
			return one(y.tensor())
		},
	}
}

// floorDivExpr is ⌊x/n⌋ for n > 0.
func floorDivExpr(x *kern.Expr, n int64) *kern.Expr {
	if n == 1 {
		return x
	}
	q := kern.Div(x, kern.I64(n))
	return kern.Select(kern.Lt(kern.Rem(x, kern.I64(n)), kern.I64(0)), kern.Sub(q, kern.I64(1)), q)
}

func selectAndGatherRow() *ir.OpDef {
	return &ir.OpDef{
		Name: "select_and_gather", Family: "window",
		Doc: "For each window of `x` the element of `v` at the place of the window's first greatest (least) element; +0 for a window without elements. " +
			"The derivative of `select_and_scatter`.",
		Operands: []string{"x", "v"}, Results: []string{"y"},
		Attrs: append(windowAttrs(false), ir.AttrDef{Name: "kind", Kind: "string", Default: "max", Doc: "max or min"}),
		Infer: func(op *ir.Op) ([]ir.Type, error) {
			if !sameShape(op.In(0).Shape, op.In(1).Shape) {
				return nil, fmt.Errorf("v %v does not have the shape of x %v", op.In(1), op.In(0))
			}
			ts, err := windowInfer(op)
			if err != nil {
				return nil, err
			}
			return oneType(ts[0].With(op.In(1).DType))
		},
		Constraints: []ir.Constraint{wantNumbers("C1", 0), oneOf("C2", "kind", "max", "min"), wantPlain("C3", 1)},
		Cost:        windowCost,
		VJP: func(b *ir.Builder, op *ir.Op, douts []*ir.Value) ([]*ir.Value, error) {
			if !op.In(1).DType.IsFloat() {
				return make([]*ir.Value, 2), nil
			}
			if op.In(0).DType != op.In(1).DType {
				return nil, fmt.Errorf("no gradient where x %v and v %v have different element types", op.In(0), op.In(1))
			}
			return []*ir.Value{nil, em{b}.op2("select_and_scatter", op.Operands[0], douts[0], windowOf(op, op.Attrs.Str("kind"))...)}, nil
		},
		Elem: func(c ir.ElemCtx, op *ir.Op, idx []*kern.Expr) []*kern.Expr {
			at := chosenExpr(c, op, mustSpans(op), idx, func(at []*kern.Expr) *kern.Expr { return flatExpr(op.In(0).Shape, at) })
			ok := kern.Ge(at, kern.I64(0))
			return []*kern.Expr{c.ArgIf(ok, 1, kern.Zero(op.In(1).DType.Accum()), unflatten(op.In(1).Shape, kern.Max(at, kern.I64(0)))...)}
		},
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			x, v, spans := in[0], in[1], mustSpans(op)
			strides := stridesOf(x.Shape)
			return one(gatherElements(v, spanOuts(spans), func(p []int64) int64 {
				return chosen(op.Attrs.Str("kind"), x, spans, strides, p)
			}))
		},
	}
}
