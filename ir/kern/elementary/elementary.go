// Package elementary defines exp, log, tanh, erf, sin and their kin once, for f32
// and f64: which operations, in which order, make up each. Whoever can do the
// operations (interface Real) has the functions: package scalar on Go's floats,
// package kern on expressions. So the bits are the same everywhere.
//
// All are branch-free (both sides of a condition are computed), built from IEEE
// operations, fma and bit tricks. Accuracy is stated at each function in units in
// the last place as measured by the tests; f32 first. Sources: fdlibm (FreeBSD msun,
// also in Go's package math), Cephes (S. Moshier), N. Juffa's single-precision
// kernels, M. Giles' and Wichura's erfinv; coefficients without a source are
// minimax fits (Remez).
package elementary

import "math"

// Real is arithmetic on floats V of 32 or 64 bits, integers I of that width and
// truth values B.
type Real[V, I, B any] interface {
	Bits() int
	C(x float64) V // x rounded to the width
	Neg(x V) V
	Abs(x V) V
	Sqrt(x V) V
	Rint(x V) V
	Add(x, y V) V
	Sub(x, y V) V
	Mul(x, y V) V
	Div(x, y V) V
	Fma(x, y, z V) V
	Min(x, y V) V // x where x < y or x is NaN, else y
	Max(x, y V) V
	Lt(x, y V) B
	Eq(x, y V) B
	And(x, y B) B
	Or(x, y B) B
	Not(x B) B
	Select(c B, x, y V) V
	ToBits(x V) I
	FromBits(x I) V
	N(x int64) I
	AddN(x, y I) I
	SubN(x, y I) I
	AndN(x, y I) I
	OrN(x, y I) I
	XorN(x, y I) I
	Shl(x I, n int) I
	Shr(x I, n int) I // logical
	ToFloat(x I) V    // signed
	NonZero(x I) B
}

// poly is c0·x^n + … + cn by Horner's rule, highest coefficient first.
func poly[V, I, B any](a Real[V, I, B], x V, c ...float64) V {
	r := a.C(c[0])
	for _, k := range c[1:] {
		r = a.Fma(r, x, a.C(k))
	}
	return r
}

// more is the higher part of a polynomial carried on.
func more[V, I, B any](a Real[V, I, B], r, x V, c ...float64) V {
	for _, k := range c {
		r = a.Fma(r, x, a.C(k))
	}
	return r
}

// format has the constants of a width.
type format struct {
	mant, bias  int
	signBit     int64
	inf         float64
	magic       float64 // 1.5 · 2^mant: adding it rounds to an integer
	expHi       float64 // exp overflows below it
	expLo       float64 // exp is 0 above it
	ln2hi, ln2l float64
}

func formatOf(bits int) format {
	if bits == 32 {
		return format{23, 127, math.MinInt32, math.Inf(1), 0x1.8p23, 89, -104, 0x1.62e4p-1, 0x1.7f7d1cp-20}
	}
	return format{52, 1023, math.MinInt64, math.Inf(1), 0x1.8p52, 710, -746, 6.93147180369123816490e-01, 1.90821492927058770002e-10}
}

func sign[V, I, B any](a Real[V, I, B], x V) I {
	return a.AndN(a.ToBits(x), a.N(formatOf(a.Bits()).signBit))
}

// copySign is |x| with the sign of y; x is not negative.
func copySign[V, I, B any](a Real[V, I, B], x, y V) V {
	return a.FromBits(a.OrN(a.ToBits(x), sign(a, y)))
}

// reduceExp splits x = n·ln 2 + r with |r| ≤ ln 2 / 2; n is an integer as I.
func reduceExp[V, I, B any](a Real[V, I, B], x V) (n I, r V) {
	f := formatOf(a.Bits())
	magic := a.C(f.magic)
	t := a.Fma(x, a.C(math.Log2E), magic)
	k := a.Sub(t, magic)
	r = a.Fma(k, a.C(-f.ln2hi), x)
	r = a.Fma(k, a.C(-f.ln2l), r)
	return a.SubN(a.ToBits(t), a.ToBits(magic)), r
}

// power2 is 2^n for n in the range of normal numbers.
func power2[V, I, B any](a Real[V, I, B], n I) V {
	f := formatOf(a.Bits())
	return a.FromBits(a.Shl(a.AddN(n, a.N(int64(f.bias))), f.mant))
}

// scale is p·2^n, rounded once, for |n| up to twice the exponent range.
func scale[V, I, B any](a Real[V, I, B], p V, n I) V {
	f := formatOf(a.Bits())
	// h = floor(n/2) + 512·… by a logical shift, which every width has.
	const big = 4096
	h := a.Shr(a.AddN(n, a.N(big)), 1)
	s1 := a.Shl(a.AddN(h, a.N(int64(f.bias)-big/2)), f.mant)
	s2 := a.Shl(a.SubN(a.AddN(n, a.N(int64(f.bias)+big/2)), h), f.mant)
	return a.Mul(a.Mul(p, a.FromBits(s1)), a.FromBits(s2))
}

// expPoly is e^r for |r| ≤ ln 2 / 2.
func expPoly[V, I, B any](a Real[V, I, B], r V) V {
	if a.Bits() == 32 {
		return poly(a, r, 0x1.6a24b67b9919fp-10, 0x1.1239e4e66a836p-7, 0x1.5558f0b53c5a4p-5, 0x1.555491505bf1ep-3,
			0x1.fffffb9b7f99ap-2, 1, 1)
	}
	return poly(a, r, 0x1.1e3cf47e91d56p-29, 0x1.af6be4e63fa53p-26, 0x1.27e5b4662b668p-22, 0x1.71ddf0229aa29p-19,
		0x1.a01a01368332bp-16, 0x1.a01a01b37d77bp-13, 0x1.6c16c16c304aap-10, 0x1.111111110ec5fp-7, 0x1.5555555555503p-5,
		0x1.555555555555bp-3, 0.5, 1, 1)
}

// Exp is e^x. 0.9 / 1 ulp, gradual underflow included.
func Exp[V, I, B any](a Real[V, I, B], x V) V {
	f := formatOf(a.Bits())
	x = a.Max(a.C(f.expLo), a.Min(a.C(f.expHi), x)) // NaN stays
	n, r := reduceExp(a, x)
	return scale(a, expPoly(a, r), n)
}

// expNormal is e^x where neither x nor the result leaves the normal range.
func expNormal[V, I, B any](a Real[V, I, B], x V) V {
	n, r := reduceExp(a, x)
	return a.Mul(expPoly(a, r), power2(a, n))
}

// Exp2 is 2^x. 1.1 / 1.1 ulp.
func Exp2[V, I, B any](a Real[V, I, B], x V) V {
	f := formatOf(a.Bits())
	limit := float64(f.bias + 2)
	x = a.Max(a.C(-limit-float64(f.mant)), a.Min(a.C(limit), x))
	magic := a.C(f.magic)
	t := a.Add(x, magic)
	r := a.Sub(x, a.Sub(t, magic))
	n := a.SubN(a.ToBits(t), a.ToBits(magic))
	return scale(a, expPoly(a, a.Mul(r, a.C(math.Ln2))), n)
}

// Expm1 is e^x - 1. 1.4 / 1.5 ulp.
func Expm1[V, I, B any](a Real[V, I, B], x V) V {
	f := formatOf(a.Bits())
	lo := -20.0
	if a.Bits() == 64 {
		lo = -40
	}
	y := a.Max(a.C(lo), a.Min(a.C(f.expHi), x))
	n, r := reduceExp(a, y)
	var q V
	if a.Bits() == 32 {
		q = poly(a, r, 0x1.a03318bfc7a88p-13, 0x1.6d71f41745dcap-10, 0x1.111189259b0b5p-7, 0x1.5554b1337eedcp-5,
			0x1.555554efbb5a0p-3, 0x1.00000025ede53p-1)
	} else {
		q = poly(a, r, 0x1.1ee7deacdae2dp-29, 0x1.af5e7267c2820p-26, 0x1.27e536927899fp-22, 0x1.71ddf8802604cp-19,
			0x1.a01a017b9b246p-16, 0x1.a01a01afd35f1p-13, 0x1.6c16c16c1f0f0p-10, 0x1.111111110f6dbp-7, 0x1.555555555553fp-5,
			0x1.5555555555559p-3, 0.5)
	}
	p := a.Fma(a.Mul(r, r), q, r)
	// Half of 2^n·(p+1) - 1, doubled: 2^n itself may overflow.
	s := power2(a, a.SubN(n, a.N(1)))
	h := a.Fma(s, p, a.Sub(s, a.C(0.5)))
	return a.Select(a.Eq(x, a.C(0)), x, a.Add(h, h))
}

// reduceLog splits x > 0 into m·2^e with m in [2/3, 4/3) (f32) or [√½, √2) (f64).
func reduceLog[V, I, B any](a Real[V, I, B], x V) (m, e V) {
	f := formatOf(a.Bits())
	least, up := math.Ldexp(1, 1-f.bias), float64(f.mant)
	tiny := a.Lt(x, a.C(least))
	x = a.Select(tiny, a.Mul(x, a.C(math.Ldexp(1, f.mant))), x)
	e = a.Select(tiny, a.C(-up), a.C(0))
	from := int64(0x3f2aaaab)
	if a.Bits() == 64 {
		from = 0x3fe6a09e667f3bcd
	}
	u := a.ToBits(x)
	i := a.AndN(a.SubN(u, a.N(from)), a.N(-1<<f.mant)) // exponent, in place
	m = a.FromBits(a.SubN(u, i))
	if a.Bits() == 32 {
		return m, a.Fma(a.ToFloat(i), a.C(0x1p-23), e)
	}
	// No fast conversion of 64-bit integers: put the exponent, biased, into the mantissa
	// of 2^52 instead.
	k := a.FromBits(a.OrN(a.Shr(a.AddN(i, a.N(1<<62)), f.mant), a.N(0x4330000000000000)))
	return m, a.Add(a.Sub(k, a.C(0x1p52+0x1p10)), e)
}

// log1pCore is log(1+f) + c for f in the range of reduceLog minus 1, and a small c.
func log1pCore[V, I, B any](a Real[V, I, B], f V, e V, c *V) V {
	if a.Bits() == 32 {
		// N. Juffa, max error 0.86 ulp.
		s := a.Mul(f, f)
		r := poly(a, s, -0x1.0ae000p-3, -0x1.f198b2p-4, -0x1.55b36cp-3, -0x1.fffe02p-3)
		t := poly(a, s, 0x1.208000p-3, 0x1.1e5740p-3, 0x1.99d8b2p-3)
		r = a.Fma(t, f, r)
		r = more(a, r, f, 0x1.5554fap-2, -0.5)
		r = a.Fma(r, s, f)
		if c != nil {
			r = a.Add(r, *c)
		}
		return a.Fma(e, a.C(math.Ln2), r)
	}
	// fdlibm e_log.c
	s := a.Div(f, a.Add(a.C(2), f))
	z := a.Mul(s, s)
	w := a.Mul(z, z)
	t1 := a.Mul(w, poly(a, w, 1.531383769920937332e-01, 2.222219843214978396e-01, 3.999999999940941908e-01))
	t2 := a.Mul(z, poly(a, w, 1.479819860511658591e-01, 1.818357216161805012e-01, 2.857142874366239149e-01, 6.666666666666735130e-01))
	h := a.Mul(a.C(0.5), a.Mul(f, f))
	k := formatOf(64)
	low := a.Mul(e, a.C(k.ln2l))
	if c != nil {
		low = a.Add(low, *c)
	}
	r := a.Fma(s, a.Add(h, a.Add(t1, t2)), low)
	return a.Fma(e, a.C(k.ln2hi), a.Sub(f, a.Sub(h, r)))
}

// logEnds puts in the values of a logarithm outside of 0 < x < ∞.
func logEnds[V, I, B any](a Real[V, I, B], x, r V) V {
	inf := formatOf(a.Bits()).inf
	r = a.Select(a.Lt(x, a.C(inf)), r, x) // +∞ and NaN
	r = a.Select(a.Lt(x, a.C(0)), a.C(math.NaN()), r)
	return a.Select(a.Eq(x, a.C(0)), a.C(-inf), r)
}

// Log is the natural logarithm. 0.9 / 1 ulp.
func Log[V, I, B any](a Real[V, I, B], x V) V {
	m, e := reduceLog(a, x)
	return logEnds(a, x, log1pCore(a, a.Sub(m, a.C(1)), e, nil))
}

// Log2 is the logarithm of base 2. 1.6 / 1.6 ulp.
func Log2[V, I, B any](a Real[V, I, B], x V) V {
	m, e := reduceLog(a, x)
	l := log1pCore(a, a.Sub(m, a.C(1)), a.C(0), nil)
	return logEnds(a, x, a.Fma(l, a.C(math.Log2E), e))
}

// Log1p is log(1+x). 1.5 / 1.5 ulp.
func Log1p[V, I, B any](a Real[V, I, B], x V) V {
	one := a.C(1)
	u := a.Add(one, x)
	b := a.Sub(u, one)
	c := a.Add(a.Sub(one, a.Sub(u, b)), a.Sub(x, b)) // 1 + x = u + c
	c = a.Div(c, u)
	m, e := reduceLog(a, u)
	r := logEnds(a, u, log1pCore(a, a.Sub(m, one), e, &c))
	return a.Select(a.Eq(x, a.C(0)), x, r)
}

// Tanh: Cephes tanh.c and tanhf.c. 1.3 / 1.4 ulp.
func Tanh[V, I, B any](a Real[V, I, B], x V) V {
	abs := a.Abs(x)
	z := a.Mul(x, x)
	var small V
	limit := 10.0
	if a.Bits() == 32 {
		p := poly(a, z, -5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
		small = a.Fma(a.Mul(p, z), abs, abs)
	} else {
		limit = 22
		p := poly(a, z, -9.64399179425052238628e-1, -9.92877231001918586564e1, -1.61468768441708447952e3)
		q := poly(a, z, 1, 1.12811678491632931402e2, 2.23548839060100448583e3, 4.84406305325125486048e3)
		small = a.Fma(a.Mul(a.Div(p, q), z), abs, abs)
	}
	y := a.Min(a.C(limit), abs)
	e := expNormal(a, a.Add(y, y))
	large := a.Sub(a.C(1), a.Div(a.C(2), a.Add(e, a.C(1))))
	return copySign(a, a.Select(a.Lt(abs, a.C(0.625)), small, large), x)
}

// overflowing is the argument from which on e^x may overflow.
func overflowing[V, I, B any](a Real[V, I, B]) V { return a.C(formatOf(a.Bits()).expHi - 2) }

// Sinh. 2.4 / 2.4 ulp.
func Sinh[V, I, B any](a Real[V, I, B], x V) V {
	abs := a.Abs(x)
	t := Expm1(a, abs)
	r := a.Mul(a.C(0.5), a.Add(t, a.Div(t, a.Add(t, a.C(1)))))
	h := Exp(a, a.Mul(a.C(0.5), abs))
	r = a.Select(a.Lt(overflowing(a), abs), a.Mul(a.Mul(a.C(0.5), h), h), r)
	return copySign(a, r, x)
}

// Cosh. 2.0 / 2.0 ulp (beyond the overflow of exp 3).
func Cosh[V, I, B any](a Real[V, I, B], x V) V {
	abs := a.Abs(x)
	t := Exp(a, abs)
	r := a.Fma(a.C(0.5), t, a.Div(a.C(0.5), t))
	h := Exp(a, a.Mul(a.C(0.5), abs))
	return a.Select(a.Lt(overflowing(a), abs), a.Mul(a.Mul(a.C(0.5), h), h), r)
}

// Sigmoid is 1/(1+e^-x). 2.2 / 2 ulp.
func Sigmoid[V, I, B any](a Real[V, I, B], x V) V {
	e := Exp(a, a.Neg(a.Abs(x)))
	num := a.Select(a.Lt(x, a.C(0)), e, a.C(1))
	return a.Div(num, a.Add(a.C(1), e))
}

// Softplus is log(1+e^x). 2 / 2 ulp.
func Softplus[V, I, B any](a Real[V, I, B], x V) V {
	return a.Add(a.Max(x, a.C(0)), Log1p(a, Exp(a, a.Neg(a.Abs(x)))))
}

// Rsqrt is 1/√x, both rounded. 1.4 / 1.4 ulp.
func Rsqrt[V, I, B any](a Real[V, I, B], x V) V { return a.Div(a.C(1), a.Sqrt(x)) }

// Erf: f32 by N. Juffa, f64 fdlibm s_erf.c. 1.1 / 1.2 ulp.
func Erf[V, I, B any](a Real[V, I, B], x V) V {
	abs := a.Abs(x)
	if a.Bits() == 32 {
		s := a.Mul(x, x)
		t := a.Min(a.C(4), abs)
		r := a.Fma(a.C(-0x1.220000p-16), t, a.C(0x1.91cfb2p-12))
		u := a.Fma(a.C(-0x1.fd1438p-9), t, a.C(0x1.8d6342p-6))
		r = a.Fma(r, a.Mul(t, t), u)
		r = more(a, r, t, -0x1.b55cb8p-4, -0x1.450aa0p-1, -0x1.079d0cp-3)
		r = a.Fma(r, t, a.Neg(t))
		large := copySign(a, a.Sub(a.C(1), expNormal(a, r)), x)
		p := poly(a, s, -0x1.38e000p-11, 0x1.471a58p-8, -0x1.b691b2p-6, 0x1.ce1c44p-4, -0x1.812700p-2, 0x1.06eba8p-3)
		small := a.Fma(p, x, x)
		return a.Select(a.Lt(a.C(0.927734375), abs), large, small)
	}
	z := a.Mul(x, x)
	small := a.Fma(x, a.Div(
		poly(a, z, -2.37630166566501626084e-05, -5.77027029648944159157e-03, -2.84817495755985104766e-02, -3.25042107247001499370e-01, 1.28379167095512558561e-01),
		poly(a, z, -3.96022827877536812320e-06, 1.32494738004321644526e-04, 5.08130628187576562776e-03, 6.50222499887672944485e-02, 3.97917223959155352819e-01, 1)), x)
	s := a.Sub(abs, a.C(1))
	middle := a.Add(a.C(8.45062911510467529297e-01), a.Div(
		poly(a, s, -2.16637559486879084300e-03, 3.54783043256182359371e-02, -1.10894694282396677476e-01, 3.18346619901161753674e-01, -3.72207876035701323847e-01, 4.14856118683748331666e-01, -2.36211856075265944077e-03),
		poly(a, s, 1.19844998467991074170e-02, 1.36370839120290507362e-02, 1.26171219808761642112e-01, 7.18286544141962662868e-02, 5.40397917702171048937e-01, 1.06420880400844228286e-01, 1)))
	t := a.Min(a.C(6), abs)
	i := a.Div(a.C(1), a.Mul(t, t))
	r1 := a.Div(
		poly(a, i, -9.81432934416914548592e+00, -8.12874355063065934246e+01, -1.84605092906711035994e+02, -1.62396669462573470355e+02, -6.23753324503260060396e+01, -1.05586262253232909814e+01, -6.93858572707181764372e-01, -9.86494403484714822705e-03),
		poly(a, i, -6.04244152148580987438e-02, 6.57024977031928170135e+00, 1.08635005541779435134e+02, 4.29008140027567833386e+02, 6.45387271733267880336e+02, 4.34565877475229228821e+02, 1.37657754143519042600e+02, 1.96512716674392571292e+01, 1))
	r2 := a.Div(
		poly(a, i, -4.83519191608651397019e+02, -1.02509513161107724954e+03, -6.37566443368389627722e+02, -1.60636384855821916062e+02, -1.77579549177547519889e+01, -7.99283237680523006574e-01, -9.86494292470009928597e-03),
		poly(a, i, -2.24409524465858183362e+01, 4.74528541206955367215e+02, 2.55305040643316442583e+03, 3.19985821950859553908e+03, 1.53672958608443695994e+03, 3.25792512996573918826e+02, 3.03380607434824582924e+01, 1))
	r := a.Select(a.Lt(t, a.C(1/0.35)), r1, r2)
	e := expNormal(a, a.Sub(a.Fma(a.Neg(t), t, a.C(-0.5625)), a.Neg(r)))
	large := a.Sub(a.C(1), a.Div(e, t))
	outer := copySign(a, a.Select(a.Lt(abs, a.C(1.25)), middle, large), x)
	return a.Select(a.Lt(abs, a.C(0.84375)), small, a.Select(a.Eq(x, x), outer, x))
}

// Asin. Cephes asinf.c, fdlibm e_asin.c. 2.2 / 1.5 ulp.
func Asin[V, I, B any](a Real[V, I, B], x V) V {
	abs := a.Abs(x)
	big := a.Lt(a.C(0.5), abs)
	r := asinParts(a, abs, big)
	// For big: π/2 - 2r.
	outer := a.Sub(a.C(math.Pi/2), a.Sub(a.Add(r, r), a.C(halfPiLow(a.Bits()))))
	return copySign(a, a.Select(big, outer, r), x)
}

// Acos. 2.0 / 1.5 ulp.
func Acos[V, I, B any](a Real[V, I, B], x V) V {
	abs := a.Abs(x)
	big := a.Lt(a.C(0.5), abs)
	r := asinParts(a, abs, big)
	low := a.C(halfPiLow(a.Bits()))
	neg := a.Lt(x, a.C(0))
	s := a.FromBits(a.XorN(a.ToBits(r), sign(a, x))) // asin x, for small |x|
	small := a.Sub(a.C(math.Pi/2), a.Sub(s, low))
	r2 := a.Add(r, r)
	left := a.Sub(a.C(math.Pi), a.Sub(r2, a.Add(low, low)))
	return a.Select(big, a.Select(neg, left, r2), small)
}

// halfPiLow is π/2 less its rounded value.
func halfPiLow(bits int) float64 {
	if bits == 32 {
		return math.Pi/2 - float64(float32(math.Pi/2))
	}
	return 6.123233995736766035868820147292e-17
}

// asinParts is asin y for y = x ≤ ½, and asin √((1-x)/2) for greater x.
func asinParts[V, I, B any](a Real[V, I, B], x V, big B) V {
	half := a.Mul(a.C(0.5), a.Sub(a.C(1), x))
	z := a.Select(big, half, a.Mul(x, x))
	y := a.Select(big, a.Sqrt(half), x)
	var p V
	if a.Bits() == 32 {
		p = poly(a, z, 4.2163199048e-2, 2.4181311049e-2, 4.5470025998e-2, 7.4953002686e-2, 1.6666752422e-1)
	} else {
		p = a.Div(
			poly(a, z, 3.47933107596021167570e-05, 7.91534994289814532176e-04, -4.00555345006794114027e-02, 2.01212532134862925881e-01, -3.25565818622400915405e-01, 1.66666666666666657415e-01),
			poly(a, z, 7.70381505559019352791e-02, -6.88283971605453293030e-01, 2.02094576023350569471e+00, -2.40339491173441421878e+00, 1))
	}
	return a.Fma(a.Mul(p, z), y, y)
}

// Atan: Cephes atanf.c, atan.c. 2.2 / 1.5 ulp.
func Atan[V, I, B any](a Real[V, I, B], x V) V {
	return copySign(a, atanRatio(a, a.Abs(x), a.C(1)), x)
}

// atanRatio is atan(y/x) for y, x ≥ 0 and x > 0.
func atanRatio[V, I, B any](a Real[V, I, B], y, x V) V {
	q := a.Div(y, x)
	mid := 0.66
	if a.Bits() == 32 {
		mid = 0.41421356237309504880
	}
	far := a.Lt(a.C(2.41421356237309504880), q)
	near := a.Not(a.Lt(a.C(mid), q))
	one := a.C(1)
	num := a.Select(far, a.C(-1), a.Sub(q, one))
	den := a.Select(far, q, a.Add(q, one))
	t := a.Select(near, q, a.Div(num, den))
	low := halfPiLow(a.Bits())
	base := a.Select(far, a.C(math.Pi/2), a.Select(near, a.C(0), a.C(math.Pi/4)))
	low2 := a.Select(far, a.C(low), a.Select(near, a.C(0), a.C(low/2)))
	z := a.Mul(t, t)
	var p V
	if a.Bits() == 32 {
		p = poly(a, z, 8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)
	} else {
		p = a.Div(
			poly(a, z, -8.750608600031904122785e-01, -1.615753718733365076637e+01, -7.500855792314704667340e+01, -1.228866684490136173410e+02, -6.485021904942025371773e+01),
			poly(a, z, 1, 2.485846490142306297962e+01, 1.650270098316988542046e+02, 4.328810604912902668951e+02, 4.853903996359136964868e+02, 1.945506571482613964425e+02))
	}
	return a.Add(base, a.Fma(a.Mul(p, z), t, a.Add(t, low2)))
}

// Atan2 is the angle of the point (x, y), with IEEE's values at zeros and
// infinities. 2.5 / 2.5 ulp.
func Atan2[V, I, B any](a Real[V, I, B], y, x V) V {
	inf := a.C(math.Inf(1))
	ay, ax := a.Abs(y), a.Abs(x)
	both := a.And(a.Eq(ay, inf), a.Eq(ax, inf))
	none := a.And(a.Eq(ay, a.C(0)), a.Eq(ax, a.C(0)))
	ay = a.Select(both, a.C(1), ay)
	ax = a.Select(a.Or(both, none), a.C(1), ax)
	r := atanRatio(a, ay, ax)
	low := a.C(2 * halfPiLow(a.Bits()))
	left := a.Sub(a.C(math.Pi), a.Sub(r, low))
	r = a.Select(a.NonZero(sign(a, x)), left, r)
	return copySign(a, r, y)
}

// ErfInv is the inverse of Erf. f32: M. Giles, Approximating the erfinv function
// (3 ulp for |x| < 0.9, 6 beyond). f64: Wichura, AS 241.
func ErfInv[V, I, B any](a Real[V, I, B], x V) V {
	one := a.C(1)
	var r V
	if a.Bits() == 32 {
		w := a.Neg(Log(a, a.Mul(a.Sub(one, x), a.Add(one, x))))
		near := poly(a, a.Sub(w, a.C(2.5)), 2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164, 0.246640727, 1.50140941)
		far := poly(a, a.Sub(a.Sqrt(w), a.C(3)), -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047, 1.00167406, 2.83297682)
		r = a.Mul(a.Select(a.Lt(w, a.C(5)), near, far), x)
		r = a.Select(a.Eq(a.Abs(x), one), copySign(a, a.C(math.Inf(1)), x), r)
	} else {
		abs := a.Abs(x)
		q := a.Fma(a.Mul(a.C(-0.25), abs), abs, a.C(0.180625))
		near := a.Mul(abs, a.Div(
			poly(a, q, 8.8709406962545514830200e2, 1.1819493347062294404278e4, 2.3782041382114385731252e4, 1.6235862515167575384252e4, 4.8548868893843886794648e3, 6.9706266534389598238465e2, 4.7072688112383978012285e1, 1.1975323115670912564578e0),
			poly(a, q, 5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4, 2.1213794301586595867e4, 5.3941960214247511077e3, 6.8718700749205790830e2, 4.2313330701600911252e1, 1)))
		s := a.Sqrt(a.Sub(a.C(math.Ln2), Log(a, a.Sub(one, abs))))
		t := a.Sub(s, a.C(1.6))
		mid := a.Div(
			poly(a, t, 7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1, 1.27045825245236838258e0, 3.64784832476320460504e0, 5.76949722146069140550e0, 4.63033784615654529590e0, 1.42343711074968357734e0),
			poly(a, t, 1.4859850019840355905497876e-9, 7.7441459065157709165577218e-4, 2.1494160384252876777097297e-2, 2.0945065210512749128288442e-1, 9.7547832001787427186894837e-1, 2.3707661626024532365971225e0, 2.9036514445419946173133295e0, 1.4142135623730950488016887e0))
		t = a.Sub(s, a.C(5))
		far := a.Div(
			poly(a, t, 2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3, 2.65321895265761230930e-2, 2.96560571828504891230e-1, 1.78482653991729133580e0, 5.46378491116411436990e0, 6.65790464350110377720e0),
			poly(a, t, 2.891024605872965461538222e-15, 2.010321207683943062279931e-7, 2.611088405080593625138020e-5, 1.112800997078859844711555e-3, 2.103693768272068968719679e-2, 1.936480946950659106176712e-1, 8.482908416595164588112026e-1, 1.414213562373095048801689e0))
		r = a.Select(a.Lt(a.C(0.85), abs), a.Select(a.Lt(a.C(5), s), far, mid), near)
		r = a.Select(a.Eq(abs, one), a.C(math.Inf(1)), r)
		r = copySign(a, r, x)
	}
	return a.Select(a.Lt(one, a.Abs(x)), a.C(math.NaN()), r)
}

// Asinh is log(x + √(x²+1)). 3 / 3 ulp.
func Asinh[V, I, B any](a Real[V, I, B], x V) V {
	abs := a.Abs(x)
	one := a.C(1)
	huge := a.Lt(a.C(math.Ldexp(1, a.Bits()/2-2)), abs)
	q := a.Mul(abs, abs)
	small := Log1p(a, a.Add(abs, a.Div(q, a.Add(one, a.Sqrt(a.Add(q, one))))))
	large := a.Add(Log(a, abs), a.C(math.Ln2))
	return copySign(a, a.Select(huge, large, small), x)
}

// Acosh is log(x + √(x²-1)), for x ≥ 1. 3 / 3 ulp.
func Acosh[V, I, B any](a Real[V, I, B], x V) V {
	huge := a.Lt(a.C(math.Ldexp(1, a.Bits()/2-2)), x)
	t := a.Sub(x, a.C(1))
	small := Log1p(a, a.Add(t, a.Sqrt(a.Fma(t, t, a.Add(t, t)))))
	large := a.Add(Log(a, x), a.C(math.Ln2))
	r := a.Select(huge, large, small)
	return a.Select(a.Lt(x, a.C(1)), a.C(math.NaN()), r)
}

// Atanh is ½·log((1+x)/(1-x)). 3 / 3 ulp.
func Atanh[V, I, B any](a Real[V, I, B], x V) V {
	abs := a.Abs(x)
	r := a.Mul(a.C(0.5), Log1p(a, a.Div(a.Add(abs, abs), a.Sub(a.C(1), abs))))
	return copySign(a, r, x)
}
