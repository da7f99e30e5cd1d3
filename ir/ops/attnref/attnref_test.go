package attnref

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/ir/kern"
)

// plain is attention by its textbook formula in float64; keep tells which
// probabilities dropout keeps.
func plain(a *kern.Attention, q, k, v []float64, keep func(b, h, i, j int64) float64) (out, lse []float64) {
	out, lse = make([]float64, len(q)), make([]float64, a.Batch*a.Heads*a.Tq)
	for b := range a.Batch {
		for h := range a.Heads {
			for i := range a.Tq {
				p := make([]float64, a.Tk)
				sum := 0.0
				for j := range a.Tk {
					if !a.Causal || j <= i+a.Tk-a.Tq {
						s := 0.0
						for d := range a.Dim {
							s += q[qRow(a, b, i, h)+d] * k[kRow(a, b, j, h)+d]
						}
						p[j] = math.Exp(s * float64(a.Scale))
						sum += p[j]
					}
				}
				lse[(b*a.Heads+h)*a.Tq+i] = math.Log(sum)
				for j := range a.Tk {
					for d := range a.Dim {
						out[qRow(a, b, i, h)+d] += p[j] / sum * keep(b, h, i, j) * v[kRow(a, b, j, h)+d]
					}
				}
			}
		}
	}
	return out, lse
}

func randoms(r *rand.Rand, n int64) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

func widen(x []float32) []float64 {
	y := make([]float64, len(x))
	for i, e := range x {
		y[i] = float64(e)
	}
	return y
}

func shapes() []kern.Attention {
	return []kern.Attention{
		{Batch: 2, Heads: 2, KVHeads: 2, Tq: 5, Tk: 5, Dim: 4, Causal: true, Scale: 0.5},
		{Batch: 1, Heads: 4, KVHeads: 2, Tq: 70, Tk: 70, Dim: 3, Causal: true, Scale: 0.7, Dropout: 0.3, RNG: 5},
		{Batch: 1, Heads: 2, KVHeads: 1, Tq: 3, Tk: 150, Dim: 8, Causal: true, Scale: 0.3},
		{Batch: 1, Heads: 2, KVHeads: 2, Tq: 66, Tk: 9, Dim: 2, Scale: 1, Dropout: 0.5, RNG: 1},
	}
}

// TestAgainstFloat64 compares results with the textbook formula, and gradients with
// central differences of it.
func TestAgainstFloat64(t *testing.T) {
	for n, a := range shapes() {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			r := rand.New(rand.NewPCG(4, uint64(n)))
			nq, nk := a.Batch*a.Tq*a.Heads*a.Dim, a.Batch*a.Tk*a.KVHeads*a.Dim
			q, k, v, dout := randoms(r, nq), randoms(r, nk), randoms(r, nk), randoms(r, nq)
			key := [16]byte{1, 2, 3, 4, 5, 6, 7, 8, 9}
			m := newMask(&a, &key)
			keep := func(b, h, i, j int64) float64 { return float64(m.apply(1, b, h, i, j)) }

			out, lse := Forward(&a, q, k, v, &key)
			wantOut, wantLse := plain(&a, widen(q), widen(k), widen(v), keep)
			require.InDeltaSlice(t, wantOut, widen(out), 2e-6)
			require.InDeltaSlice(t, wantLse, widen(lse), 2e-6)

			dq, dk, dv := Backward(&a, q, k, v, out, lse, dout, &key)
			in := [][]float64{widen(q), widen(k), widen(v)}
			loss := func() float64 {
				o, _ := plain(&a, in[0], in[1], in[2], keep)
				sum := 0.0
				for i := range o {
					sum += o[i] * float64(dout[i])
				}
				return sum
			}
			for x, grad := range [][]float32{dq, dk, dv} {
				for range 24 {
					i := r.IntN(len(grad))
					was := in[x][i]
					const h = 1e-5
					in[x][i] = was + h
					up := loss()
					in[x][i] = was - h
					down := loss()
					in[x][i] = was
					require.InDelta(t, (up-down)/(2*h), float64(grad[i]), 3e-5, "gradient %d of %s", i, "qkv"[x:x+1])
				}
			}
		})
	}
}

// TestDropoutRate: about the named share of probabilities is dropped, and what is
// kept is scaled up.
func TestDropoutRate(t *testing.T) {
	a := kern.Attention{Batch: 1, Heads: 2, KVHeads: 2, Tq: 100, Tk: 90, Dim: 1, Scale: 1, Dropout: 0.25, RNG: 9}
	m := newMask(&a, &[16]byte{7})
	dropped := 0
	for h := range a.Heads {
		for i := range a.Tq {
			for j := range a.Tk {
				switch m.apply(3, 0, h, i, j) {
				case 0:
					dropped++
				case 4:
				default:
					t.Fatal("neither dropped nor scaled by 4/3")
				}
			}
		}
	}
	require.InDelta(t, 0.25, float64(dropped)/18000, 0.01)
}
