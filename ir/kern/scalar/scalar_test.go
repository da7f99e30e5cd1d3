package scalar

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestPhiloxKnownAnswers(t *testing.T) {
	f := uint32(0xffffffff)
	for _, c := range []struct {
		ctr  [4]uint32
		key  [2]uint32
		want [4]uint32
	}{
		{[4]uint32{}, [2]uint32{}, [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{[4]uint32{f, f, f, f}, [2]uint32{f, f}, [4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{[4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, [2]uint32{0xa4093822, 0x299f31d0},
			[4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	} {
		assert.Equal(t, c.want, Philox4x32(c.ctr, c.key))
	}
}

// anyFloat32 gives bits of every exponent, and close exponents often.
func anyFloat32(r *rand.Rand) float32 {
	switch r.IntN(8) {
	case 0:
		return math.Float32frombits(r.Uint32()&0x807fffff | uint32(r.IntN(3))<<23) // denormal or near
	case 1:
		return float32(r.IntN(64)) - 32
	case 2, 3, 4:
		return float32(r.NormFloat64())
	}
	return math.Float32frombits(r.Uint32())
}

func TestFma32IsExact(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	n := 0
	for range 200000 {
		x, y, z := anyFloat32(r), anyFloat32(r), anyFloat32(r)
		if r.IntN(3) == 0 { // near cancellation
			z = -float32(x*y) * (1 + float32(r.IntN(5)-2)*0x1p-23)
		}
		if x-x != 0 || y-y != 0 || z-z != 0 || x == 0 || y == 0 {
			continue
		}
		n++
		e := new(big.Float).SetPrec(1000).Mul(big.NewFloat(float64(x)), big.NewFloat(float64(y)))
		e.Add(e, big.NewFloat(float64(z)))
		want, _ := e.Float32()
		if got := Fma32(x, y, z); got != want {
			t.Fatalf("fma(%x, %x, %x) = %x, want %x", x, y, z, got, want)
		}
	}
	assert.Greater(t, n, 100000)
	assert.Equal(t, float32(math.Inf(1)), Fma32(math.MaxFloat32, 2, 0))
	assert.True(t, math.IsNaN(float64(Fma32(float32(math.Inf(1)), 0, 1))))
	assert.Equal(t, uint32(1<<31), math.Float32bits(Fma32(float32(math.Copysign(0, -1)), 1, float32(math.Copysign(0, -1)))))
}

func TestSixteenBitFormats(t *testing.T) {
	for h := range 1 << 16 {
		if f := FromF16(uint16(h)); f == f {
			assert.Equal(t, uint16(h), F16(f))
		}
		if f := FromBF16(uint16(h)); f == f {
			assert.Equal(t, uint16(h), BF16(f))
		}
	}
	// Between two neighbours: to the nearer, ties to the even one.
	for h := uint16(0); h < 0x7bff; h++ {
		a, b := float64(FromF16(h)), float64(FromF16(h+1))
		m := (a + b) / 2
		assert.Equal(t, h+h&1, F16(float32(m)))
		assert.Equal(t, h, F16(Odd32(m-(b-a)*0x1p-20)))
		assert.Equal(t, h+1, F16(Odd32(m+(b-a)*0x1p-20)))
	}
	assert.Equal(t, uint16(0x7c00), F16(65520))
	assert.Equal(t, uint16(0x7bff), F16(65519.996))
	assert.Equal(t, uint16(0xfc00), F16(float32(math.Inf(-1))))
	assert.Equal(t, uint16(0x7f80), BF16(math.MaxFloat32))
	assert.Equal(t, uint16(1), BF16(Odd32(0x1p-134+0x1p-160)))
	assert.Equal(t, uint16(0), BF16(0x1p-134))
}

func TestRandomCountsSixteenCountersABlock(t *testing.T) {
	k := Key{Seed: 0x0123456789abcdef, Step: 7, Micro: 3}
	for _, col := range []int64{0, 15, 16, 63, 64, 200} {
		want := Philox4x32([4]uint32{uint32((5+col/64)*16 + col%16), 9, 7, 3 << 16}, [2]uint32{0x89abcdef, 0x01234567})
		assert.Equal(t, want[col/16%4], Random(k, 9, 5, col))
	}
	assert.Equal(t, float32(0), Uniform32(255))
	assert.Less(t, Uniform32(math.MaxUint32), float32(1))
	assert.Equal(t, uint64(1)<<32, DropBelow(1))
}
