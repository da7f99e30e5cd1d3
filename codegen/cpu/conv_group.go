package cpu

import (
	"github.com/llir/llvm/ir"
	"github.com/llir/llvm/ir/constant"
	"github.com/llir/llvm/ir/enum"
	"github.com/llir/llvm/ir/types"
	"github.com/llir/llvm/ir/value"
)

// Groups of one output channel each whose columns don't fill registers (the weight
// gradient of a depthwise convolution, and the input gradient of a strided one) take
// groups as lanes: rows of input and kernel are transposed into scratch as
// [column][group], where a chain goes straight down.
// A tile is (image, block of groups, output row).

// convGrouped is such a convolution; its columns of the input are those in scratch.
type convGrouped struct {
	*convGen
	strideIn int64 // of the columns in the input itself
}

// grouped tells whether the convolution is done with groups as lanes.
func (g *convGen) grouped() (*convGrouped, bool) {
	d := g.dim[2]
	if g.og != 1 || g.Groups*g.BatchGroups < g.w/2 || 4*g.w*(d.In+d.Kernel+2*d.Out) > 900<<10 {
		return nil, false
	}
	s := &convGrouped{g, d.StrideIn}
	g.dim[2].StrideIn = g.w
	g.findTaps(2)
	g.atOnce = 1
	return s, true
}

func (s *convGrouped) tiles() int64 {
	return s.Batch * attentionCeil(s.Groups*s.BatchGroups, s.w) * s.dim[0].Out * s.dim[1].Out
}

// spread is void (src, i64 last, dst): dst[i][lane] = src[min(lane, last)·lanes + i·stride]
// for i < n.
func (s *convGrouped) spread(what string, lanes, stride, n int64) *ir.Func {
	src, last, dst := ir.NewParam("src", attentionPtr()), ir.NewParam("last", types.I64), ir.NewParam("dst", attentionPtr())
	src.Attrs, dst.Attrs = append(src.Attrs, enum.ParamAttrNoAlias), append(dst.Attrs, enum.ParamAttrNoAlias)
	e := attentionFunc(s.m, s.t, s.Name+"_"+what, true, src, last, dst)
	from := make([]value.Value, s.w)
	for l := range from {
		from[l] = e.at(src, e.mulI(e.min(attentionI(int64(l)), last), lanes))
	}
	full := int64(0)
	if stride == 1 {
		full = n / s.w * s.w
		e.eachI(full, s.w, func(i value.Value) {
			x := make([]value.Value, s.w)
			for l := range x {
				x[l] = e.loadV(e.at(from[l], i))
			}
			for r, y := range e.transpose(x) {
				e.store(y, e.at(dst, e.mulI(e.addI(i, int64(r)), s.w)))
			}
		})
	}
	e.each(attentionI(full), attentionI(n), 1, func(i value.Value) {
		for l := range s.w {
			x := e.load(e.at(from[l], e.mulI(i, stride)))
			e.store(x, e.at(dst, e.addI(e.mulI(i, s.w), l)))
		}
	})
	return e.done()
}

// row is the function that carries the chains of an output row over the taps of one
// row of the kernel: void (x, ker, acc), all [column][group].
func (s *convGrouped) row() *ir.Func {
	x, ker, acc := ir.NewParam("x", attentionPtr()), ir.NewParam("ker", attentionPtr()), ir.NewParam("acc", attentionPtr())
	e := attentionFunc(s.m, s.t, s.Name+"_row", true, x, ker, acc)
	const most = 12 // accumulators
	d := s.dim[2]
	n := attentionCeil(d.Out, attentionCeil(d.Out, most))
	for _, b := range s.blocks(n) {
		e.eachI(b.count, 1, func(i value.Value) {
			from := e.at(x, e.addI(e.mulI(i, b.shift), b.offset))
			to := e.at(acc, e.mulI(e.addI(e.mulI(i, b.step), b.first), n*s.w))
			var sums []value.Value
			for r := range b.columns {
				sums = append(sums, e.loadV(e.atI(to, int64(r)*s.w)))
			}
			sums = s.columns(e, b.columns, from, sums, func(k value.Value) []value.Value {
				if d.Reverse {
					k = e.sub(attentionI(d.Kernel-1), k)
				}
				return []value.Value{e.loadV(e.at(ker, e.mulI(k, s.w)))}
			}, e.loadV)
			for r, x := range sums {
				e.store(x, e.atI(to, int64(r)*s.w))
			}
		})
	}
	return e.done()
}

// emit writes the kernel.
func (s *convGrouped) emit() {
	s.ob, s.vecs = s.w, 1
	d := s.dim[2]
	spreadIn := s.spread("in", s.groupIn(), s.strideIn, d.In)
	spreadKer := s.spread("ker", s.KerOut, d.StrideKer, d.Kernel)
	row, store := s.row(), s.runStorer()
	ps := []*ir.Param{ir.NewParam("args", attentionPtr()), ir.NewParam("lo", types.I64), ir.NewParam("hi", types.I64), ir.NewParam("scratch", attentionPtr())}
	e := attentionFunc(s.m, s.t, s.Name, false, ps...)
	arg := make([]value.Value, 3)
	for i := range arg {
		l := e.b.NewLoad(attentionPtr(), e.atI(ps[0], int64(2*i)))
		l.Align = 8
		arg[i] = l
	}
	groups := s.Groups * s.BatchGroups
	acc := value.Value(ps[3])
	x := e.atI(acc, d.Out*s.w)
	ker := e.atI(x, d.In*s.w)
	sum := e.atI(ker, d.Kernel*s.w)
	zero := constant.NewZeroInitializer(e.vec(types.Float))
	e.each(ps[1], ps[2], 1, func(tile value.Value) {
		next := func(n int64) value.Value {
			i := e.remI(tile, n)
			tile = e.divI(tile, n)
			return i
		}
		p1, p0 := next(s.dim[1].Out), next(s.dim[0].Out)
		g0 := e.mulI(next(attentionCeil(groups, s.w)), s.w)
		n := tile
		count := e.min(attentionI(s.w), e.sub(attentionI(groups), g0))
		last := e.addI(count, -1)
		d0, d1 := s.at(e, 0, p0), s.at(e, 1, p1)
		in := e.at(arg[0], e.add(e.add(e.mulI(n, s.InBatch), e.mulI(g0, s.groupIn())), e.add(d0.offset, d1.offset)))
		from := e.at(arg[1], e.mulI(g0, s.KerOut))
		tap := func(dim int, p, k value.Value) value.Value {
			if s.dim[dim].Reverse {
				k = e.sub(attentionI(s.dim[dim].Kernel-1), k)
			}
			return e.at(p, e.mulI(k, s.dim[dim].StrideKer))
		}
		channel := func(c value.Value) {
			in, from := e.at(in, e.mulI(c, s.InChannel)), e.at(from, e.mulI(c, s.KerIn))
			e.loop(d0.first, d0.end, s.step[0], []value.Value{in}, func(k0 value.Value, in0 []value.Value) []value.Value {
				e.loop(d1.first, d1.end, s.step[1], in0, func(k1 value.Value, in1 []value.Value) []value.Value {
					e.b.NewCall(spreadIn, in1[0], last, x)
					e.b.NewCall(spreadKer, tap(1, tap(0, from, k0), k1), last, ker)
					e.b.NewCall(row, x, ker, acc)
					return []value.Value{e.atI(in1[0], s.move(1))}
				})
				return []value.Value{e.atI(in0[0], s.move(0))}
			})
		}
		done := acc
		if s.Segment < s.InChannels {
			done = sum
		}
		e.eachI(s.InChannels, min(s.Segment, s.InChannels), func(c0 value.Value) {
			e.eachI(d.Out*s.w, s.w, func(i value.Value) { e.store(zero, e.at(acc, i)) })
			e.each(c0, e.min(attentionI(s.InChannels), e.addI(c0, s.Segment)), 1, channel)
			if s.Segment >= s.InChannels {
				return
			}
			first := e.b.NewICmp(enum.IPredEQ, c0, attentionI(0))
			e.eachI(d.Out*s.w, s.w, func(i value.Value) {
				x, p := e.loadV(e.at(acc, i)), e.at(sum, i)
				e.store(e.b.NewSelect(first, x, e.b.NewFAdd(e.loadV(p), x)), p)
			})
		})
		to := e.add(e.mulI(n, s.OutBatch), e.mulI(g0, s.OutChannel))
		to = e.add(to, e.add(e.mulI(p0, s.dim[0].StrideOut), e.mulI(p1, s.dim[1].StrideOut)))
		e.b.NewCall(store, done, e.at(arg[2], to), count, attentionI(d.Out))
	})
	e.done()
}
