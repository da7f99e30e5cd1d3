package ops

// Elementary functions: one polynomial each, built from fma, division and square root
// (packages kern and kern/scalar); the reference is the scalar twin of the kernel form.

import (
	"math"

	"reprise/ir"
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
		f("exp", "e to the power x.", 20, tmpFn("Exp"),
			func(b B, _, y, dy V) V { return mul(b, dy, y) }),
		f("expm1", "e to the power x, less 1, exact near 0.", 25, tmpFn("Expm1"),
			func(b B, _, y, dy V) V { return mul(b, dy, plus(b, y, 1)) }),
		f("log", "The natural logarithm.", 20, tmpFn("Log"),
			func(b B, x, _, dy V) V { return div(b, dy, x) }),
		f("log1p", "The natural logarithm of 1 + x, exact near 0.", 25, tmpFn("Log1p"),
			func(b B, x, _, dy V) V { return div(b, dy, plus(b, x, 1)) }),
		f("sqrt", "The square root, IEEE.", 4, fn1(scalar.Sqrt32, math.Sqrt, kern.Sqrt),
			func(b B, _, y, dy V) V { return div(b, times(b, dy, 0.5), y) }),
		f("rsqrt", "`1 / sqrt(x)`: two roundings.", 8,
			fn1(func(x float32) float32 { return 1 / scalar.Sqrt32(x) }, func(x float64) float64 { return 1 / math.Sqrt(x) },
				func(x *kern.Expr) *kern.Expr { return kern.Div(lit(x, 1), kern.Sqrt(x)) }),
			func(b B, x, y, dy V) V { return div(b, mul(b, times(b, dy, -0.5), y), x) }),
		f("cbrt", "The cube root.", 30, tmpFn("Cbrt"),
			func(b B, _, y, dy V) V { return div(b, dy, times(b, mul(b, y, y), 3)) }),
		f("sin", "The sine.", 30, tmpFn("Sin"),
			func(b B, x, _, dy V) V { return mul(b, dy, call1(b, "cos", x)) }),
		f("cos", "The cosine.", 30, tmpFn("Cos"),
			func(b B, x, _, dy V) V { return neg(b, mul(b, dy, call1(b, "sin", x))) }),
		f("tan", "The tangent.", 40, tmpFn("Tan"),
			func(b B, _, y, dy V) V { return mul(b, dy, onePlusSq(b, y)) }),
		f("tanh", "The hyperbolic tangent.", 25, tmpFn("Tanh"),
			func(b B, _, y, dy V) V { return mul(b, dy, oneMinusSq(b, y)) }),
		f("sinh", "The hyperbolic sine.", 30, tmpFn("Sinh"),
			func(b B, x, _, dy V) V { return mul(b, dy, call1(b, "cosh", x)) }),
		f("cosh", "The hyperbolic cosine.", 30, tmpFn("Cosh"),
			func(b B, x, _, dy V) V { return mul(b, dy, call1(b, "sinh", x)) }),
		f("asin", "The angle in [-π/2, π/2] whose sine is x.", 30, tmpFn("Asin"),
			func(b B, x, _, dy V) V { return mul(b, dy, call1(b, "rsqrt", oneMinusSq(b, x))) }),
		f("acos", "The angle in [0, π] whose cosine is x.", 30, tmpFn("Acos"),
			func(b B, x, _, dy V) V { return neg(b, mul(b, dy, call1(b, "rsqrt", oneMinusSq(b, x)))) }),
		f("atan", "The angle in [-π/2, π/2] whose tangent is x.", 30, tmpFn("Atan"),
			func(b B, x, _, dy V) V { return div(b, dy, onePlusSq(b, x)) }),
		f("erf", "The error function, 2/√π ∫₀ˣ exp(-t²) dt.", 30, tmpFn("Erf"),
			func(b B, x, _, dy V) V {
				return mul(b, dy, times(b, call1(b, "exp", neg(b, mul(b, x, x))), 2/math.Sqrt(math.Pi)))
			}),
		f("erf_inv", "The inverse of erf on (-1, 1).", 30, tmpFn("ErfInv"),
			func(b B, _, y, dy V) V {
				return mul(b, dy, times(b, call1(b, "exp", mul(b, y, y)), math.Sqrt(math.Pi)/2))
			}),
		f("logistic", "`1 / (1 + exp(-x))`: the sigmoid.", 26, tmpFn("Logistic"),
			func(b B, _, y, dy V) V { return mul(b, dy, mul(b, y, sub(b, full(b, y.Type, 1), y))) }),
	}
}

// remExpr is C's fmod for floats, and OpRem for integers.
func remExpr(a, b *kern.Expr) *kern.Expr {
	if a.DType.IsFloat() {
		return tmpExpr()
	}
	return kern.Rem(a, b)
}
