package samples

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"

	"reprise/ir/dtype"
	"reprise/ir/kern/scalar"
)

// Fill fills a buffer of type t with values of every kind.
func Fill(r *rand.Rand, t dtype.Type, n int64) []byte {
	b := make([]byte, n*t.Size())
	special := []float64{0, math.Copysign(0, -1), 1, -1, math.Inf(1), math.Inf(-1), math.NaN(), 1e-40, -1e-42, 3e38, 0.5, 255, 256, -128.5, 2147483648, 9.3e18, 65504, 65520, 1e-7}
	for i := range n {
		f := r.NormFloat64() * math.Exp(r.NormFloat64())
		if r.IntN(6) == 0 {
			f = special[r.IntN(len(special))]
		}
		switch at := b[i*t.Size():]; t {
		case dtype.Bool:
			at[0] = byte(r.IntN(2))
		case dtype.F32:
			binary.LittleEndian.PutUint32(at, math.Float32bits(float32(f)))
		case dtype.F64:
			binary.LittleEndian.PutUint64(at, math.Float64bits(f))
		case dtype.F16:
			binary.LittleEndian.PutUint16(at, scalar.F16(float32(f)))
		case dtype.BF16:
			binary.LittleEndian.PutUint16(at, scalar.BF16(float32(f)))
		default:
			u := r.Uint64()
			if r.IntN(2) == 0 {
				u = uint64(r.IntN(9) - 4)
			}
			var w [8]byte
			binary.LittleEndian.PutUint64(w[:], u)
			copy(at[:t.Size()], w[:])
		}
	}
	return b
}

// Same compares buffers; any NaN equals any NaN.
func Same(t dtype.Type, a, b []byte) error {
	if bytes.Equal(a, b) {
		return nil
	}
	n := int(t.Size())
	for i := 0; i < len(a); i += n {
		x, y := a[i:i+n], b[i:i+n]
		if bytes.Equal(x, y) {
			continue
		}
		nan := func(v []byte) bool {
			switch t {
			case dtype.F32:
				return math.Float32bits(math.Float32frombits(binary.LittleEndian.Uint32(v)))&0x7fffffff > 0x7f800000
			case dtype.F64:
				return math.IsNaN(math.Float64frombits(binary.LittleEndian.Uint64(v)))
			case dtype.F16:
				return binary.LittleEndian.Uint16(v)&0x7fff > 0x7c00
			case dtype.BF16:
				return binary.LittleEndian.Uint16(v)&0x7fff > 0x7f80
			}
			return false
		}
		if !nan(x) || !nan(y) {
			return fmt.Errorf("element %d of %v: compiled %x, interpreted %x", i/n, t, x, y)
		}
	}
	return nil
}
