package cpu

import (
	"github.com/llir/llvm/ir/enum"
	"github.com/llir/llvm/ir/value"

	"reprise/codegen/emit"
	"reprise/ir/kern"
)

// An operand with a prologue is computed piece by piece into a stage, a few kilobytes of the worker's
// scratch that stay in the first-level cache, and packed from there by the same routines as an
// operand in memory. A piece is a strip along the axis that the prologue prefers: positions of the chain
// for one panel, or all columns of the block for a few positions.

const (
	// contractStageK is the most positions of the chain in a piece whose strips run along it.
	contractStageK = 512
	// contractStageElems is about how many elements a piece has whose strips run along the other axis.
	contractStageElems = 8192
)

// stageShape is the size of a piece in rows of ld elements each, where a block is at most width wide.
func (p *contractPlan) stageShape(o *contractOperand, width int64) (rows, ld int64) {
	if o.pro.AlongK {
		return int64(o.width), min(contractRoundUp(p.kc, kern.Lanes), contractStageK)
	}
	// Strips begin at multiples of kern.Lanes, the block anywhere.
	ld = contractRoundUp(width+kern.Lanes-1, kern.Lanes)
	return max(4, min(kern.Lanes, contractStageElems/ld/4*4)), ld
}

// contractProCycles is about what a prologue adds to the packing of an element, in cycles: its
// operations and the way through the stage.
func contractProCycles(pro *kern.Prologue, t Target) float64 {
	return 0.3 + float64(pro.Flops)/float64(t.Lanes())
}

// ContractCycles is the modelled time of a contraction on threads workers, in cycles of a Zen 4 core, what its prologues compute
// included, what its epilogue does not. It is 0 for an empty result.
func ContractCycles(c *kern.Contract, t Target, threads int64) (float64, error) {
	p, err := contractMakePlan(c, t)
	if err != nil || p.batches*c.M.Size*c.N.Size == 0 {
		return 0, err
	}
	return p.cycles(p.unit(), threads, threads) / float64(threads), nil
}

// prologueFunc prepares the emission of an operand's prologue, whose block is the stage; own is the
// length of the operand's own axis.
func (k *contractEmitter) prologueFunc(o *contractOperand, own int64, scratch value.Value) {
	params := append(append([]kern.Param{}, k.c.Params...), kern.Param{Name: "block", DType: o.dt, Len: o.stageRows * o.stageLd, Writes: true})
	ptrs := append(append([]value.Value{}, k.ptrs[k.c.Buffers():]...), o.stage)
	o.emit = EpilogueFunc(k.m, k.f, k.f.Blocks[0], k.cur, params, ptrs, scratch, k.bytes, k.t)
	rows, cols := own, k.k
	if !o.pro.AlongK {
		rows, cols = cols, rows
	}
	o.emit.Bounds(o.pro.Batch, 0, max(k.batches-1, 0))
	o.emit.Bounds(o.pro.Lo, 0, rows)
	o.emit.Bounds(o.pro.Hi, 0, rows)
	o.emit.Bounds(o.pro.Base, 0, cols/kern.Lanes)
	o.emit.Bounds(o.pro.N, 0, o.stageLd)
	o.emit.Bounds(o.pro.Ld, o.stageLd, o.stageLd)
}

// compute fills the stage.
func (k *contractEmitter) compute(o *contractOperand, batch, lo, hi, base, n value.Value) {
	f := o.emit
	f.Block = k.cur
	f.Bind(o.pro.Batch, batch)
	f.Bind(o.pro.Lo, lo)
	f.Bind(o.pro.Hi, hi)
	f.Bind(o.pro.Base, base)
	f.Bind(o.pro.N, n)
	f.Bind(o.pro.Ld, contractInt(o.stageLd))
	f.Body(o.pro.Body)
	k.cur = f.Block
}

// packComputed is pack for an operand with a prologue: n rows (columns) from at on.
func (k *contractEmitter) packComputed(side int, o *contractOperand, dst, batch, at, k0, kc, w, n value.Value, ps int64) {
	f := contractPack(k.m, k.t, o.dt, k.form, o.kind, o.width, o.path, side == 1)
	st := contractSrc(o.dt)
	stage := k.cast(o.stage, st)
	stride := value.Value(contractInt(int64(o.width)))
	if side == 0 {
		stride = w
	}
	// row is where position kk of the block stands in a panel.
	row := func(panel, kk value.Value) value.Value {
		if o.kind == contractPaired {
			kk = k.cur.NewLShr(kk, contractInt(1))
		}
		return k.gep(k.form.elem(), panel, k.mul(kk, stride))
	}
	chunks := func(size int64, visit func(kk, run value.Value)) {
		k.loop(contractInt(0), kc, size, nil, func(kk value.Value, _ []value.Value) []value.Value {
			visit(kk, k.min(contractInt(size), k.sub(kc, kk)))
			return nil
		})
	}
	if o.pro.AlongK {
		k.loopStep(contractInt(0), n, w, []value.Value{dst}, func(col value.Value, c []value.Value) []value.Value {
			valid := k.min(w, k.sub(n, col))
			lo := k.add(at, col)
			chunks(o.stageLd, func(kk, run value.Value) {
				k.compute(o, batch, lo, k.add(lo, valid), k.cur.NewLShr(k.add(k0, kk), contractInt(6)), run)
				k.cur.NewCall(f, row(c[0], kk), stage, contractInt(o.stageLd), contractInt(1), run, w, valid, contractInt(ps))
			})
			return []value.Value{k.gep(k.form.elem(), c[0], contractInt(ps))}
		})
		return
	}
	skew := k.cur.NewAnd(at, contractInt(kern.Lanes-1))
	base := k.cur.NewLShr(at, contractInt(6))
	width := k.add(n, skew)
	chunks(o.stageRows, func(kk, run value.Value) {
		lo := k.add(k0, kk)
		k.compute(o, batch, lo, k.add(lo, run), base, width)
		k.cur.NewCall(f, row(dst, kk), k.gep(st, stage, skew), contractInt(1), contractInt(o.stageLd), run, w, n, contractInt(ps))
	})
}

// packComputedA packs the panels of a tile's rows: tall ones, then short ones, by one emission of the prologue.
func (k *contractEmitter) packComputedA(x *contractTile, dst, k0, kc value.Value) {
	zero := contractInt(0)
	nTall := k.sub(k.min(x.p1, contractInt(k.tall)), x.p0)
	nTall = k.cur.NewSelect(k.cur.NewICmp(enum.IPredSGT, nTall, zero), nTall, zero)
	k.loop(zero, contractInt(2), 1, nil, func(i value.Value, _ []value.Value) []value.Value {
		first := k.cur.NewICmp(enum.IPredEQ, i, zero)
		height := k.cur.NewSelect(first, contractInt(k.hHi()), contractInt(k.hLo))
		skip := k.cur.NewSelect(first, zero, nTall)
		panels := k.cur.NewSelect(first, nTall, k.sub(k.sub(x.p1, x.p0), nTall))
		at := k.add(x.row0, k.times(skip, k.hHi()))
		k.packComputed(0, &k.a, k.gep(k.form.elem(), dst, k.times(skip, k.psA)), x.batch, at, k0, kc, height, k.mul(panels, height), k.psA)
		return nil
	})
}

// contractStaged is what the emitter knows of an operand with a prologue.
type contractStaged struct {
	pro                *kern.Prologue
	stageRows, stageLd int64
	stage              value.Value // i8*
	emit               *emit.Func
}

// stageBytes is the scratch that the stages of a plan take.
func (p *contractPlan) stageBytes(maxRows, maxCols int64) int64 {
	n := int64(0)
	for i, o := range []*contractOperand{&p.a, &p.b} {
		if o.pro != nil {
			o.stageRows, o.stageLd = p.stageShape(o, [...]int64{maxRows, maxCols}[i])
			n += contractRoundUp(o.stageRows*o.stageLd*o.dt.Size(), 64)
		}
	}
	return n
}
