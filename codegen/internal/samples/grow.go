package samples

import (
	"fmt"
	"math"
	"math/rand/v2"

	"reprise/ir/dtype"
	"reprise/ir/kern"
)

// grower grows random kernels that pass kern.Check, read and write inside of
// their buffers and make no NaN visible in an integer.
type grower struct {
	r      *rand.Rand
	b      *kern.Builder
	ins    []kern.Buf
	vars   []*kern.Var // readable here
	locals []*kern.Local
	lane   *kern.Var // inside a strip
	size   int64     // elements of every input
	row    int64     // elements of a tile of every output
	names  int
}

func types() []dtype.Type {
	return []dtype.Type{dtype.Bool, dtype.I8, dtype.I16, dtype.I32, dtype.I64, dtype.U8, dtype.U16, dtype.U32, dtype.U64,
		dtype.F16, dtype.BF16, dtype.F32, dtype.F32, dtype.F32, dtype.F64}
}

func (g *grower) typ() dtype.Type { return types()[g.r.IntN(15)] }

func (g *grower) newVar(t dtype.Type) *kern.Var {
	g.names++
	return kern.NewVar(fmt.Sprintf("v%d", g.names), t)
}

func (g *grower) constant(t dtype.Type) *kern.Expr {
	switch {
	case t == dtype.Bool:
		return kern.Bool(g.r.IntN(2) == 0)
	case t.IsFloat():
		return kern.Float(t, []float64{0, 1, -1, 0.5, 3, -2.75, 1e-3, 100, math.Inf(1), math.Copysign(0, -1)}[g.r.IntN(10)])
	}
	return kern.Int(t, []int64{0, 1, -1, 2, 3, 7, 31, 64, -128, math.MaxInt64}[g.r.IntN(10)])
}

// index is an i64 in [0, n).
func (g *grower) index(n int64, depth int) *kern.Expr {
	if g.lane != nil {
		i := kern.Get(g.lane)
		if g.r.IntN(3) == 0 {
			c := kern.I64([]int64{8, 16, 32, 48, 64, 20}[g.r.IntN(6)])
			x := i
			if g.r.IntN(3) == 0 {
				x = kern.Add(kern.Mul(kern.Get(g.b.K.Tile), kern.I64(64)), i)
			}
			cmp := []*kern.Expr{kern.Lt(i, c), kern.Gt(c, i), kern.Not(kern.Ge(i, c)), kern.Not(kern.Le(c, i))}[g.r.IntN(4)]
			switch g.r.IntN(3) {
			case 0: // two halves
				if 2*g.row <= n {
					return kern.Select(cmp, kern.Add(i, kern.I64(g.row)), i)
				}
				return kern.Select(cmp, i, kern.Sub(i, c))
			case 1: // columns of a flattened row
				return kern.Min(kern.Rem(x, c), kern.I64(n-1))
			}
			return kern.Min(kern.Add(kern.Div(x, c), kern.Rem(i, c)), kern.I64(n-1))
		}
		switch g.r.IntN(6) {
		case 0, 1, 2: // contiguous, from a uniform start; lanes go up to row-1
			room := n - g.row
			if room >= 0 {
				return kern.Add(i, kern.I64(g.r.Int64N(room+1)))
			}
		case 3:
			if 2*g.row <= n {
				return kern.Mul(i, kern.I64(2))
			}
		}
	}
	x := g.expr(g.typ(), depth-1)
	u := kern.Rem(kern.Convert(x, dtype.U32), kern.U32(uint32(n)))
	return kern.Convert(u, dtype.I64)
}

func (g *grower) expr(t dtype.Type, depth int) *kern.Expr {
	if depth <= 0 || g.r.IntN(12) == 0 {
		return g.leaf(t, depth)
	}
	sub := func(t dtype.Type) *kern.Expr { return g.expr(t, depth-1) }
	if g.r.IntN(6) == 0 {
		return kern.Convert(sub(g.typ()), t)
	}
	if g.r.IntN(10) == 0 {
		return kern.Select(sub(dtype.Bool), sub(t), sub(t))
	}
	if g.r.IntN(4) == 0 {
		return g.leaf(t, depth)
	}
	switch {
	case t == dtype.Bool:
		switch g.r.IntN(5) {
		case 0:
			return kern.And(sub(t), sub(t))
		case 1:
			return kern.Xor(sub(t), kern.Not(sub(t)))
		}
		of := []dtype.Type{dtype.I8, dtype.I64, dtype.U16, dtype.U64, dtype.F32, dtype.F64}[g.r.IntN(6)]
		cmp := []func(x, y *kern.Expr) *kern.Expr{kern.Eq, kern.Ne, kern.Lt, kern.Le, kern.Gt, kern.Ge}
		return cmp[g.r.IntN(6)](sub(of), sub(of))
	case t == dtype.F32 || t == dtype.F64:
		switch g.r.IntN(18) {
		case 0:
			return kern.Neg(sub(t))
		case 1:
			return kern.Abs(sub(t))
		case 2, 3:
			return kern.Add(sub(t), sub(t))
		case 4:
			return kern.Sub(sub(t), sub(t))
		case 5, 6:
			return kern.Mul(sub(t), sub(t))
		case 7:
			return kern.Div(sub(t), sub(t))
		case 8, 9:
			return kern.Fma(sub(t), sub(t), sub(t))
		case 10:
			return kern.Sqrt(sub(t))
		case 11:
			return []func(*kern.Expr) *kern.Expr{kern.Floor, kern.Ceil, kern.Rint, kern.Trunc}[g.r.IntN(4)](sub(t))
		case 12:
			return kern.Min(sub(t), sub(t))
		case 13:
			return kern.Max(sub(t), sub(t))
		case 14:
			return []func(*kern.Expr) *kern.Expr{kern.Exp, kern.Tanh, kern.Log, kern.Sigmoid}[g.r.IntN(4)](sub(t))
		case 15:
			if t == dtype.F32 {
				return kern.Uniform(sub(dtype.U32))
			}
			return kern.Mul(sub(t), sub(t)) // maybe next to a sum: no contraction
		case 16:
			return kern.Add(kern.Mul(sub(t), sub(t)), sub(t))
		}
		n := dtype.U32
		if t == dtype.F64 {
			n = dtype.U64
		}
		x := kern.Bitcast(sub(n), t)
		return kern.Select(kern.Eq(x, x), x, kern.Zero(t))
	case t.IsFloat():
		return kern.Convert(sub(dtype.F32), t)
	}
	switch g.r.IntN(18) {
	case 0:
		return kern.Neg(sub(t))
	case 1:
		return kern.Abs(sub(t))
	case 2, 3:
		return kern.Add(sub(t), sub(t))
	case 4:
		return kern.Sub(sub(t), sub(t))
	case 5:
		return kern.Mul(sub(t), sub(t))
	case 6:
		return kern.Div(sub(t), sub(t))
	case 7:
		return kern.Rem(sub(t), sub(t))
	case 8:
		return kern.Min(sub(t), sub(t))
	case 9:
		return kern.Max(sub(t), sub(t))
	case 10:
		return kern.Or(kern.And(sub(t), sub(t)), sub(t))
	case 11:
		return kern.Xor(sub(t), kern.Not(sub(t)))
	case 12:
		return kern.Shl(sub(t), g.count(t, depth))
	case 13:
		return kern.Shr(sub(t), g.count(t, depth))
	case 14:
		return kern.Add(kern.Popcnt(sub(t)), kern.Clz(sub(t)))
	case 15:
		if t == dtype.U32 || t == dtype.U64 {
			return kern.MulHi(sub(t), sub(t))
		}
	case 16:
		if t == dtype.U32 && g.lane != nil {
			k := kern.KeyWords{SeedLo: kern.U32(1), SeedHi: g.leaf(t, 0), Step: kern.U32(7), Micro: kern.U32(2)}
			col := kern.Get(g.lane)
			if g.r.IntN(2) == 0 {
				col = kern.Add(col, kern.I64(64*g.r.Int64N(3)+g.r.Int64N(2)))
			}
			return kern.Random(k, 11, kern.Get(g.b.K.Tile), col)
		}
	}
	f := map[dtype.Type]dtype.Type{dtype.U32: dtype.F32, dtype.I32: dtype.F32, dtype.U64: dtype.F64, dtype.I64: dtype.F64}[t]
	if f == dtype.Invalid {
		return g.leaf(t, depth)
	}
	x := sub(f)
	return kern.Bitcast(kern.Select(kern.Eq(x, x), x, kern.Zero(f)), t)
}

func (g *grower) count(t dtype.Type, depth int) *kern.Expr {
	if g.r.IntN(2) == 0 {
		return kern.Int(t, g.r.Int64N(8*t.Size()))
	}
	return g.expr(t, depth-1)
}

func (g *grower) leaf(t dtype.Type, depth int) *kern.Expr {
	for range 4 {
		switch g.r.IntN(4) {
		case 0:
			return g.constant(t)
		case 1:
			if len(g.vars) > 0 {
				v := g.vars[g.r.IntN(len(g.vars))]
				return kern.Convert(kern.Get(v), t)
			}
		case 2:
			if len(g.locals) > 0 {
				l := g.locals[g.r.IntN(len(g.locals))]
				return kern.Convert(l.At(g.index(l.Len, min(depth, 1))), t)
			}
		default:
			in := g.ins[g.r.IntN(len(g.ins))]
			i := g.index(g.size, min(depth, 2))
			x := in.At(i)
			if g.r.IntN(4) == 0 && depth > 0 {
				cond := g.expr(dtype.Bool, depth-1)
				if g.lane != nil && g.r.IntN(2) == 0 { // a window, as convolutions have
					i = kern.Sub(kern.Get(g.lane), kern.I64(3))
					cond = kern.And(kern.Ge(i, kern.I64(0)), cond)
				}
				x = in.AtIf(i, cond, g.leaf(in.DType, 0))
			}
			return kern.Convert(x, t)
		}
	}
	return g.constant(t)
}

func (g *grower) assigns(n, depth int) []kern.Stmt {
	var out []kern.Stmt
	for range n {
		t := g.typ()
		v := g.newVar(t)
		out = append(out, kern.Let(v, g.expr(t, depth)))
		g.vars = append(g.vars, v)
	}
	return out
}

// strip grows a strip that stores one row of each of some outputs.
func (g *grower) strip(outs []kern.Buf) []kern.Stmt {
	saved := len(g.vars)
	i := iv("i")
	n := kern.I64(g.row)
	if g.r.IntN(3) == 0 { // a length that is not known before
		n = kern.Rem(kern.Convert(g.ins[0].At(kern.I64(g.r.Int64N(g.size))), dtype.I64), n)
	}
	s := kern.Lane(i, n)
	reds := g.r.IntN(3)
	g.lane = i
	s.Body = g.assigns(g.r.IntN(3), 3)
	if g.r.IntN(3) == 0 { // a serial chain
		t := []dtype.Type{dtype.F32, dtype.F64, dtype.I32}[g.r.IntN(3)]
		acc, k := g.newVar(t), iv("k")
		s.Body = append(s.Body, kern.Let(acc, g.expr(t, 1)))
		g.vars = append(g.vars, acc, k)
		inner := kern.Let(acc, kern.Add(kern.Get(acc), g.expr(t, 2)))
		body := []kern.Stmt{inner}
		if g.r.IntN(2) == 0 {
			body = append(g.assigns(1, 2), inner)
			g.vars = g.vars[:len(g.vars)-1]
		}
		s.Body = append(s.Body, &kern.For{Var: k, Lo: kern.I64(g.r.Int64N(3)), Hi: kern.I64(g.r.Int64N(7)), Step: 1 + g.r.Int64N(2), Body: body})
		g.vars = g.vars[:len(g.vars)-1]
	}
	at := kern.Add(kern.Mul(kern.Get(g.b.K.Tile), kern.I64(g.row)), kern.Get(i))
	for _, o := range outs {
		st := o.Set(at, g.expr(o.DType, 4))
		switch g.r.IntN(5) {
		case 0:
			st.Cond = g.expr(dtype.Bool, 2)
		case 1: // reversed
			st.Index = kern.Sub(kern.I64(0), kern.Sub(kern.Get(i), kern.Add(kern.Mul(kern.Get(g.b.K.Tile), kern.I64(g.row)), kern.I64(g.row-1))))
		}
		s.Body = append(s.Body, st)
	}
	l := kern.NewLocal("l", g.typ(), g.row)
	if n.Op == kern.OpConst && g.r.IntN(2) == 0 {
		s.Body = append(s.Body, l.Set(kern.Get(i), g.expr(l.DType, 2)))
	} else {
		l = nil
	}
	var redVars []*kern.Var
	for range reds {
		t := []dtype.Type{dtype.F32, dtype.F64, dtype.I32, dtype.U8, dtype.I64}[g.r.IntN(5)]
		kind := kern.RedKind(g.r.IntN(4))
		if t.IsInt() {
			kind = kern.RedKind(g.r.IntN(7))
		}
		v := g.newVar(t)
		s.Reduce(kind, v, g.expr(t, 3))
		redVars = append(redVars, v)
	}
	g.lane = nil
	g.vars = append(g.vars[:saved], redVars...)
	if l != nil {
		g.locals = append(g.locals, l)
	}
	return []kern.Stmt{s}
}

// Grow is the random kernel of a seed.
func Grow(seed uint64) *kern.Kernel {
	r := rand.New(rand.NewPCG(seed, 77))
	g := &grower{r: r, b: kern.NewBuilder(fmt.Sprintf("fuzz%d", seed), 1+r.Int64N(3))}
	g.row = []int64{1, 3, 7, 8, 16, 31, 32, 63, 64, 65, 96, 127, 128, 130, 200}[r.IntN(15)]
	g.size = g.row + r.Int64N(2*g.row+5)
	for i := range 2 + r.IntN(3) {
		g.ins = append(g.ins, g.b.In(fmt.Sprintf("x%d", i), g.typ(), g.size))
	}
	var outs []kern.Buf
	out := func(n int64) kern.Buf {
		o := g.b.Out(fmt.Sprintf("y%d", len(outs)), g.typ(), n*g.b.K.Tiles)
		outs = append(outs, o)
		return o
	}
	g.b.Do(g.assigns(r.IntN(3), 3)...)
	for range 1 + r.IntN(2) {
		g.b.Do(g.strip([]kern.Buf{out(g.row)})...)
	}
	if r.IntN(2) == 0 {
		t := g.typ()
		v := g.newVar(t)
		g.b.Do(kern.Let(v, g.expr(t, 2)), &kern.If{Cond: g.expr(dtype.Bool, 3), Then: []kern.Stmt{kern.Let(v, g.expr(t, 3))}, Else: []kern.Stmt{kern.Let(v, g.expr(t, 2))}})
		g.vars = append(g.vars, v)
	}
	if r.IntN(2) == 0 { // counts down a loop of at most 9 rounds
		c := g.newVar(dtype.U8)
		t := g.typ()
		v := g.newVar(t)
		g.b.Do(kern.Let(c, kern.Rem(g.expr(dtype.U8, 2), kern.Int(dtype.U8, 9))), kern.Let(v, g.expr(t, 2)))
		g.vars = append(g.vars, v, c)
		g.b.Do(&kern.While{Cond: kern.Gt(kern.Get(c), kern.Int(dtype.U8, 0)), Body: []kern.Stmt{
			kern.Let(c, kern.Sub(kern.Get(c), kern.Int(dtype.U8, 1))), kern.Let(v, g.expr(t, 3))}})
	}
	if r.IntN(2) == 0 {
		g.b.Do(g.strip([]kern.Buf{out(g.row), out(g.row)})...)
	}
	for range 2 {
		o := out(1)
		st := o.Set(kern.Get(g.b.K.Tile), g.expr(o.DType, 3))
		if r.IntN(3) == 0 {
			st.Cond = g.expr(dtype.Bool, 2)
		}
		g.b.Do(st)
	}
	return g.b.K
}
