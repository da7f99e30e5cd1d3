package emit

import (
	"github.com/llir/llvm/ir/enum"
	"github.com/llir/llvm/ir/types"
	"github.com/llir/llvm/ir/value"

	"reprise/ir/dtype"
	"reprise/ir/kern"
)

// Random words. A block of 64 lanes takes 16 Philox counters: lane l has word l>>4
// of counter l&15.

// randomBlock holds the words of the current block for one OpRandom.
type randomBlock struct {
	words value.Value // [64 x i32]*
}

// philox emits Philox4x32-10 on w lanes. Everything is kept in the low halves of
// 64-bit lanes: a product is then one vpmuludq, which ignores the upper halves.
func (f *Func) philox(ctr [4]value.Value, key [2]value.Value, w int) [4]value.Value {
	b := f.Block
	i64, i32 := Vec(types.I64, w), Vec(types.I32, w)
	k := func(x int64) value.Value { return IntLit(types.I64, w, x) }
	var c [4]value.Value
	for i := range c {
		c[i] = b.NewZExt(ctr[i], i64)
	}
	k0, k1 := value.Value(b.NewZExt(key[0], i64)), value.Value(b.NewZExt(key[1], i64))
	low := k(0xffffffff)
	for round := range 10 {
		if round > 0 {
			k0, k1 = b.NewAdd(k0, k(0x9E3779B9)), b.NewAdd(k1, k(0xBB67AE85))
		}
		p0 := b.NewMul(b.NewAnd(c[0], low), k(0xD2511F53))
		p1 := b.NewMul(b.NewAnd(c[2], low), k(0xCD9E8D57))
		h0, h1 := b.NewLShr(p0, k(32)), b.NewLShr(p1, k(32))
		c = [4]value.Value{b.NewXor(b.NewXor(h1, c[1]), k0), p1, b.NewXor(b.NewXor(h0, c[3]), k1), p0}
	}
	for i := range c {
		c[i] = b.NewTrunc(c[i], i32)
	}
	return c
}

// counter splits the 48-bit block counter into Philox words 0 and 3.
func (f *Func) counter(n, micro value.Value, w int) (c0, c3 value.Value) {
	b := f.Block
	i32 := Vec(types.I32, w)
	hi := b.NewAnd(b.NewTrunc(b.NewLShr(n, IntLit(types.I64, w, 32)), i32), IntLit(types.I32, w, 0xffff))
	return b.NewTrunc(n, i32), b.NewOr(b.NewShl(micro, IntLit(types.I32, w, 16)), hi)
}

// randomID is the id of a random op in all of w lanes.
func (f *Func) randomID(op uint32, w int) value.Value {
	if x := f.RandomIDs[op]; x != nil {
		return f.splat(x, w)
	}
	return IntLit(types.I32, w, int64(int32(op)))
}

// randomAnywhere is OpRandom for any lanes: one Philox a lane.
func (f *Func) randomAnywhere(op uint32, vs []value.Value, w int) value.Value {
	b := f.Block
	k := func(x int64) value.Value { return IntLit(types.I64, w, x) }
	block, col := vs[4], vs[5]
	n := b.NewAdd(b.NewShl(b.NewAdd(block, b.NewAShr(col, k(6))), k(4)), b.NewAnd(col, k(15)))
	c0, c3 := f.counter(n, vs[3], w)
	c := f.philox([4]value.Value{c0, f.randomID(op, w), vs[2], c3}, [2]value.Value{vs[0], vs[1]}, w)
	bit := func(m int64) value.Value { return b.NewICmp(enum.IPredNE, b.NewAnd(col, k(m)), k(0)) }
	b4 := bit(16)
	return b.NewSelect(bit(32), b.NewSelect(b4, c[3], c[2]), b.NewSelect(b4, c[1], c[0]))
}

// RandomBlock emits the words of one block of 64 elements of a random op's row:
// word i (a vector of 16 u32) belongs to columns col+16·i … col+16·i+15. key is
// seed lo, seed hi, step, micro (i32 scalars), block the number of the row's first block
// and col the block's first column, a multiple of 64 (i64 scalars).
func (f *Func) RandomBlock(op uint32, key [4]value.Value, block, col value.Value) [4]value.Value {
	b := f.Block
	n := b.NewShl(b.NewAdd(block, b.NewAShr(col, I64(6))), I64(4))
	lo, c3 := f.counter(n, key[3], 1)
	c0 := f.Block.NewAdd(f.splat(lo, 16), Iota(types.I32, 16, 1))
	all := func(x value.Value) value.Value { return f.splat(x, 16) }
	return f.philox([4]value.Value{c0, f.randomID(op, 16), all(key[2]), all(c3)},
		[2]value.Value{all(key[0]), all(key[1])}, 16)
}

// randomWords are the words of the current vector of lanes.
func (f *Func) randomWords(r *randomBlock) value.Value {
	p := f.Block.NewGetElementPtr(types.NewArray(64, types.I32), r.words, I64(0), f.lane.offset)
	v := Vec(types.I32, f.lane.w)
	return f.loadAt(v, f.Block.NewBitCast(p, pointerLike(p, v)), 4)
}

// BlockRandoms are the random ops of a strip body whose 64 lanes draw the words of one
// block: 16 counters serve them all.
func (f *Func) BlockRandoms(s *kern.Strip) []*kern.Expr {
	a := newAnalysis(s.Var, s.Body)
	var out []*kern.Expr
	seen := map[*kern.Expr]bool{}
	var visit func(e *kern.Expr)
	visit = func(e *kern.Expr) {
		if seen[e] {
			return
		}
		seen[e] = true
		if e.Op == kern.OpRandom && a.blockwise(e) {
			out = append(out, e)
		}
		for _, x := range e.Args {
			visit(x)
		}
	}
	a.roots(s.Body, s.Reds, func(e *kern.Expr, inLoop bool) {
		if !inLoop {
			visit(e)
		}
	})
	return out
}

// RandomCounter emits the four words of counter number c (0 to 15, i64) of the block
// of 64 lanes of s that starts at base, for one of its BlockRandoms: word i is that of
// lane base + 16·i + c.
func (f *Func) RandomCounter(s *kern.Strip, e *kern.Expr, base, c value.Value) [4]value.Value {
	f.bound[s.Var] = operand{t: dtype.I64, s: base}
	memo := values{}
	var a [6]value.Value
	for i, x := range e.Args {
		a[i] = f.eval(x, memo).s
	}
	delete(f.bound, s.Var)
	b := f.Block
	n := b.NewAdd(b.NewShl(b.NewAdd(a[4], b.NewAShr(a[5], I64(6))), I64(4)), c)
	c0, c3 := f.counter(n, a[3], 1)
	return f.philox([4]value.Value{c0, f.randomID(uint32(e.Bits), 1), a[2], c3}, [2]value.Value{a[0], a[1]}, 1)
}

// aligned tells whether a uniform i64 is known to be a multiple of 64.
func aligned(e *kern.Expr) bool {
	switch e.Op {
	case kern.OpConst:
		return e.Bits%64 == 0
	case kern.OpMul:
		return aligned(e.Args[0]) || aligned(e.Args[1])
	case kern.OpAdd, kern.OpSub:
		return aligned(e.Args[0]) && aligned(e.Args[1])
	case kern.OpShl:
		return e.Args[1].Op == kern.OpConst && e.Args[1].Bits >= 6 && e.Args[1].Bits < 64
	}
	return false
}
