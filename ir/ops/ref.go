package ops

// What the reference semantics share: reading and writing tensors as numbers, and
// walking over indices. Slow and obvious on purpose.

import (
	"math"
	"slices"

	"reprise/ir/dtype"
	"reprise/ir/kern/scalar"
	"reprise/ir/tensor"
)

// HalfToF32 widens an f16; exact.
func HalfToF32(h uint16) float32 { return scalar.FromF16(h) }

// F32ToHalf rounds to f16, to nearest, ties to even; NaN stays NaN.
func F32ToHalf(x float32) uint16 { return scalar.F16(x) }

// BF16ToF32 widens a bf16; exact.
func BF16ToF32(h uint16) float32 { return scalar.FromBF16(h) }

// F32ToBF16 rounds to bf16, to nearest, ties to even; NaN stays NaN.
func F32ToBF16(x float32) uint16 { return scalar.BF16(x) }

// RoundTo rounds an f32 to d (f16, bf16; f32 is itself) and gives it back as f32.
func RoundTo(d dtype.Type, x float32) float32 {
	switch d {
	case dtype.F16:
		return HalfToF32(F32ToHalf(x))
	case dtype.BF16:
		return BF16ToF32(F32ToBF16(x))
	}
	return x
}

// readF32 is the elements of an f16, bf16 or f32 tensor. For f32 it is a view.
func readF32(t *tensor.Tensor) []float32 {
	if t.DType == dtype.F32 {
		return t.F32()
	}
	out := make([]float32, t.Len())
	for i := range out {
		b := uint16(t.Bits(int64(i)))
		if t.DType == dtype.F16 {
			out[i] = HalfToF32(b)
		} else {
			out[i] = BF16ToF32(b)
		}
	}
	return out
}

// makeF32 rounds elements to d (f16, bf16, f32) and makes a tensor of them.
func makeF32(d dtype.Type, shape []int64, vals []float32) *tensor.Tensor {
	t := tensor.New(d, shape...)
	for i, x := range vals {
		switch d {
		case dtype.F16:
			t.SetBits(int64(i), uint64(F32ToHalf(x)))
		case dtype.BF16:
			t.SetBits(int64(i), uint64(F32ToBF16(x)))
		default:
			t.SetBits(int64(i), uint64(math.Float32bits(x)))
		}
	}
	return t
}

// makeF64 makes an f64 tensor.
func makeF64(shape []int64, vals []float64) *tensor.Tensor { return tensor.Of(vals, shape...) }

// extend gives raw bits of an integer or bool as a 64-bit pattern, sign-extended
// where d is signed.
func extend(d dtype.Type, b uint64) int64 {
	switch d {
	case dtype.I8:
		return int64(int8(b))
	case dtype.I16:
		return int64(int16(b))
	case dtype.I32:
		return int64(int32(b))
	}
	return int64(b)
}

// readInts is the elements of an integer or bool tensor as 64-bit patterns.
func readInts(t *tensor.Tensor) []int64 {
	out := make([]int64, t.Len())
	for i := range out {
		out[i] = extend(t.DType, t.Bits(int64(i)))
	}
	return out
}

// makeInts wraps 64-bit patterns to d (integer or bool) and makes a tensor of them.
func makeInts(d dtype.Type, shape []int64, vals []int64) *tensor.Tensor {
	t := tensor.New(d, shape...)
	for i, x := range vals {
		t.SetBits(int64(i), uint64(x))
	}
	return t
}

// stridesOf is the row-major element strides of a shape.
func stridesOf(shape []int64) []int64 {
	s := make([]int64, len(shape))
	n := int64(1)
	for i := len(shape) - 1; i >= 0; i-- {
		s[i] = n
		n *= shape[i]
	}
	return s
}

// flatten is the row-major position of idx.
func flatten(shape, idx []int64) int64 {
	n := int64(0)
	for i, d := range shape {
		n = n*d + idx[i]
	}
	return n
}

// eachIndex visits all indices of a shape in row-major order; idx is reused.
func eachIndex(shape []int64, visit func(flat int64, idx []int64)) {
	n := tensor.Len(shape)
	idx := make([]int64, len(shape))
	for flat := int64(0); flat < n; flat++ {
		visit(flat, idx)
		for d := len(shape) - 1; d >= 0; d-- {
			if idx[d]++; idx[d] < shape[d] {
				break
			}
			idx[d] = 0
		}
	}
}

// gatherElements makes a tensor of d and shape whose element at idx is a copy of
// src's element at from(idx); a negative position leaves the element zero. It serves
// every dtype, keys among them, since it moves bytes.
func gatherElements(src *tensor.Tensor, shape []int64, from func(idx []int64) int64) *tensor.Tensor {
	out := tensor.New(src.DType, shape...)
	w := src.DType.Size()
	eachIndex(shape, func(flat int64, idx []int64) {
		if p := from(idx); p >= 0 {
			copy(out.Data[flat*w:(flat+1)*w], src.Data[p*w:(p+1)*w])
		}
	})
	return out
}

// one wraps the usual single result.
func one(t *tensor.Tensor) ([]*tensor.Tensor, error) { return []*tensor.Tensor{t}, nil }

// inRange reports whether axis is a dimension of a value of the given rank.
func inRange(axis int64, rank int) bool { return axis >= 0 && axis < int64(rank) }

// distinctAxes reports whether axes are dimensions of the rank, each once.
func distinctAxes(axes []int64, rank int) bool {
	for i, a := range axes {
		if !inRange(a, rank) || slices.Contains(axes[:i], a) {
			return false
		}
	}
	return true
}

// seq is 0 … n-1.
func seq(n int) []int64 {
	s := make([]int64, n)
	for i := range s {
		s[i] = int64(i)
	}
	return s
}

// sameShape reports equality of shapes.
func sameShape(a, b []int64) bool { return slices.Equal(a, b) }
