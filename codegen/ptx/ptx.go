// Package ptx turns kernels of the loop language into PTX: the scalar lowering of
// package emit in LLVM IR with nvvm intrinsics, then opt-19 and llc-19.
//
// A tile is a block of 64 threads. Each thread runs the tile's scalar statements
// (stores outside of strips: the first thread, between barriers); a strip's lane i is run by thread
// i mod 64, so a thread's own sum is just the partial of docs/numerics.md, and the 64 are
// joined by the same tree: partials 32 apart through shared memory, the rest by
// shuffles. Bits are those of the CPU and of the interpreter.
package ptx

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"github.com/llir/llvm/ir"
	"github.com/llir/llvm/ir/enum"
	"github.com/llir/llvm/ir/types"
	"github.com/llir/llvm/ir/value"

	"reprise/codegen/emit"
	"reprise/ir/kern"
)

// Threads is the number of threads of a block.
const Threads = kern.Lanes

// SharedBytes is what a block may use of shared memory for reductions and local arrays.
const SharedBytes = 48 << 10

// Address spaces of NVVM.
const (
	global = 1
	shared = 3
)

// Launch says how a kernel is run: Tiles blocks of Threads threads, arguments one
// pointer per parameter.
type Launch struct {
	Symbol string
	Tiles  int64
}

// Module collects kernels.
type Module struct {
	mod     *emit.Module
	symbols []string
}

// NewModule starts a module.
func NewModule() *Module {
	m := emit.NewModule()
	m.M.SourceFilename = "kernels"
	m.M.TargetTriple = "nvptx64-nvidia-cuda"
	m.M.DataLayout = "e-i64:64-i128:128-v16:16-v32:32-n16:32:64"
	return &Module{mod: m}
}

func pointer(t types.Type, space types.AddrSpace) *types.PointerType {
	p := types.NewPointer(t)
	p.AddrSpace = space
	return p
}

// Kernel adds a kernel under a symbol, after kern.Check.
func (m *Module) Kernel(k *kern.Kernel, symbol string) (Launch, error) {
	if err := kern.Check(k); err != nil {
		return Launch{}, err
	}
	var params []*ir.Param
	var ptrs []value.Value
	for i := range k.Params {
		p := ir.NewParam(fmt.Sprintf("p%d", i), pointer(types.I8, global))
		params = append(params, p)
		ptrs = append(ptrs, p)
	}
	f := m.mod.M.NewFunc(symbol, types.Void, params...)
	f.CallingConv = enum.CallingConvPTXKernel
	f.FuncAttrs = append(f.FuncAttrs, enum.FuncAttrNoUnwind)
	entry, body := f.NewBlock(""), f.NewBlock("")
	sreg := func(name string) value.Value {
		x := entry.NewCall(m.mod.Intrinsic("llvm.nvvm.read.ptx.sreg."+name, types.I32))
		return entry.NewZExt(x, types.I64)
	}
	d := &device{m: m.mod, symbol: symbol, thread: sreg("tid.x")}
	tile := sreg("ctaid.x")
	entry.NewBr(body)
	fn := emit.NewFunc(m.mod, f, entry, body, k.Params, ptrs, nil, 0, 1)
	fn.Device = d
	fn.Bind(k.Tile, tile)
	fn.Body(k.Body)
	fn.Block.NewRet(nil)
	if d.used > SharedBytes {
		return Launch{}, fmt.Errorf("kernel %q: local arrays and reductions take %d bytes of shared memory, a block has %d", k.Name, d.used, SharedBytes)
	}
	m.symbols = append(m.symbols, symbol)
	return Launch{Symbol: symbol, Tiles: k.Tiles}, nil
}

// LLVM is the module's IR.
func (m *Module) LLVM() string {
	var b strings.Builder
	b.WriteString(m.mod.M.String())
	if len(m.symbols) == 0 {
		return b.String()
	}
	var names []string
	for i := range m.symbols {
		names = append(names, fmt.Sprintf("!%d, !%d", 2*i, 2*i+1))
	}
	fmt.Fprintf(&b, "\n!nvvm.annotations = !{%s}\n", strings.Join(names, ", "))
	for i, s := range m.symbols {
		fmt.Fprintf(&b, "!%d = !{ptr @%s, !\"kernel\", i32 1}\n!%d = !{ptr @%s, !\"maxntidx\", i32 %d}\n", 2*i, s, 2*i+1, s, Threads)
	}
	return b.String()
}

// Compile gives the PTX for an architecture, e.g. "sm_80".
func (m *Module) Compile(ctx context.Context, arch string) (string, error) {
	bitcode, err := run(ctx, m.LLVM(), "opt-19", "-passes=default<O2>", "-mcpu="+arch, "-vectorize-loops=false", "-vectorize-slp=false", "-o", "-", "-")
	if err != nil {
		return "", err
	}
	// No contraction, IEEE division and square root, no flush to zero.
	return run(ctx, bitcode, "llc-19", "-O3", "-march=nvptx64", "-mcpu="+arch, "-fp-contract=off", "-nvptx-fma-level=0",
		"-nvptx-prec-divf32=2", "-nvptx-prec-sqrtf32=1", "-o", "-", "-")
}

func run(ctx context.Context, in, tool string, args ...string) (string, error) {
	path, err := exec.LookPath(tool)
	if err != nil {
		return "", errors.New(tool + " was not found; install it: apt-get install -y llvm-19")
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdin = strings.NewReader(in)
	var out, msg bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &msg
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", tool, err, strings.TrimSpace(msg.String()))
	}
	return out.String(), nil
}

// device is emit.Device for one kernel.
type device struct {
	m      *emit.Module
	symbol string
	thread value.Value // i64
	used   int64       // shared bytes
	arrays int
	mark   *ir.Block // where the last barrier stands, and behind which instruction
	at     int
}

// barrier joins the block's threads, unless nothing was emitted since the last time.
func (d *device) barrier(f *emit.Func) {
	if d.mark == f.Block && d.at == len(f.Block.Insts) {
		return
	}
	f.Block.NewCall(d.m.Intrinsic("llvm.nvvm.barrier0", types.Void))
	d.mark, d.at = f.Block, len(f.Block.Insts)
}

// array is a new shared array.
func (d *device) array(t types.Type, n, bytes int64) value.Value {
	g := d.m.M.NewGlobalDef(fmt.Sprintf("%s_s%d", d.symbol, d.arrays), undef{types.NewArray(uint64(n), t)})
	g.Linkage = enum.LinkageInternal
	g.AddrSpace = shared
	g.Typ = pointer(g.ContentType, shared)
	g.Align = 16
	d.arrays++
	d.used += (bytes + 15) &^ 15
	return g
}

func (d *device) Local(f *emit.Func, l *kern.Local) value.Value {
	t := emit.Mem(l.DType)
	g := d.array(t, l.Len, l.Len*l.DType.Size())
	return f.Entry().NewGetElementPtr(types.NewArray(uint64(l.Len), t), g, emit.I64(0), emit.I64(0))
}

// Store waits for all threads that may still read, stores by one, and shows it to all.
func (d *device) Store(f *emit.Func, put func()) {
	d.barrier(f)
	first := f.Block.NewICmp(enum.IPredEQ, d.thread, emit.I64(0))
	f.When(first, put)
	f.Block.NewCall(d.m.Intrinsic("llvm.nvvm.barrier0", types.Void))
	d.mark, d.at = f.Block, len(f.Block.Insts)
}

// Strip gives lane i to thread i mod 64.
func (d *device) Strip(f *emit.Func, s *kern.Strip) {
	n := f.Eval(s.N)
	stores := storesIn(s.Body)
	if stores {
		d.barrier(f)
	}
	parts := make([]value.Value, len(s.Reds))
	for i, r := range s.Reds {
		parts[i] = f.Entry().NewAlloca(emit.Elem(r.Var.DType))
		f.Block.NewStore(emit.Literal(r.Var.DType, 1, r.Kind.Start(r.Var.DType)), parts[i])
	}
	one := func(i value.Value, words map[*kern.Expr]value.Value) {
		for j, x := range f.Thread(s, i, words, d.thread) {
			old := f.Block.NewLoad(emit.Elem(s.Reds[j].Var.DType), parts[j])
			f.Block.NewStore(f.Join(s.Reds[j], old, x), parts[j])
		}
	}
	if random := f.BlockRandoms(s); len(random) > 0 {
		d.randomStrip(f, s, n, random, one)
	} else {
		f.Loop(d.thread, n, Threads, func(i value.Value) { one(i, nil) })
	}
	if len(s.Reds) > 0 {
		d.reduce(f, s.Reds, parts)
	} else if stores {
		d.barrier(f)
	}
}

// randomStrip is a strip with random ops in groups of four blocks of 64 lanes: each
// thread draws the four words of one counter, and they meet in shared memory.
func (d *device) randomStrip(f *emit.Func, s *kern.Strip, n value.Value, random []*kern.Expr, one func(i value.Value, words map[*kern.Expr]value.Value)) {
	const blocks = 4
	group := types.NewArray(blocks*kern.Lanes, types.I32)
	arrays := make([]value.Value, len(random))
	for i := range random {
		arrays[i] = d.array(types.I32, blocks*kern.Lanes, 4*blocks*kern.Lanes)
	}
	block, counter := f.Entry().NewLShr(d.thread, emit.I64(4)), f.Entry().NewAnd(d.thread, emit.I64(15))
	f.Loop(emit.I64(0), n, blocks*kern.Lanes, func(base value.Value) {
		d.barrier(f) // the words of the group before have been read
		own := f.Block.NewShl(block, emit.I64(6))
		for i, e := range random {
			for w, x := range f.RandomCounter(s, e, f.Block.NewAdd(base, own), counter) {
				at := f.Block.NewAdd(f.Block.NewOr(own, counter), emit.I64(int64(16*w)))
				f.Block.NewStore(x, f.Block.NewGetElementPtr(group, arrays[i], emit.I64(0), at))
			}
		}
		d.barrier(f)
		for j := range int64(blocks) {
			words := map[*kern.Expr]value.Value{}
			for i, e := range random {
				p := f.Block.NewGetElementPtr(group, arrays[i], emit.I64(0), emit.I64(64*j))
				words[e] = f.Block.NewBitCast(p, pointer(types.NewArray(kern.Lanes, types.I32), shared))
			}
			i := f.Block.NewAdd(f.Block.NewAdd(base, emit.I64(64*j)), d.thread)
			f.When(f.Block.NewICmp(enum.IPredSLT, i, n), func() { one(i, words) })
		}
	})
}

// reduce joins the threads' partials: p[i] with p[i+32] through shared memory, the
// rest inside of a warp. Both warps do the same, so each thread has the result.
func (d *device) reduce(f *emit.Func, reds []kern.Red, parts []value.Value) {
	at := func(g value.Value, t types.Type, i value.Value) value.Value {
		return f.Block.NewGetElementPtr(types.NewArray(Threads, t), g, emit.I64(0), i)
	}
	arrays := make([]value.Value, len(reds))
	for i, r := range reds {
		t := emit.Mem(r.Var.DType)
		arrays[i] = d.array(t, Threads, Threads*r.Var.DType.Size())
		x := f.Block.NewLoad(emit.Elem(r.Var.DType), parts[i])
		f.Block.NewStore(f.ToMem(r.Var.DType, x), at(arrays[i], t, d.thread))
	}
	d.barrier(f)
	lane := f.Block.NewAnd(d.thread, emit.I64(31))
	other := f.Block.NewAdd(lane, emit.I64(32))
	for i, r := range reds {
		t := emit.Mem(r.Var.DType)
		load := func(j value.Value) value.Value {
			return f.FromMem(r.Var.DType, f.Block.NewLoad(t, at(arrays[i], t, j)))
		}
		x := f.Join(r, load(lane), load(other))
		for w := int64(16); w > 0; w /= 2 {
			x = f.Join(r, x, d.shuffle(f, "down", x, w))
		}
		f.Set(r.Var, d.shuffle(f, "idx", x, 0))
	}
	// The arrays are written again only behind this.
	d.barrier(f)
}

// shuffle moves a value of any type between the lanes of a warp in 32-bit pieces.
func (d *device) shuffle(f *emit.Func, kind string, x value.Value, by int64) value.Value {
	b := f.Block
	fn := d.m.Intrinsic("llvm.nvvm.shfl.sync."+kind+".i32", types.I32, types.I32, types.I32, types.I32, types.I32)
	move := func(v value.Value) value.Value {
		return b.NewCall(fn, emit.I32(-1), v, emit.I32(by), emit.I32(31))
	}
	t := x.Type()
	switch {
	case t.Equal(types.Float):
		return b.NewBitCast(move(b.NewBitCast(x, types.I32)), t)
	case t.Equal(types.Double):
		return b.NewBitCast(d.shuffle(f, kind, b.NewBitCast(x, types.I64), by), t)
	case t.Equal(types.I64):
		lo := move(b.NewTrunc(x, types.I32))
		hi := move(b.NewTrunc(b.NewLShr(x, emit.I64(32)), types.I32))
		return b.NewOr(b.NewZExt(lo, types.I64), b.NewShl(b.NewZExt(hi, types.I64), emit.I64(32)))
	case t.Equal(types.I32):
		return move(x)
	}
	return b.NewTrunc(move(b.NewZExt(x, types.I32)), t)
}

func storesIn(stmts []kern.Stmt) bool {
	for _, s := range stmts {
		switch s := s.(type) {
		case *kern.Store, *kern.StoreLocal:
			return true
		case *kern.For:
			if storesIn(s.Body) {
				return true
			}
		}
	}
	return false
}

// undef is llir's undef as a constant of any type.
type undef struct{ typ types.Type }

func (u undef) String() string   { return u.typ.String() + " undef" }
func (u undef) Type() types.Type { return u.typ }
func (u undef) Ident() string    { return "undef" }
func (u undef) IsConstant()      {}
