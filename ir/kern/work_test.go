package kern

import (
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/ir/dtype"
)

// Counts are those that a person gets from the kernel's text.
func TestWork(t *testing.T) {
	b := NewBuilder("work", 4)
	x, key, out := b.In("x", dtype.F32, 4*5*40), b.In("n", dtype.I64, 1), b.Out("out", dtype.F32, 4*5*40)
	r, l := NewVar("r", dtype.I64), NewVar("l", dtype.I64)
	at := Add(Mul(Add(Mul(b.TileIndex(), I64(5)), Get(r)), I64(40)), Get(l))
	sum := NewVar("sum", dtype.F32)
	square := func(v *Expr) *Expr { return Mul(v, v) }
	v := x.At(at)
	b.Do(Range(r, Min(I64(5), Sub(I64(20), Mul(b.TileIndex(), I64(5)))), // 5 rows in the middle tile
		Lane(l, I64(40), out.Set(at, Div(square(v), Sqrt(square(v))))).Reduce(RedSum, sum, v)))
	w := b.K.Work()
	const lanes = 4 * 5 * 48                                                                // 40 in whole vectors
	require.Equal(t, Work{Lanes: 6 * lanes, Divs: 2 * lanes, Scalars: 4*5*(5+20) + 4*5}, w) // a load, two squares, a store; what is reduced is loaded again, and joined

	b = NewBuilder("gather", 1)
	x, out = b.In("x", dtype.F32, 64*64), b.Out("out", dtype.F32, 64)
	b.Do(Lane(l, I64(64), out.Set(Get(l), x.At(Mul(Get(l), I64(64))))))
	require.Equal(t, Work{Lanes: 64, Gathers: 64, Scalars: 5}, b.K.Work())

	b = NewBuilder("blind", 1)
	key, out = b.In("n", dtype.I64, 1), b.Out("out", dtype.F32, 1)
	b.Do(Range(r, key.At(I64(0)), out.Set(I64(0), F32(1))))
	require.True(t, b.K.Work().Blind)
}

// Sharing is no reason to count for ever: a chain of squares has 2^64 paths.
func TestWorkOfSharedExpressions(t *testing.T) {
	b := NewBuilder("shared", 1)
	x, out, l := b.In("x", dtype.F32, 64), b.Out("out", dtype.F32, 64), NewVar("l", dtype.I64)
	v, i, j := x.At(Get(l)), Get(l), Add(Get(l), Convert(x.At(I64(0)), dtype.I64))
	for range 64 {
		j = Add(j, j)
		v, i = Mul(v, v), Add(i, i)
	}
	b.Do(Lane(l, I64(64), out.Set(j, Select(Lt(i, I64(3)), v, F32(0)))))
	require.Greater(t, b.K.Work().Lanes, 64.0*64)
}
