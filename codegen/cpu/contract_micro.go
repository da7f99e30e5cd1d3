package cpu

import (
	"fmt"

	"github.com/llir/llvm/ir"
	"github.com/llir/llvm/ir/constant"
	"github.com/llir/llvm/ir/enum"
	"github.com/llir/llvm/ir/types"
	"github.com/llir/llvm/ir/value"
)

// contractForm is how the inner loop multiplies: what one packed element is and
// what one step of it does.
type contractForm int

const (
	contractF32   contractForm = iota // f32 elements, one fma
	contractF64                       // f64 elements, one fma
	contractPairs                     // pairs of bf16 in 32 bits, one vdpbf16ps
)

// elem is the type of one packed element, acc that of the accumulator.
func (f contractForm) elem() types.Type {
	switch f {
	case contractF64:
		return types.Double
	case contractPairs:
		return types.I32
	}
	return types.Float
}

func (f contractForm) acc() *types.FloatType {
	if f == contractF64 {
		return types.Double
	}
	return types.Float
}

// size is the bytes of a packed element, which are those of the accumulator too.
func (f contractForm) size() int64 {
	if f == contractF64 {
		return 8
	}
	return 4
}

func (f contractForm) String() string {
	return [...]string{"f32", "f64", "bf16"}[f]
}

// lanes is the number of accumulators in one register.
func (t Target) contractLanes(f contractForm) int {
	bytes := 64
	if t == V3 {
		bytes = 32
	}
	return bytes / int(f.size())
}

// contractRegs is the shape of a full micro-tile: rows × vectors accumulators, the
// vectors of B and one broadcast of A fill the register file. Few rows and many
// vectors load least: 6×4 measures 3 % above 14×2 on Zen 4, wastes less at the
// edges of M, and its 64 columns are one strip of an epilogue.
func (t Target) contractRegs() (rows, vectors int) {
	if t == V3 {
		return 6, 2
	}
	return 6, 4
}

// contractRow is the width at which panels of A are packed: a power of two that holds
// every height of a micro-tile, so that one packing routine serves all heights.
const contractRow = 8

// contractUnroll is the number of k steps in one round of the inner loop.
const contractUnroll = 4

// contractMicro is the micro-kernel of rows × vectors·lanes accumulators:
//
//	void f(i64 kc, A*, B*, i64 ldk, i64 ldv, C*, i64 ldc, i64 n, i64 load, next*)
//
// C[r][v·L+l] = chain over k = 0 … kc-1 of fma(A[k·rows+r], B[k·ldk + v·ldv + l], ·),
// started from the stored C where load ≠ 0, else from +0. Packed elements; strides
// count elements. n is the number of valid columns: columns ≥ n are computed but
// neither read nor written in C. next is where C will most likely be next time. stream: B comes from memory, ask for it in advance.
func contractMicro(m *ir.Module, t Target, form contractForm, rows, vectors int, stream bool) *ir.Func {
	name := fmt.Sprintf("rp_mk_%s_%s_%dx%d", form, [...]string{"v3", "v4", "v4b"}[t], rows, vectors)
	if stream {
		name += "s"
	}
	if f := contractFind(m, name); f != nil {
		return f
	}
	L := t.contractLanes(form)
	et, at := form.elem(), form.acc()
	ev, av := types.NewVector(uint64(L), et), types.NewVector(uint64(L), at)
	kc := ir.NewParam("kc", types.I64)
	pa := ir.NewParam("a", types.NewPointer(et))
	pb := ir.NewParam("b", types.NewPointer(et))
	ldk := ir.NewParam("ldk", types.I64)
	ldv := ir.NewParam("ldv", types.I64)
	pc := ir.NewParam("c", types.NewPointer(at))
	ldc := ir.NewParam("ldc", types.I64)
	pn := ir.NewParam("n", types.I64)
	pl := ir.NewParam("load", types.I64)
	next := ir.NewParam("next", types.NewPointer(at))
	for _, p := range []*ir.Param{pa, pb, pc} {
		p.Attrs = append(p.Attrs, enum.ParamAttrNoAlias)
	}
	e := contractFunc(m, t, name, kc, pa, pb, ldk, ldv, pc, ldc, pn, pl, next)
	e.f.Linkage = enum.LinkageWeakODR
	e.f.Visibility = enum.VisibilityHidden
	e.f.FuncAttrs = append(e.f.FuncAttrs, enum.FuncAttrNoInline)

	al := form.size()
	full := e.cur.NewICmp(enum.IPredSGE, pn, contractInt(int64(vectors*L)))
	// Accumulators, row-major: acc[r*vectors+v].
	zeros := func() []value.Value {
		zs := make([]value.Value, rows*vectors)
		for i := range zs {
			zs[i] = constant.NewZeroInitializer(av)
		}
		return zs
	}
	rowPtr := func(r int) value.Value {
		return e.gep(at, pc, e.mul(ldc, contractInt(int64(r))))
	}
	masks := func() []value.Value {
		ms := make([]value.Value, vectors)
		for v := range ms {
			ms[v] = e.mask(e.sub(pn, contractInt(int64(v*L))), L)
		}
		return ms
	}
	tail := e.cur.NewAnd(kc, contractInt(contractUnroll-1))
	main := e.sub(kc, tail)
	acc := e.pick(e.cur.NewICmp(enum.IPredNE, pl, contractInt(0)), func() []value.Value {
		return e.pick(full, func() []value.Value {
			var vs []value.Value
			for r := range rows {
				p := rowPtr(r)
				for v := range vectors {
					vs = append(vs, e.load(av, e.gep(at, p, contractInt(int64(v*L))), al))
				}
			}
			return vs
		}, func() []value.Value {
			var vs []value.Value
			ms := masks()
			for r := range rows {
				p := rowPtr(r)
				for v := range vectors {
					vs = append(vs, e.loadMasked(av, e.gep(at, p, contractInt(int64(v*L))), ms[v], al))
				}
			}
			return vs
		})
	}, zeros)

	step := func(a, b value.Value, off int, acc []value.Value) []value.Value {
		bs := make([]value.Value, vectors)
		for v := range bs {
			p := b
			if v > 0 {
				p = e.gep(et, b, e.mul(ldv, contractInt(int64(v))))
			}
			bs[v] = e.load(ev, p, al)
			if stream {
				e.prefetch(e.gep(et, p, e.mul(ldk, contractInt(contractAhead))))
			}
		}
		out := make([]value.Value, len(acc))
		for r := range rows {
			x := e.splat(e.load(et, e.gep(et, a, contractInt(int64(off*rows+r))), al), L)
			for v := range vectors {
				out[r*vectors+v] = e.madd(t, form, x, bs[v], acc[r*vectors+v])
			}
		}
		return out
	}
	// The partial sums of the next tile should be there when its turn comes.
	for r := range rows {
		for v := range vectors {
			e.prefetch(e.gep(at, next, e.add(e.mul(ldc, contractInt(int64(r))), contractInt(int64(v*L)))))
		}
	}
	carried := append([]value.Value{pa, pb}, acc...)
	carried = e.loop(contractInt(0), main, contractUnroll, carried, func(_ value.Value, c []value.Value) []value.Value {
		a, b, acc := c[0], c[1], c[2:]
		for u := range contractUnroll {
			acc = step(a, b, u, acc)
			b = e.gep(et, b, ldk)
		}
		return append([]value.Value{e.gep(et, a, contractInt(int64(contractUnroll*rows))), b}, acc...)
	})
	carried = e.loop(contractInt(0), tail, 1, carried, func(_ value.Value, c []value.Value) []value.Value {
		acc := step(c[0], c[1], 0, c[2:])
		return append([]value.Value{e.gep(et, c[0], contractInt(int64(rows))), e.gep(et, c[1], ldk)}, acc...)
	})
	acc = carried[2:]
	e.branch(full, func() {
		for r := range rows {
			p := rowPtr(r)
			for v := range vectors {
				e.store(acc[r*vectors+v], e.gep(at, p, contractInt(int64(v*L))), al)
			}
		}
	}, func() {
		ms := masks()
		for r := range rows {
			p := rowPtr(r)
			for v := range vectors {
				e.storeMasked(acc[r*vectors+v], e.gep(at, p, contractInt(int64(v*L))), ms[v], al)
			}
		}
	})
	return e.ret()
}

// madd is one step of the chain, lane by lane.
func (e *contractB) madd(t Target, form contractForm, x, y, acc value.Value) value.Value {
	av := acc.Type().(*types.VectorType)
	if form == contractPairs {
		asm := ir.NewInlineAsm(types.NewPointer(types.NewFunc(av, av, x.Type(), y.Type())),
			"vdpbf16ps $3, $2, $0", "=v,0,v,v")
		return e.cur.NewCall(asm, acc, x, y)
	}
	f := e.intrinsic("llvm.fma."+contractVecName(av), av, av, av, av)
	return e.cur.NewCall(f, x, y, acc)
}
