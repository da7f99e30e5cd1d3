package cpu

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/llir/llvm/ir"
	"github.com/stretchr/testify/require"

	"reprise/ir/dtype"
	"reprise/ir/kern"
	"reprise/ir/kern/scalar"
	"reprise/ir/ops/attnref"
)

// attentionHalves rounds x to a half type: the bits, and in x what they are worth.
func attentionHalves(d dtype.Type, x []float32) []uint16 {
	h := attentionAligned[uint16](int64(len(x)))
	for i, e := range x {
		if d == dtype.BF16 {
			h[i] = scalar.BF16(e)
			x[i] = scalar.FromBF16(h[i])
		} else {
			h[i] = scalar.F16(e)
			x[i] = scalar.FromF16(h[i])
		}
	}
	return h
}

// Attention of f16 and bf16 is that of their f32 values, its result rounded once; gradients and lse are f32. By default
// each shape is tried on one of the targets.
func TestAttentionOfHalvesEqualsReference(t *testing.T) {
	shapes := attentionShapes()
	for _, target := range []Target{V3, V4} {
		t.Run([]string{"v3", "v4"}[target], func(t *testing.T) {
			m := ir.NewModule()
			tiles := map[string][2]int64{}
			name := func(i int, d dtype.Type) string { return fmt.Sprintf("k%d_%s", i, d) }
			half := func(i int, d dtype.Type) kern.Attention {
				a := shapes[i]
				a.DType = d
				return a
			}
			types := []dtype.Type{dtype.BF16, dtype.F16}
			tried := func(i int) bool { return emitLong() || Target(i/2%2) == target }
			for i := range shapes {
				if !tried(i) {
					continue
				}
				d := types[i%2]
				c := attentionCase{a: half(i, d)}
				f, b := c.emit(t, m, target, name(i, d))
				tiles[name(i, d)] = [2]int64{f, b}
			}
			lib, _ := attentionLib(t, m)
			for i := range shapes {
				if !tried(i) {
					continue
				}
				d := types[i%2]
				t.Run(name(i, d), func(t *testing.T) {
					r := rand.New(rand.NewPCG(4, uint64(i)))
					c := attentionNew(r, half(i, d))
					if i > 5 {
						c.harden(r, i > 8)
					}
					q, k, v, dout := attentionHalves(d, c.q), attentionHalves(d, c.k), attentionHalves(d, c.v), attentionHalves(d, c.dout)
					c.out, c.lse = attnref.Forward(&c.a, c.q, c.k, c.v, &c.key)
					want := attentionHalves(d, c.out)
					c.dq, c.dk, c.dv = attnref.Backward(&c.a, c.q, c.k, c.v, c.out, c.lse, c.dout, &c.key)

					fwd, bwd, _, lse, dq, dk, dv := c.args()
					out := attentionAligned[uint16](int64(len(q)))
					copy(fwd, []unsafe.Pointer{attentionPointer(q), attentionPointer(k), attentionPointer(v)})
					fwd[len(fwd)-2] = attentionPointer(out)
					copy(bwd, []unsafe.Pointer{attentionPointer(q), attentionPointer(k), attentionPointer(v), attentionPointer(out)})
					bwd[5] = attentionPointer(dout)
					attentionRun(attentionSymbol(t, lib, name(i, d)+"_f"), attentionCuts(r, tiles[name(i, d)][0]), fwd...)
					require.True(t, slices.Equal(want, out), "out")
					attentionEqual(t, "lse", c.lse, lse)
					attentionRun(attentionSymbol(t, lib, name(i, d)+"_b"), attentionCuts(r, tiles[name(i, d)][1]), bwd...)
					attentionEqual(t, "dq", c.dq, dq)
					attentionEqual(t, "dk", c.dk, dk)
					attentionEqual(t, "dv", c.dv, dv)
				})
			}
		})
	}
}

// A query that is placed after some of the keys sees those up to its own, and what it gets are the bits
// that the same query gets among all.
func TestPlacedAttention(t *testing.T) {
	const T = 131
	whole := kern.Attention{Name: "whole", DType: dtype.F32, Batch: 1, Heads: 4, KVHeads: 2, Tq: T, Tk: T, Dim: 20, Causal: true, Scale: 0.25}
	one := whole
	one.Name, one.Tq, one.Placed = "one", 1, true
	few := one
	few.Name, few.Tq = "few", 3
	c := attentionNew(rand.New(rand.NewPCG(5, 5)), whole)
	out, lse := attnref.Forward(&whole, c.q, c.k, c.v, nil)
	for _, target := range []Target{V3, V4} {
		m := ir.NewModule()
		for _, a := range []*kern.Attention{&one, &few} {
			_, err := EmitAttention(m, a, target)
			require.NoError(t, err)
		}
		lib, _ := attentionLib(t, m)
		for _, a := range []kern.Attention{one, few} {
			row := a.Heads * a.Dim
			for _, at := range []int64{0, 1, 62, 63, 64, 65, 127, T - a.Tq, T + 9, -4} {
				first := min(max(at, 0), T-a.Tq)
				q := attentionAligned[float32](a.Tq * row)
				copy(q, c.q[first*row:])
				place := attentionAligned[int32](1)
				place[0] = int32(at)
				got, l := attentionAligned[float32](a.Tq*row), attentionAligned[float32](a.Heads*a.Tq)
				attentionRun(attentionSymbol(t, lib, a.Name), [][2]int64{{0, a.Heads}}, attentionPointer(q), attentionPointer(c.k), attentionPointer(c.v),
					attentionPointer(place), attentionPointer(got), attentionPointer(l))
				attentionEqual(t, fmt.Sprintf("out at %d", at), out[first*row:(first+a.Tq)*row], got)
				for h := range a.Heads {
					attentionEqual(t, "lse", lse[h*T+first:h*T+first+a.Tq], l[h*a.Tq:(h+1)*a.Tq])
				}
			}
		}
	}
}
