package ops

// Elementary functions: one polynomial each, built from fma, division and square root
// (packages kern and kern/scalar); the reference is the scalar twin of the kernel form.

import (
	"math"

	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/kern"
	"reprise/ir/kern/scalar"
)

func functionRows() []*ir.OpDef {
	type B = *ir.Builder
	type V = *ir.Value
	// oneMinusSq is 1 - v².
	oneMinusSq := func(b B, v V) V { return sub(b, full(b, v.Type, 1), mul(b, v, v)) }
	onePlusSq := func(b B, v V) V { return plus(b, mul(b, v, v), 1) }
	f := func(name, doc string, flops int64, fn mapFn, vjp unaryVJP) *ir.OpDef {
		return unary(name, doc, floats, flops, fn, vjp)
	}
	return []*ir.OpDef{
		f("exp", "e to the power x.", 20, fn1(scalar.Exp32, scalar.Exp64, kern.Exp),
			func(b B, _, y, dy V) V { return mul(b, dy, y) }),
		f("expm1", "e to the power x, less 1, exact near 0.", 25, fn1(scalar.Expm1_32, scalar.Expm1_64, kern.Expm1),
			func(b B, _, y, dy V) V { return mul(b, dy, plus(b, y, 1)) }),
		f("log", "The natural logarithm.", 20, fn1(scalar.Log32, scalar.Log64, kern.Log),
			func(b B, x, _, dy V) V { return div(b, dy, x) }),
		f("log1p", "The natural logarithm of 1 + x, exact near 0.", 25, fn1(scalar.Log1p32, scalar.Log1p64, kern.Log1p),
			func(b B, x, _, dy V) V { return div(b, dy, plus(b, x, 1)) }),
		f("sqrt", "The square root, IEEE.", 4, fn1(scalar.Sqrt32, math.Sqrt, kern.Sqrt),
			func(b B, _, y, dy V) V { return div(b, times(b, dy, 0.5), y) }),
		f("rsqrt", "`1 / sqrt(x)`: two roundings.", 8,
			fn1(scalar.Rsqrt32, scalar.Rsqrt64, kern.Rsqrt),
			func(b B, _, y, dy V) V { return mul(b, mul(b, times(b, dy, -0.5), y), mul(b, y, y)) }),
		f("cbrt", "The cube root.", 30, fn1(scalar.Cbrt32, scalar.Cbrt64, kern.Cbrt),
			func(b B, _, y, dy V) V { return div(b, dy, times(b, mul(b, y, y), 3)) }),
		f("sin", "The sine.", 30, fn1(scalar.Sin32, scalar.Sin64, kern.Sin),
			func(b B, x, _, dy V) V { return mul(b, dy, call1(b, "cos", x)) }),
		f("cos", "The cosine.", 30, fn1(scalar.Cos32, scalar.Cos64, kern.Cos),
			func(b B, x, _, dy V) V { return neg(b, mul(b, dy, call1(b, "sin", x))) }),
		f("tan", "The tangent.", 40, fn1(scalar.Tan32, scalar.Tan64, kern.Tan),
			func(b B, _, y, dy V) V { return mul(b, dy, onePlusSq(b, y)) }),
		f("tanh", "The hyperbolic tangent.", 25, fn1(scalar.Tanh32, scalar.Tanh64, kern.Tanh),
			func(b B, _, y, dy V) V { return mul(b, dy, oneMinusSq(b, y)) }),
		f("sinh", "The hyperbolic sine.", 30, fn1(scalar.Sinh32, scalar.Sinh64, kern.Sinh),
			func(b B, x, _, dy V) V { return mul(b, dy, call1(b, "cosh", x)) }),
		f("cosh", "The hyperbolic cosine.", 30, fn1(scalar.Cosh32, scalar.Cosh64, kern.Cosh),
			func(b B, x, _, dy V) V { return mul(b, dy, call1(b, "sinh", x)) }),
		f("asin", "The angle in [-π/2, π/2] whose sine is x.", 30, fn1(scalar.Asin32, scalar.Asin64, kern.Asin),
			func(b B, x, _, dy V) V { return mul(b, dy, call1(b, "rsqrt", oneMinusSq(b, x))) }),
		f("acos", "The angle in [0, π] whose cosine is x.", 30, fn1(scalar.Acos32, scalar.Acos64, kern.Acos),
			func(b B, x, _, dy V) V { return neg(b, mul(b, dy, call1(b, "rsqrt", oneMinusSq(b, x)))) }),
		f("atan", "The angle in [-π/2, π/2] whose tangent is x.", 30, fn1(scalar.Atan32, scalar.Atan64, kern.Atan),
			func(b B, x, _, dy V) V { return div(b, dy, onePlusSq(b, x)) }),
		f("asinh", "The inverse of sinh.", 40, fn1(scalar.Asinh32, scalar.Asinh64, kern.Asinh),
			func(b B, x, _, dy V) V { return mul(b, dy, call1(b, "rsqrt", onePlusSq(b, x))) }),
		f("acosh", "The inverse of cosh on [1, ∞).", 40, fn1(scalar.Acosh32, scalar.Acosh64, kern.Acosh),
			func(b B, x, _, dy V) V { return mul(b, dy, call1(b, "rsqrt", plus(b, mul(b, x, x), -1))) }),
		f("atanh", "The inverse of tanh on (-1, 1).", 40, fn1(scalar.Atanh32, scalar.Atanh64, kern.Atanh),
			func(b B, x, _, dy V) V { return div(b, dy, oneMinusSq(b, x)) }),
		f("exp2", "2 to the power x.", 20, fn1(scalar.Exp2_32, scalar.Exp2_64, kern.Exp2),
			func(b B, _, y, dy V) V { return mul(b, dy, times(b, y, math.Ln2)) }),
		f("log2", "The logarithm to base 2.", 20, fn1(scalar.Log2_32, scalar.Log2_64, kern.Log2),
			func(b B, x, _, dy V) V { return div(b, times(b, dy, 1/math.Ln2), x) }),
		f("softplus", "`log(1 + exp(x))`.", 45, fn1(scalar.Softplus32, scalar.Softplus64, kern.Softplus),
			func(b B, x, _, dy V) V { return mul(b, dy, call1(b, "logistic", x)) }),
		f("erf", "The error function, 2/√π ∫₀ˣ exp(-t²) dt.", 30, fn1(scalar.Erf32, scalar.Erf64, kern.Erf),
			func(b B, x, _, dy V) V {
				return mul(b, dy, times(b, call1(b, "exp", neg(b, mul(b, x, x))), 2/math.Sqrt(math.Pi)))
			}),
		f("erf_inv", "The inverse of erf on (-1, 1).", 30, fn1(scalar.ErfInv32, scalar.ErfInv64, kern.ErfInv),
			func(b B, _, y, dy V) V {
				return mul(b, dy, times(b, call1(b, "exp", mul(b, y, y)), math.Sqrt(math.Pi)/2))
			}),
		f("logistic", "`1 / (1 + exp(-x))`: the sigmoid.", 26, fn1(scalar.Sigmoid32, scalar.Sigmoid64, kern.Sigmoid),
			func(b B, _, y, dy V) V { return mul(b, dy, mul(b, y, sub(b, full(b, y.Type, 1), y))) }),
	}
}

// remExpr is C's fmod for floats, and OpRem for integers.
//
// The quotient is taken apart from above: with s = |b|·2^(23k) (52 for f64) for falling k,
// t = trunc(r/s) is at most one too large and below 2^24, so r - t·s is exact in one fma,
// and so is the correction by s.
func remExpr(a, b *kern.Expr) *kern.Expr {
	if !a.DType.IsFloat() {
		return kern.Rem(a, b)
	}
	steps, width := 13, 0x1p23
	if a.DType == dtype.F64 {
		steps, width = 41, 0x1p52
	}
	scaled := []*kern.Expr{kern.Abs(b)}
	for len(scaled) < steps {
		scaled = append(scaled, kern.Mul(scaled[len(scaled)-1], lit(a, width)))
	}
	r, inf, zero := kern.Abs(a), lit(a, math.Inf(1)), lit(a, 0)
	for k := steps - 1; k >= 0; k-- {
		s := scaled[k]
		next := kern.Fma(kern.Neg(kern.Trunc(kern.Div(r, s))), s, r)
		next = kern.Select(kern.Lt(next, zero), kern.Add(next, s), next)
		r = kern.Select(kern.Lt(s, inf), next, r) // too large a multiple (or b infinite): r stays
	}
	r = kern.Select(kern.Lt(a, zero), kern.Neg(r), r)
	keep := kern.And(kern.Eq(a, zero), kern.Ne(b, zero)) // the sign of a zero
	return kern.Select(kern.Ne(b, b), b, kern.Select(keep, a, r))
}
