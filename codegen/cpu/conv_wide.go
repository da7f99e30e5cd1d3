package cpu

import (
	"fmt"

	"github.com/llir/llvm/ir"
	"github.com/llir/llvm/ir/constant"
	"github.com/llir/llvm/ir/enum"
	"github.com/llir/llvm/ir/types"
	"github.com/llir/llvm/ir/value"
)

// Few output channels to a group (depthwise convolution above all) would leave most
// lanes empty. Then lanes are neighbouring output columns instead, and the rows of a
// micro-tile the channels. Nothing is packed. A column whose tap does not exist keeps its
// accumulator by a mask; only blocks of columns at the edges pay for that.
// A tile is (group, image, block of output rows).

// convWide is such a convolution.
type convWide struct {
	*convGen
	regs int64 // registers of columns in a block
	rows int64 // output rows of a tile
}

// wide tells whether the convolution is better done with columns as lanes, and
// whether it can be.
func (g *convGen) wide() (*convWide, bool) {
	d := g.dim[2]
	if g.og > g.w/2 || d.Out < 2*g.og || d.InDilation != 1 || d.Stride > 2 || d.Kernel > 8 || d.StrideIn != 1 || d.StrideOut != 1 {
		return nil, false
	}
	s := &convWide{convGen: g, regs: min(max(2, g.w/g.og), 4, attentionCeil(d.Out, g.w))}
	work := d.Out * g.kernelTaps() * g.InChannels * s.og // of an output row
	s.rows = min(g.dim[0].Out*g.dim[1].Out, attentionCeil(1<<16, work))
	return s, true
}

func (s *convWide) tiles() int64 {
	return s.Groups * s.BatchGroups * s.Batch * attentionCeil(s.dim[0].Out*s.dim[1].Out, s.rows)
}

// inner is the range of blocks of columns in which every tap exists for every lane,
// and what is loaded lies in the row.
func (s *convWide) inner() (lo, hi int64) {
	d, block := s.dim[2], s.regs*s.w
	lo, hi = -1, -1
	for b := int64(0); (b+1)*block <= d.Out; b++ {
		first := b*block*d.Stride - d.PadLo
		last := first + block*d.Stride - 1 + (d.Kernel-1)*d.KernelDilation
		if first >= 0 && last < d.In {
			if lo < 0 {
				lo = b
			}
			hi = b + 1
		}
	}
	return lo, hi
}

// block is the function of one block of columns of one output row:
//
//	void (in, ker, out, i64 w, i64 k0, i64 end0, i64 k1, i64 end1)
//
// in points to what column 0 would read by tap 0 of the last dimension and the first
// taps of the others that exist; w is the first column, at ≥ 0 the only one that w ever is.
func (s *convWide) block(masked bool, at int64) *ir.Func {
	name := s.Name + "_inner"
	if masked {
		name = s.Name + "_edge"
	}
	if at >= 0 {
		name += fmt.Sprint(at)
	}
	ps := []*ir.Param{ir.NewParam("in", attentionPtr()), ir.NewParam("ker", attentionPtr()), ir.NewParam("out", attentionPtr())}
	ps[2].Attrs = append(ps[2].Attrs, enum.ParamAttrNoAlias)
	for _, n := range []string{"w", "k0", "end0", "k1", "end1"} {
		ps = append(ps, ir.NewParam(n, types.I64))
	}
	e := attentionFunc(s.m, s.t, name, true, ps...)
	w, d := value.Value(ps[3]), s.dim[2]
	if at >= 0 {
		w = attentionI(at)
	}
	lo, hi := [2]value.Value{ps[4], ps[6]}, [2]value.Value{ps[5], ps[7]}
	first := e.at(ps[0], e.mulI(w, d.Stride)) // of lane 0
	position := e.addI(e.mulI(w, d.Stride), -d.PadLo)

	// Masks do not depend on channels or outer taps.
	lanes := make([][]convLanes, d.Kernel)
	for k := range d.Kernel {
		for v := range s.regs {
			at := v*s.w*d.Stride + k*d.KernelDilation
			l := convLanes{at: at}
			if masked {
				l = s.lanes(e, e.addI(position, at), at)
			}
			lanes[k] = append(lanes[k], l)
		}
	}
	zeros := make([]value.Value, s.og*s.regs)
	for i := range zeros {
		zeros[i] = constant.NewZeroInitializer(e.vec(types.Float))
	}
	reach := func(dim int, reverse bool, n int64) int64 { // kernel offset of tap n
		if reverse {
			n = s.dim[dim].Kernel - 1 - n
		}
		return n * s.dim[dim].StrideKer
	}
	kernel := func(dim int, p, k value.Value) value.Value {
		if s.dim[dim].Reverse {
			k = e.sub(attentionI(s.dim[dim].Kernel-1), k)
		}
		return e.at(p, e.mulI(k, s.dim[dim].StrideKer))
	}
	taps := func(in, ker value.Value, acc []value.Value) []value.Value {
		for k := range d.Kernel {
			var weight []value.Value
			for o := range s.og {
				weight = append(weight, e.splat(e.load(e.atI(ker, o*s.KerOut+reach(2, d.Reverse, k))), e.w))
			}
			next := make([]value.Value, len(acc))
			for v := range s.regs {
				l := lanes[k][v]
				x := s.load(e, e.atI(in, l.at), l)
				for o := range s.og {
					i := o*s.regs + v
					next[i] = e.fma(x, weight[o], acc[i])
					if masked {
						next[i] = e.b.NewSelect(l.exists, next[i], acc[i])
					}
				}
			}
			acc = next
		}
		return acc
	}
	var nest func(dim int, in, ker value.Value, acc []value.Value) []value.Value
	nest = func(dim int, in, ker value.Value, acc []value.Value) []value.Value {
		if dim == 2 {
			return taps(in, ker, acc)
		}
		carried := append([]value.Value{in}, acc...)
		return e.loop(lo[dim], hi[dim], s.step[dim], carried, func(k value.Value, c []value.Value) []value.Value {
			next := nest(dim+1, c[0], kernel(dim, ker, k), c[1:])
			return append([]value.Value{e.atI(c[0], s.move(dim))}, next...)
		})[1:]
	}
	// chain runs channels from ≤ c < to, which begin at in and ker.
	chain := func(from, to, in, ker value.Value) []value.Value {
		carried := append([]value.Value{in, ker}, zeros...)
		return e.loop(from, to, 1, carried, func(_ value.Value, c []value.Value) []value.Value {
			next := nest(0, c[0], c[1], c[2:])
			return append([]value.Value{e.atI(c[0], s.InChannel), e.atI(c[1], s.KerIn)}, next...)
		})[2:]
	}
	var acc []value.Value
	if s.Segment >= s.InChannels {
		acc = chain(attentionI(0), attentionI(s.InChannels), first, ps[1])
	} else {
		acc = e.loop(attentionI(0), attentionI(s.InChannels), s.Segment, zeros, func(from value.Value, sum []value.Value) []value.Value {
			to := e.min(attentionI(s.InChannels), e.addI(from, s.Segment))
			next := chain(from, to, e.at(first, e.mulI(from, s.InChannel)), e.at(ps[1], e.mulI(from, s.KerIn)))
			start := e.b.NewICmp(enum.IPredEQ, from, attentionI(0))
			out := make([]value.Value, len(next))
			for i := range next {
				out[i] = e.b.NewSelect(start, next[i], e.b.NewFAdd(sum[i], next[i]))
			}
			return out
		})
	}
	for o := range s.og {
		for v := range s.regs {
			p := e.at(e.atI(ps[2], o*s.OutChannel+v*s.w), w)
			x := acc[o*s.regs+v]
			if !masked {
				e.store(x, p)
				continue
			}
			e.storeWhere(x, p, s.below(e, e.sub(attentionI(d.Out), e.addI(w, v*s.w)), 0, 1))
		}
	}
	return e.done()
}

// convLanes is what the lanes of a register read by one tap.
type convLanes struct {
	at     int64          // offset of lane 0
	exists value.Value    // per lane: the tap exists; nil: for all
	read   [2]value.Value // per lane of each register that is loaded: it lies in the row
}

// lanes finds which lanes exist when lane 0 reads the given position of a row.
func (s *convWide) lanes(e *attentionFn, position value.Value, at int64) convLanes {
	d := s.dim[2]
	l := convLanes{at: at}
	within := func(first, step int64) value.Value {
		low := e.b.NewXor(s.below(e, e.sub(attentionI(0), position), first, step), e.lanesBelow(e.w))
		return e.b.NewAnd(low, s.below(e, e.sub(attentionI(d.In), position), first, step))
	}
	l.exists = within(0, d.Stride)
	for i := range d.Stride {
		l.read[i] = within(i*s.w, 1)
	}
	return l
}

// below is the mask of lanes l with first + l·step < limit.
func (s *convWide) below(e *attentionFn, limit value.Value, first, step int64) value.Value {
	most := int64(1 << 30)
	limit = e.max(e.min(limit, attentionI(most)), attentionI(-most))
	lanes := e.constV(func(l int64) constant.Constant { return constant.NewInt(types.I32, first+l*step) })
	return e.b.NewICmp(enum.IPredSLT, lanes, e.splat(e.b.NewTrunc(limit, types.I32), e.w))
}

// load reads what the lanes read, p being that of lane 0.
func (s *convWide) load(e *attentionFn, p value.Value, l convLanes) value.Value {
	var x [2]value.Value
	for i := range s.dim[2].Stride {
		q := e.atI(p, i*s.w)
		if l.exists == nil {
			x[i] = e.loadV(q)
		} else {
			x[i] = e.loadWhere(q, l.read[i])
		}
	}
	if s.dim[2].Stride == 1 {
		return x[0]
	}
	even := make([]int64, e.w)
	for i := range even {
		even[i] = 2 * int64(i)
	}
	return e.shuffle(x[0], x[1], even)
}

// maxEdges is how many blocks at the edges have code of their own, in which their masks are constants.
const maxEdges = 4

// emit writes the kernel.
func (s *convWide) emit() {
	lo, hi := s.inner()
	count := attentionCeil(s.dim[2].Out, s.regs*s.w)
	if lo < 0 {
		lo, hi = count, count
	}
	type span struct {
		f      *ir.Func
		lo, hi int64 // blocks
	}
	var spans []span
	edges := func(lo, hi int64) {
		if hi-lo > maxEdges {
			spans = append(spans, span{s.block(true, -1), lo, hi})
			return
		}
		for b := lo; b < hi; b++ {
			spans = append(spans, span{s.block(true, b*s.regs*s.w), b, b + 1})
		}
	}
	edges(0, lo)
	if lo < hi {
		spans = append(spans, span{s.block(false, -1), lo, hi})
	}
	edges(hi, count)
	ps := []*ir.Param{ir.NewParam("args", attentionPtr()), ir.NewParam("lo", types.I64), ir.NewParam("hi", types.I64), ir.NewParam("scratch", attentionPtr())}
	e := attentionFunc(s.m, s.t, s.Name, false, ps...)
	arg := make([]value.Value, 3)
	for i := range arg {
		l := e.b.NewLoad(attentionPtr(), e.atI(ps[0], int64(2*i)))
		l.Align = 8
		arg[i] = l
	}
	all := s.dim[0].Out * s.dim[1].Out
	e.each(ps[1], ps[2], 1, func(tile value.Value) {
		blocks := attentionCeil(all, s.rows)
		q0 := e.mulI(e.remI(tile, blocks), s.rows)
		q1 := e.min(e.addI(q0, s.rows), attentionI(all))
		tile = e.divI(tile, blocks)
		n, group := e.remI(tile, s.Batch), e.divI(tile, s.Batch)
		o := e.mulI(group, s.og)
		in := e.at(arg[0], e.addI(e.add(e.mulI(n, s.InBatch), e.mulI(group, s.groupIn())), -s.dim[2].PadLo))
		ker := e.at(arg[1], e.mulI(o, s.KerOut))
		out := e.at(arg[2], e.add(e.mulI(n, s.OutBatch), e.mulI(o, s.OutChannel)))
		e.each(q0, q1, 1, func(q value.Value) {
			p0, p1 := e.divI(q, s.dim[1].Out), e.remI(q, s.dim[1].Out)
			d0, d1 := s.at(e, 0, p0), s.at(e, 1, p1)
			from := e.at(in, e.add(d0.offset, d1.offset))
			to := e.at(out, e.add(e.mulI(p0, s.dim[0].StrideOut), e.mulI(p1, s.dim[1].StrideOut)))
			size := s.regs * s.w
			for _, x := range spans {
				e.each(attentionI(x.lo*size), attentionI(x.hi*size), size, func(w value.Value) {
					e.b.NewCall(x.f, from, ker, to, w, d0.first, d0.end, d1.first, d1.end)
				})
			}
		})
	})
	e.done()
}
