package cpu

import (
	"fmt"

	"github.com/llir/llvm/ir"
	"github.com/llir/llvm/ir/constant"
	"github.com/llir/llvm/ir/enum"
	"github.com/llir/llvm/ir/types"
	"github.com/llir/llvm/ir/value"

	"reprise/ir/dtype"
	"reprise/ir/kern"
)

// The convolution kernel is direct: lanes are output channels, the rows of a
// micro-tile are pixels of one output row (or the same pixel of several images), and
// its accumulators stay in registers over the taps of a chunk. Which taps exist is
// decided per pixel, so that none is computed in vain and none is added as zero.
// A tile is (group, block of images, block of output rows, block of columns, block of
// channels); it packs the kernel of its channels, chunk by chunk, as [c][k][channel].

const (
	convChunkBytes = 96 << 10  // of packed kernel that one pass of the pixels uses
	convAccBytes   = 256 << 10 // of unfinished chains of a tile
	convPackBytes  = 512 << 10 // most that a chunk may take
	convTilePixels = 512       // wanted in a tile
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

	images  bool  // rows of micro-tiles are images, not pixels of a row
	maxRows int64 // of a micro-tile
	nb      int64 // images of a tile
	rb      int64 // output rows (of the first two dimensions together) of a tile
	wb      int64 // columns of a tile
	chans   int64 // input channels of a chunk
	cut     int   // dimension by whose taps a chunk is cut, with chans = 1; −1: none
	slices  int64 // taps of that dimension in a chunk
}

// convTaps are the taps of one dimension that exist for an output position:
// first, first+step, … < end, and the offset in the input of the first.
type convTaps struct{ first, end, offset int64 }

// Conv adds a convolution to the unit.
func (u *Unit) Conv(c *kern.Conv) ([]Launch, error) {
	plain := *c
	plain.Name = ""
	return u.add("conv", c.Name, fmt.Sprintf("conv %+v\n", plain), moduleWeight/2, func(m *ir.Module, symbol string) ([]Launch, error) {
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
	if err := g.plan(); err != nil {
		return nil, err
	}
	return []Launch{{Symbol: c.Name, Tiles: g.tiles()}}, g.emit()
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
		for p := range g.dim[d].Out {
			g.taps[d] = append(g.taps[d], convTapsOf(g.dim[d], g.step[d], p))
		}
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
	g.maxRows = 12
	if g.t == V3 {
		g.maxRows = 6
	}

	// Rows of micro-tiles: what needs less time for all pixels of a row.
	byPixels := 0.0
	for _, s := range g.segments() {
		byPixels += g.time(s.end-s.start) * float64(g.Batch)
	}
	byImages := g.time(g.Batch) * float64(g.dim[2].Out)
	g.images = byImages < byPixels

	rows, cols := g.dim[0].Out*g.dim[1].Out, g.dim[2].Out
	most := convAccBytes / (4 * g.ob) // pixels of a tile
	g.wb = min(cols, most/2)
	g.rb = min(rows, max(1, convTilePixels/g.wb))
	g.nb = min(g.Batch, max(1, convTilePixels/(g.wb*g.rb)))
	if g.images {
		// Whole micro-tiles of images before rows.
		g.nb = min(g.Batch, 4*g.maxRows)
		g.wb = min(cols, most/g.nb)
		g.rb = min(rows, max(1, convTilePixels/(g.wb*g.nb)))
	}
	// A few tiles for every thread, unless they get too small to be worth packing for; and three would
	// leave two threads with a third of the time to wait.
	for g.tiles() < 12 && g.nb*g.rb*g.wb > 48 || g.tiles() == 3 && g.nb*g.rb*g.wb > 24 {
		switch {
		case g.rb > 1:
			g.rb = (g.rb + 1) / 2
		case g.nb > g.maxRows || !g.images && g.nb > 1:
			g.nb = (g.nb + 1) / 2
		case g.wb > 2*g.maxRows:
			g.wb = (g.wb + 1) / 2
		default:
			return g.planChunks()
		}
	}
	return g.planChunks()
}

func (g *convGen) planChunks() error {
	bytes := g.kernelTaps() * g.ob * 4
	g.chans, g.cut = max(1, min(g.InChannels, g.Segment, convChunkBytes/bytes)), -1
	if bytes <= convChunkBytes {
		return nil
	}
	g.cut = 1
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

// time estimates the cycles per tap of n pixels that share their taps, in
// micro-tiles: at least the latency of one fma each.
func (g *convGen) time(n int64) float64 {
	tiles := attentionCeil(n, g.maxRows)
	return max(float64(n*g.vecs), float64(4*tiles)) + float64(tiles)
}

// convTapsOf finds the taps that exist for output position p.
func convTapsOf(d kern.ConvDim, step, p int64) convTaps {
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

// convSegment is a run of output columns phase + j·period, start ≤ j < end, that
// have the same taps.
type convSegment struct {
	phase, start, end int64
	taps              convTaps // offset: of the column with j = 0, as if it had these taps
}

// period is the distance of output columns whose taps lie alike between dilated inputs.
func (g *convGen) period() int64 {
	d := g.dim[2]
	return d.InDilation / convGcd(d.InDilation, d.Stride)
}

// shift is the distance in the input of two columns a period apart.
func (g *convGen) shift() int64 {
	d := g.dim[2]
	return g.period() * d.Stride / d.InDilation * d.StrideIn
}

// segments cuts the output columns into runs with the same taps.
func (g *convGen) segments() []convSegment {
	var all []convSegment
	p := g.period()
	for phase := int64(0); phase < min(p, g.dim[2].Out); phase++ {
		from := len(all)
		for j := int64(0); phase+j*p < g.dim[2].Out; j++ {
			t := g.taps[2][phase+j*p]
			t.offset -= j * g.shift()
			if t.end == 0 {
				t.offset = 0
			}
			if n := len(all); n > from && all[n-1].taps == t {
				all[n-1].end = j + 1
				continue
			}
			all = append(all, convSegment{phase: phase, start: j, end: j + 1, taps: t})
		}
	}
	return all
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

// micro is the function of a micro-tile of the given number of rows:
//
//	void (in, packed, acc, i64 channels, i64 k0, i64 end0, i64 k1, i64 end1, i64 k2, i64 end2)
//
// acc[r][·] is carried on over channels × the taps within the bounds. in points to
// the first of them for row 0. Constant bounds (last ≥ 0) are those of the last dimension.
func (g *convGen) micro(rows, first, last int64) *ir.Func {
	rowIn, rowAcc := g.shift(), g.period()*g.ob
	if g.images {
		rowIn, rowAcc = g.InBatch, g.rb*g.wb*g.ob
	}
	name := fmt.Sprintf("%s_r%d", g.Name, rows)
	if last >= 0 {
		name += fmt.Sprintf("_%d_%d", first, last)
	}
	if f := attentionFind(g.m, name); f != nil {
		return f
	}
	ps := []*ir.Param{ir.NewParam("in", attentionPtr()), ir.NewParam("ker", attentionPtr()), ir.NewParam("acc", attentionPtr())}
	for _, p := range ps {
		p.Attrs = append(p.Attrs, enum.ParamAttrNoAlias)
	}
	for _, n := range []string{"channels", "k0", "end0", "k1", "end1", "k2", "end2"} {
		ps = append(ps, ir.NewParam(n, types.I64))
	}
	e := attentionFunc(g.m, g.t, name, true, ps...)
	lo := [3]value.Value{ps[4], ps[6], ps[8]}
	hi := [3]value.Value{ps[5], ps[7], ps[9]}
	if last >= 0 {
		lo[2], hi[2] = attentionI(first), attentionI(last)
	}
	acc := make([]value.Value, 0, rows*g.vecs)
	for r := range rows {
		for v := range g.vecs {
			acc = append(acc, e.loadV(e.atI(ps[2], r*rowAcc+v*g.w)))
		}
	}
	// Each loop carries the pointer into the input, then the accumulators.
	var nest func(d int, in, ker value.Value, acc []value.Value) []value.Value
	nest = func(d int, in, ker value.Value, acc []value.Value) []value.Value {
		if d == 3 {
			b := make([]value.Value, g.vecs)
			for v := range b {
				b[v] = e.loadV(e.atI(ker, int64(v)*g.w))
			}
			next := make([]value.Value, 0, len(acc))
			for r := range rows {
				x := e.splat(e.load(e.atI(in, r*rowIn)), e.w)
				for v := range b {
					next = append(next, e.fma(x, b[v], acc[r*g.vecs+int64(v)]))
				}
			}
			return next
		}
		slice := g.ob
		for _, x := range g.dim[d+1:] {
			slice *= x.Kernel
		}
		carried := append([]value.Value{in}, acc...)
		return e.loop(lo[d], hi[d], g.step[d], carried, func(k value.Value, c []value.Value) []value.Value {
			next := nest(d+1, c[0], e.at(ker, e.mulI(k, slice)), c[1:])
			return append([]value.Value{e.atI(c[0], g.move(d))}, next...)
		})[1:]
	}
	carried := append([]value.Value{ps[0], ps[1]}, acc...)
	acc = e.loop(attentionI(0), ps[3], 1, carried, func(_ value.Value, c []value.Value) []value.Value {
		next := nest(0, c[0], c[1], c[2:])
		return append([]value.Value{e.atI(c[0], g.InChannel), e.atI(c[1], g.kernelTaps()*g.ob)}, next...)
	})[2:]
	for r := range rows {
		for v := range g.vecs {
			e.store(acc[r*g.vecs+v], e.atI(ps[2], r*rowAcc+v*g.w))
		}
	}
	return e.done()
}

// emit writes the kernel.
func (g *convGen) emit() error {
	ps := []*ir.Param{ir.NewParam("args", attentionPtr()), ir.NewParam("lo", types.I64), ir.NewParam("hi", types.I64), ir.NewParam("scratch", attentionPtr())}
	run := g.pixels()
	pack, store := g.packer(), g.storer()
	e := attentionFunc(g.m, g.t, g.Name, false, ps...)
	arg := make([]value.Value, 3)
	for i := range arg {
		l := e.b.NewLoad(attentionPtr(), e.atI(ps[0], int64(2*i)))
		l.Align = 8
		arg[i] = l
	}
	acc, packed := ps[3], e.atI(ps[3], convAccBytes/4)
	e.each(ps[1], ps[2], 1, func(tile value.Value) {
		next := func(n int64) value.Value {
			i := e.remI(tile, n)
			tile = e.divI(tile, n)
			return i
		}
		o0 := e.mulI(next(attentionCeil(g.og, g.ob)), g.ob)
		w0 := e.mulI(next(attentionCeil(g.dim[2].Out, g.wb)), g.wb)
		q0 := e.mulI(next(attentionCeil(g.dim[0].Out*g.dim[1].Out, g.rb)), g.rb)
		n0 := e.mulI(next(attentionCeil(g.Batch, g.nb)), g.nb)
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

		chunk := func(c0, cc value.Value) {
			inC, kerC := e.at(in, e.mulI(c0, g.InChannel)), e.at(ker, e.mulI(c0, g.KerIn))
			if g.cut < 0 {
				e.b.NewCall(pack, kerC, packed, oc, cc, attentionI(0), attentionI(0))
				e.b.NewCall(run, inC, packed, acc, cc, nc, q0, q1, w0, w1, attentionI(0), attentionI(0))
				return
			}
			size := g.dim[g.cut].Kernel
			e.eachI(size, g.slices, func(from value.Value) {
				to := e.add(from, left(attentionI(size), from, g.slices))
				e.b.NewCall(pack, kerC, packed, oc, cc, from, to)
				base := e.at(packed, e.mulI(from, -g.slice()))
				e.b.NewCall(run, inC, base, acc, cc, nc, q0, q1, w0, w1, from, to)
			})
		}
		chain := func(from, to value.Value) {
			zero := constant.NewZeroInitializer(e.vec(types.Float))
			e.eachI(g.nb*g.rb*g.wb*g.ob, e.w, func(i value.Value) { e.store(zero, e.at(acc, i)) })
			e.each(from, to, g.chans, func(c0 value.Value) { chunk(c0, left(to, c0, g.chans)) })
		}
		done := value.Value(acc)
		if g.Segment >= g.InChannels {
			chain(attentionI(0), attentionI(g.InChannels))
		} else {
			done = e.atI(packed, convPackBytes/4)
			e.eachI(g.InChannels, g.Segment, func(from value.Value) {
				chain(from, e.add(from, left(attentionI(g.InChannels), from, g.Segment)))
				first := e.b.NewICmp(enum.IPredEQ, from, attentionI(0))
				e.eachI(g.nb*g.rb*g.wb*g.ob, e.w, func(i value.Value) {
					x, p := e.loadV(e.at(acc, i)), e.at(done, i)
					e.store(e.b.NewSelect(first, x, e.b.NewFAdd(e.loadV(p), x)), p)
				})
			})
		}
		to := e.at(arg[2], e.add(e.mulI(n0, g.OutBatch), e.mulI(o, g.OutChannel)))
		e.b.NewCall(store, done, to, oc, nc, q0, q1, w0, w1)
	})
	e.done()
	return nil
}

// slice is the packed size of one tap of the dimension that chunks cut.
func (g *convGen) slice() int64 {
	n := g.ob
	for _, d := range g.dim[g.cut+1:] {
		n *= d.Kernel
	}
	return n
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
//	void (in, packed, acc, i64 channels, i64 images, i64 q0, i64 q1, i64 w0, i64 w1, i64 from, i64 to)
//
// for output rows q0 ≤ q < q1 of the first two dimensions, columns w0 ≤ w < w1.
func (g *convGen) pixels() *ir.Func {
	type call struct {
		s    convSegment
		rows []int64 // heights of micro-tiles, in turn; the first as often as it fits
		fns  []*ir.Func
	}
	// Micro-tiles first: a function can't be written inside another.
	var calls []call
	var byImages []*ir.Func
	imageRows := g.heights(min(g.Batch, g.nb), g.Batch%g.nb == 0)
	same := true
	for _, t := range g.taps[2] {
		same = same && t.first == g.taps[2][0].first && t.end == g.taps[2][0].end
	}
	if g.images {
		for _, r := range imageRows {
			first, last := int64(0), int64(-1)
			if same {
				first, last = g.taps[2][0].first, g.taps[2][0].end
			}
			byImages = append(byImages, g.micro(r, first, last))
		}
	} else {
		for _, s := range g.segments() {
			c := call{s: s, rows: g.heights(s.end-s.start, g.wb == g.dim[2].Out)}
			for _, r := range c.rows {
				first, last := int64(0), int64(-1)
				if s.end-s.start > g.maxRows || same {
					first, last = s.taps.first, s.taps.end
				}
				c.fns = append(c.fns, g.micro(r, first, last))
			}
			calls = append(calls, c)
		}
	}

	ps := []*ir.Param{ir.NewParam("in", attentionPtr()), ir.NewParam("ker", attentionPtr()), ir.NewParam("acc", attentionPtr())}
	for _, n := range []string{"channels", "images", "q0", "q1", "w0", "w1", "from", "to"} {
		ps = append(ps, ir.NewParam(n, types.I64))
	}
	e := attentionFunc(g.m, g.t, g.Name+"_px", true, ps...)
	in, ker, acc, channels, images := ps[0], ps[1], ps[2], ps[3], ps[4]
	q0, q1, w0, w1, from, to := ps[5], ps[6], ps[7], ps[8], ps[9], ps[10]
	// spread calls fns of the given heights for rows lo … hi−1.
	spread := func(lo, hi value.Value, rows []int64, body func(i int, at value.Value)) {
		for i, r := range rows {
			end := e.add(lo, e.mulI(e.divI(e.max(e.sub(hi, lo), attentionI(0)), r), r))
			e.each(lo, end, r, func(at value.Value) { body(i, at) })
			lo = end
		}
	}
	e.each(q0, q1, 1, func(q value.Value) {
		d0, d1 := g.at(e, 0, e.divI(q, g.dim[1].Out)), g.at(e, 1, e.remI(q, g.dim[1].Out))
		switch g.cut {
		case 0:
			d0 = g.within(e, d0, from, to)
		case 1:
			d1 = g.within(e, d1, from, to)
		}
		base := e.at(in, e.add(d0.offset, d1.offset))
		row := e.mulI(e.sub(q, q0), g.wb)
		if g.images {
			e.each(w0, w1, 1, func(w value.Value) {
				d2 := g.at(e, 2, w)
				pixel := e.at(base, d2.offset)
				spread(attentionI(0), images, imageRows, func(i int, n value.Value) {
					to := e.add(e.mulI(n, g.rb*g.wb), e.add(row, e.sub(w, w0)))
					e.b.NewCall(byImages[i], e.at(pixel, e.mulI(n, g.InBatch)), ker, e.at(acc, e.mulI(to, g.ob)),
						channels, d0.first, d0.end, d1.first, d1.end, d2.first, d2.end)
				})
			})
			return
		}
		p := g.period()
		e.each(attentionI(0), images, 1, func(n value.Value) {
			image := e.at(base, e.mulI(n, g.InBatch))
			for _, c := range calls {
				lo, hi := attentionI(c.s.start), attentionI(c.s.end)
				if g.wb < g.dim[2].Out {
					inner := func(w value.Value) value.Value { // least j with phase + j·p ≥ w
						return e.divI(e.max(e.addI(w, p-1-c.s.phase), attentionI(0)), p)
					}
					lo, hi = e.max(lo, inner(w0)), e.min(hi, inner(w1))
				}
				spread(lo, hi, c.rows, func(i int, j value.Value) {
					w := e.sub(e.addI(e.mulI(j, p), c.s.phase), w0)
					to := e.add(e.mulI(n, g.rb*g.wb), e.add(row, w))
					e.b.NewCall(c.fns[i], e.at(image, e.addI(e.mulI(j, g.shift()), c.s.taps.offset)), ker, e.at(acc, e.mulI(to, g.ob)),
						channels, d0.first, d0.end, d1.first, d1.end, attentionI(c.s.taps.first), attentionI(c.s.taps.end))
				})
			}
		})
	})
	return e.done()
}

// heights are the micro-tiles that n rows are cut into; with exact, n is all there
// ever is, else any number up to n may come.
func (g *convGen) heights(n int64, exact bool) []int64 {
	tiles := attentionCeil(n, g.maxRows)
	r := attentionCeil(n, tiles)
	hs := []int64{r}
	if exact {
		if rest := n % r; rest > 0 {
			hs = append(hs, rest)
		}
		return hs
	}
	if r > 4 {
		hs = append(hs, 3)
	}
	if r > 1 {
		hs = append(hs, 1)
	}
	return hs
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
	e := attentionFunc(g.m, g.t, g.Name+"_pack", true, ker, packed, oc, channels, from, to)
	lo := [3]value.Value{attentionI(0), attentionI(0), attentionI(0)}
	hi := [3]value.Value{attentionI(g.dim[0].Kernel), attentionI(g.dim[1].Kernel), attentionI(g.dim[2].Kernel)}
	count := attentionI(g.kernelTaps()) // taps of a channel in the chunk
	if g.cut >= 0 {
		lo[g.cut], hi[g.cut] = from, to
		count = e.mulI(e.sub(to, from), g.slice()/g.ob)
	}
	if run, reverse := g.tapsInOrder(); run && g.KerOut != 1 {
		// The taps lie next to each other: transpose squares of channels × taps.
		step := int64(1)
		if reverse {
			step = -1
		}
		first := attentionI(0)
		if g.cut >= 0 {
			first = e.mulI(from, g.slice()/g.ob)
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
	e := attentionFunc(g.m, g.t, g.Name+"_store", true, ps...)
	oc, images, q0, q1, w0, w1 := ps[2], ps[3], ps[4], ps[5], ps[6], ps[7]
	rows, cols := g.dim[0].Out*g.dim[1].Out, g.dim[2].Out
	d0, d1, d2 := g.dim[0], g.dim[1], g.dim[2]
	place := func(q value.Value) value.Value { // of an output row
		return e.add(e.mulI(e.divI(q, d1.Out), d0.StrideOut), e.mulI(e.remI(q, d1.Out), d1.StrideOut))
	}
	// Rows that follow each other in memory are one run, and so are images.
	joined := g.wb == cols && (d1.Out == 1 || d1.StrideOut == cols*d2.StrideOut) && (d0.Out == 1 || d0.StrideOut == cols*d1.Out*d2.StrideOut)
	switch {
	case joined && g.rb == rows && g.OutBatch == rows*cols*d2.StrideOut:
		e.b.NewCall(run, acc, out, oc, e.mulI(images, rows*cols))
	case joined:
		e.each(attentionI(0), images, 1, func(n value.Value) {
			to := e.at(out, e.add(e.mulI(n, g.OutBatch), place(q0)))
			e.b.NewCall(run, e.at(acc, e.mulI(n, g.rb*g.wb*g.ob)), to, oc, e.mulI(e.sub(q1, q0), cols))
		})
	default:
		e.each(attentionI(0), images, 1, func(n value.Value) {
			e.each(q0, q1, 1, func(q value.Value) {
				from := e.at(acc, e.mulI(e.add(e.mulI(n, g.rb), e.sub(q, q0)), g.wb*g.ob))
				to := e.at(out, e.add(e.add(e.mulI(n, g.OutBatch), place(q)), e.mulI(w0, d2.StrideOut)))
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
	e := attentionFunc(g.m, g.t, g.Name+"_run", true, acc, out, oc, n)
	stride := g.dim[2].StrideOut
	scalar := func(lo value.Value) {
		e.each(lo, n, 1, func(p value.Value) {
			e.each(attentionI(0), oc, 1, func(o value.Value) {
				x := e.load(e.at(acc, e.add(e.mulI(p, g.ob), o)))
				e.store(x, e.at(out, e.add(e.mulI(p, stride), e.mulI(o, g.OutChannel))))
			})
		})
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
