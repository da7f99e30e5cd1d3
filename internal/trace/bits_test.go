package trace

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/ir/dtype"
)

// TestHash: one changed bit anywhere changes the hash, and so do length and order.
func TestHash(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{0, 1, 3, 8, 9, 64, 1000} {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		want := Hash(b)
		require.Equal(t, want, Hash(append([]byte{}, b...)))
		require.NotEqual(t, want, Hash(append(b[:n:n], 0)))
		for range min(n, 50) {
			i := r.IntN(n)
			b[i] ^= 1 << r.IntN(8)
			require.NotEqual(t, want, Hash(b))
			want = Hash(b)
		}
	}
	require.NotEqual(t, Hash([]byte("0123456789abcdef")), Hash([]byte("89abcdef01234567")))
}

func TestULP(t *testing.T) {
	f32 := func(x float32) uint64 { return uint64(math.Float32bits(x)) }
	for _, c := range []struct {
		d    dtype.Type
		a, b uint64
		want uint64
		ok   bool
	}{
		{dtype.F32, f32(1), f32(1), 0, true},
		{dtype.F32, f32(1), f32(math.Nextafter32(1, 2)), 1, true},
		{dtype.F32, f32(math.Nextafter32(0, 1)), f32(math.Nextafter32(0, -1)), 2, true},
		{dtype.F32, f32(0), 1 << 31, 0, true}, // −0 is +0
		{dtype.F32, f32(1), f32(float32(math.NaN())), 0, false},
		{dtype.F32, 0x7fc00000, 0x7fc00001, 0, true},
		{dtype.F64, math.Float64bits(2), math.Float64bits(math.Nextafter(math.Nextafter(2, 3), 3)), 2, true},
		{dtype.F64, math.Float64bits(-math.MaxFloat64), math.Float64bits(math.MaxFloat64), 2 * 0x7fefffffffffffff, true},
		{dtype.BF16, 0x3f80, 0x3f83, 3, true},
		{dtype.F16, 0x3c00, 0xbc00, 2 * 0x3c00, true},
	} {
		n, ok := ULP(c.d, c.a, c.b)
		require.Equal(t, c.ok, ok)
		require.Equal(t, c.want, n, "%v %x %x", c.d, c.a, c.b)
	}
}

func TestDifference(t *testing.T) {
	d := difference(dtype.I16, []int64{2, 2}, []byte{1, 0, 0xff, 0xff, 3, 0, 4, 0}, []byte{1, 0, 2, 0, 3, 0, 5, 0})
	require.Equal(t, &Difference{Elements: 4, Differ: 2, First: []int64{0, 1}, Planned: "-1", Other: "2"}, d)
	one := uint64(1)
	d = difference(dtype.F32, []int64{1}, []byte{0, 0, 0x80, 0x3f}, []byte{1, 0, 0x80, 0x3f})
	require.Equal(t, &Difference{Elements: 1, Differ: 1, First: []int64{0}, Planned: "1 (0x3f800000)", Other: "1.0000001 (0x3f800001)", MaxULP: &one}, d)
}
