package cpu

import (
	"fmt"

	"github.com/llir/llvm/ir"
	"github.com/llir/llvm/ir/constant"
	"github.com/llir/llvm/ir/enum"
	"github.com/llir/llvm/ir/types"
	"github.com/llir/llvm/ir/value"

	"reprise/codegen/emit"
	"reprise/ir/dtype"
	"reprise/ir/kern"
)

// EmitContract adds a kernel for c to m under the given symbol and tells how to launch
// it. Its arguments are A and B, where no prologue computes them, then C where c has no epilogue,
// then c.Params. An empty C needs no launch. The error says what has no packed kernel: integer contractions are
// loops in kern.
//
// The scheme is that of Goto and van de Geijn, "Anatomy of High-Performance Matrix
// Multiplication" (2008), with the order of arithmetic fixed: a micro-kernel holds a
// small tile of C in registers and walks k once; where K is cut into blocks, it starts
// from the sums that the block before has stored, so that each element stays one chain.
// Operands are copied into panels in the worker's scratch, whatever their strides; a
// tile's rows are cut into panels of nearly equal height, so that no micro-kernel runs
// nearly empty. All sizes are constants of the kernel; micro-kernels and packing
// routines are shared with other contractions of the module (being linkonce_odr, of the
// program), which keeps a contraction below 100 ms of compilation.
func EmitContract(m *ir.Module, c *kern.Contract, t Target, symbol string) ([]Launch, error) {
	return emitContract(m, c, t, symbol, kern.Own{})
}

// emitContract is EmitContract for a kernel that may read something from its list.
func emitContract(m *ir.Module, c *kern.Contract, t Target, symbol string, reads kern.Own) ([]Launch, error) {
	p, err := contractMakePlan(c, t)
	if err != nil || p.batches*c.M.Size*c.N.Size == 0 { // nothing to compute
		return nil, err
	}
	return []Launch{{Symbol: symbol, Tiles: p.tiles()}}, (&contractEmitter{contractPlan: p, m: m}).emit(symbol, reads)
}

type contractEmitter struct {
	*contractPlan
	*contractB
	m *ir.Module

	lo, hi       value.Value   // the range of tiles
	ptrs         []value.Value // A, B, C, as far as they are arguments, then Params
	out          int           // the first of C and Params
	areaA, areaB value.Value   // packed blocks
	block        value.Value   // partial block of C, when not direct
	tabs         [2]value.Value

	epilogue *kern.Epilogue // nil when direct
	epi      *emit.Func

	flush, strict value.Value // MXCSR with FTZ and DAZ, and as it was found; nil: not needed
}

func (k *contractEmitter) emit(symbol string, reads kern.Own) error {
	i8p := types.NewPointer(types.I8)
	args := ir.NewParam("args", types.NewPointer(i8p))
	lo, hi := ir.NewParam("lo", types.I64), ir.NewParam("hi", types.I64)
	scratch := ir.NewParam("scratch", i8p)
	args.Attrs = append(args.Attrs, enum.ParamAttrNoAlias)
	scratch.Attrs = append(scratch.Attrs, enum.ParamAttrNoAlias)
	k.contractB = contractFunc(k.m, k.t, symbol, args, lo, hi, scratch)
	k.lo, k.hi = lo, hi
	params := k.c.Params
	k.epilogue = k.c.Epilogue
	k.out = k.c.Buffers()
	if k.epilogue == nil {
		k.out--
		if !k.direct {
			k.epilogue, params = contractStore(k.c)
		}
	}
	for i := range k.c.Buffers() + len(k.c.Params) {
		k.ptrs = append(k.ptrs, k.load(i8p, k.gep(i8p, args, contractInt(int64(i))), 8))
	}
	own := readOwn(k.cur, args, len(k.ptrs), reads)
	at := int64(0)
	area := func(bytes int64, t types.Type) value.Value {
		v := k.cast(k.gep(types.I8, scratch, contractInt(at)), t)
		at += contractRoundUp(bytes, 64)
		return v
	}
	slots := func(keep bool, slot int64) int64 {
		if keep {
			slot *= k.nk
		}
		return slot * k.form.size()
	}
	k.areaA = area(slots(k.keepA, k.slotA), k.form.elem())
	k.areaB = area(slots(k.keepB, k.slotB), k.form.elem())
	for i, o := range []*contractOperand{&k.a, &k.b} {
		if o.path == contractPathT {
			k.tabs[i] = area(k.kc*8, types.I64)
		}
		if o.pro != nil {
			o.stage = area(o.stageRows*o.stageLd*o.dt.Size(), types.I8)
		}
	}
	k.block = area(0, k.form.acc())
	if k.a.kind == contractSwapped {
		k.flush, k.strict = k.cur.NewAlloca(types.I32), k.cur.NewAlloca(types.I32)
		k.cur.NewCall(k.intrinsic("llvm.x86.sse.stmxcsr", types.Void, i8p), k.cast(k.strict, types.I8))
		// FTZ is bit 15, DAZ bit 6.
		k.store(k.cur.NewOr(k.load(types.I32, k.strict, 4), constant.NewInt(types.I32, 0x8040)), k.flush, 4)
	}
	entry := k.cur
	if !k.direct || k.a.pro != nil || k.b.pro != nil {
		k.cur = k.contractB.block("start")
		entry.NewBr(k.cur)
	}
	if !k.direct {
		k.epi = EpilogueFunc(k.m, k.f, entry, k.cur, params, k.ptrs[k.out:k.out+len(params)], scratch, k.bytes, k.t)
		own.give(k.epi)
	}
	for i, o := range []*contractOperand{&k.a, &k.b} {
		if o.pro != nil {
			k.prologueFunc(o, [...]int64{k.rows.Size, k.cols.Size}[i], scratch)
			own.give(o.emit)
		}
	}
	none := contractInt(-1)
	run := func(kb value.Value) {
		k.loop(lo, hi, 1, []value.Value{none, none}, func(t value.Value, c []value.Value) []value.Value {
			return k.tile(t, kb, c[0], c[1])
		})
	}
	if k.kOuter {
		k.loop(contractInt(0), contractInt(k.nk), 1, nil, func(kb value.Value, _ []value.Value) []value.Value {
			run(kb)
			return nil
		})
	} else {
		run(nil)
	}
	k.ret()
	if k.epi != nil && k.epi.ScratchUsed() > ScratchBytes {
		return fmt.Errorf("contraction %s: its epilogue's local arrays take %d bytes, %d are left of a worker's scratch",
			k.c.Name, k.epi.ScratchUsed()-k.bytes, ScratchBytes-k.bytes)
	}
	return nil
}

// mxcsr switches to the given floating-point mode, where the numerics ask for another.
func (k *contractEmitter) mxcsr(mode value.Value) {
	if mode != nil {
		i8p := types.NewPointer(types.I8)
		k.cur.NewCall(k.intrinsic("llvm.x86.sse.ldmxcsr", types.Void, i8p), k.cast(mode, types.I8))
	}
}

func (k *contractEmitter) div(x value.Value, by int64) value.Value {
	if by == 1 {
		return x
	}
	return k.cur.NewUDiv(x, contractInt(by))
}

func (k *contractEmitter) rest(x value.Value, by int64) value.Value {
	if by == 1 {
		return contractInt(0)
	}
	return k.cur.NewURem(x, contractInt(by))
}

// times is x·c, leaving out the trivial ones.
func (k *contractEmitter) times(x value.Value, c int64) value.Value {
	switch c {
	case 0:
		return contractInt(0)
	case 1:
		return x
	}
	return k.mul(x, contractInt(c))
}

// share is the first unit of part i when n units are cut into parts.
func (k *contractEmitter) share(i value.Value, n, parts int64) value.Value {
	return k.div(k.times(i, n), parts)
}

// contractTile is where a tile lies, as values of the code.
type contractTile struct {
	batch            value.Value
	p0, p1           value.Value // panels of rows
	g0, g1           value.Value // groups of columns
	row0, row1       value.Value
	col0, col1       value.Value
	offA, offB, offC value.Value // of the batch item
	idA, idB         value.Value // names of the operands' blocks
}

// rowOf is the first row of a panel.
func (k *contractEmitter) rowOf(p value.Value) value.Value {
	return k.add(k.times(p, k.hLo), k.min(p, contractInt(k.tall)))
}

// place finds tile t.
func (k *contractEmitter) place(t value.Value) *contractTile {
	x := &contractTile{}
	per := k.tilesM * k.tilesN
	var inner value.Value
	x.batch, inner = k.div(t, per), k.rest(t, per)
	var tm, tn value.Value
	if k.colsOuter {
		tn, tm = k.div(inner, k.tilesM), k.rest(inner, k.tilesM)
	} else {
		tm, tn = k.div(inner, k.tilesN), k.rest(inner, k.tilesN)
	}
	one := contractInt(1)
	x.p0, x.p1 = k.share(tm, k.panels, k.tilesM), k.share(k.add(tm, one), k.panels, k.tilesM)
	unit := k.unit()
	units := contractCeilDiv(k.groups, unit)
	x.g0 = k.times(k.share(tn, units, k.tilesN), unit)
	x.g1 = k.min(k.times(k.share(k.add(tn, one), units, k.tilesN), unit), contractInt(k.groups))
	x.row0, x.row1 = k.rowOf(x.p0), k.rowOf(x.p1)
	x.col0 = k.times(x.g0, k.nv*k.lanes)
	x.col1 = k.min(k.times(x.g1, k.nv*k.lanes), contractInt(k.cols.Size))

	x.offA, x.offB, x.offC = contractInt(0), contractInt(0), contractInt(0)
	rest := x.batch
	for i := len(k.c.Batch) - 1; i >= 0; i-- {
		ax := k.c.Batch[i]
		idx := k.rest(rest, ax.Size)
		if i == 0 {
			idx = rest
		}
		rest = k.div(rest, ax.Size)
		x.offA = k.add(x.offA, k.times(idx, k.a.batch[i]))
		x.offB = k.add(x.offB, k.times(idx, k.b.batch[i]))
		x.offC = k.add(x.offC, k.times(idx, ax.StrideC))
	}
	// The same batch offset and the same first row (column) is the same block.
	x.idA = k.add(k.times(x.offA, k.rows.Size+1), x.row0)
	x.idB = k.add(k.times(x.offB, k.cols.Size+1), x.col0)
	return x
}

// source is where the block of an operand begins that starts at row (column) at.
func (k *contractEmitter) source(o *contractOperand, off, at value.Value) value.Value {
	st := contractSrc(o.dt)
	return k.gep(st, k.cast(k.ptrs[o.arg], st), k.add(off, k.times(at, o.w)))
}

// tile computes one tile (only K block kb of it where kb is given); curA and curB name
// the blocks that are packed in scratch.
func (k *contractEmitter) tile(t, kb, curA, curB value.Value) []value.Value {
	x := k.place(t)
	needA := k.cur.NewICmp(enum.IPredNE, x.idA, curA)
	needB := k.cur.NewICmp(enum.IPredNE, x.idB, curB)
	var srcA, srcB value.Value
	if k.a.pro == nil {
		srcA = k.source(&k.a, x.offA, x.row0)
	}
	if k.b.pro == nil {
		srcB = k.source(&k.b, x.offB, x.col0)
	}

	step := func(kb value.Value) {
		k0 := k.times(kb, k.kc)
		kc := k.min(k.sub(contractInt(k.k), k0), contractInt(k.kc))
		a, b := k.areaA, k.areaB
		if k.keepA {
			a = k.gep(k.form.elem(), a, k.times(kb, k.slotA))
		}
		if k.keepB {
			b = k.gep(k.form.elem(), b, k.times(kb, k.slotB))
		}
		packA := func() {
			if k.a.pro != nil {
				k.packComputedA(x, a, k0, kc)
				return
			}
			// Tall panels first, then short ones.
			nTall := k.sub(k.min(x.p1, contractInt(k.tall)), x.p0)
			if k.tall > 0 {
				k.when(k.cur.NewICmp(enum.IPredSGT, nTall, contractInt(0)), func() {
					k.pack(0, &k.a, a, srcA, k0, kc, contractInt(k.hHi()), k.times(nTall, k.hHi()), k.psA)
				})
			}
			nt := k.cur.NewSelect(k.cur.NewICmp(enum.IPredSGT, nTall, contractInt(0)), nTall, contractInt(0))
			nShort := k.sub(k.sub(x.p1, x.p0), nt)
			k.when(k.cur.NewICmp(enum.IPredSGT, nShort, contractInt(0)), func() {
				k.pack(0, &k.a, k.gep(k.form.elem(), a, k.times(nt, k.psA)),
					k.gep(contractSrc(k.a.dt), srcA, k.times(k.times(nt, k.hHi()), k.a.w)),
					k0, kc, contractInt(k.hLo), k.times(nShort, k.hLo), k.psA)
			})
		}
		packB := func() {
			if k.b.pro != nil {
				k.packComputed(1, &k.b, b, x.batch, x.col0, k0, kc, contractInt(k.lanes), k.sub(x.col1, x.col0), k.psB)
				return
			}
			k.pack(1, &k.b, b, srcB, k0, kc, contractInt(k.lanes), k.sub(x.col1, x.col0), k.psB)
		}
		if k.keepA || k.kOuter {
			k.when(needA, packA)
		} else {
			packA()
		}
		if k.stream {
			b = srcB
		} else if k.keepB || k.kOuter {
			k.when(needB, packB)
		} else {
			packB()
		}
		k.macro(kb, kc, a, b, x, k.upcoming(t, kb, x, needA, needB))
	}
	switch {
	case kb != nil:
		step(kb)
	case k.nk == 1:
		step(contractInt(0))
	default:
		k.loop(contractInt(0), contractInt(k.nk), 1, nil, func(kb value.Value, _ []value.Value) []value.Value {
			step(kb)
			return nil
		})
	}
	if k.swap && !k.direct {
		k.finishSwapped(x)
	}
	return []value.Value{x.idA, x.idB}
}

// contractNext is a block of an operand that will be packed next: rows pieces of
// contiguous memory; 0 rows: none.
type contractNext struct {
	o           *contractOperand
	src         value.Value
	rows, bytes value.Value
	stride      int64 // elements
}

// upcoming finds the blocks that the tile (or K block) after this one packs, so that
// their memory can be asked for while this one computes.
func (k *contractEmitter) upcoming(t, kb value.Value, x *contractTile, needA, needB value.Value) []contractNext {
	if k.stream || len(k.kSizes) > 1 {
		return nil
	}
	one, zero := contractInt(1), contractInt(0)
	following := k.add(t, one)
	more := k.cur.NewICmp(enum.IPredSLT, following, k.hi)
	// Where the next step is: its tile and K block, and whether there is one.
	var nt, nkb, has, same value.Value
	switch {
	case k.kOuter:
		nt = k.cur.NewSelect(more, following, k.lo)
		nkb = k.cur.NewSelect(more, kb, k.add(kb, one))
		has = k.cur.NewICmp(enum.IPredSLT, nkb, contractInt(k.nk))
		same = constant.False
	case k.nk == 1:
		nt, nkb, has, same = k.cur.NewSelect(more, following, t), zero, more, constant.False
	default:
		same = k.cur.NewICmp(enum.IPredSLT, k.add(kb, one), contractInt(k.nk))
		nt = k.cur.NewSelect(same, t, k.cur.NewSelect(more, following, t))
		nkb = k.cur.NewSelect(same, k.add(kb, one), zero)
		has = k.cur.NewOr(same, more)
	}
	y := k.place(nt)
	k0 := k.times(nkb, k.kc)
	kc := k.min(k.sub(contractInt(k.k), k0), contractInt(k.kc))
	var out []contractNext
	for _, c := range []struct {
		o            *contractOperand
		keep         bool
		id, next     value.Value
		need         value.Value
		off, at, end value.Value
	}{{&k.a, k.keepA, x.idA, y.idA, needA, y.offA, y.row0, y.row1}, {&k.b, k.keepB, x.idB, y.idB, needB, y.offB, y.col0, y.col1}} {
		var will value.Value = constant.True
		switch {
		case k.kOuter: // within one K block only another block is packed
			will = k.cur.NewOr(k.cur.NewICmp(enum.IPredNE, c.id, c.next), k.cur.NewXor(more, constant.True))
		case c.keep:
			will = k.cur.NewSelect(same, c.need, k.cur.NewICmp(enum.IPredNE, c.id, c.next))
		}
		will = k.cur.NewAnd(will, has)
		if c.o.pro != nil {
			continue // there is no memory to ask for
		}
		n := contractNext{o: c.o}
		width, size := k.sub(c.end, c.at), contractInt(c.o.dt.Size())
		ks := int64(1)
		if len(c.o.k) > 0 {
			ks = c.o.k[0]
		}
		n.src = k.gep(contractSrc(c.o.dt), k.source(c.o, c.off, c.at), k.times(k0, ks))
		switch c.o.path {
		case contractPathW:
			n.rows, n.bytes, n.stride = kc, k.mul(width, size), ks
		case contractPathK:
			n.rows, n.bytes, n.stride = width, k.mul(kc, size), c.o.w
		default:
			continue
		}
		n.rows = k.cur.NewSelect(will, n.rows, zero)
		out = append(out, n)
	}
	return out
}

// shares is how many rows of each upcoming block to ask for in one of n parts.
func (k *contractEmitter) shares(next []contractNext, n value.Value) []value.Value {
	out := make([]value.Value, len(next))
	for i, x := range next {
		out[i] = k.cur.NewSDiv(k.add(x.rows, k.sub(n, contractInt(1))), n)
	}
	return out
}

// ask prefetches part i of the blocks that come next.
func (k *contractEmitter) ask(next []contractNext, parts []value.Value, i value.Value) {
	for j, x := range next {
		lo := k.mul(i, parts[j])
		k.loop(lo, k.min(k.add(lo, parts[j]), x.rows), 1, nil, func(r value.Value, _ []value.Value) []value.Value {
			row := k.cast(k.gep(contractSrc(x.o.dt), x.src, k.times(r, x.stride)), types.I8)
			k.loop(contractInt(0), x.bytes, 64, nil, func(b value.Value, _ []value.Value) []value.Value {
				k.prefetchL2(k.gep(types.I8, row, b))
				return nil
			})
			return nil
		})
	}
}

// pack copies kc steps from k0 of one operand's block into panels, run by run of the
// innermost K axis where there are several.
func (k *contractEmitter) pack(side int, o *contractOperand, dst, src, k0, kc, w, n value.Value, ps int64) {
	f := contractPack(k.m, k.t, o.dt, k.form, o.kind, o.width, o.path, side == 1)
	last := len(o.k) - 1
	koff := func(pos value.Value) value.Value { // offset of chain position pos
		off := value.Value(contractInt(0))
		for i := last; i >= 0; i-- {
			idx := pos
			if i > 0 {
				idx = k.rest(pos, k.kSizes[i])
			}
			off = k.add(off, k.times(idx, o.k[i]))
			pos = k.div(pos, k.kSizes[i])
		}
		return off
	}
	st := contractSrc(o.dt)
	switch {
	case o.path == contractPathT:
		tab := k.tabs[side]
		k.loop(contractInt(0), kc, 1, nil, func(i value.Value, _ []value.Value) []value.Value {
			k.store(koff(k.add(k0, i)), k.gep(types.I64, tab, i), 8)
			return nil
		})
		k.cur.NewCall(f, dst, src, contractInt(o.w), contractInt(0), kc, w, n, contractInt(ps), tab)
	case last <= 0:
		ks := int64(1)
		if last == 0 {
			ks = o.k[0]
		}
		k.cur.NewCall(f, dst, k.gep(st, src, k.times(k0, ks)), contractInt(o.w), contractInt(ks), kc, w, n, contractInt(ps))
	default:
		end := k.add(k0, kc)
		inner := k.kSizes[last]
		// A run ends where the innermost axis does; the loop's step is the run's length.
		head, body, exit := k.contractB.block("runs"), k.contractB.block("run"), k.contractB.block("packed")
		pre := k.cur
		pre.NewBr(head)
		pos := head.NewPhi(ir.NewIncoming(k0, pre))
		head.NewCondBr(head.NewICmp(enum.IPredSLT, pos, end), body, exit)
		k.cur = body
		run := k.min(k.sub(contractInt(inner), k.rest(pos, inner)), k.sub(end, pos))
		row := k.sub(pos, k0)
		if o.kind == contractPaired {
			row = k.cur.NewLShr(row, contractInt(1))
		}
		stride := value.Value(contractInt(int64(o.width)))
		if side == 0 {
			stride = w
		}
		k.cur.NewCall(f, k.gep(k.form.elem(), dst, k.mul(row, stride)), k.gep(st, src, koff(pos)),
			contractInt(o.w), contractInt(o.k[last]), run, w, n, contractInt(ps))
		next := k.add(pos, run)
		pos.Incs = append(pos.Incs, ir.NewIncoming(next, k.cur))
		k.cur.NewBr(head)
		k.cur = exit
	}
}

// macro runs the micro-kernel over the packed blocks. Where partial sums of the whole
// tile have a place (C itself or the scratch), a group of B, the larger piece, stays in L2
// while the panels of A pass by; where only one panel of sums is kept, panel after panel
// is completed and handed to the epilogue.
func (k *contractEmitter) macro(kb, kc, a, b value.Value, x *contractTile, next []contractNext) {
	at := k.form.acc()
	steps := kc
	switch k.a.kind {
	case contractPaired:
		steps = k.cur.NewLShr(k.add(kc, contractInt(1)), contractInt(1))
	case contractSwapped:
		steps = k.cur.NewAnd(k.add(kc, contractInt(1)), contractInt(-2))
	}
	load := k.cur.NewZExt(k.cur.NewICmp(enum.IPredSGT, kb, contractInt(0)), types.I64)
	last := k.cur.NewICmp(enum.IPredEQ, kb, contractInt(k.nk-1))
	ldc := k.ldBlock
	if k.direct {
		ldc = k.rows.StrideC
	}
	// panelC is where the sums of panel p begin.
	panelC := func(p value.Value) value.Value {
		switch row := k.rowOf(p); {
		case k.direct:
			return k.gep(at, k.cast(k.ptrs[k.out], at), k.add(x.offC, k.add(k.times(row, ldc), x.col0)))
		case k.wholeBlock():
			return k.gep(at, k.block, k.times(k.sub(row, x.row0), ldc))
		}
		return k.block
	}
	// call runs the micro-kernel on panel p and group g, B beginning at bp.
	call := func(p, g, bp value.Value, ldk, ldv, vectors int64, stream bool) {
		isTall := k.cur.NewICmp(enum.IPredSLT, p, contractInt(k.tall))
		ap := k.gep(k.form.elem(), a, k.times(k.sub(p, x.p0), k.psA))
		c := k.gep(at, panelC(p), k.times(k.sub(g, x.g0), k.nv*k.lanes))
		n := value.Value(contractInt(vectors * k.lanes))
		if k.direct {
			n = k.sub(contractInt(k.cols.Size), k.times(g, k.nv*k.lanes))
		}
		mk := func(h int64) func() {
			return func() {
				f := contractMicro(k.m, k.t, k.form, int(h), int(vectors), stream)
				below := k.gep(at, c, contractInt(h*ldc))
				k.cur.NewCall(f, steps, ap, bp, contractInt(ldk), contractInt(ldv), c, contractInt(ldc), n, load, below)
			}
		}
		if k.tall > 0 {
			k.branch(isTall, mk(k.hHi()), mk(k.hLo))
		} else {
			mk(k.hLo)()
		}
	}
	// groups visits the groups of B with their beginning.
	groups := func(visit func(g, bp value.Value, ldk, ldv, vectors int64, stream bool)) {
		of := func(g value.Value, vectors int64, edge bool) {
			rel := k.sub(g, x.g0)
			switch {
			case !k.stream:
				visit(g, k.gep(k.form.elem(), b, k.times(rel, k.nv*k.psB)), k.lanes, k.psB, vectors, false)
			case edge && k.cols.Size%k.lanes != 0:
				// Whole vectors would read past the row's end.
				bp := k.gep(k.form.elem(), b, k.times(rel, k.nv*k.lanes))
				k.pack(1, &k.b, k.areaB, bp, contractInt(0), kc, contractInt(k.lanes),
					contractInt(k.cols.Size-(k.groups-1)*k.nv*k.lanes), k.psB)
				visit(g, k.areaB, k.lanes, k.psB, vectors, false)
			default:
				visit(g, k.gep(k.form.elem(), b, k.times(rel, k.nv*k.lanes)), k.b.k[0], k.lanes, vectors, true)
			}
		}
		whole := k.groups
		if k.rem > 0 {
			whole--
		}
		if whole > 0 {
			k.loop(x.g0, k.min(x.g1, contractInt(whole)), 1, nil, func(g value.Value, _ []value.Value) []value.Value {
				of(g, k.nv, false)
				return nil
			})
		}
		if k.rem > 0 {
			k.when(k.cur.NewICmp(enum.IPredEQ, x.g1, contractInt(k.groups)), func() {
				of(contractInt(k.groups-1), k.rem, true)
			})
		}
	}
	panels := k.sub(x.p1, x.p0)
	if k.wholeBlock() {
		parts := k.shares(next, k.mul(panels, k.sub(x.g1, x.g0)))
		k.mxcsr(k.flush)
		groups(func(g, bp value.Value, ldk, ldv, vectors int64, stream bool) {
			done := k.mul(k.sub(g, x.g0), panels)
			k.loop(x.p0, x.p1, 1, nil, func(p value.Value, _ []value.Value) []value.Value {
				k.ask(next, parts, k.add(done, k.sub(p, x.p0)))
				call(p, g, bp, ldk, ldv, vectors, stream)
				return nil
			})
		})
		k.mxcsr(k.strict)
		if !k.direct && !k.swap {
			k.when(last, func() {
				k.loop(x.row0, x.row1, 1, nil, func(row value.Value, _ []value.Value) []value.Value {
					k.finishRow(x.batch, row, x.col0, x.col1, k.gep(at, k.block, k.times(k.sub(row, x.row0), ldc)))
					return nil
				})
			})
		}
		return
	}
	parts := k.shares(next, panels)
	k.loop(x.p0, x.p1, 1, nil, func(p value.Value, _ []value.Value) []value.Value {
		k.ask(next, parts, k.sub(p, x.p0))
		k.mxcsr(k.flush)
		groups(func(g, bp value.Value, ldk, ldv, vectors int64, stream bool) {
			call(p, g, bp, ldk, ldv, vectors, stream)
		})
		k.mxcsr(k.strict)
		row := k.rowOf(p)
		h := k.sub(k.rowOf(k.add(p, contractInt(1))), row)
		k.loop(contractInt(0), h, 1, nil, func(r value.Value, _ []value.Value) []value.Value {
			k.finishRow(x.batch, k.add(row, r), x.col0, x.col1, k.gep(at, k.block, k.times(r, ldc)))
			return nil
		})
		return nil
	})
}

// finishSwapped turns the finished block, whose rows are C's columns, into rows of C.
func (k *contractEmitter) finishSwapped(x *contractTile) {
	at := k.form.acc()
	n := k.rows.Size
	buf := k.gep(at, k.block, contractInt(k.ldBlock*n))
	k.loop(x.col0, x.col1, 1, nil, func(m value.Value, _ []value.Value) []value.Value {
		src := k.gep(at, k.block, k.sub(m, x.col0))
		k.loop(contractInt(0), contractInt(n), 1, nil, func(j value.Value, _ []value.Value) []value.Value {
			v := k.load(at, k.gep(at, src, k.times(j, k.ldBlock)), k.form.size())
			k.store(v, k.gep(at, buf, j), k.form.size())
			return nil
		})
		k.finishRow(x.batch, m, contractInt(0), contractInt(n), buf)
		return nil
	})
}

// finishRow hands columns n0 … n1-1 of row m of C, complete and in memory at src, to the
// epilogue.
func (k *contractEmitter) finishRow(batch, m, n0, n1, src value.Value) {
	k.epi.Block = k.cur
	EpilogueRow(k.epi, k.epilogue, batch, m, n0, n1, src)
	k.cur = k.epi.Block
}

// contractStore is the epilogue of a contraction that has none, but whose C the
// micro-kernel cannot write itself: round and store.
func contractStore(c *kern.Contract) (*kern.Epilogue, []kern.Param) {
	e := &kern.Epilogue{Batch: kern.NewVar("batch", dtype.I64), M: kern.NewVar("m", dtype.I64),
		N: kern.NewVar("n", dtype.I64), Acc: kern.NewVar("acc", c.Acc)}
	at := kern.Add(kern.Mul(kern.Get(e.M), kern.I64(c.M.StrideC)), kern.Mul(kern.Get(e.N), kern.I64(c.N.StrideC)))
	rest := kern.Get(e.Batch)
	for i := len(c.Batch) - 1; i >= 0; i-- {
		ax := c.Batch[i]
		at = kern.Add(at, kern.Mul(kern.Rem(rest, kern.I64(ax.Size)), kern.I64(ax.StrideC)))
		rest = kern.Div(rest, kern.I64(ax.Size))
	}
	v := kern.Get(e.Acc)
	if c.Out != c.Acc {
		v = kern.Convert(v, c.Out)
	}
	e.Body = []kern.Stmt{kern.Buf{Param: 0, DType: c.Out}.Set(at, v)}
	return e, []kern.Param{{Name: "c", DType: c.Out, Len: c.LenC, Writes: true}}
}
