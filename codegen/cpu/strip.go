package cpu

import (
	"github.com/llir/llvm/ir"
	"github.com/llir/llvm/ir/value"

	"reprise/codegen/emit"
	"reprise/ir/kern"
)

// The contraction and attention emitters run epilogues through package emit:
//
//	fn := EpilogueFunc(mod, f, entry, at, c.Params, ptrs, scratch, used, target)
//	EpilogueLanes(fn, c.Epilogue, batch, m, n, acc, nil)   // acc in a register: <w x float>
//	EpilogueRow(fn, c.Epilogue, batch, m, lo, hi, row)     // accs in memory: a dense row
//	at = fn.Block                                          // go on here
//
// Both may be called any number of times, at fn.Block, which the caller may set.

// Lanes is the number of f32 lanes of one vector register.
func (t Target) Lanes() int {
	if t == V3 {
		return 8
	}
	return 16
}

// EpilogueFunc prepares emission of kern statements into f, which another emitter
// is building in mod. entry is f's first block (allocas and pointer casts are added to
// its end), at the block to go on in (it may be entry). ptrs are byte pointers (i8*), one
// for each of params, valid in entry. scratch is the kernel's scratch argument, of which used bytes
// are the caller's; local arrays of the body lie behind them.
func EpilogueFunc(mod *ir.Module, f *ir.Func, entry, at *ir.Block, params []kern.Param, ptrs []value.Value, scratch value.Value, used int64, target Target) *emit.Func {
	return emit.NewFunc(emit.OnModule(mod), f, entry, at, params, ptrs, scratch, used, target.Lanes())
}

// EpilogueLanes emits e for the lanes n … n+w-1 of the row (batch, m), all i64
// scalars; acc is a vector of w finished chains, and w may be 8 to 64 whatever the
// target (LLVM splits). mask, w bools, tells which lanes exist; nil: all.
// Bodies with random ops cost one Philox a lane here, a quarter of that in EpilogueRow.
func EpilogueLanes(fn *emit.Func, e *kern.Epilogue, batch, m, n, acc, mask value.Value) {
	bindRow(fn, e, batch, m)
	fn.Bind(e.Acc, acc)
	fn.Lanes(e.Body, e.N, n, emit.LanesOf(acc), mask)
	fn.Unbind(e.Acc)
}

// EpilogueRow emits e for the lanes lo … hi-1 of the row (batch, m); lo is a
// multiple of 64. acc points to the row's finished chains, element 0 being that of
// lane lo, with the element type of e.Acc.
func EpilogueRow(fn *emit.Func, e *kern.Epilogue, batch, m, lo, hi, acc value.Value) {
	bindRow(fn, e, batch, m)
	fn.Row(e.Body, e.N, lo, hi, e.Acc, acc)
}

func bindRow(fn *emit.Func, e *kern.Epilogue, batch, m value.Value) {
	if e.Batch != nil {
		fn.Bind(e.Batch, batch)
	}
	if e.M != nil {
		fn.Bind(e.M, m)
	}
}
