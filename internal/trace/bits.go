package trace

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"strconv"

	"reprise/ir/dtype"
	"reprise/ir/kern/scalar"
	"reprise/ir/tensor"
)

// Hash is a 64-bit hash of a value's bytes, the same in every run. It takes eight bytes at a time; each
// turn is a bijection of the state and of the word, so that two values that differ in one word
// never have the same hash.
func Hash(b []byte) uint64 {
	const odd = 0x9e3779b97f4a7c15 // 2^64 / golden ratio
	h := uint64(len(b)) * odd
	turn := func(w uint64) {
		h = bits.RotateLeft64((h^w)*odd, 31)
	}
	for ; len(b) >= 8; b = b[8:] {
		turn(binary.LittleEndian.Uint64(b))
	}
	if len(b) > 0 {
		var last [8]byte
		copy(last[:], b)
		turn(binary.LittleEndian.Uint64(last[:]))
	}
	h ^= h >> 32
	h *= odd
	return h ^ h>>29
}

// ULP is the distance of two elements of a floating type, given as bits, in units in the last place: how
// many numbers of the type lie between them, plus one. ok is false where one is NaN and the other is not.
func ULP(t dtype.Type, a, b uint64) (distance uint64, ok bool) {
	width := uint(t.Size() * 8)
	nan := func(x uint64) bool { return math.IsNaN(number(t, x)) }
	if nan(a) != nan(b) {
		return 0, false
	}
	if nan(a) {
		return 0, true
	}
	ordered := func(x uint64) int64 { // −0 and +0 are the same number
		sign := uint64(1) << (width - 1)
		if x&sign != 0 {
			return -int64(x &^ sign)
		}
		return int64(x)
	}
	x, y := ordered(a), ordered(b)
	if x < y {
		x, y = y, x
	}
	return uint64(x) - uint64(y), true
}

// number is an element of a floating type.
func number(t dtype.Type, x uint64) float64 {
	switch t {
	case dtype.F16:
		return float64(scalar.FromF16(uint16(x)))
	case dtype.BF16:
		return float64(scalar.FromBF16(uint16(x)))
	case dtype.F32:
		return float64(math.Float32frombits(uint32(x)))
	}
	return math.Float64frombits(x)
}

// Difference is how two arrays of one type differ, by their bits.
type Difference struct {
	Elements int64   `json:"elements"`
	Differ   int64   `json:"differ"`            // elements whose bits differ
	First    []int64 `json:"first"`             // index of the first of them
	Planned  string  `json:"planned"`           // its value in the planned program
	Other    string  `json:"other"`             // and in the other
	MaxULP   *uint64 `json:"max_ulp,omitempty"` // floating types; where both are numbers
	NaN      int64   `json:"nan,omitempty"`     // elements of which one is NaN and the other is not
}

func difference(d dtype.Type, shape []int64, planned, other []byte) *Difference {
	a := &tensor.Tensor{DType: d, Shape: shape, Data: planned}
	b := &tensor.Tensor{DType: d, Shape: shape, Data: other}
	out := &Difference{Elements: a.Len()}
	if d == dtype.Key {
		return out
	}
	if d.IsFloat() {
		out.MaxULP = new(uint64)
	}
	for i := range a.Len() {
		x, y := a.Bits(i), b.Bits(i)
		if x == y {
			continue
		}
		out.Differ++
		if out.First == nil {
			out.First = index(i, shape)
			out.Planned, out.Other = element(d, x), element(d, y)
		}
		if out.MaxULP == nil {
			continue
		}
		if n, ok := ULP(d, x, y); !ok {
			out.NaN++
		} else if n > *out.MaxULP {
			*out.MaxULP = n
		}
	}
	return out
}

// index is the position of element i of a row-major array.
func index(i int64, shape []int64) []int64 {
	out := make([]int64, len(shape))
	for k := len(shape) - 1; k >= 0; k-- {
		out[k] = i % shape[k]
		i /= shape[k]
	}
	return out
}

// element is an element as a number and as bits.
func element(d dtype.Type, x uint64) string {
	switch {
	case d.IsFloat():
		precision := 32 // the shortest text that is this number and no other of its type
		if d == dtype.F64 {
			precision = 64
		}
		return fmt.Sprintf("%s (0x%0*x)", strconv.FormatFloat(number(d, x), 'g', -1, precision), int(2*d.Size()), x)
	case d == dtype.Bool:
		return fmt.Sprint(x != 0)
	case d.IsSigned():
		shift := 64 - 8*uint(d.Size())
		return fmt.Sprint(int64(x<<shift) >> shift)
	}
	return fmt.Sprint(x)
}
