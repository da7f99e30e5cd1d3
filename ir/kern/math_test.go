package kern

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"reprise/ir/dtype"
	"reprise/ir/kern/scalar"
)

// function is one elementary function with its twins, a reference and its bounds.
type function struct {
	name       string
	expr       func(x *Expr) *Expr
	f32        func(float32) float32
	f64        func(float64) float64
	ref        func(float64) float64
	ulp32      float64
	ulp64      float64
	lo, hi     float64 // where accuracy is measured
	everywhere bool    // also on arbitrary bits
}

func functions() []function {
	softplus := func(x float64) float64 { return max(x, 0) + math.Log1p(math.Exp(-math.Abs(x))) }
	sigmoid := func(x float64) float64 {
		if x < 0 {
			return math.Exp(x) / (1 + math.Exp(x))
		}
		return 1 / (1 + math.Exp(-x))
	}
	// Go's own are not accurate near 1.
	acos := func(x float64) float64 { return 2 * math.Atan2(math.Sqrt(1-x), math.Sqrt(1+x)) }
	acosh := func(x float64) float64 {
		if x > 1e8 {
			return math.Log(x) + math.Ln2
		}
		return math.Log1p((x - 1) + math.Sqrt((x-1)*(x+1)))
	}
	exp2 := func(x float64) float64 { return math.Exp2(max(x, -1070)) }
	return []function{
		{"exp", Exp, scalar.Exp32, scalar.Exp64, math.Exp, 1.0, 2, -104, 89, true},
		{"exp2", Exp2, scalar.Exp2_32, scalar.Exp2_64, exp2, 1.2, 2, -150, 129, true},
		{"expm1", Expm1, scalar.Expm1_32, scalar.Expm1_64, math.Expm1, 1.5, 2.5, -20, 89, true},
		{"log", Log, scalar.Log32, scalar.Log64, math.Log, 0.9, 2, 0, 10, true},
		{"log2", Log2, scalar.Log2_32, scalar.Log2_64, math.Log2, 1.7, 3, 0, 10, true},
		{"log1p", Log1p, scalar.Log1p32, scalar.Log1p64, math.Log1p, 1.5, 2, -1, 10, true},
		{"tanh", Tanh, scalar.Tanh32, scalar.Tanh64, math.Tanh, 1.4, 2.5, -10, 10, true},
		{"sinh", Sinh, scalar.Sinh32, scalar.Sinh64, math.Sinh, 2.5, 4, -89, 89, true},
		{"cosh", Cosh, scalar.Cosh32, scalar.Cosh64, math.Cosh, 2.1, 3, -88, 88, true},
		{"sigmoid", Sigmoid, scalar.Sigmoid32, scalar.Sigmoid64, sigmoid, 2.3, 4, -100, 100, true},
		{"softplus", Softplus, scalar.Softplus32, scalar.Softplus64, softplus, 2, 4, -80, 100, true},
		{"rsqrt", Rsqrt, scalar.Rsqrt32, scalar.Rsqrt64, func(x float64) float64 { return 1 / math.Sqrt(x) }, 1.5, 2, 0, 10, true},
		{"erf", Erf, scalar.Erf32, scalar.Erf64, math.Erf, 1.1, 2, -4, 4, true},
		{"erfinv", ErfInv, scalar.ErfInv32, scalar.ErfInv64, math.Erfinv, 6, 6, -1, 1, true},
		{"asin", Asin, scalar.Asin32, scalar.Asin64, math.Asin, 2.3, 4, -1, 1, true},
		{"acos", Acos, scalar.Acos32, scalar.Acos64, acos, 2, 4, -1, 1, true},
		{"atan", Atan, scalar.Atan32, scalar.Atan64, math.Atan, 2.3, 2.5, -20, 20, true},
		{"asinh", Asinh, scalar.Asinh32, scalar.Asinh64, math.Asinh, 3, 4, -100, 100, true},
		{"acosh", Acosh, scalar.Acosh32, scalar.Acosh64, acosh, 3, 6, 1, 100, true},
		{"atanh", Atanh, scalar.Atanh32, scalar.Atanh64, math.Atanh, 3, 5, -1, 1, true},
		{"sin", Sin, scalar.Sin32, scalar.Sin64, math.Sin, 1.6, 4, -30, 30, false},
		{"cos", Cos, scalar.Cos32, scalar.Cos64, math.Cos, 1.6, 4, -30, 30, false},
		{"tan", Tan, scalar.Tan32, scalar.Tan64, math.Tan, 3, 6, -30, 30, false},
		{"cbrt", Cbrt, scalar.Cbrt32, scalar.Cbrt64, math.Cbrt, 0.6, 1.5, -10, 10, true},
	}
}

// specials are arguments that every function is tried on.
func specials() []float64 {
	out := []float64{0, 1, 2, 0.5, 0.25, math.Pi, math.Pi / 2, math.Pi / 4, 0.625, 88, 88.7, 89, 100, 103.9, 104, 104.5, 709.7, 710, 745, 746,
		0x1p-126, 0x1p-149, 0x1p-150, 0x1p-1022, 0x1p-1074, math.MaxFloat32, math.MaxFloat64, math.Inf(1), 1e10, 1e15, 1 + 0x1p-23, 1 - 0x1p-24, 1 - 0x1p-53}
	for _, x := range out {
		out = append(out, -x)
	}
	return append(out, math.NaN())
}

func samples(r *rand.Rand, f function, n int) []float64 {
	xs := specials()
	for range n {
		u := r.Float64()
		switch r.IntN(4) {
		case 0:
			xs = append(xs, f.lo+u*(f.hi-f.lo))
		case 1:
			xs = append(xs, r.NormFloat64())
		case 2:
			xs = append(xs, math.Ldexp(u-0.5, r.IntN(60)-40))
		default:
			if f.everywhere {
				xs = append(xs, float64(math.Float32frombits(r.Uint32())))
			} else {
				xs = append(xs, 1000*r.NormFloat64())
			}
		}
	}
	return xs
}

// ulps is the distance of got from want in units of want's last place.
func ulps(got, want float64, mant, least int) float64 {
	if got == want || got != got && want != want {
		return 0
	}
	_, e := math.Frexp(want)
	if want == 0 {
		e = least
	}
	return math.Abs(got-want) / math.Ldexp(1, max(e, least+1)-mant)
}

func TestElementaryAccuracyF32(t *testing.T) {
	for _, f := range functions() {
		t.Run(f.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			var worst float64
			var at float32
			for _, x := range samples(r, f, 60000) {
				x := float32(x)
				if !f.everywhere && math.Abs(float64(x)) >= 0x1p30 {
					continue
				}
				want := f.ref(float64(x))
				if got := f.f32(x); got != float32(want) {
					if u := ulps(float64(got), want, 24, -126); !(u <= worst) {
						worst, at = u, x
					}
				}
			}
			t.Logf("%.2f ulp at %v", worst, at)
			assert.LessOrEqual(t, worst, f.ulp32, "at %v: %v, want %v", at, f.f32(at), f.ref(float64(at)))
		})
	}
}

// TestElementaryAccuracyF64 compares with values of higher precision: Go's own
// functions are themselves off by several units in places.
func TestElementaryAccuracyF64(t *testing.T) {
	text, err := os.ReadFile("testdata/elementary.txt")
	require.NoError(t, err)
	byName := map[string]function{}
	for _, f := range functions() {
		byName[f.name] = f
	}
	worst, at := map[string]float64{}, map[string]float64{}
	for _, line := range strings.Split(string(text), "\n") {
		var name string
		var x, want uint64
		if n, _ := fmt.Sscanf(line, "%s %x %x", &name, &x, &want); n != 3 || line[0] == '#' {
			continue
		}
		f, ok := byName[name]
		require.True(t, ok, name)
		v := math.Float64frombits(x)
		if u := ulps(f.f64(v), math.Float64frombits(want), 53, -1022); !(u <= worst[name]) {
			worst[name], at[name] = u, v
		}
	}
	for _, f := range functions() {
		t.Logf("%s: %.0f ulp at %v", f.name, worst[f.name], at[f.name])
		assert.LessOrEqual(t, worst[f.name], f.ulp64, "%s at %v", f.name, at[f.name])
	}
}

func TestElementaryZeroSigns(t *testing.T) {
	zero := math.Copysign(0, -1)
	for _, f := range functions() {
		for _, x := range []float64{0, zero} {
			want := f.ref
			if want(0) != 0 {
				continue
			}
			assert.Equal(t, math.Signbit(want(x)), math.Signbit(f.f64(x)), "%s(%v)", f.name, x)
			assert.Equal(t, math.Signbit(want(x)), math.Signbit(float64(f.f32(float32(x)))), "%s(%v)", f.name, x)
		}
	}
}

func TestPowAndAtan2(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	sp := []float64{0, math.Copysign(0, -1), 1, -1, 2, -2, 3, -3, 0.5, -0.5, math.Inf(1), math.Inf(-1), math.NaN(), 1e-40, 1e30, -1e30, 0x1p24 + 1, 0x1p-149}
	type pt struct{ x, y float64 }
	var pts []pt
	for _, x := range sp {
		for _, y := range sp {
			pts = append(pts, pt{x, y})
		}
	}
	for range 100000 {
		pts = append(pts, pt{math.Abs(r.NormFloat64()) * math.Exp(4*r.NormFloat64()), 5 * r.NormFloat64()},
			pt{r.NormFloat64(), r.NormFloat64()}, pt{-3 * r.Float64(), float64(r.IntN(21) - 10)})
	}
	var p32, p64, a32, a64 float64
	for _, p := range pts {
		x, y := float32(p.x), float32(p.y)
		want := math.Pow(float64(x), float64(y))
		if got := scalar.Pow32(x, y); got != float32(want) {
			if u := ulps(float64(got), want, 24, -126); !(u <= p32) {
				p32 = u
				t.Logf("pow32(%v, %v) = %v, want %v (%v ulp)", x, y, got, want, u)
			}
		}
		assert.Equal(t, math.Signbit(want), math.Signbit(float64(scalar.Pow32(x, y))) && want == want || want != want && math.Signbit(want), "%v^%v", x, y)
		if want := math.Pow(p.x, p.y); want == 0 || math.Abs(want) > 0x1p-1000 {
			if u := ulps(scalar.Pow64(p.x, p.y), want, 53, -1022); !(u <= p64) {
				p64 = u
				t.Logf("pow64(%v, %v) = %v, want %v (%v ulp)", p.x, p.y, scalar.Pow64(p.x, p.y), want, u)
			}
		}
		want = math.Atan2(float64(y), float64(x))
		if got := scalar.Atan2_32(y, x); got != float32(want) {
			if u := ulps(float64(got), want, 24, -126); !(u <= a32) {
				a32 = u
				t.Logf("atan2_32(%v, %v) = %v, want %v (%v ulp)", y, x, got, want, u)
			}
		}
		if u := ulps(scalar.Atan2_64(p.y, p.x), math.Atan2(p.y, p.x), 53, -1022); !(u <= a64) {
			a64 = u
			t.Logf("atan2_64(%v, %v) = %v, want %v (%v ulp)", p.y, p.x, scalar.Atan2_64(p.y, p.x), math.Atan2(p.y, p.x), u)
		}
	}
	assert.LessOrEqual(t, p32, 0.6)
	assert.LessOrEqual(t, p64, 10.0) // some of it is in math.Pow
	assert.LessOrEqual(t, a32, 2.5)
	assert.LessOrEqual(t, a64, 4.0)
}

// TestBuildersEqualTwins interprets each function's expression and compares bits.
func TestBuildersEqualTwins(t *testing.T) {
	for _, f := range functions() {
		r := rand.New(rand.NewPCG(5, 6))
		xs := samples(r, f, 2000)
		for _, typ := range []dtype.Type{dtype.F32, dtype.F64} {
			n := int64(len(xs))
			b := NewBuilder(f.name, 1)
			x, y := b.In("x", typ, n), b.Out("y", typ, n)
			i := NewVar("i", dtype.I64)
			b.Do(Lane(i, I64(n), y.Set(Get(i), f.expr(x.At(Get(i))))))
			require.NoError(t, Check(b.K))
			in, out := make([]byte, n*typ.Size()), make([]byte, n*typ.Size())
			for j, v := range xs {
				if typ == dtype.F32 {
					binary.LittleEndian.PutUint32(in[4*j:], math.Float32bits(float32(v)))
				} else {
					binary.LittleEndian.PutUint64(in[8*j:], math.Float64bits(v))
				}
			}
			require.NoError(t, Run(b.K, [][]byte{in, out}, 0, 1))
			for j, v := range xs {
				if typ == dtype.F32 {
					got, want := math.Float32frombits(binary.LittleEndian.Uint32(out[4*j:])), f.f32(float32(v))
					if math.Float32bits(got) != math.Float32bits(want) && (got == got || want == want) {
						t.Fatalf("%s(%v) f32: expression %v, twin %v", f.name, v, got, want)
					}
				} else {
					got, want := math.Float64frombits(binary.LittleEndian.Uint64(out[8*j:])), f.f64(v)
					if math.Float64bits(got) != math.Float64bits(want) && (got == got || want == want) {
						t.Fatalf("%s(%v) f64: expression %v, twin %v", f.name, v, got, want)
					}
				}
			}
		}
	}
}
