package cpu

import (
	"fmt"

	"github.com/llir/llvm/ir"
	"github.com/llir/llvm/ir/constant"
	"github.com/llir/llvm/ir/enum"
	"github.com/llir/llvm/ir/types"
	"github.com/llir/llvm/ir/value"

	"reprise/ir/dtype"
)

// contractKind is what packing does with the source elements.
type contractKind int

const (
	contractPlain   contractKind = iota // widen each element
	contractPaired                      // two bf16 of successive k side by side in 32 bits
	contractSwapped                     // widen bf16 to f32, the odd k of each pair before the even one
)

// contractPath is the shape of the source that a packing routine reads fast.
type contractPath int

const (
	contractPathW contractPath = iota // neighbours along the panel's width are neighbours in memory
	contractPathK                     // neighbours along k are neighbours in memory
	contractPathG                     // neither
	contractPathT                     // offsets of k come from a table (nested K of odd length in pairs)
)

// contractSrc is the LLVM type under which source elements are loaded.
func contractSrc(d dtype.Type) types.Type {
	switch d {
	case dtype.F16:
		return types.Half
	case dtype.BF16:
		return types.I16
	case dtype.F32:
		return types.Float
	}
	return types.Double
}

// widen turns a scalar or vector of source elements into packed elements.
func (e *contractB) widen(d dtype.Type, form contractForm, v value.Value) value.Value {
	to, mid := form.elem(), types.Type(types.I32)
	f32 := types.Type(types.Float)
	if vt, ok := v.Type().(*types.VectorType); ok {
		to = types.NewVector(vt.Len, to)
		mid = types.NewVector(vt.Len, mid)
		f32 = types.NewVector(vt.Len, f32)
	}
	switch d {
	case dtype.BF16:
		x := e.cur.NewShl(e.cur.NewZExt(v, mid), contractSplatInt(mid, 16))
		f := e.cur.NewBitCast(x, f32)
		if form == contractF64 {
			return e.cur.NewFPExt(f, to)
		}
		return f
	case dtype.F16:
		return e.cur.NewFPExt(v, to)
	case dtype.F32:
		if form == contractF64 {
			return e.cur.NewFPExt(v, to)
		}
	}
	return v
}

// contractSplatInt is the integer constant x, or a vector of it.
func contractSplatInt(t types.Type, x int64) constant.Constant {
	vt, ok := t.(*types.VectorType)
	if !ok {
		return constant.NewInt(t.(*types.IntType), x)
	}
	xs := make([]constant.Constant, vt.Len)
	for i := range xs {
		xs[i] = constant.NewInt(vt.ElemType.(*types.IntType), x)
	}
	return constant.NewVector(vt, xs...)
}

// contractPack is the routine that copies a block of an operand into panels:
//
//	void f(dst*, src*, i64 ws, i64 ks, i64 kc, i64 w, i64 n, i64 ps [, tab*])
//
// The block is n wide and kc deep; its element (x, k) is src[x·ws + k·ks] (or
// src[x·ws + tab[k]]). Panel p holds columns p·w … p·w+w-1 (w ≤ width) and begins at
// dst + p·ps; in it, (x, k) stands at k·w + x - p·w. What a panel lacks in columns is
// filled with arbitrary values of the source or zero: nothing that is stored depends on
// it. Up to one vector of rows past kc is overwritten.
// exact promises w = width, which saves masks; else a row is written width wide, and
// the next row overwrites what is too much. In pairs, row i holds k = 2i (low half) and 2i+1; a missing odd one is zero.
func contractPack(m *ir.Module, t Target, src dtype.Type, form contractForm, kind contractKind, width int, path contractPath, exact bool) *ir.Func {
	name := fmt.Sprintf("rp_pack_%s_%s%s%s_%s_%d", [...]string{"w", "k", "g", "t"}[path], src,
		[...]string{"_", "2", "x"}[kind], form, [...]string{"v3", "v4", "v4b"}[t], width)
	if exact {
		name += "e"
	}
	if f := contractFind(m, name); f != nil {
		return f
	}
	st, et := contractSrc(src), form.elem()
	ps := []*ir.Param{
		ir.NewParam("dst", types.NewPointer(et)), ir.NewParam("src", types.NewPointer(st)),
		ir.NewParam("ws", types.I64), ir.NewParam("ks", types.I64), ir.NewParam("kc", types.I64),
		ir.NewParam("w", types.I64), ir.NewParam("n", types.I64), ir.NewParam("ps", types.I64),
	}
	if path == contractPathT {
		ps = append(ps, ir.NewParam("tab", types.NewPointer(types.I64)))
	}
	ps[0].Attrs = append(ps[0].Attrs, enum.ParamAttrNoAlias)
	ps[1].Attrs = append(ps[1].Attrs, enum.ParamAttrNoAlias)
	e := contractFunc(m, t, name, ps...)
	e.f.Linkage = enum.LinkageWeakODR
	e.f.Visibility = enum.VisibilityHidden
	e.f.FuncAttrs = append(e.f.FuncAttrs, enum.FuncAttrNoInline)
	p := &contractPacker{contractB: e, src: src, st: st, et: et, form: form, kind: kind, width: width, exact: exact,
		lanes: t.contractLanes(form), dst: ps[0], from: ps[1], ws: ps[2], ks: ps[3], kc: ps[4], w: ps[5], n: ps[6], ps: ps[7]}
	switch path {
	case contractPathW:
		p.alongW()
	case contractPathK:
		p.alongK()
	case contractPathG:
		p.scalar(nil)
	case contractPathT:
		p.scalar(ps[8])
	}
	return e.ret()
}

type contractPacker struct {
	*contractB
	src          dtype.Type
	st, et       types.Type
	form         contractForm
	kind         contractKind
	width, lanes int
	exact        bool

	dst, from, ws, ks, kc, w, n, ps value.Value
}

// rows is the number of packed rows that kc steps make.
func (p *contractPacker) rows() value.Value {
	switch p.kind {
	case contractPaired:
		return p.cur.NewLShr(p.cur.NewAdd(p.kc, contractInt(1)), contractInt(1))
	case contractSwapped:
		return p.cur.NewAnd(p.cur.NewAdd(p.kc, contractInt(1)), contractInt(-2))
	}
	return p.kc
}

// alongW copies row by row over all panels, so that the source is read in long runs.
func (p *contractPacker) alongW() {
	W := p.width
	vt := types.NewVector(uint64(W), p.st)
	full := p.cur.NewSub(p.n, p.cur.NewSRem(p.n, p.w))
	var maskFull value.Value
	if !p.exact {
		maskFull = p.mask(p.w, W)
	}
	maskTail := p.mask(p.sub(p.n, full), W)
	hasTail := p.cur.NewICmp(enum.IPredSLT, full, p.n)
	src := p.size()
	row := func(k value.Value) (value.Value, value.Value) { // pointer, present
		inside := p.cur.NewICmp(enum.IPredSLT, k, p.kc)
		kk := p.cur.NewSelect(inside, k, contractInt(0))
		return p.gep(p.st, p.from, p.mul(kk, p.ks)), inside
	}
	none := constant.NewZeroInitializer(types.NewVector(uint64(W), types.I1))
	p.loop(contractInt(0), p.rows(), 1, nil, func(k value.Value, _ []value.Value) []value.Value {
		var r0, r1, in value.Value
		switch p.kind {
		case contractPlain:
			r0 = p.gep(p.st, p.from, p.mul(k, p.ks))
		case contractPaired:
			k2 := p.cur.NewShl(k, contractInt(1))
			r0 = p.gep(p.st, p.from, p.mul(k2, p.ks))
			r1, in = row(p.add(k2, contractInt(1)))
		case contractSwapped:
			r0, in = row(p.cur.NewXor(k, contractInt(1)))
		}
		panel := func(d, col, mask value.Value) {
			var v value.Value
			get := func(row value.Value, in value.Value) value.Value {
				ptr := p.gep(p.st, row, col)
				switch {
				case mask == nil && in == nil:
					return p.load(vt, ptr, src)
				case mask == nil:
					// A missing row reads an existing one, then drops it.
					return p.cur.NewSelect(in, p.load(vt, ptr, src), constant.NewZeroInitializer(vt))
				case in == nil:
					return p.loadMasked(vt, ptr, mask, src)
				}
				return p.loadMasked(vt, ptr, p.cur.NewSelect(in, mask, none), src)
			}
			switch p.kind {
			case contractPlain:
				v = p.widen(p.src, p.form, get(r0, nil))
			case contractPaired:
				it := types.NewVector(uint64(W), types.I32)
				lo := p.cur.NewZExt(get(r0, nil), it)
				hi := p.cur.NewZExt(get(r1, in), it)
				v = p.cur.NewOr(lo, p.cur.NewShl(hi, contractSplatInt(it, 16)))
			case contractSwapped:
				v = p.widen(p.src, p.form, get(r0, in))
			}
			p.store(v, d, p.form.size())
		}
		p.prefetchRow(k)
		d := p.gep(p.et, p.dst, p.mul(k, p.stride()))
		c := p.loopStep(contractInt(0), full, p.w, []value.Value{d}, func(col value.Value, c []value.Value) []value.Value {
			panel(c[0], col, maskFull)
			return []value.Value{p.gep(p.et, c[0], p.ps)}
		})
		p.when(hasTail, func() { panel(c[0], full, maskTail) })
		return nil
	})
}

// stride is the length of a row of a panel.
func (p *contractPacker) stride() value.Value {
	if p.exact {
		return contractInt(int64(p.width))
	}
	return p.w
}

// contractAhead is how many rows of k a copy along the width asks for in advance: rows
// are short and far apart, which no hardware prefetcher follows.
const contractAhead = 12

func (p *contractPacker) prefetchRow(k value.Value) {
	per := int64(1)
	if p.kind == contractPaired {
		per = 2
	}
	for i := range per {
		at := p.gep(p.st, p.from, p.mul(p.add(p.mul(k, contractInt(per)), contractInt(contractAhead+i)), p.ks))
		p.loop(contractInt(0), p.n, 64/p.size(), nil, func(x value.Value, _ []value.Value) []value.Value {
			p.prefetch(p.gep(p.st, at, x))
			return nil
		})
	}
}

// size is the bytes of a source element.
func (p *contractPacker) size() int64 { return p.src.Size() }

// alongK reads vectors along k and transposes them in registers.
func (p *contractPacker) alongK() {
	W, L := p.width, p.lanes
	sub := min(W, L) // rows that one transposition takes
	per := int64(L)  // source elements in one vector
	if p.kind == contractPaired {
		per = int64(2 * L)
	}
	vt := types.NewVector(uint64(per), p.st)
	last := func(valid value.Value) []value.Value { // the panel's rows, those that don't exist doubling the last
		out := make([]value.Value, W)
		for r := range out {
			out[r] = p.mul(p.min(contractInt(int64(r)), p.sub(valid, contractInt(1))), p.ws)
		}
		return out
	}
	tail := p.cur.NewSRem(p.kc, contractInt(per))
	main := p.sub(p.kc, tail)
	maskTail := p.mask(tail, int(per))
	hasTail := p.cur.NewICmp(enum.IPredNE, tail, contractInt(0))
	p.loopStep(contractInt(0), p.n, p.w, []value.Value{p.dst}, func(col value.Value, c []value.Value) []value.Value {
		d := c[0]
		offs := last(p.min(p.w, p.sub(p.n, col)))
		base := p.gep(p.st, p.from, p.mul(col, p.ws))
		// The rows of the next panel are new streams to the hardware: ask for them here.
		ahead := p.mul(p.w, p.ws)
		block := func(k, mask value.Value) {
			at := p.gep(p.st, base, k)
			row := k // packed row
			if p.kind == contractPaired {
				row = p.cur.NewLShr(k, contractInt(1))
			}
			out := p.gep(p.et, d, p.mul(row, p.stride()))
			for _, off := range offs {
				p.prefetchL2(p.gep(p.st, p.gep(p.st, at, ahead), off))
			}
			groups := make([][]value.Value, W/sub)
			for g := range groups {
				vs := make([][]value.Value, sub)
				for r := range vs {
					ptr := p.gep(p.st, at, offs[g*sub+r])
					var v value.Value
					if mask == nil {
						v = p.load(vt, ptr, p.size())
					} else {
						v = p.loadMasked(vt, ptr, mask, p.size())
					}
					switch p.kind {
					case contractPlain:
						v = p.widen(p.src, p.form, v)
					case contractPaired:
						v = p.cur.NewBitCast(v, types.NewVector(uint64(L), types.I32))
					case contractSwapped:
						idx := make([]int, L)
						for i := range idx {
							idx[i] = i ^ 1
						}
						v = p.widen(p.src, p.form, p.shuffle(v, v, idx))
					}
					vs[r] = []value.Value{v}
				}
				groups[g] = p.transpose(vs, L)
			}
			if p.exact && len(groups) == 1 {
				for i, v := range groups[0] {
					p.store(v, p.gep(p.et, out, contractInt(int64(i*L))), p.form.size())
				}
				return
			}
			// Rows in rising order, each spilling into the next.
			idx := make([]int, sub)
			for r := range L {
				for g, vs := range groups {
					for i := range idx {
						idx[i] = r%(L/sub)*sub + i
					}
					v := vs[r/(L/sub)]
					if sub < L {
						v = p.shuffle(v, v, idx)
					}
					p.store(v, p.gep(p.et, out, p.add(p.mul(p.stride(), contractInt(int64(r))), contractInt(int64(g*sub)))), p.form.size())
				}
			}
		}
		p.loop(contractInt(0), main, per, nil, func(k value.Value, _ []value.Value) []value.Value {
			block(k, nil)
			return nil
		})
		p.when(hasTail, func() { block(main, maskTail) })
		return []value.Value{p.gep(p.et, d, p.ps)}
	})
}

// transpose joins rows (each in consecutive vectors of L lanes) until one sequence is
// left in which the row index runs fastest: log2(rows) rounds of interleaving row i
// with row i + half.
func (p *contractPacker) transpose(rows [][]value.Value, L int) []value.Value {
	lo, hi := make([]int, L), make([]int, L)
	for i := range lo {
		lo[i] = i/2 + (i%2)*L
		hi[i] = L/2 + i/2 + (i%2)*L
	}
	for len(rows) > 1 {
		half := len(rows) / 2
		next := make([][]value.Value, half)
		for i := range next {
			for c := range rows[i] {
				a, b := rows[i][c], rows[i+half][c]
				next[i] = append(next[i], p.shuffle(a, b, lo), p.shuffle(a, b, hi))
			}
		}
		rows = next
	}
	return rows[0]
}

// scalar copies element by element, whatever the strides; with tab, k's offset is tab[k].
func (p *contractPacker) scalar(tab value.Value) {
	at := func(k value.Value) value.Value {
		if tab == nil {
			return p.mul(k, p.ks)
		}
		return p.load(types.I64, p.gep(types.I64, tab, k), 8)
	}
	// get is element (x, k), zero where k is past the end.
	get := func(x, k value.Value) value.Value {
		t := p.et
		if p.kind == contractPaired {
			t = types.I32
		}
		return p.pick(p.cur.NewICmp(enum.IPredSLT, k, p.kc), func() []value.Value {
			v := p.load(p.st, p.gep(p.st, p.from, p.add(x, at(k))), p.size())
			if p.kind == contractPaired {
				return []value.Value{p.cur.NewZExt(v, types.I32)}
			}
			return []value.Value{p.widen(p.src, p.form, v)}
		}, func() []value.Value { return []value.Value{constant.NewZeroInitializer(t)} })[0]
	}
	p.loopStep(contractInt(0), p.n, p.w, []value.Value{p.dst}, func(col value.Value, c []value.Value) []value.Value {
		valid := p.min(p.w, p.sub(p.n, col))
		p.loop(contractInt(0), p.rows(), 1, nil, func(k value.Value, _ []value.Value) []value.Value {
			d := p.gep(p.et, c[0], p.mul(k, p.stride()))
			p.loop(contractInt(0), valid, 1, nil, func(x value.Value, _ []value.Value) []value.Value {
				xo := p.mul(p.add(col, x), p.ws)
				var v value.Value
				switch p.kind {
				case contractPlain:
					v = get(xo, k)
				case contractPaired:
					k2 := p.cur.NewShl(k, contractInt(1))
					v = p.cur.NewOr(get(xo, k2), p.cur.NewShl(get(xo, p.add(k2, contractInt(1))), contractSplatInt(types.I32, 16)))
				case contractSwapped:
					v = get(xo, p.cur.NewXor(k, contractInt(1)))
				}
				p.store(v, p.gep(p.et, d, x), p.form.size())
				return nil
			})
			return nil
		})
		return []value.Value{p.gep(p.et, c[0], p.ps)}
	})
}
