package scalar

import (
	"math"

	"reprise/ir/kern/elementary"
)

// The elementary functions of package elementary on Go's floats.

func Exp32(x float32) float32      { return elementary.Exp(real32{}, x) }
func Exp64(x float64) float64      { return elementary.Exp(real64{}, x) }
func Exp2_32(x float32) float32    { return elementary.Exp2(real32{}, x) }
func Exp2_64(x float64) float64    { return elementary.Exp2(real64{}, x) }
func Expm1_32(x float32) float32   { return elementary.Expm1(real32{}, x) }
func Expm1_64(x float64) float64   { return elementary.Expm1(real64{}, x) }
func Log32(x float32) float32      { return elementary.Log(real32{}, x) }
func Log64(x float64) float64      { return elementary.Log(real64{}, x) }
func Log2_32(x float32) float32    { return elementary.Log2(real32{}, x) }
func Log2_64(x float64) float64    { return elementary.Log2(real64{}, x) }
func Log1p32(x float32) float32    { return elementary.Log1p(real32{}, x) }
func Log1p64(x float64) float64    { return elementary.Log1p(real64{}, x) }
func Tanh32(x float32) float32     { return elementary.Tanh(real32{}, x) }
func Tanh64(x float64) float64     { return elementary.Tanh(real64{}, x) }
func Sinh32(x float32) float32     { return elementary.Sinh(real32{}, x) }
func Sinh64(x float64) float64     { return elementary.Sinh(real64{}, x) }
func Cosh32(x float32) float32     { return elementary.Cosh(real32{}, x) }
func Cosh64(x float64) float64     { return elementary.Cosh(real64{}, x) }
func Sigmoid32(x float32) float32  { return elementary.Sigmoid(real32{}, x) }
func Sigmoid64(x float64) float64  { return elementary.Sigmoid(real64{}, x) }
func Softplus32(x float32) float32 { return elementary.Softplus(real32{}, x) }
func Softplus64(x float64) float64 { return elementary.Softplus(real64{}, x) }
func Rsqrt32(x float32) float32    { return elementary.Rsqrt(real32{}, x) }
func Rsqrt64(x float64) float64    { return elementary.Rsqrt(real64{}, x) }
func Erf32(x float32) float32      { return elementary.Erf(real32{}, x) }
func Erf64(x float64) float64      { return elementary.Erf(real64{}, x) }
func ErfInv32(x float32) float32   { return elementary.ErfInv(real32{}, x) }
func ErfInv64(x float64) float64   { return elementary.ErfInv(real64{}, x) }
func Asin32(x float32) float32     { return elementary.Asin(real32{}, x) }
func Asin64(x float64) float64     { return elementary.Asin(real64{}, x) }
func Acos32(x float32) float32     { return elementary.Acos(real32{}, x) }
func Acos64(x float64) float64     { return elementary.Acos(real64{}, x) }
func Atan32(x float32) float32     { return elementary.Atan(real32{}, x) }
func Atan64(x float64) float64     { return elementary.Atan(real64{}, x) }
func Asinh32(x float32) float32    { return elementary.Asinh(real32{}, x) }
func Asinh64(x float64) float64    { return elementary.Asinh(real64{}, x) }
func Acosh32(x float32) float32    { return elementary.Acosh(real32{}, x) }
func Acosh64(x float64) float64    { return elementary.Acosh(real64{}, x) }
func Atanh32(x float32) float32    { return elementary.Atanh(real32{}, x) }
func Atanh64(x float64) float64    { return elementary.Atanh(real64{}, x) }
func Sin32(x float32) float32      { return elementary.Sin32(pair(), x) }
func Sin64(x float64) float64      { return elementary.Sin64(real64{}, x) }
func Cos32(x float32) float32      { return elementary.Cos32(pair(), x) }
func Cos64(x float64) float64      { return elementary.Cos64(real64{}, x) }
func Tan32(x float32) float32      { return elementary.Tan32(pair(), x) }
func Tan64(x float64) float64      { return elementary.Tan64(real64{}, x) }
func Cbrt32(x float32) float32     { return elementary.Cbrt32(pair(), x) }
func Cbrt64(x float64) float64     { return elementary.Cbrt64(real64{}, x) }

func Atan2_32(y, x float32) float32 { return elementary.Atan2(real32{}, y, x) }
func Atan2_64(y, x float64) float64 { return elementary.Atan2(real64{}, y, x) }
func Pow32(x, y float32) float32    { return elementary.Pow32(pair(), x, y) }
func Pow64(x, y float64) float64    { return elementary.Pow64(real64{}, x, y) }

func pair() elementary.Pair[float32, uint32, float64, uint64, bool] {
	return elementary.Pair[float32, uint32, float64, uint64, bool]{
		Real: real32{}, Wide: real64{},
		Up:   func(x float32) float64 { return float64(x) },
		Down: func(x float64) float32 { return float32(x) },
		Cut:  func(x uint64) uint32 { return uint32(x) },
	}
}

// real32 and real64 are elementary.Real on Go's floats. Results are converted
// explicitly, so that Go never fuses a product into a sum.
type real32 struct{}

func (real32) Bits() int                { return 32 }
func (real32) C(x float64) float32      { return float32(x) }
func (real32) Neg(x float32) float32    { return -x }
func (real32) Abs(x float32) float32    { return math.Float32frombits(math.Float32bits(x) &^ (1 << 31)) }
func (real32) Sqrt(x float32) float32   { return Sqrt32(x) }
func (real32) Rint(x float32) float32   { return float32(math.RoundToEven(float64(x))) }
func (real32) Add(x, y float32) float32 { return float32(x + y) }
func (real32) Sub(x, y float32) float32 { return float32(x - y) }
func (real32) Mul(x, y float32) float32 { return float32(x * y) }
func (real32) Div(x, y float32) float32 { return float32(x / y) }
func (real32) Fma(x, y, z float32) float32 {
	return Fma32(x, y, z)
}
func (real32) Min(x, y float32) float32 { return least(x, y) }
func (real32) Max(x, y float32) float32 { return greatest(x, y) }
func (real32) Lt(x, y float32) bool     { return x < y }
func (real32) Eq(x, y float32) bool     { return x == y }
func (real32) And(x, y bool) bool       { return x && y }
func (real32) Or(x, y bool) bool        { return x || y }
func (real32) Not(x bool) bool          { return !x }
func (real32) Select(c bool, x, y float32) float32 {
	if c {
		return x
	}
	return y
}
func (real32) ToBits(x float32) uint32   { return math.Float32bits(x) }
func (real32) FromBits(x uint32) float32 { return math.Float32frombits(x) }
func (real32) N(x int64) uint32          { return uint32(x) }
func (real32) AddN(x, y uint32) uint32   { return x + y }
func (real32) SubN(x, y uint32) uint32   { return x - y }
func (real32) AndN(x, y uint32) uint32   { return x & y }
func (real32) OrN(x, y uint32) uint32    { return x | y }
func (real32) XorN(x, y uint32) uint32   { return x ^ y }
func (real32) Shl(x uint32, n int) uint32 {
	return x << n
}
func (real32) Shr(x uint32, n int) uint32 { return x >> n }
func (real32) ToFloat(x uint32) float32   { return float32(int32(x)) }
func (real32) NonZero(x uint32) bool      { return x != 0 }

type real64 struct{}

func (real64) Bits() int                { return 64 }
func (real64) C(x float64) float64      { return x }
func (real64) Neg(x float64) float64    { return -x }
func (real64) Abs(x float64) float64    { return math.Abs(x) }
func (real64) Sqrt(x float64) float64   { return math.Sqrt(x) }
func (real64) Rint(x float64) float64   { return math.RoundToEven(x) }
func (real64) Add(x, y float64) float64 { return float64(x + y) }
func (real64) Sub(x, y float64) float64 { return float64(x - y) }
func (real64) Mul(x, y float64) float64 { return float64(x * y) }
func (real64) Div(x, y float64) float64 { return float64(x / y) }
func (real64) Fma(x, y, z float64) float64 {
	return math.FMA(x, y, z)
}
func (real64) Min(x, y float64) float64 { return least(x, y) }
func (real64) Max(x, y float64) float64 { return greatest(x, y) }
func (real64) Lt(x, y float64) bool     { return x < y }
func (real64) Eq(x, y float64) bool     { return x == y }
func (real64) And(x, y bool) bool       { return x && y }
func (real64) Or(x, y bool) bool        { return x || y }
func (real64) Not(x bool) bool          { return !x }
func (real64) Select(c bool, x, y float64) float64 {
	if c {
		return x
	}
	return y
}
func (real64) ToBits(x float64) uint64   { return math.Float64bits(x) }
func (real64) FromBits(x uint64) float64 { return math.Float64frombits(x) }
func (real64) N(x int64) uint64          { return uint64(x) }
func (real64) AddN(x, y uint64) uint64   { return x + y }
func (real64) SubN(x, y uint64) uint64   { return x - y }
func (real64) AndN(x, y uint64) uint64   { return x & y }
func (real64) OrN(x, y uint64) uint64    { return x | y }
func (real64) XorN(x, y uint64) uint64   { return x ^ y }
func (real64) Shl(x uint64, n int) uint64 {
	return x << n
}
func (real64) Shr(x uint64, n int) uint64 { return x >> n }
func (real64) ToFloat(x uint64) float64   { return float64(int64(x)) }
func (real64) NonZero(x uint64) bool      { return x != 0 }

func least[T float32 | float64](x, y T) T {
	if x < y || x != x {
		return x
	}
	return y
}

func greatest[T float32 | float64](x, y T) T {
	if x > y || x != x {
		return x
	}
	return y
}
