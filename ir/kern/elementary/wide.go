package elementary

import "math"

// Pair is f32 arithmetic with f64 beside it, for functions of f32 whose inner part
// is done in f64.
type Pair[V, I, W, J, B any] struct {
	Real[V, I, B]
	Wide Real[W, J, B]
	Up   func(V) W
	Down func(W) V
	Cut  func(J) I // the low 32 bits
}

// Trigonometry. The argument is reduced by multiples of π/2; beyond 2^45 (f64: 2^30
// for full accuracy) the quadrant is no longer known and the result is NaN.

// sinCosPoly is sin and cos of r + c, |r| ≤ π/4 and c small.
func sinCosPoly[V, I, B any](a Real[V, I, B], r V, c *V) (sin, cos V) {
	z := a.Mul(r, r)
	var p, q V
	if a.Bits() == 32 { // Cephes sinf.c
		p = poly(a, z, -1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
		q = poly(a, z, 2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)
	} else { // Cephes sin.c
		p = poly(a, z, 1.58962301576546568060e-10, -2.50507477628578072866e-8, 2.75573136213857245213e-6, -1.98412698295895385996e-4, 8.33333333332211858878e-3, -1.66666666666666307295e-1)
		q = poly(a, z, -1.13585365213876817300e-11, 2.08757008419747316778e-9, -2.75573141792967388112e-7, 2.48015872888517045348e-5, -1.38888888888730564116e-3, 4.16666666666665929218e-2)
	}
	if c == nil {
		sin = a.Fma(a.Mul(p, z), r, r)
		cos = a.Fma(z, a.Fma(z, q, a.C(-0.5)), a.C(1))
		return sin, cos
	}
	sin = a.Add(r, a.Fma(a.Mul(p, z), r, *c))
	// 1 - z/2 is rounded; what is lost comes back with the rest.
	h := a.Mul(a.C(0.5), z)
	w := a.Sub(a.C(1), h)
	lost := a.Sub(a.Sub(a.C(1), w), h)
	cos = a.Add(w, a.Fma(a.Mul(z, z), q, a.Sub(lost, a.Mul(r, *c))))
	return sin, cos
}

// reducePi gives the quadrant (its two low bits) and the remainder r + c of an f64.
func reducePi[V, I, B any](a Real[V, I, B], x V) (n I, r, c V) {
	const p1, p2, p3 = 0x1.921fb54442d18p0, 0x1.1a62633145c07p-54, -0x1.f1976b7ed8fbcp-110
	magic := a.C(0x1.8p52)
	t := a.Fma(x, a.C(2/math.Pi), magic)
	k := a.Sub(t, magic)
	r1 := a.Fma(k, a.C(-p1), x)
	p := a.Mul(k, a.C(p2))
	e := a.Fma(k, a.C(p2), a.Neg(p))
	r = a.Sub(r1, p)
	c = a.Sub(a.Sub(a.Sub(r1, r), p), a.Fma(k, a.C(p3), e))
	return a.ToBits(t), r, c
}

// quadrant picks and signs sin (shift 0) or cos (shift 1) of quadrant n.
func quadrant[V, I, B any](a Real[V, I, B], n I, shift int64, sin, cos V) V {
	n = a.AddN(n, a.N(shift))
	r := a.Select(a.NonZero(a.AndN(n, a.N(1))), cos, sin)
	s := a.Shl(a.AndN(n, a.N(2)), a.Bits()-2)
	return a.FromBits(a.XorN(a.ToBits(r), s))
}

func inDomain[V, I, B any](a Real[V, I, B], x, r V) V {
	return a.Select(a.Lt(a.Abs(x), a.C(0x1p45)), r, a.C(math.NaN()))
}

// sinCos64 is sin (shift 0), cos (shift 1) of an f64. 1 ulp up to 2^30.
func sinCos64[V, I, B any](a Real[V, I, B], x V, shift int64) V {
	n, r, c := reducePi(a, x)
	s, co := sinCosPoly(a, r, &c)
	y := inDomain(a, x, quadrant(a, n, shift, s, co))
	if shift == 0 {
		y = a.Select(a.Eq(x, a.C(0)), x, y)
	}
	return y
}

// sinCos32 is sin or cos of an f32, reduced in f64. 1.5 ulp.
func sinCos32[V, I, W, J, B any](p Pair[V, I, W, J, B], x V, shift int64) V {
	n, wide, _ := reducePi(p.Wide, p.Up(x))
	s, c := sinCosPoly(p.Real, p.Down(wide), nil)
	y := inDomain(p.Real, x, quadrant(p.Real, p.Cut(n), shift, s, c))
	if shift == 0 {
		y = p.Select(p.Eq(x, p.C(0)), x, y)
	}
	return y
}

// Sin64, Cos64 and Tan64 are the functions of f64. 1, 1, 3 ulp.
func Sin64[V, I, B any](a Real[V, I, B], x V) V { return sinCos64(a, x, 0) }
func Cos64[V, I, B any](a Real[V, I, B], x V) V { return sinCos64(a, x, 1) }
func Tan64[V, I, B any](a Real[V, I, B], x V) V { return a.Div(Sin64(a, x), Cos64(a, x)) }

// Sin32, Cos32 and Tan32 are the functions of f32. 1.5, 1.5, 2.8 ulp.
func Sin32[V, I, W, J, B any](p Pair[V, I, W, J, B], x V) V { return sinCos32(p, x, 0) }
func Cos32[V, I, W, J, B any](p Pair[V, I, W, J, B], x V) V { return sinCos32(p, x, 1) }
func Tan32[V, I, W, J, B any](p Pair[V, I, W, J, B], x V) V { return p.Div(Sin32(p, x), Cos32(p, x)) }

// powEnds puts C's special values of pow into r, the power of |x| by y.
func powEnds[V, I, B any](a Real[V, I, B], x, y, r V) V {
	half := a.Mul(y, a.C(0.5))
	whole := a.Eq(a.Rint(y), y)
	even := a.Eq(a.Rint(half), half)
	neg := a.NonZero(sign(a, x))
	r = a.Select(a.And(neg, a.And(whole, a.Not(even))), a.Neg(r), r)
	bad := a.And(a.And(a.Lt(x, a.C(0)), a.Not(whole)), a.Lt(a.C(-math.MaxFloat32), x))
	if a.Bits() == 64 {
		bad = a.And(a.And(a.Lt(x, a.C(0)), a.Not(whole)), a.Lt(a.C(-math.Inf(1)), x))
	}
	r = a.Select(bad, a.C(math.NaN()), r)
	unit := a.Eq(a.Abs(x), a.C(1))
	infinite := a.Eq(a.Abs(y), a.C(math.Inf(1)))
	one := a.Or(a.Or(a.Eq(y, a.C(0)), a.Eq(x, a.C(1))), a.And(unit, infinite))
	return a.Select(one, a.C(1), r)
}

// Pow32 is x^y with C's special values, computed in f64. 0.51 ulp.
func Pow32[V, I, W, J, B any](p Pair[V, I, W, J, B], x, y V) V {
	w := p.Wide
	l := Log(w, w.Abs(p.Up(x)))
	return powEnds(p.Real, x, y, p.Down(Exp(w, w.Mul(l, p.Up(y)))))
}

// Pow64 is x^y with C's special values; the logarithm is carried in two f64. Up to
// 10 ulp where the result is near the ends of the range, 2 ulp otherwise.
func Pow64[V, I, B any](a Real[V, I, B], x, y V) V {
	abs := a.Abs(x)
	m, e := reduceLog(a, abs)
	// log m = 2·atanh s, s = f/(2+f), s in two parts.
	f := a.Sub(m, a.C(1))
	d := a.Add(a.C(2), f)
	dl := a.Add(a.Sub(a.C(2), d), f)
	s := a.Div(f, d)
	sl := a.Div(a.Sub(a.Fma(a.Neg(s), d, f), a.Mul(s, dl)), d)
	z := a.Mul(s, s)
	q := poly(a, z, 2.0/21, 2.0/19, 2.0/17, 2.0/15, 2.0/13, 2.0/11, 2.0/9, 2.0/7, 2.0/5, 2.0/3)
	tail := a.Fma(a.Mul(z, s), q, a.Add(sl, sl))
	// e·ln 2 + 2s + tail
	k := formatOf(64)
	eh := a.Mul(e, a.C(k.ln2hi)) // exact
	el := a.Mul(e, a.C(k.ln2l))
	s2 := a.Add(s, s)
	h := a.Add(eh, s2)
	t := a.Sub(h, eh)
	l := a.Add(a.Sub(eh, a.Sub(h, t)), a.Sub(s2, t))
	l = a.Add(l, a.Add(el, tail))
	hi := a.Add(h, l)
	lo := a.Sub(l, a.Sub(hi, h))
	// times y
	ph := a.Mul(hi, y)
	pl := a.Fma(lo, y, a.Fma(hi, y, a.Neg(ph)))
	inf := a.C(math.Inf(1))
	finite := a.And(a.And(a.Lt(abs, inf), a.Lt(a.C(0), abs)), a.Lt(a.Abs(ph), a.C(1000)))
	r := Exp(a, a.Select(finite, ph, a.Mul(logEnds(a, abs, hi), y)))
	fix := a.Fma(r, pl, r)
	r = a.Select(a.And(finite, a.Lt(r, inf)), fix, r)
	return powEnds(a, x, y, r)
}

// cbrtStart is a rough cube root of a normal x > 0 by thirds of its bits.
func cbrtStart[V, I, B any](a Real[V, I, B], x V) V {
	// The upper 31 bits as a float, divided by 3, and back: exact enough.
	h := a.Shr(a.ToBits(x), a.Bits()-32)
	t := a.Mul(a.ToFloat(h), a.C(1.0/3))
	b := a.Sub(a.Add(a.Add(t, a.C(715094163)), a.C(0x1.8p52)), a.C(0x1.8p52))
	n := a.SubN(a.ToBits(a.Add(b, a.C(0x1p52))), a.ToBits(a.C(0x1p52)))
	return a.FromBits(a.Shl(n, a.Bits()-32))
}

// cbrt64 is the cube root of x ≥ 0, f64. 0.7 ulp.
func cbrt64[V, I, B any](a Real[V, I, B], x V) V {
	tiny := a.Lt(x, a.C(0x1p-1000))
	y := a.Select(tiny, a.Mul(x, a.C(0x1p75)), x)
	t := cbrtStart(a, y)
	for range 3 { // Halley
		c := a.Mul(a.Mul(t, t), t)
		t = a.Mul(t, a.Div(a.Fma(a.C(2), y, c), a.Fma(a.C(2), c, y)))
	}
	// Newton with the residual y - t³ in two parts.
	t2 := a.Mul(t, t)
	e := a.Fma(t, t, a.Neg(t2))
	r := a.Sub(a.Fma(a.Neg(t2), t, y), a.Mul(e, t))
	t = a.Add(t, a.Div(r, a.Mul(a.C(3), t2)))
	t = a.Select(tiny, a.Mul(t, a.C(0x1p-25)), t)
	in := a.And(a.Lt(a.C(0), x), a.Lt(x, a.C(math.Inf(1))))
	return a.Select(in, t, x)
}

// Cbrt64 is the cube root of an f64. 0.7 ulp.
func Cbrt64[V, I, B any](a Real[V, I, B], x V) V { return copySign(a, cbrt64(a, a.Abs(x)), x) }

// Cbrt32 is the cube root of an f32, computed in f64. 0.5 ulp.
func Cbrt32[V, I, W, J, B any](p Pair[V, I, W, J, B], x V) V {
	return copySign(p.Real, p.Down(cbrt64(p.Wide, p.Up(p.Abs(x)))), x)
}
