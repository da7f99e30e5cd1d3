package cpu

import (
	"errors"
	"fmt"
	"math"

	"github.com/llir/llvm/ir"
	"github.com/llir/llvm/ir/constant"
	"github.com/llir/llvm/ir/enum"
	"github.com/llir/llvm/ir/types"
	"github.com/llir/llvm/ir/value"

	"reprise/ir/dtype"
	"reprise/ir/kern"
	"reprise/ir/kern/scalar"
)

// attentionBlockRows is the number of queries and of keys of a block.
const attentionBlockRows = 64

// AttentionMaxDim is the largest head dimension: sums over more elements are cut into
// chunks (docs/numerics.md), and a tile's packed operands would soon outgrow a worker's
// scratch.
const AttentionMaxDim = 1024

// EmitAttention writes the kernel of an attention, or of its gradient, into m.
//
// The forward kernel takes q, k, v, the place of the first query (i32, where Placed), key (with
// Dropout > 0 only), out, lse; its
// tiles are (batch, head, block of 64 queries). The backward kernel takes q, k, v,
// out, lse, dout, key (likewise), dq, dk, dv; its tiles are (batch, key-value head),
// each going once over all pairs of blocks. Neither needs workspace. The order of
// arithmetic is that of package attnref.
func EmitAttention(m *ir.Module, a *kern.Attention, t Target) ([]Launch, error) {
	return emitAttention(m, a, t, a.Name, kern.Own{})
}

// emitAttention writes the kernel under a symbol, which may read the id of its random op from its list, so that layers share the code.
func emitAttention(m *ir.Module, a *kern.Attention, t Target, symbol string, reads kern.Own) ([]Launch, error) {
	switch {
	case a.Dim > AttentionMaxDim:
		return nil, fmt.Errorf("head dimension %d is beyond %d: take more heads", a.Dim, AttentionMaxDim)
	case a.Heads%a.KVHeads != 0:
		return nil, fmt.Errorf("%d heads are no multiple of %d key-value heads", a.Heads, a.KVHeads)
	case a.Dropout < 0 || a.Dropout >= 1:
		return nil, fmt.Errorf("dropout %v is not in [0, 1)", a.Dropout)
	case a.DType != dtype.F32 && a.DType != dtype.F16 && a.DType != dtype.BF16:
		return nil, fmt.Errorf("element type %s", a.DType)
	case a.Placed && (!a.Causal || a.Backward):
		return nil, errors.New("a place is for causal attention forward")
	case a.DType != dtype.F32 && a.Dim > AttentionMaxDim/2:
		return nil, fmt.Errorf("head dimension %d of %s is beyond %d: take more heads, or f32", a.Dim, a.DType, AttentionMaxDim/2)
	case a.Causal && a.Tq > a.Tk:
		return nil, fmt.Errorf("causal with more queries (%d) than keys (%d)", a.Tq, a.Tk)
	}
	g := attentionGen{Attention: a, m: m, t: t, symbol: symbol, reads: reads,
		group: a.Heads / a.KVHeads, qs: a.Heads * a.Dim, ks: a.KVHeads * a.Dim,
		nq: attentionCeil(a.Tq, attentionBlockRows), nk: attentionCeil(a.Tk, attentionBlockRows)}
	if a.Backward {
		g.backward()
		return []Launch{{Symbol: symbol, Tiles: a.Batch * a.KVHeads}}, nil
	}
	g.forward()
	return []Launch{{Symbol: symbol, Tiles: a.Batch * a.Heads * g.nq}}, nil
}

func attentionCeil(a, b int64) int64 { return (a + b - 1) / b }

// attentionGen is one attention being written.
type attentionGen struct {
	*kern.Attention
	m      *ir.Module
	t      Target
	symbol string
	reads  kern.Own
	rng    value.Value // id of the random op, with dropout
	before value.Value // keys before the first query: Tk − Tq, or what the operand says
	group  int64       // query heads of a key-value head
	qs, ks int64       // strides of rows of q and of k, in elements
	nq, nk int64       // blocks
}

// kernel starts the kernel's function and runs body for each tile.
func (g *attentionGen) kernel(args int, body func(e *attentionFn, arg []value.Value, scratch value.Value) func(tile value.Value)) {
	ps := []*ir.Param{ir.NewParam("args", attentionPtr()), ir.NewParam("lo", types.I64), ir.NewParam("hi", types.I64), ir.NewParam("scratch", attentionPtr())}
	e := attentionFunc(g.m, g.t, g.symbol, false, ps...)
	g.before = attentionI(g.Tk - g.Tq)
	g.rng = attentionI(int64(g.RNG))
	for _, id := range readOwn(e.b, ps[0], args, g.reads).ids {
		g.rng = e.b.NewZExt(id, types.I64)
	}
	arg := make([]value.Value, args)
	for i := range arg {
		l := e.b.NewLoad(attentionPtr(), e.atI(ps[0], int64(2*i)))
		l.Align = 8
		arg[i] = l
	}
	tile := body(e, arg, ps[3])
	e.each(ps[1], ps[2], 1, tile)
	e.done()
}

// visible is the number of keys of block J that query i of block I sees, less i,
// being 64·I + before − 64·J: key j is seen where j ≤ i + cut.
func (g *attentionGen) cut(e *attentionFn, bi, bj value.Value) value.Value {
	return e.add(e.mulI(e.sub(bi, bj), attentionBlockRows), g.before)
}

// rowsOf is the number of rows of block b of n.
func (g *attentionGen) rowsOf(e *attentionFn, b value.Value, n int64) value.Value {
	if n%attentionBlockRows == 0 {
		return attentionI(attentionBlockRows)
	}
	return e.min(attentionI(attentionBlockRows), e.sub(attentionI(n), e.mulI(b, attentionBlockRows)))
}

// columns is how many columns a block product over a block of n rows or fewer has.
func (g *attentionGen) columns(n int64) int64 {
	w := attentionLanes(g.t)
	return min(attentionBlockRows, attentionCeil(n, w)*w)
}

func (g *attentionGen) below() uint32    { return uint32(scalar.DropBelow(float64(g.Dropout))) }
func (g *attentionGen) invKeep() float32 { return scalar.DropScale(float64(g.Dropout)) }

// zeroRows clears n rows of the head dimension that lie stride apart.
func (g *attentionGen) zeroRows(e *attentionFn, p, n value.Value, stride int64) {
	zero := constant.NewZeroInitializer(e.vec(types.Float))
	e.each(attentionI(0), n, 1, func(i value.Value) {
		row := e.at(p, e.mulI(i, stride))
		g.eachDim(e, func(d value.Value, n int64) { e.storeN(zero, e.at(row, d), n) })
	})
}

// eachDim runs body for the registers of a row of the head dimension, n lanes each.
func (g *attentionGen) eachDim(e *attentionFn, body func(d value.Value, n int64)) {
	full := g.Dim / e.w * e.w
	if full > 0 {
		e.eachI(full, e.w, func(d value.Value) { body(d, e.w) })
	}
	if full < g.Dim {
		body(attentionI(full), g.Dim-full)
	}
}

// forward writes the forward kernel. Scores are kept transposed, S[key][query], so
// that all of softmax is vertical: a register holds one key for w queries.
func (g *attentionGen) forward() {
	const n = attentionBlockRows
	args := 5
	if g.Placed {
		args++
	}
	if g.Dropout > 0 {
		args++
	}
	qs, ks := g.stride(g.qs), g.stride(g.ks)
	scores := attentionProduct{aRow: ks, aK: 1, bK: n, cRow: n, n: g.columns(g.Tq), init: attentionZero, scaled: true}
	if g.Causal {
		scores.trim = attentionAbove
	}
	weigh := attentionProduct{aRow: 1, aK: n, bK: ks, cRow: qs, n: g.Dim, init: attentionRescale}
	if g.Causal {
		weigh.trim = attentionTail
	}
	scoresFn, weighFn := scores.fn(g.m, g.t), weigh.fn(g.m, g.t)
	transpose := attentionTranspose(g.m, g.t, qs, g.Dim)

	g.kernel(args, func(e *attentionFn, arg []value.Value, scratch value.Value) func(value.Value) {
		q, k, v, out, lse := arg[0], arg[1], arg[2], arg[args-2], arg[args-1]
		var key attentionKey
		if g.Dropout > 0 {
			key = e.key(arg[args-3], g.rng)
		}
		if g.Placed {
			at := e.b.NewSExt(e.loadAs(types.I32, arg[3]), types.I64)
			g.before = e.min(e.max(at, attentionI(0)), attentionI(g.Tk-g.Tq))
		}
		ms, ls, alphas := scratch, e.atI(scratch, n), e.atI(scratch, 2*n)
		part := e.atI(scratch, 3*n)
		st := e.atI(scratch, 3*n+16*e.w)
		qt := e.atI(st, n*n)
		wide := e.atI(qt, attentionCeil(g.Dim, e.w)*e.w*n) // of halves: a block of q, k or v, then one of out
		sum := e.atI(wide, n*g.Dim)
		inf := e.splatF(float32(math.Inf(-1)))
		zero := constant.NewZeroInitializer(e.vec(types.Float))

		return func(tile value.Value) {
			bi, bh := e.remI(tile, g.nq), e.divI(tile, g.nq)
			h, b := e.remI(bh, g.Heads), e.divI(bh, g.Heads)
			rows := g.rowsOf(e, bi, g.Tq)
			i0 := e.mulI(bi, n)
			qo := e.add(e.mulI(e.add(e.mulI(b, g.Tq), i0), g.qs), e.mulI(h, g.Dim))
			ko := e.add(e.mulI(b, g.Tk*g.ks), e.mulI(e.divI(h, g.group), g.Dim))
			o := sum
			if !g.half() {
				o = e.at(out, qo)
			}
			e.b.NewCall(transpose, g.rows(e, g.element(e, q, qo), rows, g.qs, wide), rows, qt)
			e.eachI(n, e.w, func(i value.Value) {
				e.store(inf, e.at(ms, i))
				e.store(zero, e.at(ls, i))
			})
			g.zeroRows(e, o, rows, qs)

			blocks := attentionI(g.nk)
			if g.Causal {
				last := e.addI(e.add(e.add(i0, rows), g.before), -1)
				blocks = e.addI(e.divI(last, n), 1)
			}
			e.each(attentionI(0), blocks, 1, func(bj value.Value) {
				keys := g.rowsOf(e, bj, g.Tk)
				cut := g.cut(e, bi, bj)
				ro := e.add(ko, e.mulI(bj, n*g.ks))
				e.b.NewCall(scoresFn, g.rows(e, g.element(e, k, ro), keys, g.ks, wide), qt, st, keys, attentionI(g.Dim), cut, attentionF(g.Scale), alphas)
				g.maskScores(e, st, keys, cut)
				e.each(attentionI(0), rows, e.w, func(iv value.Value) {
					g.softmax(e, e.at(st, iv), e.at(ms, iv), e.at(ls, iv), e.at(alphas, iv), part,
						func(pos value.Value) [4]value.Value {
							row := e.add(e.add(e.mulI(bh, g.Tq), i0), iv)
							base := e.add(e.mulI(e.add(e.mulI(row, g.nk), bj), 16), pos)
							lanes := func(first int64) value.Value {
								step := e.b.NewMul(e.everyOther(first), e.splatI64(16*g.nk, e.w/2))
								return e.b.NewAdd(e.splat(base, e.w/2), step)
							}
							return e.philox(key, lanes(0), lanes(1))
						})
				})
				vb := g.rows(e, g.element(e, v, ro), keys, g.ks, wide)
				g.sparing(e, cut, func(edge value.Value) value.Value {
					return g.anyNonFinite(e, vb, e.b.NewSelect(edge, keys, attentionI(0)), ks)
				}, func(spare value.Value) {
					e.b.NewCall(weighFn, st, vb, o, rows, keys, spare, attentionF(0), alphas)
				}, func(some value.Value) value.Value {
					return g.anyNegativeZero(e, o, e.b.NewSelect(some, rows, attentionI(0)), qs)
				}, func() {
					one := e.splatF(1)
					e.eachI(n, e.w, func(i value.Value) { e.store(one, e.at(part, i)) })
					g.spared(e, rows, keys, cut, func(i, j, left value.Value) {
						e.b.NewCall(weighFn, e.at(st, e.add(i, e.mulI(j, n))), e.at(vb, e.mulI(j, ks)), e.at(o, e.mulI(i, qs)),
							attentionI(1), left, attentionI(n), attentionF(0), part)
					})
				})
			})

			e.each(attentionI(0), rows, 1, func(i value.Value) {
				l := e.splat(e.load(e.at(ls, i)), e.w)
				row := e.at(o, e.mulI(i, qs))
				g.eachDim(e, func(d value.Value, n int64) {
					p := e.at(row, d)
					e.storeN(e.b.NewFDiv(e.loadN(p, n), l), p, n)
				})
			})
			if g.half() {
				e.b.NewCall(attentionConvert(g.m, g.t, g.DType, g.qs, g.Dim, false), g.element(e, out, qo), rows, o)
			}
			e.each(attentionI(0), rows, e.w, func(iv value.Value) {
				p := e.at(ms, iv)
				e.store(e.b.NewFAdd(e.loadV(p), e.log(e.loadV(e.at(ls, iv)))), p)
			})
			to := e.at(lse, e.add(e.mulI(bh, g.Tq), i0))
			e.each(attentionI(0), rows, 1, func(i value.Value) { e.store(e.load(e.at(ms, i)), e.at(to, i)) })
		}
	})
}

// maskScores writes −inf over the scores of keys that do not exist or are not seen,
// where the pair of blocks has any.
func (g *attentionGen) maskScores(e *attentionFn, st, keys, cut value.Value) {
	const n = attentionBlockRows
	ragged := g.Tk%n != 0
	if !g.Causal && !ragged {
		return
	}
	var some value.Value = constant.False
	if ragged {
		some = e.less(keys, attentionI(n))
	}
	if g.Causal {
		some = e.b.NewOr(some, e.less(cut, attentionI(n-1)))
	}
	e.when(some, func() {
		inf := e.splatF(float32(math.Inf(-1)))
		iota := e.constV(func(l int64) constant.Constant { return constant.NewInt(types.I32, l) })
		e.eachI(g.columns(g.Tq), e.w, func(iv value.Value) {
			limit := e.splat(e.b.NewTrunc(keys, types.I32), e.w)
			if g.Causal {
				seen := e.b.NewAdd(e.splat(e.b.NewTrunc(e.addI(e.add(iv, cut), 1), types.I32), e.w), iota)
				limit = e.b.NewSelect(e.b.NewICmp(enum.IPredSLT, limit, seen), limit, seen)
			}
			e.eachI(n, 1, func(j value.Value) {
				p := e.at(st, e.add(e.mulI(j, n), iv))
				ok := e.b.NewICmp(enum.IPredSLT, e.splat(e.b.NewTrunc(j, types.I32), e.w), limit)
				e.store(e.b.NewSelect(ok, e.loadV(p), inf), p)
			})
		})
	})
}

// softmax turns the scores s[64][·] of w queries into probabilities and brings the
// running maximum, sum and factor of those queries up to date. words gives the
// random words of position pos = 0 … 15: those of keys pos, pos+16, pos+32, pos+48.
func (g *attentionGen) softmax(e *attentionFn, s, pm, pl, palpha, part value.Value, words func(pos value.Value) [4]value.Value) {
	const n = attentionBlockRows
	inf := e.splatF(float32(math.Inf(-1)))
	bm := e.loop(attentionI(0), attentionI(n), 4, []value.Value{inf, inf, inf, inf}, func(j value.Value, c []value.Value) []value.Value {
		next := make([]value.Value, 4)
		for u := range next {
			next[u] = e.maxV(c[u], e.loadV(e.atI(e.at(s, e.mulI(j, n)), int64(u)*n)))
		}
		return next
	})
	old := e.loadV(pm)
	m := e.maxV(old, e.maxV(e.maxV(bm[0], bm[1]), e.maxV(bm[2], bm[3])))
	alpha := e.exp(e.b.NewFSub(old, m))
	e.store(m, pm)
	e.store(alpha, palpha)
	e.eachI(16, 1, func(pos value.Value) {
		row := e.at(s, e.mulI(pos, n))
		p := make([]value.Value, 4)
		for c := range p {
			p[c] = e.exp(e.b.NewFSub(e.loadV(e.atI(row, int64(c)*16*n)), m))
		}
		sum := e.b.NewFAdd(e.b.NewFAdd(p[0], p[2]), e.b.NewFAdd(p[1], p[3]))
		e.store(sum, e.at(part, e.mulI(pos, e.w)))
		if g.Dropout > 0 {
			word := words(pos)
			for c := range p {
				p[c] = e.thin(word[c], p[c], g.below(), g.invKeep())
			}
		}
		for c := range p {
			e.store(p[c], e.atI(row, int64(c)*16*n))
		}
	})
	sums := make([]value.Value, 16)
	for i := range sums {
		sums[i] = e.loadV(e.atI(part, int64(i)*e.w))
	}
	for h := 8; h > 0; h /= 2 {
		for i := range h {
			sums[i] = e.b.NewFAdd(sums[i], sums[i+h])
		}
	}
	e.store(e.fma(e.loadV(pl), alpha, sums[0]), pl)
}

// sparing runs a block product whose A is zero where the causal mask hides it, and
// leaves those terms out where that can't change a bit: fma(+0, x, acc) is acc for
// every finite x and every acc but −0. odd tells (of a pair of blocks on the edge of
// the mask; it gets that as a condition) whether something speaks against it, product
// runs with the cut to use; afterwards left tells whether a chain that was cut short
// stands at −0 (nil: the terms left out come first, and odd has looked at that), and
// repair runs them after all.
func (g *attentionGen) sparing(e *attentionFn, cut value.Value, odd func(edge value.Value) value.Value,
	product func(spare value.Value), left func(some value.Value) value.Value, repair func()) {
	const n = attentionBlockRows
	if !g.Causal {
		product(attentionI(n))
		return
	}
	edge := e.less(cut, attentionI(n-1))
	spare := e.b.NewAnd(edge, e.b.NewXor(odd(edge), constant.True))
	product(e.b.NewSelect(spare, cut, attentionI(n)))
	if left != nil {
		e.when(left(spare), repair)
	}
}

// spared runs body for every row i of queries that has keys it does not see: left
// of them from j on.
func (g *attentionGen) spared(e *attentionFn, rows, keys, cut value.Value, body func(i, j, left value.Value)) {
	e.each(attentionI(0), rows, 1, func(i value.Value) {
		j := e.max(e.addI(e.add(i, cut), 1), attentionI(0))
		e.when(e.less(j, keys), func() { body(i, j, e.sub(keys, j)) })
	})
}

// anyNonFinite tells whether any element of n rows of the head dimension is infinite
// or NaN.
func (g *attentionGen) anyNonFinite(e *attentionFn, p, n value.Value, stride int64) value.Value {
	zero := constant.NewZeroInitializer(e.vec(types.Float))
	sum := g.overRows(e, p, n, stride, zero, func(x, acc value.Value) value.Value { return e.fma(x, zero, acc) })
	return e.any(e.b.NewFCmp(enum.FPredUNO, sum, sum))
}

// anyNegativeZero tells whether any element of n rows of the head dimension is −0,
// which read as an integer is the least one.
func (g *attentionGen) anyNegativeZero(e *attentionFn, p, n value.Value, stride int64) value.Value {
	least := g.overRows(e, p, n, stride, constant.NewZeroInitializer(e.vec(types.I32)), func(x, acc value.Value) value.Value {
		i := e.b.NewBitCast(x, e.vec(types.I32))
		return e.b.NewSelect(e.b.NewICmp(enum.IPredSLT, i, acc), i, acc)
	})
	return e.any(e.b.NewICmp(enum.IPredEQ, least, e.splatU32(1<<31)))
}

// overRows folds the registers of n rows of the head dimension.
func (g *attentionGen) overRows(e *attentionFn, p, n value.Value, stride int64, init value.Value, join func(x, acc value.Value) value.Value) value.Value {
	return e.loop(attentionI(0), n, 1, []value.Value{init}, func(i value.Value, c []value.Value) []value.Value {
		row := e.at(p, e.mulI(i, stride))
		full := g.Dim / e.w * e.w
		if full > 0 {
			c = e.loop(attentionI(0), attentionI(full), e.w, c, func(d value.Value, c []value.Value) []value.Value {
				return []value.Value{join(e.loadV(e.at(row, d)), c[0])}
			})
		}
		if full < g.Dim {
			c = []value.Value{join(e.loadN(e.atI(row, full), g.Dim-full), c[0])}
		}
		return c
	})[0]
}

// backward writes the gradient kernel: key blocks in order, and for each the query
// blocks in order, so that the chains of dk and dv run over the inner loop and
// those of dq over the outer one; the gradients themselves hold the unfinished chains.
func (g *attentionGen) backward() {
	const n = attentionBlockRows
	args := 9
	if g.Dropout > 0 {
		args++
	}
	qs, ks := g.stride(g.qs), g.stride(g.ks)
	scores := attentionProduct{aRow: qs, aK: 1, bK: n, cRow: n, n: g.columns(g.Tk), init: attentionZero, scaled: true}
	dprobs := scores
	dprobs.scaled = false
	if g.Causal {
		scores.trim, dprobs.trim = attentionBelow, attentionBelow
	}
	keySide := attentionProduct{aRow: 1, aK: n, bK: qs, cRow: g.ks, n: g.Dim, init: attentionStored}
	querySide := attentionProduct{aRow: n, aK: 1, bK: ks, cRow: g.qs, n: g.Dim, init: attentionStored}
	if g.Causal {
		keySide.trim, querySide.trim = attentionHead, attentionTail
	}
	scoresFn, dprobsFn := scores.fn(g.m, g.t), dprobs.fn(g.m, g.t)
	keySideFn, querySideFn := keySide.fn(g.m, g.t), querySide.fn(g.m, g.t)
	transpose := attentionTranspose(g.m, g.t, ks, g.Dim)

	g.kernel(args, func(e *attentionFn, arg []value.Value, scratch value.Value) func(value.Value) {
		q, k, v, out, lse, dout := arg[0], arg[1], arg[2], arg[3], arg[4], arg[5]
		dq, dk, dv := arg[args-3], arg[args-2], arg[args-1]
		var key attentionKey
		if g.Dropout > 0 {
			key = e.key(arg[6], g.rng)
		}
		dim := attentionCeil(g.Dim, e.w) * e.w
		s, dp := scratch, e.atI(scratch, n*n)
		kt, vt := e.atI(scratch, 2*n*n), e.atI(scratch, 2*n*n+n*dim)
		// Of halves: blocks of k, of q (of v before that), of dout and of out.
		block := func(i int64) value.Value { return e.atI(scratch, 2*n*n+2*n*dim+i*n*g.Dim) }

		return func(tile value.Value) {
			hk, b := e.remI(tile, g.KVHeads), e.divI(tile, g.KVHeads)
			ko := e.add(e.mulI(b, g.Tk*g.ks), e.mulI(hk, g.Dim))
			qo := e.add(e.mulI(b, g.Tq*g.qs), e.mulI(hk, g.group*g.Dim))
			g.zeroRows(e, e.at(dk, ko), attentionI(g.Tk), g.ks)
			g.zeroRows(e, e.at(dv, ko), attentionI(g.Tk), g.ks)
			e.eachI(g.group, 1, func(gi value.Value) {
				g.zeroRows(e, e.at(dq, e.add(qo, e.mulI(gi, g.Dim))), attentionI(g.Tq), g.qs)
			})
			e.eachI(g.nk, 1, func(bj value.Value) {
				keys := g.rowsOf(e, bj, g.Tk)
				kb := e.add(ko, e.mulI(bj, n*g.ks))
				from := g.rows(e, g.element(e, k, kb), keys, g.ks, block(0))
				e.b.NewCall(transpose, from, keys, kt)
				e.b.NewCall(transpose, g.rows(e, g.element(e, v, kb), keys, g.ks, block(1)), keys, vt)
				first := attentionI(0)
				if g.Causal {
					first = e.divI(e.max(e.addI(e.mulI(bj, n), g.Tq-g.Tk), attentionI(0)), n)
				}
				e.eachI(g.group, 1, func(gi value.Value) {
					h := e.add(e.mulI(hk, g.group), gi)
					e.each(first, attentionI(g.nq), 1, func(bi value.Value) {
						rows := g.rowsOf(e, bi, g.Tq)
						cut := g.cut(e, bi, bj)
						qb := e.add(e.add(qo, e.mulI(gi, g.Dim)), e.mulI(bi, n*g.qs))
						row0 := e.add(e.mulI(e.add(e.mulI(b, g.Heads), h), g.Tq), e.mulI(bi, n))
						none := attentionF(0)
						qr := g.rows(e, g.element(e, q, qb), rows, g.qs, block(1))
						dor := g.rows(e, g.element(e, dout, qb), rows, g.qs, block(2))
						or := g.rows(e, g.element(e, out, qb), rows, g.qs, block(3))
						e.b.NewCall(scoresFn, qr, kt, s, rows, attentionI(g.Dim), cut, attentionF(g.Scale), s)
						e.b.NewCall(dprobsFn, dor, vt, dp, rows, attentionI(g.Dim), cut, none, s)
						e.each(attentionI(0), rows, 1, func(i value.Value) {
							ri := e.mulI(i, qs)
							delta := g.delta(e, e.at(dor, ri), e.at(or, ri))
							g.gradRow(e, e.at(s, e.mulI(i, n)), e.at(dp, e.mulI(i, n)), e.load(e.at(lse, e.add(row0, i))), delta,
								e.add(i, cut), func(half int64) [4]value.Value {
									base := e.splat(e.mulI(e.add(e.mulI(e.add(row0, i), g.nk), bj), 16), e.w/2)
									return e.philox(key, e.b.NewAdd(base, e.everyOther(half)), e.b.NewAdd(base, e.everyOther(half+1)))
								})
						})
						for _, x := range [][3]value.Value{{s, dor, e.at(dv, kb)}, {dp, qr, e.at(dk, kb)}} {
							g.sparing(e, cut, func(edge value.Value) value.Value {
								odd := g.anyNonFinite(e, x[1], e.b.NewSelect(edge, rows, attentionI(0)), qs)
								return e.b.NewOr(odd, g.anyNegativeZero(e, x[2], e.b.NewSelect(edge, keys, attentionI(0)), g.ks))
							}, func(spare value.Value) {
								e.b.NewCall(keySideFn, x[0], x[1], x[2], keys, rows, spare, none, s)
							}, nil, nil)
						}
						to := e.at(dq, qb)
						g.sparing(e, cut, func(edge value.Value) value.Value {
							return g.anyNonFinite(e, from, e.b.NewSelect(edge, keys, attentionI(0)), ks)
						}, func(spare value.Value) {
							e.b.NewCall(querySideFn, dp, from, to, rows, keys, spare, none, s)
						}, func(some value.Value) value.Value {
							return g.anyNegativeZero(e, to, e.b.NewSelect(some, rows, attentionI(0)), g.qs)
						}, func() {
							g.spared(e, rows, keys, cut, func(i, j, left value.Value) {
								e.b.NewCall(querySideFn, e.at(dp, e.add(e.mulI(i, n), j)), e.at(from, e.mulI(j, ks)), e.at(to, e.mulI(i, g.qs)),
									attentionI(1), left, attentionI(n), none, s)
							})
						})
					})
				})
			})
		}
	})
}

// delta is the sum over a row of the head dimension of dout·out.
func (g *attentionGen) delta(e *attentionFn, dout, out value.Value) value.Value {
	regs := kern.Lanes / e.w
	part := make([]value.Value, regs)
	for i := range part {
		part[i] = constant.NewZeroInitializer(e.vec(types.Float))
	}
	step := func(d value.Value, left int64, part []value.Value) []value.Value {
		next := append([]value.Value(nil), part...)
		for v := range regs {
			if n := min(left-v*e.w, e.w); n > 0 {
				at := e.addI(d, v*e.w)
				next[v] = e.b.NewFAdd(part[v], e.b.NewFMul(e.loadN(e.at(dout, at), n), e.loadN(e.at(out, at), n)))
			}
		}
		return next
	}
	full := g.Dim / kern.Lanes * kern.Lanes
	if full > 0 {
		part = e.loop(attentionI(0), attentionI(full), kern.Lanes, part, func(d value.Value, c []value.Value) []value.Value {
			return step(d, kern.Lanes, c)
		})
	}
	if full < g.Dim {
		part = step(attentionI(full), g.Dim-full, part)
	}
	return e.treeSum(part)
}

// gradRow turns the scores and the raw dp of one query against 64 keys into p' (in
// place of s) and ds (in place of dp). seen is the last key that is seen. words
// gives the random words of w positions from half on.
func (g *attentionGen) gradRow(e *attentionFn, s, dp, lse, delta, seen value.Value, words func(half int64) [4]value.Value) {
	zero := constant.NewZeroInitializer(e.vec(types.Float))
	lseV, deltaV := e.splat(lse, e.w), e.splat(delta, e.w)
	var last value.Value
	if g.Causal {
		last = e.splat(e.b.NewTrunc(seen, types.I32), e.w)
	}
	for half := int64(0); half < 16; half += e.w {
		var word [4]value.Value
		if g.Dropout > 0 {
			word = words(half)
		}
		for c := range word {
			j := int64(c)*16 + half
			ps, pd := e.atI(s, j), e.atI(dp, j)
			p := e.exp(e.b.NewFSub(e.loadV(ps), lseV))
			d := e.loadV(pd)
			kept := p
			if g.Dropout > 0 {
				d = e.thin(word[c], d, g.below(), g.invKeep())
				kept = e.thin(word[c], p, g.below(), g.invKeep())
			}
			ds := value.Value(e.b.NewFMul(e.b.NewFMul(p, e.b.NewFSub(d, deltaV)), e.splatF(g.Scale)))
			if g.Causal {
				js := e.constV(func(l int64) constant.Constant { return constant.NewInt(types.I32, j+l) })
				ok := e.b.NewICmp(enum.IPredSLE, js, last)
				kept, ds = e.b.NewSelect(ok, kept, zero), e.b.NewSelect(ok, ds, zero)
			}
			e.store(kept, ps)
			e.store(ds, pd)
		}
	}
}
