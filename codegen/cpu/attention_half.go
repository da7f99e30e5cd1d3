package cpu

import (
	"fmt"

	"github.com/llir/llvm/ir"
	"github.com/llir/llvm/ir/enum"
	"github.com/llir/llvm/ir/types"
	"github.com/llir/llvm/ir/value"

	"reprise/ir/dtype"
)

// Attention of f16 and bf16 computes in f32: a block of rows is widened into scratch memory before
// it is used, which costs one sixty-fourth of the block's products, and the result is rounded
// once. So the order of arithmetic is that of f32.

// half reports whether q, k, v, out and dout are of 16 bits.
func (g *attentionGen) half() bool { return g.DType == dtype.F16 || g.DType == dtype.BF16 }

// element moves p, a buffer of the element type, by i elements.
func (g *attentionGen) element(e *attentionFn, p, i value.Value) value.Value {
	if !g.half() {
		return e.at(p, i)
	}
	return e.atHalf(p, i)
}

// atHalf moves p by i elements of 16 bits.
func (e *attentionFn) atHalf(p, i value.Value) value.Value {
	a := &ir.InstGetElementPtr{ElemType: types.I16, Src: p, Indices: []value.Value{i}, Typ: attentionPtr(), InBounds: true}
	e.b.Insts = append(e.b.Insts, a)
	return a
}

// rows is where n rows of the head dimension can be read as f32, and their stride: where they are,
// or for halves in a copy at to.
func (g *attentionGen) rows(e *attentionFn, p, n value.Value, stride int64, to value.Value) value.Value {
	if g.half() {
		e.b.NewCall(attentionConvert(g.m, g.t, g.DType, stride, g.Dim, true), p, n, to)
		return to
	}
	return p
}

// stride is that of rows which are stride elements apart in memory.
func (g *attentionGen) stride(stride int64) int64 {
	if g.half() {
		return g.Dim
	}
	return stride
}

// attentionConvert is void (half*, i64 rows, f32*): it copies rows of dim elements between halves
// that lie stride apart and f32 that lie side by side, one way or the other.
func attentionConvert(m *ir.Module, t Target, d dtype.Type, stride, dim int64, widen bool) *ir.Func {
	name := fmt.Sprintf("rp_attn_%s%d_%s_%d_%d", map[bool]string{true: "widen", false: "narrow"}[widen], attentionLanes(t), d, stride, dim)
	if f := attentionFind(m, name); f != nil {
		return f
	}
	halves, rows, wide := ir.NewParam("halves", attentionPtr()), ir.NewParam("rows", types.I64), ir.NewParam("wide", attentionPtr())
	halves.Attrs = append(halves.Attrs, enum.ParamAttrNoAlias)
	wide.Attrs = append(wide.Attrs, enum.ParamAttrNoAlias)
	e := attentionFunc(m, t, name, true, halves, rows, wide)
	e.each(attentionI(0), rows, 1, func(r value.Value) {
		h, w := e.atHalf(halves, e.mulI(r, stride)), e.at(wide, e.mulI(r, dim))
		piece := func(lanes int64) func(i value.Value) {
			of := func(t types.Type) types.Type {
				if lanes == 1 {
					return t
				}
				return types.NewVector(uint64(lanes), t)
			}
			return func(i value.Value) {
				ph, pw := e.atHalf(h, i), e.at(w, i)
				if widen {
					l := e.b.NewLoad(of(types.I16), ph)
					l.Align = 2
					e.store(e.widen(d, l, of), pw)
					return
				}
				e.b.Insts = append(e.b.Insts, &ir.InstStore{Src: e.narrow(d, e.loadAs(of(types.Float), pw), of), Dst: ph, Align: 2})
			}
		}
		full := dim / e.w * e.w
		if full > 0 {
			e.eachI(full, e.w, piece(e.w))
		}
		if full < dim {
			e.each(attentionI(full), attentionI(dim), 1, piece(1))
		}
	})
	return e.done()
}

// widen is the f32 value of halves given by their bits; of makes the type of one or several.
func (e *attentionFn) widen(d dtype.Type, x value.Value, of func(types.Type) types.Type) value.Value {
	if d == dtype.F16 {
		return e.b.NewFPExt(e.b.NewBitCast(x, of(types.Half)), of(types.Float))
	}
	u := e.b.NewShl(e.b.NewZExt(x, of(types.I32)), contractSplatInt(of(types.I32), 16))
	return e.b.NewBitCast(u, of(types.Float))
}

// narrow rounds f32 to halves, which it gives as bits: to nearest, ties to even, NaN staying NaN.
func (e *attentionFn) narrow(d dtype.Type, x value.Value, of func(types.Type) types.Type) value.Value {
	if d == dtype.F16 {
		return e.b.NewBitCast(e.b.NewFPTrunc(x, of(types.Half)), of(types.I16))
	}
	i32 := of(types.I32)
	u := e.b.NewBitCast(x, i32)
	hi := e.b.NewLShr(u, contractSplatInt(i32, 16))
	up := e.b.NewAdd(e.b.NewAdd(u, e.b.NewAnd(hi, contractSplatInt(i32, 1))), contractSplatInt(i32, 0x7fff))
	nan := e.b.NewOr(hi, contractSplatInt(i32, 0x40))
	return e.b.NewTrunc(e.b.NewSelect(e.b.NewFCmp(enum.FPredUNO, x, x), nan, e.b.NewLShr(up, contractSplatInt(i32, 16))), of(types.I16))
}
