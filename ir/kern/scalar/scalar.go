// Package scalar is the arithmetic of one element, in plain Go: the pieces of
// docs/numerics.md that Go itself lacks (a float32 fma with one rounding, the
// 16-bit float formats, Philox) and the elementary functions. The kernel
// interpreter and the reference semantics of the ops are written with it; the
// expression builders of package kern give the same bits.
//
// The bits of a NaN (sign and payload) are not part of any result.
package scalar

import (
	"math"
	"math/bits"
)

// Fma32 is x·y + z with one rounding. The product of two float32 is exact in
// float64; the sum is rounded to odd there, which makes the second rounding, to
// float32, the only one that counts.
func Fma32(x, y, z float32) float32 {
	p := float64(float64(x) * float64(y))
	return float32(addOdd(p, float64(z)))
}

// addOdd is a+b rounded to odd: exact, or the neighbour whose last bit is set.
func addOdd(a, b float64) float64 {
	s := float64(a + b)
	if s-s != 0 {
		return s // infinite or NaN
	}
	// TwoSum: a + b = s + e exactly.
	bb := float64(s - a)
	e := float64(float64(a-float64(s-bb)) + float64(b-bb))
	return odd(s, e)
}

// odd turns s, the rounded value of the exact s+e, into the value rounded to odd.
func odd(s, e float64) float64 {
	u := math.Float64bits(s)
	if e == 0 || u&1 != 0 {
		return s
	}
	if (e > 0) == (s > 0) {
		return math.Float64frombits(u + 1)
	}
	return math.Float64frombits(u - 1)
}

// Fma64 is x·y + z with one rounding.
func Fma64(x, y, z float64) float64 { return math.FMA(x, y, z) }

// Sqrt32 is the IEEE square root. (The float64 root has more than twice the bits
// that a float32 needs, so rounding it again is exact.)
func Sqrt32(x float32) float32 { return float32(math.Sqrt(float64(x))) }

// Odd32 is x rounded to odd in float32: the step before a conversion to a 16-bit
// format, which then rounds only once in effect.
func Odd32(x float64) float32 {
	f := float32(x)
	if x != x || float64(f) == x {
		return f
	}
	u := math.Float32bits(f)
	if u&1 != 0 {
		return f
	}
	if math.Abs(float64(f)) > math.Abs(x) {
		return math.Float32frombits(u - 1)
	}
	return math.Float32frombits(u + 1)
}

// flush takes denormals to zero, keeping the sign.
func flush(x float32) float32 {
	if u := math.Float32bits(x); u&0x7f800000 == 0 {
		return math.Float32frombits(u & 0x80000000)
	}
	return x
}

// FmaFlush32 is an fma with denormal operands and results taken as zero, as the processor does
// it: a result is denormal if, rounded to 24 bits, it is below the least normal. a and b are
// values of bf16.
func FmaFlush32(a, b, c float32) float32 {
	a, b, c = flush(a), flush(b), flush(c)
	r := Fma32(a, b, c)
	// Where the sum is near the least normal it is exact in float64: products of bf16 have
	// 16 bits, and c is a multiple of 2^-149.
	s := float64(a)*float64(b) + float64(c)
	if math.Abs(s) < 0x1p-126-0x1p-151 {
		return flush(float32(math.Copysign(0, float64(r))))
	}
	return r
}

// BF16 rounds to bfloat16, nearest even, and returns its bits.
func BF16(x float32) uint16 {
	u := math.Float32bits(x)
	if x != x {
		return uint16(u>>16) | 0x40
	}
	return uint16((u + 0x7fff + u>>16&1) >> 16)
}

// FromBF16 is the value of bfloat16 bits.
func FromBF16(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// RoundBF16 is x rounded to bfloat16.
func RoundBF16(x float32) float32 { return FromBF16(BF16(x)) }

// F16 rounds to IEEE half precision, nearest even, and returns its bits.
func F16(x float32) uint16 {
	u := math.Float32bits(x)
	sign := uint16(u >> 16 & 0x8000)
	u &= 0x7fffffff
	switch {
	case u > 0x7f800000:
		return sign | 0x7e00 | uint16(u>>13&0x3ff)
	case u >= 0x477ff000: // 65520 and above round to infinity
		return sign | 0x7c00
	case u >= 0x38800000: // normal
		u += 0xfff + u>>13&1
		return sign | uint16((u-0x38000000)>>13)
	}
	// Denormal: adding 0.5 puts the last bit of a half where float32 rounds.
	f := math.Float32frombits(u) + 0.5
	return sign | uint16(math.Float32bits(f)-0x3f000000)
}

// FromF16 is the value of half-precision bits.
func FromF16(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	e, m := uint32(h>>10&31), uint32(h&0x3ff)
	switch e {
	case 31:
		if m != 0 {
			m |= 0x200
		}
		return math.Float32frombits(sign | 0x7f800000 | m<<13)
	case 0:
		f := float32(m) * 0x1p-24
		return math.Float32frombits(sign | math.Float32bits(f))
	}
	return math.Float32frombits(sign | (e+112)<<23 | m<<13)
}

// RoundF16 is x rounded to half precision.
func RoundF16(x float32) float32 { return FromF16(F16(x)) }

// Philox4x32 is Philox4x32-10 (Salmon et al., Parallel random numbers: as easy as
// 1, 2, 3, SC 2011): four random words for a counter and a key.
func Philox4x32(ctr [4]uint32, key [2]uint32) [4]uint32 {
	for range 10 {
		h0, l0 := bits.Mul32(0xD2511F53, ctr[0])
		h1, l1 := bits.Mul32(0xCD9E8D57, ctr[2])
		ctr = [4]uint32{h1 ^ ctr[1] ^ key[0], l1, h0 ^ ctr[3] ^ key[1], l0}
		key[0] += 0x9E3779B9
		key[1] += 0xBB67AE85
	}
	return ctr
}

// Key is the state of the random generator: the value of an element of type key.
type Key struct {
	Seed        uint64
	Step, Micro uint32
}

// RowBlocks is the number of 64-element blocks of a row of cols elements of a
// random op's result.
func RowBlocks(cols int64) int64 { return (cols + 63) / 64 }

// Random is the random word of one element: block is the number of the row's first
// 64-element block (row · RowBlocks(cols)), col the column, op the random op's id.
func Random(k Key, op uint32, block, col int64) uint32 {
	n := uint64(block+col>>6)*16 + uint64(col&15)
	ctr := [4]uint32{uint32(n), op, k.Step, k.Micro<<16 | uint32(n>>32)&0xffff}
	return Philox4x32(ctr, [2]uint32{uint32(k.Seed), uint32(k.Seed >> 32)})[col>>4&3]
}

// Uniform32 maps a random word to [0, 1): its upper 24 bits.
func Uniform32(u uint32) float32 { return float32(u>>8) * 0x1p-24 }

// DropBelow is the bound of dropout with probability p in [0, 1]: an element is
// dropped where its random word is less. 2^32 for p = 1.
func DropBelow(p float64) uint64 { return uint64(math.Floor(p * 0x1p32)) }

// DropScale is the factor of kept elements, 1/(1-p), rounded once to float32.
func DropScale(p float64) float32 { return float32(1 / (1 - p)) }
