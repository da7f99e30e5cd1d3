package cpu

import (
	"fmt"

	"github.com/llir/llvm/ir"
	"github.com/llir/llvm/ir/constant"
	"github.com/llir/llvm/ir/enum"
	"github.com/llir/llvm/ir/types"
	"github.com/llir/llvm/ir/value"

	"reprise/ir/kern"
)

// attentionInit is what the accumulators of a block product start from.
type attentionInit string

const (
	attentionZero    attentionInit = "z" // +0
	attentionStored  attentionInit = "a" // the stored C
	attentionRescale attentionInit = "r" // the stored C times a factor of its row
)

// attentionTrim is what a causal mask spares a block product: rows that the mask
// overwrites, or the part of a chain where A is +0. The latter changes no bits as long
// as B is finite there and the chain stands at anything but −0; the caller sees to
// that, or passes a cut of 64, which spares nothing.
type attentionTrim string

const (
	attentionFull  attentionTrim = ""
	attentionAbove attentionTrim = "u" // rows m ≤ n + cut are wanted (rows are keys)
	attentionBelow attentionTrim = "l" // rows m ≥ n − cut are wanted (rows are queries)
	attentionHead  attentionTrim = "h" // A is zero where k < m − cut (rows are keys): begin there
	attentionTail  attentionTrim = "t" // A is zero where k > m + cut (rows are queries): stop there
)

// attentionProduct is a block product C[m,n] = chain over k of fma(A[m,k], B[k,n], ·)
// with all strides in f32 elements and known: C has M rows (at run time) and N
// columns, N and everything else being constants.
type attentionProduct struct {
	aRow, aK, bK, cRow int64
	n                  int64
	init               attentionInit
	scaled             bool // the finished chain is multiplied by an argument
	trim               attentionTrim
}

// attentionRows are the heights of micro-tiles, tallest first; the last is 1.
func attentionRows(t Target) []int64 {
	if t == V3 {
		return []int64{6, 4, 1}
	}
	return []int64{8, 1}
}

// fn is the function of the product:
//
//	void (A, B, C, i64 M, i64 K, i64 cut, float scale, alpha*)
func (p attentionProduct) fn(m *ir.Module, t Target) *ir.Func {
	name := fmt.Sprintf("rp_attn_mm%d_%s%s%v_%d_%d_%d_%d_%d", attentionLanes(t), p.init, p.trim, p.scaled, p.aRow, p.aK, p.bK, p.cRow, p.n)
	if f := attentionFind(m, name); f != nil {
		return f
	}
	a, b, c := ir.NewParam("a", attentionPtr()), ir.NewParam("b", attentionPtr()), ir.NewParam("c", attentionPtr())
	rows, k, cut := ir.NewParam("m", types.I64), ir.NewParam("k", types.I64), ir.NewParam("cut", types.I64)
	scale, alpha := ir.NewParam("scale", types.Float), ir.NewParam("alpha", attentionPtr())
	for _, x := range []*ir.Param{a, b, c} {
		x.Attrs = append(x.Attrs, enum.ParamAttrNoAlias)
	}
	e := attentionFunc(m, t, name, true, a, b, c, rows, k, cut, scale, alpha)

	columns := func(n0 value.Value, vecs, last int64) {
		lo, hi := attentionI(0), value.Value(rows)
		switch p.trim {
		case attentionAbove:
			// n ≤ n0+vecs·w−1 wants m < n0+vecs·w+cut, taken to whole micro-tiles.
			hi = e.min(rows, e.b.NewAnd(e.add(e.addI(n0, vecs*e.w+7), cut), attentionI(-8)))
			hi = e.max(hi, attentionI(0))
		case attentionBelow:
			lo = e.b.NewAnd(e.max(e.sub(n0, cut), attentionI(0)), attentionI(-8))
			lo = e.min(lo, rows)
		}
		for _, r := range attentionRows(t) {
			end := hi
			if r > 1 {
				end = e.add(lo, e.mulI(e.divI(e.sub(hi, lo), r), r))
			}
			e.each(lo, end, r, func(m0 value.Value) {
				k0, k1 := attentionI(0), value.Value(k)
				switch p.trim {
				case attentionHead:
					k0 = e.min(e.max(e.sub(m0, cut), k0), k)
				case attentionTail:
					k1 = e.max(e.min(e.addI(e.add(m0, cut), r), k), k0)
				}
				p.tile(e, e.at(a, e.mulI(m0, p.aRow)), e.at(b, n0), e.at(c, e.add(e.mulI(m0, p.cRow), n0)),
					k0, k1, scale, e.at(alpha, m0), r, vecs, last)
			})
			lo = end
		}
	}
	pair := 2 * e.w
	full := p.n / pair * pair
	if full > 0 {
		e.eachI(full, pair, func(n0 value.Value) { columns(n0, 2, e.w) })
	}
	if rest := p.n - full; rest > e.w {
		columns(attentionI(full), 2, rest-e.w)
	} else if rest > 0 {
		columns(attentionI(full), 1, rest)
	}
	return e.done()
}

// tile is one micro-tile of rows × vecs registers of which the last has only last
// columns: its accumulators live in registers over the chain from k0 to k1.
func (p attentionProduct) tile(e *attentionFn, a, b, c, k0, k1, scale, alpha value.Value, rows, vecs, last int64) {
	lanes := func(v int64) int64 {
		if v == vecs-1 {
			return last
		}
		return e.w
	}
	acc := make([]value.Value, rows*vecs)
	for r := range rows {
		var f value.Value
		if p.init == attentionRescale {
			f = e.splat(e.load(e.atI(alpha, r)), e.w)
		}
		for v := range vecs {
			i := r*vecs + v
			if p.init == attentionZero {
				acc[i] = constant.NewZeroInitializer(e.vec(types.Float))
				continue
			}
			acc[i] = e.loadN(e.atI(c, r*p.cRow+v*e.w), lanes(v))
			if f != nil {
				acc[i] = e.b.NewFMul(acc[i], f)
			}
		}
	}
	acc = e.loop(k0, k1, 1, acc, func(i value.Value, acc []value.Value) []value.Value {
		ai, bi := e.at(a, e.mulI(i, p.aK)), e.at(b, e.mulI(i, p.bK))
		bv := make([]value.Value, vecs)
		for v := range vecs {
			bv[v] = e.loadN(e.atI(bi, v*e.w), lanes(v))
		}
		out := make([]value.Value, len(acc))
		for r := range rows {
			x := e.splat(e.load(e.atI(ai, r*p.aRow)), e.w)
			for v := range vecs {
				out[r*vecs+v] = e.fma(x, bv[v], acc[r*vecs+v])
			}
		}
		return out
	})
	for r := range rows {
		for v := range vecs {
			x := acc[r*vecs+v]
			if p.scaled {
				x = e.b.NewFMul(x, e.splat(scale, e.w))
			}
			e.storeN(x, e.atI(c, r*p.cRow+v*e.w), lanes(v))
		}
	}
}

// attentionTranspose is void (src*, i64 rows, dst*): dst[d][r] = src[r·stride + d]
// for r < rows ≤ 64 and d < dim, dst having rows of 64. Rows of dst are written up to
// dim rounded up to whole registers, and columns likewise; what is beyond is junk.
func attentionTranspose(m *ir.Module, t Target, stride, dim int64) *ir.Func {
	name := fmt.Sprintf("rp_attn_tr%d_%d_%d", attentionLanes(t), stride, dim)
	if f := attentionFind(m, name); f != nil {
		return f
	}
	src, rows, dst := ir.NewParam("src", attentionPtr()), ir.NewParam("rows", types.I64), ir.NewParam("dst", attentionPtr())
	src.Attrs = append(src.Attrs, enum.ParamAttrNoAlias)
	dst.Attrs = append(dst.Attrs, enum.ParamAttrNoAlias)
	e := attentionFunc(m, t, name, true, src, rows, dst)
	last := e.addI(rows, -1)
	e.each(attentionI(0), rows, e.w, func(r0 value.Value) {
		from := make([]value.Value, e.w)
		for r := range from {
			from[r] = e.at(src, e.mulI(e.min(e.addI(r0, int64(r)), last), stride))
		}
		square := func(d0 value.Value, n int64) {
			x := make([]value.Value, e.w)
			for r := range x {
				x[r] = e.loadN(e.at(from[r], d0), n)
			}
			for d, v := range e.transpose(x) {
				e.store(v, e.at(dst, e.add(e.mulI(e.addI(d0, int64(d)), kern.Lanes), r0)))
			}
		}
		full := dim / e.w * e.w
		if full > 0 {
			e.eachI(full, e.w, func(d0 value.Value) { square(d0, e.w) })
		}
		if full < dim {
			square(attentionI(full), dim-full)
		}
	})
	return e.done()
}

// transpose swaps rows and columns of a square of registers, exchanging halves,
// quarters, … of pairs of rows.
func (e *attentionFn) transpose(x []value.Value) []value.Value {
	for s := int64(1); s < e.w; s *= 2 {
		lo, hi := make([]int64, e.w), make([]int64, e.w)
		for l := range e.w {
			if l&s == 0 {
				lo[l], hi[l] = l, l+s
			} else {
				lo[l], hi[l] = e.w+l-s, e.w+l
			}
		}
		y := make([]value.Value, e.w)
		for r := range e.w {
			if r&s == 0 {
				y[r] = e.shuffle(x[r], x[r+s], lo)
				y[r+s] = e.shuffle(x[r], x[r+s], hi)
			}
		}
		x = y
	}
	return x
}

// attentionKey holds what the mask of a call needs, read once per kernel.
type attentionKey struct {
	k0, k1    [10]value.Value // round keys in every 64-bit lane
	rng, step value.Value     // likewise
	micro     value.Value     // i64, already shifted to the upper half of a word
}

// key reads the 16 bytes at p.
func (e *attentionFn) key(p, rng value.Value) attentionKey {
	word := func(i int64) value.Value { return e.b.NewZExt(e.loadAs(types.I32, e.atI(p, i)), types.I64) }
	var k attentionKey
	s0, s1 := word(0), word(1)
	for r := range int64(10) {
		k.k0[r] = e.splat(e.addI(s0, r*0x9E3779B9), e.w/2)
		k.k1[r] = e.splat(e.addI(s1, r*0xBB67AE85), e.w/2)
	}
	k.rng = e.splat(rng, e.w/2)
	k.step = e.splat(word(2), e.w/2)
	k.micro = e.b.NewShl(word(3), attentionI(16))
	return k
}

// philox returns the four words, one u32 register each, for the block counters
// given as two registers of 64-bit lanes: those of the even and of the odd lanes.
// Words are kept in the lower halves of 64-bit lanes, which is what the multiplier
// reads, so that upper halves need no clearing.
func (e *attentionFn) philox(k attentionKey, even, odd value.Value) [4]value.Value {
	half := e.w / 2
	all := func(x uint64) value.Value { return e.splatI64(int64(x), half) }
	wide := func(x, by value.Value) value.Value {
		return e.b.NewMul(e.b.NewAnd(x, all(0xffffffff)), by)
	}
	var words [2][4]value.Value
	for s, block := range []value.Value{even, odd} {
		c0, c1, c2 := block, k.rng, k.step
		c3 := value.Value(e.b.NewOr(e.b.NewAnd(e.b.NewLShr(block, all(32)), all(0xffff)), e.splat(k.micro, half)))
		for r := range 10 {
			p0, p1 := wide(c0, all(0xD2511F53)), wide(c2, all(0xCD9E8D57))
			n0 := e.b.NewXor(e.b.NewXor(e.b.NewLShr(p1, all(32)), c1), k.k0[r])
			n2 := e.b.NewXor(e.b.NewXor(e.b.NewLShr(p0, all(32)), c3), k.k1[r])
			c0, c1, c2, c3 = n0, p1, n2, p0
		}
		words[s] = [4]value.Value{c0, c1, c2, c3}
	}
	var out [4]value.Value
	for i := range out {
		both := e.b.NewOr(e.b.NewAnd(words[0][i], all(0xffffffff)), e.b.NewShl(words[1][i], all(32)))
		out[i] = e.b.NewBitCast(both, e.vec(types.I32))
	}
	return out
}

func (e *attentionFn) splatI64(x, n int64) value.Value {
	xs := make([]constant.Constant, n)
	for i := range xs {
		xs[i] = constant.NewInt(types.I64, x)
	}
	return constant.NewVector(types.NewVector(uint64(n), types.I64), xs...)
}

// evens is the register of 64-bit lanes first, first+2, ….
func (e *attentionFn) everyOther(first int64) value.Value {
	xs := make([]constant.Constant, e.w/2)
	for i := range xs {
		xs[i] = constant.NewInt(types.I64, first+2*int64(i))
	}
	return constant.NewVector(types.NewVector(uint64(e.w/2), types.I64), xs...)
}

// thin is x·inv where the word is at least threshold (kept), else +0.
func (e *attentionFn) thin(word, x value.Value, threshold uint32, inv float32) value.Value {
	dropped := e.b.NewICmp(enum.IPredULT, word, e.splatU32(threshold))
	return e.b.NewSelect(dropped, constant.NewZeroInitializer(e.vec(types.Float)), e.b.NewFMul(x, e.splatF(inv)))
}

// treeSum is the pairwise tree over 64 partials in order; the sum is a scalar.
func (e *attentionFn) treeSum(part []value.Value) value.Value {
	for len(part) > 1 {
		h := len(part) / 2
		for i := range h {
			part[i] = e.b.NewFAdd(part[i], part[i+h])
		}
		part = part[:h]
	}
	x := part[0]
	for s := e.w / 2; s > 0; s /= 2 {
		idx := make([]int64, e.w)
		for l := range idx {
			idx[l] = (int64(l) + s) % e.w
		}
		x = e.b.NewFAdd(x, e.shuffle(x, x, idx))
	}
	return e.b.NewExtractElement(x, constant.NewInt(types.I32, 0))
}

// any tells whether any lane of a mask is set.
func (e *attentionFn) any(mask value.Value) value.Value {
	bits := e.b.NewBitCast(mask, types.NewInt(uint64(e.w)))
	return e.b.NewICmp(enum.IPredNE, bits, constant.NewInt(types.NewInt(uint64(e.w)), 0))
}
