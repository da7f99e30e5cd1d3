package cpu

import (
	"context"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/llir/llvm/ir"
	"github.com/llir/llvm/ir/enum"
	"github.com/llir/llvm/ir/types"
	"github.com/llir/llvm/ir/value"
	"github.com/stretchr/testify/require"

	"reprise/codegen/emit"
	"reprise/codegen/internal/samples"
	"reprise/ir/dtype"
	"reprise/ir/kern"
	"reprise/ir/kern/scalar"
)

// TestEpilogueEqualsStrip runs one body as a kernel's strip, lane by lane in the
// interpreter, and through both forms of the epilogue interface.
func TestEpilogueEqualsStrip(t *testing.T) {
	emitTools(t)
	const rows, n = 3, 200
	params := []kern.Param{{Name: "bias", DType: dtype.F32, Len: n}, {Name: "key", DType: dtype.U32, Len: 4}, {Name: "y", DType: dtype.BF16, Len: rows * n, Writes: true}}
	e := &kern.Epilogue{Batch: iv("batch"), M: iv("m"), N: iv("n"), Acc: fv("acc")}
	bias, key, y := kern.Buf{Param: 0, DType: dtype.F32}, kern.Buf{Param: 1, DType: dtype.U32}, kern.Buf{Param: 2, DType: dtype.BF16}
	v, u := fv("v"), kern.NewVar("u", dtype.U32)
	e.Body = []kern.Stmt{
		kern.Let(v, samples.Gelu(kern.Add(get(e.Acc), bias.At(get(e.N))))),
		kern.Let(u, kern.Random(kern.LoadKey(key), 9, kern.Mul(get(e.M), i64(scalar.RowBlocks(n))), get(e.N))),
		y.Set(kern.Add(kern.Mul(get(e.M), i64(n)), get(e.N)), kern.Convert(kern.Select(kern.Kept(get(u), 0.3), get(v), kern.F32(0)), dtype.BF16)),
	}
	require.NoError(t, kern.CheckContract(&kern.Contract{Epilogue: e, Params: params}))

	// The same as a kernel: the accumulators are one more parameter.
	k := &kern.Kernel{Name: "epilogue", Tiles: rows, Tile: e.M, Params: append(params[:3:3], kern.Param{Name: "acc", DType: dtype.F32, Len: rows * n})}
	acc := kern.Buf{Param: 3, DType: dtype.F32}
	k.Body = []kern.Stmt{kern.Lane(e.N, i64(n), append([]kern.Stmt{kern.Let(e.Acc, acc.At(kern.Add(kern.Mul(get(e.M), i64(n)), get(e.N))))}, e.Body...)...)}
	require.NoError(t, kern.Check(k))
	c := emitCaseOf(k, rand.New(rand.NewPCG(4, 4)))
	want := make([]byte, len(c.bufs[2]))
	require.NoError(t, kern.Run(k, [][]byte{c.bufs[0], c.bufs[1], want, c.bufs[3]}, 0, rows))

	for _, target := range []Target{V3, V4} {
		if !emitRuns(t, target) {
			continue
		}
		m := ir.NewModule()
		m.TargetTriple = "x86_64-pc-linux-gnu"
		i8p := types.NewPointer(types.I8)
		for _, form := range []string{"rows", "lanes"} {
			args, lo, hi, scratch := ir.NewParam("args", types.NewPointer(i8p)), ir.NewParam("lo", types.I64), ir.NewParam("hi", types.I64), ir.NewParam("scratch", i8p)
			f := m.NewFunc(form, types.Void, args, lo, hi, scratch)
			f.FuncAttrs = target.contractAttrs()
			entry := f.NewBlock("")
			var ptrs []value.Value
			for i := range 4 {
				ptrs = append(ptrs, entry.NewLoad(i8p, entry.NewGetElementPtr(i8p, args, emit.I64(int64(i)))))
			}
			accs := entry.NewBitCast(ptrs[3], types.NewPointer(types.Float))
			fn := EpilogueFunc(m, f, entry, entry, params, ptrs[:3], scratch, 64, target)
			at := func(row, col value.Value) value.Value {
				return fn.Block.NewGetElementPtr(types.Float, accs, fn.Block.NewAdd(fn.Block.NewMul(row, emit.I64(n)), col))
			}
			fn.Loop(lo, hi, 1, func(row value.Value) {
				if form == "rows" { // in two pieces, at a multiple of 64
					EpilogueRow(fn, e, emit.I64(0), row, emit.I64(0), emit.I64(64), at(row, emit.I64(0)))
					EpilogueRow(fn, e, emit.I64(0), row, emit.I64(64), emit.I64(n), at(row, emit.I64(64)))
					return
				}
				w := target.Lanes()
				fn.Loop(emit.I64(0), emit.I64(n), int64(w), func(col value.Value) { // n is a multiple of 8 only
					left := fn.Block.NewSub(emit.I64(n), col)
					mask := fn.Block.NewICmp(enum.IPredSGT, fn.Splat(left, w), emit.Iota(types.I64, w, 1))
					p := fn.Block.NewBitCast(at(row, col), types.NewPointer(emit.Vec(types.Float, w)))
					x := fn.Call("llvm.masked.load.v"+map[int]string{8: "8f32", 16: "16f32"}[w], p.Type(), emit.Vec(types.Float, w), p, emit.I32(4), mask, emit.Zeros(emit.Vec(types.Float, w)))
					EpilogueLanes(fn, e, emit.I64(0), row, col, x, mask)
				})
			})
			fn.Block.NewRet(nil)
		}
		dir := t.TempDir()
		o := filepath.Join(dir, "x.o")
		cmd := exec.CommandContext(context.Background(), "clang-19", clangFlags(o)...)
		cmd.Stdin = strings.NewReader(m.String())
		msg, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", msg)
		lib := emitLink(t, []string{o})
		for _, form := range []string{"rows", "lanes"} {
			var f emitFunc
			purego.RegisterLibFunc(&f, lib, form)
			got := make([]byte, len(want))
			ps := []unsafe.Pointer{unsafe.Pointer(&c.bufs[0][0]), unsafe.Pointer(&c.bufs[1][0]), unsafe.Pointer(&got[0]), unsafe.Pointer(&c.bufs[3][0])}
			s := make([]byte, 4096)
			f(unsafe.Pointer(&ps[0]), 0, rows, unsafe.Pointer(&s[0]))
			require.NoError(t, samples.Same(dtype.BF16, got, want), "%v %s", target, form)
		}
	}
}
