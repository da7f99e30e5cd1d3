package kern

import (
	"fmt"

	"reprise/ir/dtype"
	"reprise/ir/kern/elementary"
)

// The elementary functions (package elementary) as expressions of f32 or f64. Each
// has a twin in package scalar that gives the same bits. All are free of branches and may
// stand in strips.

func Exp(x *Expr) *Expr      { return elementary.Exp(realOf(x), x) }
func Exp2(x *Expr) *Expr     { return elementary.Exp2(realOf(x), x) }
func Expm1(x *Expr) *Expr    { return elementary.Expm1(realOf(x), x) }
func Log(x *Expr) *Expr      { return elementary.Log(realOf(x), x) }
func Log2(x *Expr) *Expr     { return elementary.Log2(realOf(x), x) }
func Log1p(x *Expr) *Expr    { return elementary.Log1p(realOf(x), x) }
func Tanh(x *Expr) *Expr     { return elementary.Tanh(realOf(x), x) }
func Sinh(x *Expr) *Expr     { return elementary.Sinh(realOf(x), x) }
func Cosh(x *Expr) *Expr     { return elementary.Cosh(realOf(x), x) }
func Sigmoid(x *Expr) *Expr  { return elementary.Sigmoid(realOf(x), x) }
func Softplus(x *Expr) *Expr { return elementary.Softplus(realOf(x), x) }
func Rsqrt(x *Expr) *Expr    { return elementary.Rsqrt(realOf(x), x) }
func Erf(x *Expr) *Expr      { return elementary.Erf(realOf(x), x) }
func ErfInv(x *Expr) *Expr   { return elementary.ErfInv(realOf(x), x) }
func Asin(x *Expr) *Expr     { return elementary.Asin(realOf(x), x) }
func Acos(x *Expr) *Expr     { return elementary.Acos(realOf(x), x) }
func Atan(x *Expr) *Expr     { return elementary.Atan(realOf(x), x) }
func Asinh(x *Expr) *Expr    { return elementary.Asinh(realOf(x), x) }
func Acosh(x *Expr) *Expr    { return elementary.Acosh(realOf(x), x) }
func Atanh(x *Expr) *Expr    { return elementary.Atanh(realOf(x), x) }
func Atan2(y, x *Expr) *Expr { return elementary.Atan2(realOf(x), y, x) }

func Sin(x *Expr) *Expr {
	return wide(x, func() *Expr { return elementary.Sin32(pair(), x) }, func() *Expr { return elementary.Sin64(realOf(x), x) })
}

func Cos(x *Expr) *Expr {
	return wide(x, func() *Expr { return elementary.Cos32(pair(), x) }, func() *Expr { return elementary.Cos64(realOf(x), x) })
}

func Tan(x *Expr) *Expr {
	return wide(x, func() *Expr { return elementary.Tan32(pair(), x) }, func() *Expr { return elementary.Tan64(realOf(x), x) })
}

func Cbrt(x *Expr) *Expr {
	return wide(x, func() *Expr { return elementary.Cbrt32(pair(), x) }, func() *Expr { return elementary.Cbrt64(realOf(x), x) })
}

// Pow is x^y.
func Pow(x, y *Expr) *Expr {
	return wide(x, func() *Expr { return elementary.Pow32(pair(), x, y) }, func() *Expr { return elementary.Pow64(realOf(x), x, y) })
}

func wide(x *Expr, f32, f64 func() *Expr) *Expr {
	if realOf(x).t == dtype.F32 {
		return f32()
	}
	return f64()
}

// real is elementary.Real on expressions of type t, with integers of type n.
type real struct{ t, n dtype.Type }

func realOf(x *Expr) real {
	switch x.DType {
	case dtype.F32:
		return real{dtype.F32, dtype.U32}
	case dtype.F64:
		return real{dtype.F64, dtype.U64}
	}
	panic(fmt.Sprintf("BUG: elementary function of %v", x.DType))
}

func pair() elementary.Pair[*Expr, *Expr, *Expr, *Expr, *Expr] {
	return elementary.Pair[*Expr, *Expr, *Expr, *Expr, *Expr]{
		Real: real{dtype.F32, dtype.U32}, Wide: real{dtype.F64, dtype.U64},
		Up:   func(x *Expr) *Expr { return Convert(x, dtype.F64) },
		Down: func(x *Expr) *Expr { return Convert(x, dtype.F32) },
		Cut:  func(x *Expr) *Expr { return Convert(x, dtype.U32) },
	}
}

func (r real) Bits() int                  { return int(8 * r.t.Size()) }
func (r real) C(x float64) *Expr          { return Float(r.t, x) }
func (r real) Neg(x *Expr) *Expr          { return Neg(x) }
func (r real) Abs(x *Expr) *Expr          { return Abs(x) }
func (r real) Sqrt(x *Expr) *Expr         { return Sqrt(x) }
func (r real) Rint(x *Expr) *Expr         { return Rint(x) }
func (r real) Add(x, y *Expr) *Expr       { return Add(x, y) }
func (r real) Sub(x, y *Expr) *Expr       { return Sub(x, y) }
func (r real) Mul(x, y *Expr) *Expr       { return Mul(x, y) }
func (r real) Div(x, y *Expr) *Expr       { return Div(x, y) }
func (r real) Fma(x, y, z *Expr) *Expr    { return Fma(x, y, z) }
func (r real) Min(x, y *Expr) *Expr       { return Min(x, y) }
func (r real) Max(x, y *Expr) *Expr       { return Max(x, y) }
func (r real) Lt(x, y *Expr) *Expr        { return Lt(x, y) }
func (r real) Eq(x, y *Expr) *Expr        { return Eq(x, y) }
func (r real) And(x, y *Expr) *Expr       { return And(x, y) }
func (r real) Or(x, y *Expr) *Expr        { return Or(x, y) }
func (r real) Not(x *Expr) *Expr          { return Not(x) }
func (r real) Select(c, x, y *Expr) *Expr { return Select(c, x, y) }
func (r real) ToBits(x *Expr) *Expr       { return Bitcast(x, r.n) }
func (r real) FromBits(x *Expr) *Expr     { return Bitcast(x, r.t) }
func (r real) N(x int64) *Expr            { return Int(r.n, x) }
func (r real) AddN(x, y *Expr) *Expr      { return Add(x, y) }
func (r real) SubN(x, y *Expr) *Expr      { return Sub(x, y) }
func (r real) AndN(x, y *Expr) *Expr      { return And(x, y) }
func (r real) OrN(x, y *Expr) *Expr       { return Or(x, y) }
func (r real) XorN(x, y *Expr) *Expr      { return Xor(x, y) }
func (r real) Shl(x *Expr, n int) *Expr   { return Shl(x, r.N(int64(n))) }
func (r real) Shr(x *Expr, n int) *Expr   { return Shr(x, r.N(int64(n))) }
func (r real) NonZero(x *Expr) *Expr      { return Ne(x, r.N(0)) }
func (r real) ToFloat(x *Expr) *Expr {
	signed := dtype.I32
	if r.n == dtype.U64 {
		signed = dtype.I64
	}
	return Convert(Bitcast(x, signed), r.t)
}
