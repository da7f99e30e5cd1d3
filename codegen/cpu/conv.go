package cpu

import (
	"fmt"
	"math"

	"github.com/llir/llvm/ir"
	"github.com/llir/llvm/ir/constant"
	"github.com/llir/llvm/ir/enum"
	"github.com/llir/llvm/ir/types"
	"github.com/llir/llvm/ir/value"

	"reprise/ir/dtype"
	"reprise/ir/kern"
)

// The convolution kernel is direct: lanes are output channels, the rows of a
// micro-tile are pixels (neighbouring columns of an output row, where they are few of
// several images), and its accumulators stay in registers over the taps of a chunk. Which
// taps exist is decided per pixel, so that none is computed in vain and none is added as zero.
// A tile is (group, block of channels, block of images, block of output rows, block of
// columns); the kernel of its channels is packed as [c][k][channel], unless it lies well.

const (
	convChunkBytes = 96 << 10  // of kernel that one pass of the pixels uses
	convAccBytes   = 256 << 10 // of unfinished chains of a tile
	convPackBytes  = 512 << 10 // of kernel that is packed at once
	convTilePixels = 512       // wanted in a tile
	convUnpacked   = 4         // micro-tiles for which packing does not pay
)

// convGen is one convolution being written.
type convGen struct {
	*kern.Conv
	m    *ir.Module
	t    Target
	w    int64           // lanes of a register
	vecs int64           // registers across the channels of a tile
	ob   int64           // channels of a tile
	og   int64           // channels of a group
	dim  [3]kern.ConvDim // the spatial dimensions, trivial ones in front
	taps [3][]convTaps   // for each output position of each dimension
	step [3]int64        // between taps that exist

	atOnce  int64 // taps of the last dimension whose weights are in registers at once
	maxRows int64 // of a micro-tile
	ni, nc  int64 // images and columns of a micro-tile
	nb      int64 // images of a tile
	rb      int64 // output rows (of the first two dimensions together) of a tile
	wb      int64 // columns of a tile
	packed  int64 // input channels that are packed at once
	chans   int64 // input channels of a chunk
	cut     int   // dimension by whose taps a chunk is cut, with chans = 1; −1: none
	slices  int64 // taps of that dimension in a chunk

	// The kernel is read packed, or from where it is: the distances there of channels and of taps.
	unpacked             bool
	kerChannel, kerStart int64
	kerStep              [3]int64

	// Unfinished chains lie in scratch, or in the result itself where that keeps the channels of
	// a tile together: the distances there of images, of rows of a tile, and of columns.
	inPlace                     bool
	accImage, accRow, accColumn int64
	micros                      map[string]*ir.Func
}

// Conv adds a convolution to the unit.
func (u *Unit) Conv(c *kern.Conv) ([]Launch, error) {
	plain := *c
	plain.Name = ""
	return u.family(c.Name, fmt.Sprintf("conv %+v\n", plain), kern.Own{}, func(m *ir.Module, symbol string, _ kern.Own) ([]Launch, error) {
		plain.Name = symbol
		return EmitConv(m, &plain, u.target)
	})
}

// EmitConv writes the kernel of an f32 convolution into m: arguments in, ker, out.
// It needs no workspace.
func EmitConv(m *ir.Module, c *kern.Conv, t Target) ([]Launch, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	if c.DType != dtype.F32 || len(c.Spatial) > 3 {
		return nil, fmt.Errorf("conv %s: %v in %d spatial dimensions is not of this family", c.Name, c.DType, len(c.Spatial))
	}
	if noResult, noTaps := c.Empty(); noResult || noTaps {
		return emitConvZeros(m, c, t), nil
	}
	g := &convGen{Conv: c, m: m, t: t, w: attentionLanes(t), og: c.Channels / (c.Groups * c.BatchGroups)}
	g.frame()
	if s, ok := g.wide(); ok {
		s.emit()
		return []Launch{{Symbol: c.Name, Tiles: s.tiles()}}, nil
	}
	if s, ok := g.grouped(); ok {
		s.emit()
		return []Launch{{Symbol: c.Name, Tiles: s.tiles()}}, nil
	}
	g.micros = map[string]*ir.Func{}
	if err := g.plan(); err != nil {
		return nil, err
	}
	return []Launch{{Symbol: c.Name, Tiles: g.tiles()}}, g.emit()
}

// function starts a function with the registers of the convolution.
func (g *convGen) function(name string, internal bool, params ...*ir.Param) *attentionFn {
	e := attentionFunc(g.m, g.t, name, internal, params...)
	e.w = g.w
	return e
}

// frame brings the spatial dimensions to three and finds the taps of each.
func (g *convGen) frame() {
	g.vecs = 1
	if g.og > g.w {
		g.vecs = 2
	}
	g.ob = g.vecs * g.w
	unit := kern.ConvDim{In: 1, Kernel: 1, Out: 1, Stride: 1, InDilation: 1, KernelDilation: 1}
	g.dim = [3]kern.ConvDim{unit, unit, unit}
	copy(g.dim[3-len(g.Spatial):], g.Spatial)
	if len(g.Spatial) == 1 && g.dim[2].Kernel*g.ob*4 > convChunkBytes {
		g.dim[1], g.dim[2] = g.dim[2], unit // chunks cut the taps of outer dimensions only
	}
	for d := range g.dim {
		g.step[d] = g.dim[d].InDilation / convGcd(g.dim[d].InDilation, g.dim[d].KernelDilation)
		g.findTaps(d)
	}
}

// findTaps finds the taps of all output positions of dimension d.
func (g *convGen) findTaps(d int) {
	g.taps[d] = nil
	for p := range g.dim[d].Out {
		g.taps[d] = append(g.taps[d], convTapsOf(g.dim[d], p))
	}
}

// emitConvZeros writes the kernel of a convolution without taps, or without results.
func emitConvZeros(m *ir.Module, c *kern.Conv, t Target) []Launch {
	ps := []*ir.Param{ir.NewParam("args", attentionPtr()), ir.NewParam("lo", types.I64), ir.NewParam("hi", types.I64), ir.NewParam("scratch", attentionPtr())}
	e := attentionFunc(m, t, c.Name, false, ps...)
	e.each(ps[1], ps[2], 1, func(value.Value) {
		out := e.b.NewLoad(attentionPtr(), e.atI(ps[0], 4))
		out.Align = 8
		e.eachI(c.LenOut, 1, func(i value.Value) { e.store(attentionF(0), e.at(out, i)) })
	})
	e.done()
	return []Launch{{Symbol: c.Name, Tiles: 1}}
}

// plan chooses the shape of tiles, micro-tiles and chunks, by the shape of the
// convolution alone.
func (g *convGen) plan() error {
	if g.og <= 8 {
		g.w, g.ob = 8, 8 // two such registers are often as fast as one of 16
	}
	registers := int64(32)
	g.atOnce = 3
	if g.t == V3 {
		registers, g.atOnce = 16, 1
	}
	g.maxRows = (registers - 2 - g.atOnce*g.vecs) / g.vecs
	g.planRows()

	rows, cols := g.dim[0].Out*g.dim[1].Out, g.dim[2].Out
	most := convAccBytes / (4 * g.ob)           // pixels of a tile
	whole := func(n, unit, total int64) int64 { // at most n, in units if it is not all
		if n >= total {
			return total
		}
		return max(unit, n/unit*unit)
	}
	g.wb = whole(most/2, g.nc, cols)
	g.rb = min(rows, max(1, convTilePixels/g.wb))
	g.nb = whole(min(max(convTilePixels/(g.wb*g.rb), g.ni), most/(g.wb*g.rb)), g.ni, g.Batch)
	// A few tiles for every thread, unless they get too small to be worth packing for; and three would
	// leave two threads with a third of the time to wait.
	for g.tiles() < 12 && g.nb*g.rb*g.wb > 48 || g.tiles() == 3 && g.nb*g.rb*g.wb > 24 {
		switch {
		case g.rb > 1:
			g.rb = (g.rb + 1) / 2
		case g.nb > g.ni:
			g.nb = whole((g.nb+1)/2, g.ni, g.Batch)
		case g.wb > 2*g.nc:
			g.wb = whole((g.wb+1)/2, g.nc, cols)
		default:
			return g.planChunks()
		}
	}
	return g.planChunks()
}

// planRows chooses the rows of micro-tiles: what needs least time for all pixels of an output row.
func (g *convGen) planRows() {
	cols, best := g.dim[2].Out, int64(math.MaxInt64)
	for n := attentionCeil(cols, g.maxRows); n <= cols; n++ {
		nc := attentionCeil(cols, n)
		for ni := int64(1); ni <= min(g.Batch, g.maxRows/nc); ni++ {
			t := int64(0)
			for _, images := range []struct{ n, times int64 }{{ni, g.Batch / ni}, {g.Batch % ni, 1}} {
				t += images.times * (cols/nc*g.time(images.n*nc) + g.time(images.n*(cols%nc)))
			}
			if ni > 1 {
				t += t / 16 // more code, and images lie apart
			}
			if t < best {
				best, g.ni, g.nc = t, ni, nc
			}
		}
	}
}

// planChunks chooses where kernel and chains are, and what part of the kernel a pass of the pixels uses.
func (g *convGen) planChunks() error {
	g.inPlace = g.OutChannel == 1 && g.og%g.ob == 0 && g.Segment >= g.InChannels
	g.accImage, g.accRow, g.accColumn = g.rb*g.wb*g.ob, g.wb*g.ob, g.ob
	if g.inPlace {
		g.accImage, g.accColumn = g.OutBatch, g.dim[2].StrideOut
	}
	g.kerChannel = g.ob
	for d := 2; d >= 0; d-- {
		g.kerStep[d] = g.kerChannel
		g.kerChannel *= g.dim[d].Kernel
	}
	bytes, channels := g.kerChannel*4, min(g.InChannels, g.Segment)
	g.unpacked = g.KerOut == 1 && g.og%g.ob == 0 && attentionCeil(g.nb, g.ni)*g.rb*attentionCeil(g.wb, g.nc) <= convUnpacked
	if g.unpacked {
		g.kerChannel = g.KerIn
		for d, x := range g.dim {
			g.kerStep[d] = x.StrideKer
			if x.Reverse {
				g.kerStep[d] = -x.StrideKer
				g.kerStart += (x.Kernel - 1) * x.StrideKer
			}
		}
	}
	g.packed = max(1, min(channels, convPackBytes/bytes))
	g.chans, g.cut = max(1, min(channels, convChunkBytes/bytes)), -1
	if bytes <= convChunkBytes {
		return nil
	}
	g.packed, g.cut = 1, 1
	if g.dim[0].Kernel > 1 {
		g.cut = 0
	}
	slice := bytes / g.dim[g.cut].Kernel
	if slice > convPackBytes {
		return fmt.Errorf("conv %s: a kernel of %v is too large for this family", g.Name, g.Spatial)
	}
	g.slices = min(g.dim[g.cut].Kernel, max(1, convChunkBytes/slice))
	return nil
}

func (g *convGen) kernelTaps() int64 { return g.dim[0].Kernel * g.dim[1].Kernel * g.dim[2].Kernel }

func (g *convGen) tiles() int64 {
	return g.Groups * g.BatchGroups * attentionCeil(g.Batch, g.nb) * attentionCeil(g.dim[0].Out*g.dim[1].Out, g.rb) *
		attentionCeil(g.dim[2].Out, g.wb) * attentionCeil(g.og, g.ob)
}

// time estimates a tap of a micro-tile of n rows, in fma: at least 12, for fewer wait for one another, and one for
// the weights.
func (g *convGen) time(n int64) int64 {
	if n == 0 {
		return 0
	}
	return max(n*g.vecs, 12) + 1
}

// convTapsOf finds the taps that exist for output position p.
func convTapsOf(d kern.ConvDim, p int64) convTaps {
	exists := func(k int64) (x int64, ok bool) {
		x = p*d.Stride + k*d.KernelDilation - d.PadLo
		return x / d.InDilation, x >= 0 && x%d.InDilation == 0 && x/d.InDilation < d.In
	}
	var t convTaps
	for k := range d.Kernel {
		if x, ok := exists(k); ok {
			if t.end == 0 {
				t.first, t.offset = k, x*d.StrideIn
			}
			t.end = k + 1
		}
	}
	return t
}

// convGcd is the greatest common divisor of positive numbers.
func convGcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// bounds are the taps of one dimension at run time.
type convBounds struct{ first, end, offset value.Value }

// at is what is known of the taps of output position p of dimension d: constants
// where all positions are alike, else read from a table.
func (g *convGen) at(e *attentionFn, d int, p value.Value) convBounds {
	ts := g.taps[d]
	uniform, linear := true, true
	slope := int64(0)
	if len(ts) > 1 {
		slope = ts[1].offset - ts[0].offset
	}
	for i, t := range ts {
		uniform = uniform && t.first == ts[0].first && t.end == ts[0].end
		linear = linear && t.offset == ts[0].offset+int64(i)*slope
	}
	if uniform && linear {
		return convBounds{attentionI(ts[0].first), attentionI(ts[0].end), e.addI(e.mulI(p, slope), ts[0].offset)}
	}
	words := make([]constant.Constant, 0, 3*len(ts))
	for _, t := range ts {
		for _, x := range []int64{t.first, t.end, t.offset} {
			words = append(words, constant.NewInt(types.I64, x))
		}
	}
	name := fmt.Sprintf("%s_taps%d", g.Name, d)
	var table *ir.Global
	for _, x := range g.m.Globals {
		if x.Name() == name {
			table = x
		}
	}
	if table == nil {
		table = g.m.NewGlobalDef(name, constant.NewArray(types.NewArray(uint64(len(words)), types.I64), words...))
		table.Immutable = true
		table.Linkage = enum.LinkageInternal
	}
	row := e.at(constant.NewBitCast(table, attentionPtr()), e.mulI(p, 6))
	word := func(i int64) value.Value {
		l := e.b.NewLoad(types.I64, e.atI(row, 2*i))
		l.Align = 8
		return l
	}
	return convBounds{word(0), word(1), word(2)}
}

// within narrows bounds of the dimension that chunks cut to taps from ≤ k < to.
func (g *convGen) within(e *attentionFn, b convBounds, from, to value.Value) convBounds {
	step := g.step[g.cut]
	skip := e.divI(e.addI(e.max(e.sub(from, b.first), attentionI(0)), step-1), step)
	return convBounds{e.add(b.first, e.mulI(skip, step)), e.min(b.end, to), e.add(b.offset, e.mulI(skip, g.move(g.cut)))}
}

// move is the distance in the input of two taps of dimension d that exist.
func (g *convGen) move(d int) int64 {
	return g.step[d] * g.dim[d].KernelDilation / g.dim[d].InDilation * g.dim[d].StrideIn
}

// micro is the function of a micro-tile of the given number of images and of columns with these taps:
//
//	void (in, packed, acc, i64 channels, i64 k0, i64 end0, i64 k1, i64 end1, i1 begin)
//
// acc is carried on over channels × the taps within the bounds, from +0 with begin. in points to
// the first of the taps of the first two dimensions, at what the offsets of columns count from.
func (g *convGen) micro(images int64, columns []convTaps) *ir.Func {
	key := fmt.Sprint(images, columns)
	if f := g.micros[key]; f != nil {
		return f
	}
	ps := []*ir.Param{ir.NewParam("in", attentionPtr()), ir.NewParam("ker", attentionPtr()), ir.NewParam("acc", attentionPtr())}
	for _, n := range []string{"channels", "k0", "end0", "k1", "end1"} {
		ps = append(ps, ir.NewParam(n, types.I64))
	}
	ps = append(ps, ir.NewParam("begin", types.I1))
	e := g.function(fmt.Sprintf("%s_m%d", g.Name, len(g.micros)), true, ps...)
	lo, hi := [2]value.Value{ps[4], ps[6]}, [2]value.Value{ps[5], ps[7]}
	var rows []convTaps
	var at, acc []value.Value
	for i := range images {
		for j, t := range columns {
			if t.end > 0 {
				t.offset += i * g.InBatch
			}
			rows = append(rows, t)
			for v := range g.vecs {
				p := e.atI(ps[2], i*g.accImage+int64(j)*g.accColumn+v*g.w)
				zero := constant.NewZeroInitializer(e.vec(types.Float))
				at, acc = append(at, p), append(acc, e.b.NewSelect(ps[8], zero, e.loadV(p)))
			}
		}
	}
	// Each loop carries the pointer into the input, then the accumulators.
	var nest func(d int, in, ker value.Value, acc []value.Value) []value.Value
	nest = func(d int, in, ker value.Value, acc []value.Value) []value.Value {
		if d == 2 {
			return g.columns(e, rows, in, acc, func(k value.Value) []value.Value {
				b := make([]value.Value, g.vecs)
				for v := range b {
					b[v] = e.loadV(e.atI(e.at(ker, e.mulI(k, g.kerStep[2])), int64(v)*g.w))
				}
				return b
			}, func(p value.Value) value.Value { return e.splat(e.load(p), e.w) })
		}
		carried := append([]value.Value{in}, acc...)
		return e.loop(lo[d], hi[d], g.step[d], carried, func(k value.Value, c []value.Value) []value.Value {
			next := nest(d+1, c[0], e.at(ker, e.mulI(k, g.kerStep[d])), c[1:])
			return append([]value.Value{e.atI(c[0], g.move(d))}, next...)
		})[1:]
	}
	carried := append([]value.Value{ps[0], ps[1]}, acc...)
	acc = e.loop(attentionI(0), ps[3], 1, carried, func(_ value.Value, c []value.Value) []value.Value {
		next := nest(0, c[0], c[1], c[2:])
		return append([]value.Value{e.atI(c[0], g.InChannel), e.atI(c[1], g.kerChannel)}, next...)
	})[2:]
	for i, x := range acc {
		e.store(x, at[i])
	}
	g.micros[key] = e.done()
	return g.micros[key]
}

// emit writes the kernel.
func (g *convGen) emit() error {
	ps := []*ir.Param{ir.NewParam("args", attentionPtr()), ir.NewParam("lo", types.I64), ir.NewParam("hi", types.I64), ir.NewParam("scratch", attentionPtr())}
	run := g.pixels()
	var pack, store *ir.Func
	if !g.unpacked {
		pack = g.packer()
	}
	if !g.inPlace {
		store = g.storer()
	}
	e := g.function(g.Name, false, ps...)
	arg := make([]value.Value, 3)
	for i := range arg {
		l := e.b.NewLoad(attentionPtr(), e.atI(ps[0], int64(2*i)))
		l.Align = 8
		arg[i] = l
	}
	scratch, packed := ps[3], e.atI(ps[3], convAccBytes/4)
	// held is the block of channels whose kernel is packed.
	e.loop(ps[1], ps[2], 1, []value.Value{attentionI(-1)}, func(tile value.Value, held []value.Value) []value.Value {
		next := func(n int64) value.Value {
			i := e.remI(tile, n)
			tile = e.divI(tile, n)
			return i
		}
		w0 := e.mulI(next(attentionCeil(g.dim[2].Out, g.wb)), g.wb)
		q0 := e.mulI(next(attentionCeil(g.dim[0].Out*g.dim[1].Out, g.rb)), g.rb)
		n0 := e.mulI(next(attentionCeil(g.Batch, g.nb)), g.nb)
		block := tile
		o0 := e.mulI(next(attentionCeil(g.og, g.ob)), g.ob)
		group := tile
		left := func(total, at value.Value, most int64) value.Value {
			return e.min(attentionI(most), e.sub(total, at))
		}
		oc := left(attentionI(g.og), o0, g.ob)
		w1 := e.add(w0, left(attentionI(g.dim[2].Out), w0, g.wb))
		q1 := e.add(q0, left(attentionI(g.dim[0].Out*g.dim[1].Out), q0, g.rb))
		nc := left(attentionI(g.Batch), n0, g.nb)
		o := e.add(e.mulI(group, g.og), o0)
		in := e.at(arg[0], e.add(e.mulI(n0, g.InBatch), e.mulI(group, g.groupIn())))
		ker := e.at(arg[1], e.mulI(o, g.KerOut))
		out := e.at(arg[2], e.add(e.mulI(n0, g.OutBatch), e.mulI(o, g.OutChannel)))
		acc := value.Value(scratch)
		if g.inPlace {
			acc = e.at(out, e.mulI(w0, g.accColumn))
		}

		// fill packs taps from ≤ k < to of channels c0 … c0+cc−1, if need be, and finds tap 0 of the first.
		fill := func(c0, cc, from, to value.Value) value.Value {
			source := e.at(ker, e.mulI(c0, g.KerIn))
			if g.unpacked {
				return e.atI(source, g.kerStart)
			}
			e.b.NewCall(pack, source, packed, oc, cc, from, to)
			if g.cut < 0 {
				return packed
			}
			return e.at(packed, e.mulI(from, -g.kerStep[g.cut]))
		}
		// chunks runs channels c0 … c0+cc−1, of which the kernel begins at k. With begin they begin chains.
		chunks := func(c0, cc, k, begin value.Value) {
			e.each(attentionI(0), cc, g.chans, func(c value.Value) {
				first := e.b.NewAnd(begin, e.b.NewICmp(enum.IPredEQ, c, attentionI(0)))
				e.b.NewCall(run, e.at(in, e.mulI(e.add(c0, c), g.InChannel)), e.at(k, e.mulI(c, g.kerChannel)), acc, left(cc, c, g.chans),
					nc, q0, q1, w0, w1, attentionI(0), attentionI(0), first)
			})
		}
		// slices does the same for the one channel c0, slice by slice.
		slices := func(c0, begin value.Value) {
			size, one := g.dim[g.cut].Kernel, attentionI(1)
			e.eachI(size, g.slices, func(from value.Value) {
				to := e.add(from, left(attentionI(size), from, g.slices))
				k := fill(c0, one, from, to)
				first := e.b.NewAnd(begin, e.b.NewICmp(enum.IPredEQ, from, attentionI(0)))
				e.b.NewCall(run, e.at(in, e.mulI(c0, g.InChannel)), k, acc, one, nc, q0, q1, w0, w1, from, to, first)
			})
		}
		switch {
		case g.packed == g.InChannels && g.cut < 0 && !g.unpacked:
			// The whole kernel of the channels fits: the next tile has most often the same.
			e.when(e.b.NewICmp(enum.IPredNE, block, held[0]), func() { fill(attentionI(0), attentionI(g.InChannels), attentionI(0), attentionI(0)) })
			chunks(attentionI(0), attentionI(g.InChannels), packed, constant.True)
		default:
			chain := func(from, to value.Value) {
				e.each(from, to, g.packed, func(c0 value.Value) {
					begin := e.b.NewICmp(enum.IPredEQ, c0, from)
					if g.cut >= 0 {
						slices(c0, begin)
						return
					}
					cc := left(to, c0, g.packed)
					chunks(c0, cc, fill(c0, cc, attentionI(0), attentionI(0)), begin)
				})
			}
			if g.Segment >= g.InChannels {
				chain(attentionI(0), attentionI(g.InChannels))
				break
			}
			acc = e.atI(packed, convPackBytes/4)
			e.eachI(g.InChannels, g.Segment, func(from value.Value) {
				sum := value.Value(scratch)
				chain(from, e.add(from, left(attentionI(g.InChannels), from, g.Segment)))
				first := e.b.NewICmp(enum.IPredEQ, from, attentionI(0))
				e.eachI(g.nb*g.rb*g.wb*g.ob, e.w, func(i value.Value) {
					x, p := e.loadV(e.at(acc, i)), e.at(sum, i)
					e.store(e.b.NewSelect(first, x, e.b.NewFAdd(e.loadV(p), x)), p)
				})
			})
		}
		if !g.inPlace {
			e.b.NewCall(store, scratch, out, oc, nc, q0, q1, w0, w1)
		}
		return []value.Value{block}
	})
	e.done()
	return nil
}

// groupIn is the distance in the input of two groups.
func (g *convGen) groupIn() int64 {
	if g.BatchGroups > 1 {
		return g.Batch * g.InBatch
	}
	return g.InChannels * g.InChannel
}

// pixels is the function that carries the chains of all pixels of a tile over a chunk:
//
//	void (in, packed, acc, i64 channels, i64 images, i64 q0, i64 q1, i64 w0, i64 w1, i64 from, i64 to, i1 begin)
//
// for output rows q0 ≤ q < q1 of the first two dimensions, columns w0 ≤ w < w1. acc is that of
// image 0, column w0 and, unless chains are in the result, row q0.
func (g *convGen) pixels() *ir.Func {
	// Micro-tiles first: a function can't be written inside another.
	blocks := g.blocks(g.nc)
	heights := []int64{g.ni}
	if rest := g.Batch % g.ni; rest > 0 {
		heights = append(heights, rest)
	}
	for _, h := range heights {
		for _, b := range blocks {
			g.micro(h, b.columns)
		}
	}

	ps := []*ir.Param{ir.NewParam("in", attentionPtr()), ir.NewParam("ker", attentionPtr()), ir.NewParam("acc", attentionPtr())}
	for _, n := range []string{"channels", "images", "q0", "q1", "w0", "w1", "from", "to"} {
		ps = append(ps, ir.NewParam(n, types.I64))
	}
	ps = append(ps, ir.NewParam("begin", types.I1))
	e := g.function(g.Name+"_px", true, ps...)
	in, ker, acc, channels, images := ps[0], ps[1], ps[2], ps[3], ps[4]
	q0, q1, w0, w1, from, to, begin := ps[5], ps[6], ps[7], ps[8], ps[9], ps[10], ps[11]
	e.each(q0, q1, 1, func(q value.Value) {
		d0, d1 := g.at(e, 0, e.divI(q, g.dim[1].Out)), g.at(e, 1, e.remI(q, g.dim[1].Out))
		switch g.cut {
		case 0:
			d0 = g.within(e, d0, from, to)
		case 1:
			d1 = g.within(e, d1, from, to)
		}
		base := e.at(in, e.add(d0.offset, d1.offset))
		row := e.mulI(e.sub(q, q0), g.accRow)
		if g.inPlace {
			row = g.place(e, q)
		}
		n := value.Value(attentionI(0))
		for _, h := range heights {
			end := e.add(n, e.mulI(e.divI(e.sub(images, n), h), h))
			e.each(n, end, h, func(n value.Value) {
				image := e.at(base, e.mulI(n, g.InBatch))
				accImage := e.at(acc, e.add(e.mulI(n, g.accImage), row))
				for _, b := range blocks {
					lo, hi := attentionI(0), attentionI(b.count)
					if g.wb < g.dim[2].Out { // first + i·step is a block of the tile
						inner := func(w value.Value) value.Value {
							block := e.divI(e.addI(w, g.nc-1), g.nc)
							return e.divI(e.max(e.addI(block, b.step-1-b.first), attentionI(0)), b.step)
						}
						lo, hi = e.max(lo, inner(w0)), e.min(hi, inner(w1))
					}
					e.each(lo, hi, 1, func(i value.Value) {
						w := e.mulI(e.addI(e.mulI(i, b.step), b.first), g.nc)
						e.b.NewCall(g.micro(h, b.columns), e.at(image, e.addI(e.mulI(i, b.shift), b.offset)), ker,
							e.at(accImage, e.mulI(e.sub(w, w0), g.accColumn)), channels, d0.first, d0.end, d1.first, d1.end, begin)
					})
				}
			})
			n = end
		}
	})
	return e.done()
}

// place is where output row q of the first two dimensions begins in an image of the result.
func (g *convGen) place(e *attentionFn, q value.Value) value.Value {
	d0, d1 := g.dim[0], g.dim[1]
	return e.add(e.mulI(e.divI(q, d1.Out), d0.StrideOut), e.mulI(e.remI(q, d1.Out), d1.StrideOut))
}

// packer is the function that packs the kernel of a tile's channels:
//
//	void (ker, packed, i64 oc, i64 channels, i64 from, i64 to)
//
// packed[c][k][lane] for lanes below oc (others are junk), from ≤ k < to in the
// dimension that chunks cut.
func (g *convGen) packer() *ir.Func {
	ker, packed := ir.NewParam("ker", attentionPtr()), ir.NewParam("packed", attentionPtr())
	oc, channels, from, to := ir.NewParam("oc", types.I64), ir.NewParam("channels", types.I64), ir.NewParam("from", types.I64), ir.NewParam("to", types.I64)
	ker.Attrs, packed.Attrs = append(ker.Attrs, enum.ParamAttrNoAlias), append(packed.Attrs, enum.ParamAttrNoAlias)
	e := g.function(g.Name+"_pack", true, ker, packed, oc, channels, from, to)
	lo := [3]value.Value{attentionI(0), attentionI(0), attentionI(0)}
	hi := [3]value.Value{attentionI(g.dim[0].Kernel), attentionI(g.dim[1].Kernel), attentionI(g.dim[2].Kernel)}
	count := attentionI(g.kernelTaps()) // taps of a channel in the chunk
	if g.cut >= 0 {
		lo[g.cut], hi[g.cut] = from, to
		count = e.mulI(e.sub(to, from), g.kerStep[g.cut]/g.ob)
	}
	if run, reverse := g.tapsInOrder(); run && g.KerOut != 1 {
		// The taps lie next to each other: transpose squares of channels × taps.
		step := int64(1)
		if reverse {
			step = -1
		}
		first := attentionI(0)
		if g.cut >= 0 {
			first = e.mulI(from, g.kerStep[g.cut]/g.ob)
		}
		per, total := count, value.Value(channels)
		if !reverse && g.cut < 0 && g.KerIn == g.kernelTaps() {
			per, total = e.mul(count, channels), attentionI(1) // and so do channels
		}
		last := e.addI(oc, -1)
		e.each(attentionI(0), total, 1, func(c value.Value) {
			src, dst := e.at(ker, e.mulI(c, g.KerIn)), e.at(packed, e.mulI(e.mul(c, per), g.ob))
			if reverse { // src points to tap 0 of the chunk, which is the last in memory
				src = e.at(src, e.sub(attentionI(g.kernelTaps()-1), first))
			} else {
				src = e.at(src, first)
			}
			for v := range g.vecs {
				from := make([]value.Value, e.w)
				for r := range from {
					o := e.min(attentionI(v*e.w+int64(r)), last)
					from[r] = e.at(src, e.mulI(o, g.KerOut))
				}
				full := e.mulI(e.divI(per, e.w), e.w)
				e.each(attentionI(0), full, e.w, func(k value.Value) {
					x := make([]value.Value, e.w)
					for r := range x {
						if reverse {
							x[r] = e.loadV(e.at(from[r], e.sub(attentionI(1-e.w), k)))
						} else {
							x[r] = e.loadV(e.at(from[r], k))
						}
					}
					for i, y := range e.transpose(x) {
						at := int64(i)
						if reverse {
							at = e.w - 1 - at
						}
						e.store(y, e.at(dst, e.addI(e.mulI(e.addI(k, at), g.ob), v*e.w)))
					}
				})
				e.each(full, per, 1, func(k value.Value) {
					for r := range e.w {
						x := e.load(e.at(from[r], e.mulI(k, step)))
						e.store(x, e.at(dst, e.addI(e.mulI(k, g.ob), v*e.w+r)))
					}
				})
			}
		})
		return e.done()
	}
	e.each(attentionI(0), channels, 1, func(c value.Value) {
		e.each(lo[0], hi[0], 1, func(k0 value.Value) {
			e.each(lo[1], hi[1], 1, func(k1 value.Value) {
				e.each(lo[2], hi[2], 1, func(k2 value.Value) {
					src, at := e.at(ker, e.mulI(c, g.KerIn)), e.mul(c, count)
					inner := attentionI(0)
					for d, k := range []value.Value{k0, k1, k2} {
						pos := k
						if g.dim[d].Reverse {
							pos = e.sub(attentionI(g.dim[d].Kernel-1), k)
						}
						src = e.at(src, e.mulI(pos, g.dim[d].StrideKer))
						inner = e.add(e.mulI(inner, g.dim[d].Kernel), e.sub(k, lo[d]))
					}
					dst := e.at(packed, e.mulI(e.add(at, inner), g.ob))
					if g.KerOut == 1 && g.og%g.ob == 0 {
						e.eachI(g.ob, e.w, func(o value.Value) { e.store(e.loadV(e.at(src, o)), e.at(dst, o)) })
						return
					}
					e.each(attentionI(0), oc, 1, func(o value.Value) {
						e.store(e.load(e.at(src, e.mulI(o, g.KerOut))), e.at(dst, o))
					})
				})
			})
		})
	})
	return e.done()
}

// tapsInOrder tells whether the taps of a channel lie densely in memory in row-major
// order, or exactly in the reverse of it.
func (g *convGen) tapsInOrder() (run, reverse bool) {
	stride := int64(1)
	forward, backward := true, true
	for d := 2; d >= 0; d-- {
		if g.dim[d].Kernel == 1 {
			continue
		}
		if g.dim[d].StrideKer != stride {
			return false, false
		}
		forward, backward = forward && !g.dim[d].Reverse, backward && g.dim[d].Reverse
		stride *= g.dim[d].Kernel
	}
	return forward || backward, !forward
}

// storer is the function that writes the finished chains of a tile:
//
//	void (acc, out, i64 oc, i64 images, i64 q0, i64 q1, i64 w0, i64 w1)
func (g *convGen) storer() *ir.Func {
	run := g.runStorer()
	acc, out := ir.NewParam("acc", attentionPtr()), ir.NewParam("out", attentionPtr())
	ps := []*ir.Param{acc, out}
	for _, n := range []string{"oc", "images", "q0", "q1", "w0", "w1"} {
		ps = append(ps, ir.NewParam(n, types.I64))
	}
	e := g.function(g.Name+"_store", true, ps...)
	oc, images, q0, q1, w0, w1 := ps[2], ps[3], ps[4], ps[5], ps[6], ps[7]
	rows, cols := g.dim[0].Out*g.dim[1].Out, g.dim[2].Out
	d0, d1, d2 := g.dim[0], g.dim[1], g.dim[2]
	// Rows that follow each other in memory are one run, and so are images.
	joined := g.wb == cols && (d1.Out == 1 || d1.StrideOut == cols*d2.StrideOut) && (d0.Out == 1 || d0.StrideOut == cols*d1.Out*d2.StrideOut)
	switch {
	case joined && g.rb == rows && g.OutBatch == rows*cols*d2.StrideOut:
		e.b.NewCall(run, acc, out, oc, e.mulI(images, rows*cols))
	case joined:
		e.each(attentionI(0), images, 1, func(n value.Value) {
			to := e.at(out, e.add(e.mulI(n, g.OutBatch), g.place(e, q0)))
			e.b.NewCall(run, e.at(acc, e.mulI(n, g.rb*g.wb*g.ob)), to, oc, e.mulI(e.sub(q1, q0), cols))
		})
	default:
		e.each(attentionI(0), images, 1, func(n value.Value) {
			e.each(q0, q1, 1, func(q value.Value) {
				from := e.at(acc, e.mulI(e.add(e.mulI(n, g.rb), e.sub(q, q0)), g.wb*g.ob))
				to := e.at(out, e.add(e.add(e.mulI(n, g.OutBatch), g.place(e, q)), e.mulI(w0, d2.StrideOut)))
				e.b.NewCall(run, from, to, oc, e.sub(w1, w0))
			})
		})
	}
	return e.done()
}

// runStorer is void (acc, out, i64 oc, i64 pixels): out[o][pixel] = acc[pixel][o],
// pixels lying one StrideOut of the last dimension apart.
func (g *convGen) runStorer() *ir.Func {
	acc, out := ir.NewParam("acc", attentionPtr()), ir.NewParam("out", attentionPtr())
	oc, n := ir.NewParam("oc", types.I64), ir.NewParam("n", types.I64)
	acc.Attrs, out.Attrs = append(acc.Attrs, enum.ParamAttrNoAlias), append(out.Attrs, enum.ParamAttrNoAlias)
	e := g.function(g.Name+"_run", true, acc, out, oc, n)
	stride := g.dim[2].StrideOut
	scalar := func(lo value.Value) {
		e.each(lo, n, 1, func(p value.Value) {
			e.each(attentionI(0), oc, 1, func(o value.Value) {
				x := e.load(e.at(acc, e.add(e.mulI(p, g.ob), o)))
				e.store(x, e.at(out, e.add(e.mulI(p, stride), e.mulI(o, g.OutChannel))))
			})
		})
	}
	if g.OutChannel == 1 && g.og%g.ob == 0 {
		e.each(attentionI(0), n, 1, func(p value.Value) {
			e.eachI(g.ob, e.w, func(o value.Value) {
				x := e.loadV(e.at(acc, e.add(e.mulI(p, g.ob), o)))
				e.store(x, e.at(out, e.add(e.mulI(p, stride), o)))
			})
		})
		return e.done()
	}
	if stride != 1 {
		scalar(attentionI(0))
		return e.done()
	}
	full := e.mulI(e.divI(n, e.w), e.w)
	e.each(attentionI(0), full, e.w, func(p value.Value) {
		for v := range g.vecs {
			x := make([]value.Value, e.w)
			for r := range x {
				x[r] = e.loadV(e.at(acc, e.addI(e.mulI(e.addI(p, int64(r)), g.ob), v*e.w)))
			}
			for i, y := range e.transpose(x) {
				o := v*e.w + int64(i)
				put := func() { e.store(y, e.at(out, e.addI(p, o*g.OutChannel))) }
				if g.og%g.ob == 0 {
					put()
				} else {
					e.when(e.less(attentionI(o), oc), put)
				}
			}
		}
	})
	scalar(full)
	return e.done()
}
