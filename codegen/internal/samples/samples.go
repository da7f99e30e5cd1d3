// Package samples holds kernels on which the back ends are tried: row programs
// written by hand, and random ones.
package samples

import (
	"reprise/ir/dtype"
	"reprise/ir/kern"
	"reprise/ir/kern/scalar"
)

// get, i64, iv and fv make kernels readable.
func get(v *kern.Var) *kern.Expr { return kern.Get(v) }
func i64(x int64) *kern.Expr     { return kern.I64(x) }
func iv(name string) *kern.Var   { return kern.NewVar(name, dtype.I64) }
func fv(name string) *kern.Var   { return kern.NewVar(name, dtype.F32) }

// Softmax is a softmax over rows of c elements, with dropout behind it.
func Softmax(rows, c int64, p float64) *kern.Kernel {
	b := kern.NewBuilder("softmax", rows)
	x, key, y := b.In("x", dtype.F32, rows*c), b.In("key", dtype.U32, 4), b.Out("y", dtype.F32, rows*c)
	words := kern.LoadKey(key)
	lane, m, s := iv("i"), fv("m"), fv("s")
	at := kern.Add(kern.Mul(b.TileIndex(), i64(c)), get(lane))
	b.Do(kern.Lane(lane, i64(c)).Reduce(kern.RedMax, m, x.At(at)))
	e := fv("e")
	b.Do(kern.Lane(lane, i64(c), kern.Let(e, kern.Exp(kern.Sub(x.At(at), get(m)))), y.Set(at, get(e))).Reduce(kern.RedSum, s, get(e)))
	v := kern.Div(y.At(at), get(s))
	if p > 0 {
		u := kern.Random(words, 3, kern.Mul(b.TileIndex(), i64(scalar.RowBlocks(c))), get(lane))
		v = kern.Select(kern.Kept(u, p), kern.Mul(v, kern.F32(scalar.DropScale(p))), kern.F32(0))
	}
	b.Do(kern.Lane(lane, i64(c), y.Set(at, v)))
	return b.K
}

// LayerNorm normalises rows of c bf16 elements.
func LayerNorm(rows, c int64) *kern.Kernel {
	b := kern.NewBuilder("layernorm", rows)
	x, g, h, y := b.In("x", dtype.BF16, rows*c), b.In("g", dtype.F32, c), b.In("b", dtype.F32, c), b.Out("y", dtype.BF16, rows*c)
	i := iv("i")
	at := kern.Add(kern.Mul(b.TileIndex(), i64(c)), get(i))
	v := kern.Convert(x.At(at), dtype.F32)
	sum, mean, sq, inv := fv("sum"), fv("mean"), fv("sq"), fv("inv")
	b.Do(kern.Lane(i, i64(c)).Reduce(kern.RedSum, sum, v), kern.Let(mean, kern.Div(get(sum), kern.F32(float32(c)))))
	d := kern.Sub(v, get(mean))
	b.Do(kern.Lane(i, i64(c)).Reduce(kern.RedSum, sq, kern.Mul(d, d)),
		kern.Let(inv, kern.Rsqrt(kern.Add(kern.Div(get(sq), kern.F32(float32(c))), kern.F32(1e-5)))))
	b.Do(kern.Lane(i, i64(c), y.Set(at, kern.Convert(kern.Fma(kern.Mul(d, get(inv)), g.At(get(i)), h.At(get(i))), dtype.BF16))))
	return b.K
}

// Matmul is the plain contraction: a serial chain of fma for each lane.
func Matmul(m, k, n int64) *kern.Kernel {
	b := kern.NewBuilder("matmul", m)
	x, w, y := b.In("x", dtype.F32, m*k), b.In("w", dtype.F32, k*n), b.Out("y", dtype.F32, m*n)
	j, kk, acc := iv("j"), iv("k"), fv("acc")
	b.Do(kern.Lane(j, i64(n), kern.Let(acc, kern.F32(0)),
		kern.Range(kk, i64(k), kern.Let(acc, kern.Fma(
			x.At(kern.Add(kern.Mul(b.TileIndex(), i64(k)), get(kk))),
			w.At(kern.Add(kern.Mul(get(kk), i64(n)), get(j))), get(acc)))),
		y.Set(kern.Add(kern.Mul(b.TileIndex(), i64(n)), get(j)), get(acc))))
	return b.K
}

// Map applies f to n elements in tiles of 1024.
func Map(name string, n int64, t dtype.Type, f func(x *kern.Expr) *kern.Expr) *kern.Kernel {
	const tile = 1024
	b := kern.NewBuilder(name, (n+tile-1)/tile)
	x, y := b.In("x", t, n), b.Out("y", t, n)
	i, base := iv("i"), iv("base")
	b.Do(kern.Let(base, kern.Mul(b.TileIndex(), i64(tile))))
	at := kern.Add(get(base), get(i))
	b.Do(kern.Lane(i, kern.Min(i64(tile), kern.Sub(i64(n), get(base))), y.Set(at, f(x.At(at)))))
	return b.K
}

// MergeSort sorts each row of n keys with their positions, stably, bottom up.
func MergeSort(rows, n int64) *kern.Kernel {
	b := kern.NewBuilder("sort", rows)
	x, y, p := b.In("x", dtype.I32, rows*n), b.Out("y", dtype.I32, rows*n), b.Out("p", dtype.I32, rows*n)
	src, dst := kern.NewLocal("src", dtype.I32, n), kern.NewLocal("dst", dtype.I32, n)
	i, w, lo, a, z, o := iv("i"), iv("w"), iv("lo"), iv("a"), iv("z"), iv("o")
	mid, end := iv("mid"), iv("end")
	row := kern.Mul(b.TileIndex(), i64(n))
	key := func(at *kern.Expr) *kern.Expr {
		return x.At(kern.Add(row, kern.Convert(src.At(at), dtype.I64)))
	}
	takeA := kern.NewVar("takeA", dtype.Bool)
	b.Do(kern.Lane(i, i64(n), src.Set(get(i), kern.Convert(get(i), dtype.I32))))
	b.Do(kern.Let(w, i64(1)))
	inA, inZ := kern.Lt(get(a), get(mid)), kern.Lt(get(z), get(end))
	last := i64(n - 1)
	b.Do(&kern.While{Cond: kern.Lt(get(w), i64(n)), Body: []kern.Stmt{
		kern.Let(lo, i64(0)),
		&kern.While{Cond: kern.Lt(get(lo), i64(n)), Body: []kern.Stmt{
			kern.Let(mid, kern.Min(kern.Add(get(lo), get(w)), i64(n))),
			kern.Let(end, kern.Min(kern.Add(get(mid), get(w)), i64(n))),
			kern.Let(a, get(lo)), kern.Let(z, get(mid)), kern.Let(o, get(lo)),
			&kern.While{
				Pre: []kern.Stmt{kern.Let(takeA, kern.And(inA, kern.Or(kern.Not(inZ),
					kern.Le(key(kern.Min(get(a), last)), key(kern.Min(get(z), last))))))},
				Cond: kern.Or(inA, inZ), Body: []kern.Stmt{
					&kern.If{Cond: get(takeA), Then: []kern.Stmt{
						dst.Set(get(o), src.At(get(a))), kern.Let(a, kern.Add(get(a), i64(1)))}, Else: []kern.Stmt{
						dst.Set(get(o), src.At(get(z))), kern.Let(z, kern.Add(get(z), i64(1)))}},
					kern.Let(o, kern.Add(get(o), i64(1))),
				}},
			kern.Let(lo, get(end)),
		}},
		kern.Lane(i, i64(n), src.Set(get(i), dst.At(get(i)))),
		kern.Let(w, kern.Mul(get(w), i64(2))),
	}})
	at := kern.Add(row, get(i))
	b.Do(kern.Lane(i, i64(n), p.Set(at, src.At(get(i))), y.Set(at, key(get(i)))))
	return b.K
}

// Scan sums each row of n elements serially through memory: what one statement
// stores, the next reads.
func Scan(rows, n int64) *kern.Kernel {
	b := kern.NewBuilder("scan", rows)
	x, y := b.In("x", dtype.F32, rows*n), b.Out("y", dtype.F32, rows*n)
	l, k, i := kern.NewLocal("l", dtype.F32, n+1), iv("k"), iv("i")
	at := func(k *kern.Expr) *kern.Expr { return kern.Add(kern.Mul(b.TileIndex(), i64(n)), k) }
	b.Do(l.Set(i64(0), kern.F32(0)),
		kern.Range(k, i64(n), l.Set(kern.Add(get(k), i64(1)), kern.Add(l.At(get(k)), x.At(at(get(k)))))),
		kern.Lane(i, i64(n), y.Set(at(get(i)), kern.Sub(l.At(kern.Add(get(i), i64(1))), l.At(i64(0))))))
	return b.K
}

// Gather reads rows by index, with an edge that is not read.
func Gather(rows, n, c int64) *kern.Kernel {
	b := kern.NewBuilder("gather", rows)
	idx, x, y := b.In("idx", dtype.I32, rows), b.In("x", dtype.F16, n*c), b.Out("y", dtype.F16, rows*c)
	i, r := iv("i"), iv("r")
	b.Do(kern.Let(r, kern.Convert(kern.Rem(kern.Bitcast(idx.At(b.TileIndex()), dtype.U32), kern.U32(uint32(n))), dtype.I64)))
	in := kern.Lt(get(i), i64(c-3))
	b.Do(kern.Lane(i, i64(c), y.Set(kern.Add(kern.Mul(b.TileIndex(), i64(c)), get(i)),
		x.AtIf(kern.Add(kern.Mul(get(r), i64(c)), get(i)), in, kern.Float(dtype.F16, 2)))))
	return b.K
}

// Scatter transposes, leaving out some rows.
func Scatter(n, c int64) *kern.Kernel {
	b := kern.NewBuilder("transpose-scatter", 1)
	x, y := b.In("x", dtype.F32, n*c), b.Out("y", dtype.F32, n*c)
	i, r := iv("i"), iv("r")
	b.Do(kern.Range(r, i64(n), kern.Lane(i, i64(c),
		y.SetIf(kern.Add(kern.Mul(get(i), i64(n)), get(r)), x.At(kern.Add(kern.Mul(get(r), i64(c)), get(i))),
			kern.Ne(kern.Rem(get(i), i64(3)), i64(1))))))
	return b.K
}

// Random stores random words at columns that are, and are not, one block.
func Random(rows, c int64) *kern.Kernel {
	b := kern.NewBuilder("random", rows)
	key, y, z := b.In("key", dtype.U32, 4), b.Out("y", dtype.U32, rows*c), b.Out("z", dtype.U32, rows*c)
	w := kern.LoadKey(key)
	i := iv("i")
	at := kern.Add(kern.Mul(b.TileIndex(), i64(c)), get(i))
	block := kern.Mul(b.TileIndex(), i64(1<<33))
	b.Do(kern.Lane(i, i64(c),
		y.Set(at, kern.Random(w, 0xfffffff0, block, kern.Add(kern.Mul(b.TileIndex(), i64(64)), get(i)))),
		z.Set(at, kern.Xor(kern.Random(w, 5, block, kern.Add(get(i), i64(7))),
			kern.Philox(2, [4]*kern.Expr{kern.Convert(get(i), dtype.U32), kern.U32(1), w.Step, w.Micro}, [2]*kern.Expr{w.SeedLo, w.SeedHi})))))
	return b.K
}

// Edges is a kernel of lengths that are zero, negative or not known before: empty
// strips and their reductions, empty loops, parameters without elements.
func Edges() *kern.Kernel {
	b := kern.NewBuilder("edges", 2)
	none, x := b.In("none", dtype.F32, 0), b.In("x", dtype.I32, 4)
	y, z := b.Out("y", dtype.F32, 64), b.Out("z", dtype.I64, 64)
	i, n := iv("i"), iv("n")
	at := kern.Mul(b.TileIndex(), i64(32))
	k := int64(0)
	put := func(v *kern.Var) {
		o := y
		if v.DType == dtype.I64 {
			o = z
		}
		b.Do(o.Set(kern.Add(at, i64(k)), get(v)))
		k++
	}
	length := kern.Sub(kern.Convert(kern.And(x.At(i64(0)), kern.Int(dtype.I32, 7)), dtype.I64), i64(9)) // -9 … -2
	b.Do(kern.Let(n, length))
	for _, count := range []*kern.Expr{i64(0), i64(-5), get(n), kern.Add(get(n), i64(2)), kern.Add(get(n), i64(80))} {
		for _, kind := range []kern.RedKind{kern.RedSum, kern.RedProd, kern.RedMax, kern.RedMin} {
			v, w := fv("v"), iv("w")
			b.Do(kern.Lane(i, count, none0(none, i)...).
				Reduce(kind, v, kern.Convert(get(i), dtype.F32)).Reduce(kind, w, kern.Neg(get(i))))
			put(v)
			k--
			put(w)
		}
	}
	b.Do(&kern.For{Var: n, Lo: i64(5), Hi: i64(-5), Step: 3, Body: []kern.Stmt{y.Set(i64(99), none.At(i64(7)))}},
		y.Set(kern.Add(at, i64(31)), none.AtIf(i64(3), kern.Bool(false), kern.F32(2))))
	return b.K
}

// none0 guards a load from a parameter without elements.
func none0(none kern.Buf, i *kern.Var) []kern.Stmt {
	v := fv("guarded")
	return []kern.Stmt{kern.Let(v, none.AtIf(get(i), kern.Lt(get(i), i64(-1)), kern.F32(1)))}
}

// Programs are the hand-written row programs.
func Programs() []*kern.Kernel {
	ks := []*kern.Kernel{
		LayerNorm(4, 384), LayerNorm(3, 77), LayerNorm(2, 1),
		Matmul(3, 17, 64), Matmul(2, 5, 131), Matmul(2, 0, 20), Matmul(5, 9, 7),
		MergeSort(3, 100), MergeSort(1, 1), Scan(3, 90), Edges(),
		Gather(5, 7, 40), Scatter(9, 70), Random(3, 200), Random(2, 30), Flushed(7, 70),
	}
	for _, c := range []int64{1, 5, 16, 63, 64, 65, 100, 128, 200, 384, 1000} {
		ks = append(ks, Softmax(3, c, 0), Softmax(2, c, 0.2))
	}
	return ks
}

// Flushed is y[i] = Σ x[r, i]·w[r, i] over rows of bf16, denormals taken as zero: operands are bits as they
// come, scaled so that products and sums are about the least normal.
func Flushed(rows, n int64) *kern.Kernel {
	b := kern.NewBuilder("flushed", 1)
	b.K.Flush = true
	x, w, y := b.In("x", dtype.U32, rows*n), b.In("w", dtype.U32, rows*n), b.Out("y", dtype.F32, n)
	i, r, acc := iv("i"), iv("r"), kern.NewVar("acc", dtype.F32)
	// near is a value of bf16 with an exponent of −71 … −56, or a denormal.
	near := func(v *kern.Expr) *kern.Expr {
		u := kern.And(kern.Shr(v, kern.U32(7)), kern.U32(0x87ff0000))
		u = kern.Select(kern.Eq(kern.And(v, kern.U32(15)), kern.U32(0)), kern.And(u, kern.U32(0x807f0000)), kern.Add(u, kern.U32(0x1c000000)))
		return kern.Convert(kern.Convert(kern.Bitcast(u, dtype.F32), dtype.BF16), dtype.F32)
	}
	at := kern.Add(kern.Mul(get(r), i64(n)), get(i))
	b.Do(kern.Lane(i, i64(n), kern.Let(acc, kern.F32(0)),
		kern.Range(r, i64(rows), kern.Let(acc, kern.FmaFlush(near(x.At(at)), near(w.At(at)), get(acc)))),
		y.Set(get(i), get(acc))))
	return b.K
}

// Gelu is the tanh form.
func Gelu(x *kern.Expr) *kern.Expr {
	f := func(v float32) *kern.Expr { return kern.F32(v) }
	u := kern.Mul(f(0.7978845608), kern.Fma(kern.Mul(kern.Mul(x, x), x), f(0.044715), x))
	return kern.Mul(kern.Mul(f(0.5), x), kern.Add(f(1), kern.Tanh(u)))
}

// GeluErf is the exact form.
func GeluErf(x *kern.Expr) *kern.Expr {
	return kern.Mul(kern.Mul(kern.F32(0.5), x), kern.Add(kern.F32(1), kern.Erf(kern.Mul(x, kern.F32(0.70710678)))))
}

// Dropout drops a fifth of n elements, a multiple of 1024, as random op id.
func Dropout(n int64, id uint32) *kern.Kernel {
	const c = 1024
	b := kern.NewBuilder("dropout", n/c)
	key, x, y := b.In("key", dtype.U32, 4), b.In("x", dtype.F32, n), b.Out("y", dtype.F32, n)
	w := kern.LoadKey(key)
	i := iv("i")
	at := kern.Add(kern.Mul(b.TileIndex(), i64(c)), get(i))
	u := kern.Random(w, id, kern.Mul(b.TileIndex(), i64(scalar.RowBlocks(c))), get(i))
	b.Do(kern.Lane(i, i64(c), y.Set(at, kern.Select(kern.Kept(u, 0.2), kern.Mul(x.At(at), kern.F32(1.25)), kern.F32(0)))))
	return b.K
}

// Kept tells which of n elements Dropout keeps under a key {seed lo, seed hi, step, micro}: the definition
// (docs/numerics.md), element by element.
func Kept(key [4]uint32, id uint32, n int) []bool {
	out := make([]bool, n)
	for e := range n {
		w := scalar.Philox4x32([4]uint32{uint32(e>>6*16 + e&15), id, key[2], key[3] << 16}, [2]uint32{key[0], key[1]})
		out[e] = w[e>>4&3] >= 858993459 // floor(2^32/5)
	}
	return out
}
