package ops_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/interp"
	"reprise/ir/kern/scalar"
	"reprise/ir/ops"
	"reprise/ir/tensor"
)

// Composite ops mean their expansion. Here each is written a second time as plain loops
// over float32, in the order that its row's documentation states, and the bits must agree.

// joined is reduce's order: chunks of 1024 (8192 where n > 65536), 64 partials and a tree.
func joined(x []float32, start float32, op func(a, b float32) float32) float32 {
	chunk := 1024
	if len(x) > 65536 {
		chunk = 8192
	}
	total, first := start, true
	for at := 0; at < len(x); at += chunk {
		part := [64]float32{}
		for i := range part {
			part[i] = start
		}
		for i, v := range x[at:min(at+chunk, len(x))] {
			part[i%64] = op(part[i%64], v)
		}
		for s := 32; s > 0; s /= 2 {
			for i := range s {
				part[i] = op(part[i], part[i+s])
			}
		}
		if total = op(total, part[0]); first {
			total, first = part[0], false
		}
	}
	return total
}

func plus(a, b float32) float32 { return a + b }

func greater(a, b float32) float32 {
	if a > b || a != a {
		return a
	}
	return b
}

func sum(x []float32) float32 { return joined(x, 0, plus) }

func top(x []float32) float32 { return joined(x, float32(math.Inf(-1)), greater) }

func draw(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64() * 2)
	}
	return x
}

// evaluate runs one op on f32 operands of the given shapes.
func evaluate(t *testing.T, name string, args []*tensor.Tensor, attrs ...ir.Attr) []*tensor.Tensor {
	t.Helper()
	m := ir.NewModule("m")
	f := m.NewFunc("step")
	var vs []*ir.Value
	for _, a := range args {
		vs = append(vs, f.Body.AddParam("", ir.T(a.DType, a.Shape...)))
	}
	f.Body.Results = ir.NewBuilder(ops.Table(), f.Body, ir.Loc{Layer: "l"}).Multi(name, vs, nil, attrs...).Results
	out, err := interp.Run(f, args)
	require.NoError(t, err)
	return out
}

func assertBits(t *testing.T, want []float32, got *tensor.Tensor) {
	t.Helper()
	for i, w := range want {
		if g := got.F32()[i]; math.Float32bits(g) != math.Float32bits(w) {
			t.Fatalf("element %d is %v (%08x), want %v (%08x)", i, g, math.Float32bits(g), w, math.Float32bits(w))
		}
	}
	assert.Equal(t, int64(len(want)), got.Len())
}

var widths = []int{1, 5, 64, 70, 1000, 1500}

func TestSoftmaxIsItsLoops(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, n := range widths {
		x := draw(r, 3*n)
		soft, logs := make([]float32, len(x)), make([]float32, len(x))
		for row := range 3 {
			line, e := x[row*n:][:n], make([]float32, n)
			m := top(line)
			for i, v := range line {
				e[i] = scalar.Exp32(v - m)
			}
			s := sum(e)
			for i, v := range line {
				soft[row*n+i] = e[i] / s
				logs[row*n+i] = v - m - scalar.Log32(s)
			}
		}
		arg := []*tensor.Tensor{tensor.Of(x, 3, int64(n))}
		assertBits(t, soft, evaluate(t, "softmax", arg, ir.A("axis", 1))[0])
		assertBits(t, logs, evaluate(t, "log_softmax", arg, ir.A("axis", 1))[0])
	}
}

func TestNormsAreTheirLoops(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 1))
	for _, n := range widths {
		x, g, b := draw(r, 3*n), draw(r, n), draw(r, n)
		layer, rms := make([]float32, len(x)), make([]float32, len(x))
		const eps = float32(1e-5)
		for row := range 3 {
			line, d, sq, xx := x[row*n:][:n], make([]float32, n), make([]float32, n), make([]float32, n)
			mean := sum(line) / float32(n)
			for i, v := range line {
				d[i] = v - mean
				sq[i] = d[i] * d[i]
				xx[i] = v * v
			}
			rstd := 1 / scalar.Sqrt32(sum(sq)/float32(n)+eps)
			rr := 1 / scalar.Sqrt32(sum(xx)/float32(n)+eps)
			for i, v := range line {
				layer[row*n+i] = scalar.Fma32(d[i]*rstd, g[i], b[i])
				rms[row*n+i] = float32(v*rr) * g[i]
			}
		}
		args := []*tensor.Tensor{tensor.Of(x, 3, int64(n)), tensor.Of(g, int64(n)), tensor.Of(b, int64(n))}
		assertBits(t, layer, evaluate(t, "layer_norm", args, ir.A("eps", 1e-5))[0])
		assertBits(t, rms, evaluate(t, "rms_norm", args[:2], ir.A("eps", 1e-5))[0])
	}
}

func TestBatchNormIsItsLoops(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 1))
	const batch, channels, space = 4, 3, 7
	x, g, b, rm, rv := draw(r, batch*channels*space), draw(r, channels), draw(r, channels), draw(r, channels), draw(r, channels)
	y, nm, nv := make([]float32, len(x)), make([]float32, channels), make([]float32, channels)
	const n = batch * space
	unbias, mom := float32(float64(n)/(n-1)), float32(0.1)
	for c := range channels {
		var at []int
		var line, sq []float32
		for i := range batch {
			for s := range space {
				at = append(at, (i*channels+c)*space+s)
				line = append(line, x[at[len(at)-1]])
			}
		}
		mean := sum(line) / n
		for i := range line {
			line[i] -= mean
			sq = append(sq, line[i]*line[i])
		}
		variance := sum(sq) / n
		rstd := 1 / scalar.Sqrt32(variance+1e-5)
		for i, p := range at {
			y[p] = scalar.Fma32(line[i]*rstd, g[c], b[c])
		}
		nm[c] = scalar.Fma32(rm[c], float32(1-0.1), mean*mom)
		nv[c] = scalar.Fma32(rv[c], float32(1-0.1), float32(variance*unbias)*mom)
	}
	args := []*tensor.Tensor{tensor.Of(x, batch, channels, space)}
	for _, v := range [][]float32{g, b, rm, rv} {
		args = append(args, tensor.Of(v, channels))
	}
	out := evaluate(t, "batch_norm", args, ir.A("axis", 1))
	for i, want := range [][]float32{y, nm, nv} {
		assertBits(t, want, out[i])
	}
}

func TestActivationsAreTheirFormulas(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 1))
	x := append(draw(r, 500), 0, float32(math.Copysign(0, -1)), 90, -90, float32(math.Inf(1)), float32(math.Inf(-1)))
	arg := []*tensor.Tensor{tensor.Of(x, int64(len(x)))}
	each := func(f func(x float32) float32) []float32 {
		y := make([]float32, len(x))
		for i, v := range x {
			y[i] = f(v)
		}
		return y
	}
	finite := x[:504]
	arg[0] = tensor.Of(finite, int64(len(finite)))
	x = finite
	assertBits(t, each(func(x float32) float32 { return greater(x, 0) }), evaluate(t, "relu", arg)[0])
	assertBits(t, each(func(x float32) float32 { return x * scalar.Sigmoid32(x) }), evaluate(t, "silu", arg)[0])
	assertBits(t, each(func(x float32) float32 {
		return float32(x*0.5) * (scalar.Erf32(x*float32(math.Sqrt2/2)) + 1)
	}), evaluate(t, "gelu", arg)[0])
	assertBits(t, each(func(x float32) float32 {
		c, a := float32(math.Sqrt(2/math.Pi)), float32(0.044715)
		u := float32(x*c) * (float32(float32(x*x)*a) + 1)
		return float32(x*0.5) * (scalar.Tanh32(u) + 1)
	}), evaluate(t, "gelu", arg, ir.A("approx", "tanh"))[0])
}

func TestCrossEntropyIsItsLoops(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 1))
	for _, n := range widths {
		x, labels := draw(r, 4*n), make([]int32, 4)
		want := make([]float32, 4)
		for row := range 4 {
			line, e := x[row*n:][:n], make([]float32, n)
			m := top(line)
			for i, v := range line {
				e[i] = scalar.Exp32(v - m)
			}
			labels[row] = int32(r.IntN(n))
			want[row] = scalar.Log32(sum(e)) - (line[labels[row]] - m)
		}
		labels[2], want[2] = -1, 0
		got := evaluate(t, "cross_entropy", []*tensor.Tensor{tensor.Of(x, 4, int64(n)), tensor.Of(labels, 4)}, ir.A("ignore_index", -1))[0]
		assertBits(t, want, got)
	}
}

func TestAdamWIsItsFormula(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 1))
	const n, step, lr, b1, b2, eps, wd = 200, 4, 3e-3, 0.9, 0.999, 1e-8, 0.1
	p, g, m, v := draw(r, n), draw(r, n), draw(r, n), draw(r, n)
	for i := range v {
		v[i] *= v[i]
	}
	rate := float32(lr) / (1 - scalar.Pow32(float32(b1), step+1))
	root := scalar.Rsqrt32(1 - scalar.Pow32(float32(b2), step+1))
	decay := 1 - float32(float32(lr)*float32(wd))
	np, nm, nv := make([]float32, n), make([]float32, n), make([]float32, n)
	for i := range p {
		nm[i] = scalar.Fma32(m[i], float32(b1), g[i]*float32(1-b1))
		nv[i] = scalar.Fma32(v[i], float32(b2), float32(g[i]*g[i])*float32(1-b2))
		den := scalar.Fma32(scalar.Sqrt32(nv[i]), root, float32(eps))
		np[i] = float32(p[i]*decay) - float32(rate*float32(nm[i]/den))
	}
	out := evaluate(t, "adamw", []*tensor.Tensor{tensor.Of(p, n), tensor.Of(g, n), tensor.Of(m, n), tensor.Of(v, n), tensor.Of([]float32{lr}).Reshaped(), tensor.Of([]int64{step}).Reshaped()},
		ir.A("b1", b1), ir.A("b2", b2), ir.A("eps", eps), ir.A("wd", wd))
	for i, want := range [][]float32{np, nm, nv} {
		assertBits(t, want, out[i])
	}
}

// bf16 pairs: the odd element first, denormals taken as zero, an odd tail paired with zeros.
func TestContractOfBF16(t *testing.T) {
	bf := func(vals ...float32) *tensor.Tensor {
		x := tensor.New(dtype.BF16, int64(len(vals)))
		for i, v := range vals {
			x.SetBits(int64(i), uint64(scalar.BF16(v)))
		}
		return x
	}
	dot := func(a, b *tensor.Tensor) float32 {
		return evaluate(t, "contract", []*tensor.Tensor{a, b}, ir.A("lhs_contract", []int64{0}), ir.A("rhs_contract", []int64{0}), ir.A("out", dtype.F32))[0].F32()[0]
	}
	// In order, 2^24 + 1 would lose the 1; the odd element comes first, so it counts.
	assert.Equal(t, float32(1<<24+2), dot(bf(1<<12, 2), bf(1<<12, 1)))
	assert.Equal(t, float32(1<<24), dot(bf(1, 1<<12), bf(1, 1<<12)))
	assert.Equal(t, float32(6), dot(bf(1, 1, 1), bf(1, 2, 3)))
	const tiny = 0x1p-130 // a denormal
	assert.Equal(t, float32(0), dot(bf(tiny, 0), bf(1<<20, 0)), "a denormal operand is zero")
	assert.Equal(t, float32(0), dot(bf(0x1p-70, 0), bf(0x1p-70, 0)), "a denormal result is zero")
	assert.Equal(t, float32(0x1p-126), dot(bf(0x1p-63, 0), bf(0x1p-63, 0)), "the least normal stays")
}

// A normal number is √2·erf_inv of an odd multiple of 2^-24; a dropped element is +0, and a
// kept one the same whatever surrounds it.
func TestRandomOps(t *testing.T) {
	key := tensor.Key(0x1234567890abcdef, 7, 3)
	bits := evaluate(t, "rng_bits", []*tensor.Tensor{key}, ir.A("rng", 11), ir.A("shape", []int64{3, 70}))[0]
	uniform := evaluate(t, "uniform", []*tensor.Tensor{key}, ir.A("rng", 11), ir.A("shape", []int64{3, 70}))[0]
	normal := evaluate(t, "normal", []*tensor.Tensor{key}, ir.A("rng", 11), ir.A("shape", []int64{3, 70}))[0]
	coin := evaluate(t, "bernoulli", []*tensor.Tensor{key}, ir.A("rng", 11), ir.A("shape", []int64{3, 70}), ir.A("p", 0.3))[0]
	ones := make([]float32, 210)
	for i := range ones {
		ones[i] = 1
	}
	drop := evaluate(t, "dropout", []*tensor.Tensor{tensor.Of(ones, 3, 70), key}, ir.A("rng", 11), ir.A("p", 0.3))[0]
	p := 0.3
	below := uint64(p * (1 << 32))
	for row := range int64(3) {
		for col := range int64(70) {
			// The definition of docs/numerics.md, spelled out.
			e := row*128 + col
			block := uint64(e>>6)*16 + uint64(e&15)
			w := scalar.Philox4x32([4]uint32{uint32(block), 11, 7, 3<<16 | uint32(block>>32)}, [2]uint32{0x90abcdef, 0x12345678})
			u := w[e>>4&3]
			i := row*70 + col
			require.Equal(t, uint64(u), bits.Bits(i))
			assert.Equal(t, float32(u>>8)*0x1p-24, uniform.F32()[i])
			v := float32(2*int64(u>>8)+1-1<<24) * 0x1p-24
			assert.Equal(t, float32(math.Sqrt2)*scalar.ErfInv32(v), normal.F32()[i])
			assert.Equal(t, uint64(u) < below, coin.Bits(i) == 1)
			if uint64(u) < below {
				assert.Equal(t, uint64(0), drop.Bits(i))
			} else {
				assert.Equal(t, float32(1/(1-0.3)), drop.F32()[i])
			}
		}
	}
}

// The floating-point remainder is exact, whatever the quotient.
func TestRemainder(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 1))
	var a, b []float32
	for range 2000 {
		a = append(a, math.Float32frombits(r.Uint32()))
		b = append(b, math.Float32frombits(r.Uint32()))
	}
	n := int64(len(a))
	got := evaluate(t, "rem", []*tensor.Tensor{tensor.Of(a, n), tensor.Of(b, n)})[0].F32()
	for i := range got {
		want := float32(math.Mod(float64(a[i]), float64(b[i])))
		if want == want || got[i] == got[i] {
			assert.Equal(t, math.Float32bits(want), math.Float32bits(got[i]), "%v rem %v", a[i], b[i])
		}
	}
}
