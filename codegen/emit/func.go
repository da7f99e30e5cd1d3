package emit

import (
	"github.com/llir/llvm/ir"
	"github.com/llir/llvm/ir/enum"
	"github.com/llir/llvm/ir/types"
	"github.com/llir/llvm/ir/value"

	"reprise/ir/dtype"
	"reprise/ir/kern"
)

// Func is a function under construction. Instructions go to the end of Block,
// which changes as statements open loops.
type Func struct {
	Mod    *Module
	F      *ir.Func
	Block  *ir.Block
	Params []kern.Param
	Width  int // lanes of a vector of 32-bit values: what strips are cut into

	Device Device // nil on the CPU

	// RandomIDs holds ids of random ops that are known at run time only (i32);
	// others are constants.
	RandomIDs map[uint32]value.Value
	// Numbers holds the values of constants that are known at run time only.
	Numbers map[*kern.Expr]value.Value

	entry *ir.Block     // where allocas go
	ptrs  []value.Value // typed pointers, one per parameter

	scratch     value.Value // i8*, memory of this worker
	scratchUsed int64
	locals      map[*kern.Local]value.Value

	slots map[*kern.Var]*slot   // variables in memory (promoted by LLVM)
	bound map[*kern.Var]operand // variables with a known value

	ranges map[*kern.Var]span // bounds of i64 variables, here
	spans  map[*kern.Expr]spanResult

	lane lane // the strip around
}

// Device takes over what differs where a tile is run by many threads: each of them
// runs the tile's scalar statements, and they share a strip's lanes.
type Device interface {
	// Store emits put, a store outside of a strip, so that it happens once.
	Store(f *Func, put func())
	// Strip emits a strip, by Thread.
	Strip(f *Func, s *kern.Strip)
	// Local is a typed pointer to a new local array.
	Local(f *Func, l *kern.Local) value.Value
}

// slot is a variable's place on the stack.
type slot struct {
	ptr  value.Value
	typ  types.Type
	lane bool // one value per lane
}

// lane is the state of the strip that is being emitted; w is 1 outside of strips.
type lane struct {
	w       int
	mask    value.Value                 // vector of bool: lanes that exist; nil: all
	known   map[*kern.Var]operand       // last value of per-lane variables, on this straight line
	hoisted map[*kern.Expr]operand      // values that no lane changes
	random  map[*kern.Expr]*randomBlock // words of the current block of 64
	offset  value.Value                 // i64, of lane 0 in its block of 64
	thread  bool                        // one lane, run by one of a device's threads
}

// NewFunc prepares emission into f. entry is f's first block (allocas and pointer
// casts are put at its end: it must dominate what is emitted, so pass a block that
// so far only branches on), at the block to emit into. ptrs are byte pointers to params.
// scratch is the worker's memory of which the first used bytes are taken.
func NewFunc(m *Module, f *ir.Func, entry, at *ir.Block, params []kern.Param, ptrs []value.Value, scratch value.Value, used int64, width int) *Func {
	fn := &Func{Mod: m, F: f, Block: at, Params: params, Width: width, entry: entry, scratch: scratch, scratchUsed: used,
		locals: map[*kern.Local]value.Value{}, slots: map[*kern.Var]*slot{}, bound: map[*kern.Var]operand{},
		ranges: map[*kern.Var]span{}, spans: map[*kern.Expr]spanResult{}, lane: lane{w: 1}}
	for i, p := range ptrs {
		fn.ptrs = append(fn.ptrs, entry.NewBitCast(p, pointerLike(p, Mem(params[i].DType))))
	}
	return fn
}

// pointerLike is the type of pointers to t in p's address space.
func pointerLike(p value.Value, t types.Type) types.Type {
	q := types.NewPointer(t)
	q.AddrSpace = p.Type().(*types.PointerType).AddrSpace
	return q
}

// Bind gives a variable a value that holds from here on.
func (f *Func) Bind(v *kern.Var, x value.Value) {
	w, _ := lanes(x.Type())
	if w == 1 {
		f.bound[v] = operand{t: v.DType, s: x}
		return
	}
	f.bound[v] = operand{t: v.DType, v: x}
}

// Entry is the block where allocas and addresses of arrays go.
func (f *Func) Entry() *ir.Block { return f.entry }

// ToMem and FromMem convert between a value in a register and in memory (bool).
func (f *Func) ToMem(t dtype.Type, x value.Value) value.Value   { return f.toMem(t, x) }
func (f *Func) FromMem(t dtype.Type, x value.Value) value.Value { return f.fromMem(t, x) }

// ScratchUsed is the number of scratch bytes that local arrays reach up to.
func (f *Func) ScratchUsed() int64 { return f.scratchUsed }

func (f *Func) newBlock() *ir.Block { return f.F.NewBlock("") }

// Call calls an intrinsic whose name ends in the suffix of the type over.
func (f *Func) Call(name string, over, ret types.Type, args ...value.Value) value.Value {
	params := make([]types.Type, len(args))
	for i, a := range args {
		params[i] = a.Type()
	}
	return f.Block.NewCall(f.Mod.Intrinsic(name+"."+suffix(over), ret, params...), args...)
}

// Alloca reserves stack in the function's entry, aligned to a cache line.
func (f *Func) Alloca(t types.Type) value.Value {
	a := f.entry.NewAlloca(t)
	a.Align = 64
	return a
}

// Loop emits for (i = lo; i < hi; i += step) body(i); i is an i64.
func (f *Func) Loop(lo, hi value.Value, step int64, body func(i value.Value)) {
	pre, head, exit := f.Block, f.newBlock(), f.newBlock()
	pre.NewCondBr(pre.NewICmp(enum.IPredSLT, lo, hi), head, exit)
	i := head.NewPhi(ir.NewIncoming(lo, pre))
	f.Block = head
	body(i)
	next := f.Block.NewAdd(i, I64(step))
	i.Incs = append(i.Incs, ir.NewIncoming(next, f.Block))
	f.Block.NewCondBr(f.Block.NewICmp(enum.IPredSLT, next, hi), head, exit)
	f.Block = exit
}

// When emits body where cond (i1) holds.
func (f *Func) When(cond value.Value, body func()) {
	pre, then, exit := f.Block, f.newBlock(), f.newBlock()
	pre.NewCondBr(cond, then, exit)
	f.Block = then
	body()
	f.Block.NewBr(exit)
	f.Block = exit
}

// slot finds or makes a variable's place; lane variables have the strip's width.
func (f *Func) slot(v *kern.Var, perLane bool) *slot {
	s := f.slots[v]
	if s == nil {
		w := 1
		if perLane {
			w = f.lane.w
		}
		t := Type(v.DType, w)
		s = &slot{ptr: f.entry.NewAlloca(t), typ: t, lane: perLane}
		f.slots[v] = s
	}
	return s
}

// setScalar stores a uniform variable.
func (f *Func) setScalar(v *kern.Var, x value.Value) {
	f.Block.NewStore(x, f.slot(v, false).ptr)
}

// localPtr is the typed pointer to a local array, given scratch on first use.
func (f *Func) localPtr(l *kern.Local) value.Value {
	if p := f.locals[l]; p != nil {
		return p
	}
	if f.Device != nil {
		f.locals[l] = f.Device.Local(f, l)
		return f.locals[l]
	}
	at := (f.scratchUsed + 63) &^ 63
	f.scratchUsed = at + l.Len*l.DType.Size()
	p := f.entry.NewGetElementPtr(types.I8, f.scratch, I64(at))
	q := f.entry.NewBitCast(p, types.NewPointer(Mem(l.DType)))
	f.locals[l] = q
	return q
}

// Splat is the scalar x in all of w lanes.
func (f *Func) Splat(x value.Value, w int) value.Value { return f.splat(x, w) }

func (f *Func) splat(x value.Value, w int) value.Value {
	if w == 1 {
		return x
	}
	t := Vec(x.Type(), w)
	v := f.Block.NewInsertElement(Poison(t), x, I32(0))
	return f.Block.NewShuffleVector(v, Poison(t), Zeros(Vec(types.I32, w)))
}

// fromMem and toMem turn bytes into truth values and back.
func (f *Func) fromMem(t dtype.Type, x value.Value) value.Value {
	if t != dtype.Bool {
		return x
	}
	w, _ := lanes(x.Type())
	return f.Block.NewICmp(enum.IPredNE, x, IntLit(types.I8, w, 0))
}

func (f *Func) toMem(t dtype.Type, x value.Value) value.Value {
	if t != dtype.Bool {
		return x
	}
	w, _ := lanes(x.Type())
	return f.Block.NewZExt(x, Vec(types.I8, w))
}

// Bounds says that an i64 variable lies in lo … hi: index arithmetic may then be
// done in 32 bits.
func (f *Func) Bounds(v *kern.Var, lo, hi int64) { f.setSpan(v, span{lo, hi}, true) }

// Unbind forgets what Bind said.
func (f *Func) Unbind(v *kern.Var) { delete(f.bound, v) }

// LanesOf is the number of lanes of a value, 1 for a scalar.
func LanesOf(x value.Value) int {
	w, _ := lanes(x.Type())
	return w
}
