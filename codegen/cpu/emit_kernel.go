package cpu

import (
	"fmt"

	"github.com/llir/llvm/ir"
	"github.com/llir/llvm/ir/enum"
	"github.com/llir/llvm/ir/types"
	"github.com/llir/llvm/ir/value"

	"reprise/codegen/emit"
	"reprise/ir/kern"
)

// ScratchBytes is the private memory that the driver gives each worker.
const ScratchBytes = 1 << 20

// EmitKernel adds a kernel of the loop language to m: a loop over the tiles lo … hi-1
// around its body. The kernel has passed kern.Check.
//
// No parameter is marked noalias: a result may lie in its operand's memory where
// every element is read before the same element is written.
func EmitKernel(m *ir.Module, k *kern.Kernel, t Target, symbol string) error {
	return emitKernel(m, k, t, t.Lanes(), symbol, kern.Own{})
}

// emitKernel is EmitKernel with strips cut into vectors of lanes; what it says to read comes from the kernel's list.
func emitKernel(m *ir.Module, k *kern.Kernel, t Target, lanes int, symbol string, reads kern.Own) error {
	i8p := types.NewPointer(types.I8)
	args := ir.NewParam("args", types.NewPointer(i8p))
	lo, hi := ir.NewParam("lo", types.I64), ir.NewParam("hi", types.I64)
	scratch := ir.NewParam("scratch", i8p)
	for _, p := range []*ir.Param{args, scratch} {
		p.Attrs = append(p.Attrs, enum.ParamAttrNoAlias, enum.ParamAttrNoCapture)
	}
	f := m.NewFunc(symbol, types.Void, args, lo, hi, scratch)
	f.FuncAttrs = append(t.contractAttrs(), enum.FuncAttrNoUnwind, enum.FuncAttrMustProgress,
		ir.AttrString("no-builtins")) // no calls of memcpy for loops
	entry, body := f.NewBlock(""), f.NewBlock("")
	var ptrs []value.Value
	for i := range k.Params {
		ptrs = append(ptrs, entry.NewLoad(i8p, entry.NewGetElementPtr(i8p, args, emit.I64(int64(i)))))
	}
	own := readOwn(entry, args, len(k.Params), reads)
	mode := func(*ir.Block, bool) {}
	if k.Flush {
		mode = flushing(m, f, entry)
	}
	mode(entry, true)
	entry.NewBr(body)
	fn := emit.NewFunc(emit.OnModule(m), f, entry, body, k.Params, ptrs, scratch, 0, lanes)
	own.give(fn)
	fn.Loop(lo, hi, 1, func(tile value.Value) {
		fn.Bind(k.Tile, tile)
		fn.Bounds(k.Tile, 0, max(k.Tiles-1, 0))
		fn.Body(k.Body)
	})
	mode(fn.Block, false)
	fn.Block.NewRet(nil)
	if n := fn.ScratchUsed(); n > ScratchBytes {
		return fmt.Errorf("kernel %q: local arrays take %d bytes, a worker has %d", k.Name, n, int64(ScratchBytes))
	}
	return nil
}

// flushing lets a function take denormals as zero: the result switches the mode on and back to how it
// was found. It writes to entry.
func flushing(m *ir.Module, f *ir.Func, entry *ir.Block) func(b *ir.Block, on bool) {
	f.FuncAttrs = append(f.FuncAttrs, ir.AttrPair{Key: "denormal-fp-math", Value: "preserve-sign,preserve-sign"})
	i8p := types.NewPointer(types.I8)
	csr := func(name string) *ir.Func {
		if f := attentionFind(m, name); f != nil {
			return f
		}
		return m.NewFunc(name, types.Void, ir.NewParam("", i8p))
	}
	load, save := csr("llvm.x86.sse.ldmxcsr"), csr("llvm.x86.sse.stmxcsr")
	found, flush := entry.NewAlloca(types.I32), entry.NewAlloca(types.I32)
	pfound, pflush := entry.NewBitCast(found, i8p), entry.NewBitCast(flush, i8p)
	entry.NewCall(save, pfound)
	// FTZ is bit 15, DAZ bit 6.
	entry.NewStore(entry.NewOr(entry.NewLoad(types.I32, found), emit.I32(0x8040)), flush)
	return func(b *ir.Block, on bool) {
		if on {
			b.NewCall(load, pflush)
		} else {
			b.NewCall(load, pfound)
		}
	}
}
