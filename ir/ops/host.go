package ops

import (
	"fmt"
	"math"
	"slices"

	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/tensor"
)

// Helpers of reference semantics: elements as raw bits of their accumulation type
// (f32 for f16 and bf16), and row-major index arithmetic.

// accGet is element i of t widened to t.DType.Accum(), as raw bits.
func accGet(t *tensor.Tensor, i int64) uint64 {
	b := t.Bits(i)
	switch t.DType {
	case dtype.F16:
		return uint64(math.Float32bits(HalfToF32(uint16(b))))
	case dtype.BF16:
		return b << 16
	}
	return b
}

// accSet rounds raw bits of t.DType.Accum() to t.DType and stores them as element i.
func accSet(t *tensor.Tensor, i int64, b uint64) {
	switch t.DType {
	case dtype.F16:
		b = uint64(F32ToHalf(math.Float32frombits(uint32(b))))
	case dtype.BF16:
		b = uint64(F32ToBF16(math.Float32frombits(uint32(b))))
	}
	t.SetBits(i, b)
}

func bits32(x float32) uint64 { return uint64(math.Float32bits(x)) }
func from32(b uint64) float32 { return math.Float32frombits(uint32(b)) }
func bits64(x float64) uint64 { return math.Float64bits(x) }
func from64(b uint64) float64 { return math.Float64frombits(b) }

// binary is a two-operand function on raw bits of an accumulation type.
type binary func(a, b uint64) uint64

func floatBin(d dtype.Type, f32 func(a, b float32) float32, f64 func(a, b float64) float64) binary {
	if d == dtype.F64 {
		return func(a, b uint64) uint64 {
			return math.Float64bits(f64(math.Float64frombits(a), math.Float64frombits(b)))
		}
	}
	return func(a, b uint64) uint64 {
		return uint64(math.Float32bits(f32(math.Float32frombits(uint32(a)), math.Float32frombits(uint32(b)))))
	}
}

// lessBits orders two elements of type d (an accumulation type): a < b.
func lessBits(d dtype.Type, a, b uint64) bool {
	switch {
	case d == dtype.F64:
		return math.Float64frombits(a) < math.Float64frombits(b)
	case d.IsFloat():
		return math.Float32frombits(uint32(a)) < math.Float32frombits(uint32(b))
	case d.IsSigned():
		return extend(d, a) < extend(d, b)
	}
	return a < b
}

// isNaNBits reports whether raw bits of accumulation type d are a NaN.
func isNaNBits(d dtype.Type, a uint64) bool {
	switch {
	case d == dtype.F64:
		return math.IsNaN(math.Float64frombits(a))
	case d.IsFloat():
		f := math.Float32frombits(uint32(a))
		return f != f
	}
	return false
}

// reducer is the binary function of a reduction kind on accumulation type d, and its identity.
func reducer(kind string, d dtype.Type) (op binary, identity uint64) {
	mask := ^uint64(0)
	if d.Size() < 8 {
		mask = 1<<(8*uint(d.Size())) - 1
	}
	switch kind {
	case "sum", "add":
		if d.IsFloat() {
			return floatBin(d, func(a, b float32) float32 { return a + b }, func(a, b float64) float64 { return a + b }), 0
		}
		return func(a, b uint64) uint64 { return (a + b) & mask }, 0
	case "prod", "mul":
		if d.IsFloat() {
			return floatBin(d, func(a, b float32) float32 { return a * b }, func(a, b float64) float64 { return a * b }), oneBits(d)
		}
		return func(a, b uint64) uint64 { return (a * b) & mask }, 1
	case "max":
		return func(a, b uint64) uint64 {
			if lessBits(d, b, a) || isNaNBits(d, a) {
				return a
			}
			return b
		}, leastBits(d)
	case "min":
		return func(a, b uint64) uint64 {
			if lessBits(d, a, b) || isNaNBits(d, a) {
				return a
			}
			return b
		}, greatestBits(d)
	case "and":
		if d == dtype.Bool {
			mask = 1
		}
		return func(a, b uint64) uint64 { return a & b }, mask
	case "or":
		return func(a, b uint64) uint64 { return a | b }, 0
	case "xor":
		return func(a, b uint64) uint64 { return a ^ b }, 0
	case "set":
		return func(a, b uint64) uint64 { return b }, 0
	}
	panic("BUG: reduction kind " + kind)
}

// oneBits is 1 of type d (an accumulation type).
func oneBits(d dtype.Type) uint64 {
	switch d {
	case dtype.F64:
		return math.Float64bits(1)
	case dtype.F32:
		return uint64(math.Float32bits(1))
	}
	return 1
}

// leastBits is −inf or the least integer of type d (an accumulation type).
func leastBits(d dtype.Type) uint64 {
	switch {
	case d == dtype.F64:
		return math.Float64bits(math.Inf(-1))
	case d.IsFloat():
		return uint64(math.Float32bits(float32(math.Inf(-1))))
	case d.IsSigned():
		return 1 << (8*uint(d.Size()) - 1)
	}
	return 0
}

// greatestBits is +inf or the greatest integer of type d (an accumulation type).
func greatestBits(d dtype.Type) uint64 {
	switch {
	case d == dtype.F64:
		return math.Float64bits(math.Inf(1))
	case d.IsFloat():
		return uint64(math.Float32bits(float32(math.Inf(1))))
	case d == dtype.Bool:
		return 1
	case d.IsSigned():
		return 1<<(8*uint(d.Size())-1) - 1
	}
	return ^uint64(0) >> (64 - 8*uint(d.Size()))
}

// dotIdx is Σ idx·strides.
func dotIdx(idx, strides []int64) int64 {
	o := int64(0)
	for i, x := range idx {
		o += x * strides[i]
	}
	return o
}

// axesOK reports axes that are not distinct, increasing and within rank.
func axesOK(axes []int64, rank int) error {
	for i, a := range axes {
		if a < 0 || a >= int64(rank) {
			return fmt.Errorf("axis %d is outside rank %d", a, rank)
		}
		if i > 0 && axes[i-1] >= a {
			return fmt.Errorf("axes %v are not strictly increasing", axes)
		}
	}
	return nil
}

// axisOK reports an axis outside of rank.
func axisOK(axis int64, rank int) error {
	if axis < 0 || axis >= int64(rank) {
		return fmt.Errorf("axis %d is outside rank %d", axis, rank)
	}
	return nil
}

// without is shape without the given axes.
func without(shape, axes []int64) []int64 {
	out := []int64{}
	for i, d := range shape {
		if !slices.Contains(axes, int64(i)) {
			out = append(out, d)
		}
	}
	return out
}

// pick is shape at the given axes.
func pick(shape, axes []int64) []int64 {
	out := make([]int64, len(axes))
	for i, a := range axes {
		out[i] = shape[a]
	}
	return out
}

// oneType wraps the types of an op with one result.
func oneType(t ir.Type) ([]ir.Type, error) { return []ir.Type{t}, nil }

// isIndexType reports the element types that an index operand may have.
func isIndexType(d dtype.Type) bool { return d.IsInt() }

// indexAt reads element i of an integer tensor as int64; u64 beyond int64 saturates.
func indexAt(t *tensor.Tensor, i int64) int64 {
	v := extend(t.DType, t.Bits(i))
	if t.DType == dtype.U64 && v < 0 {
		return math.MaxInt64
	}
	return v
}

func clampIdx(v, hi int64) int64 { return max(0, min(v, hi)) }

// scalarTensor is v as a rank-0 tensor of d, rounded to it.
func scalarTensor(d dtype.Type, v float64) *tensor.Tensor {
	switch {
	case d == dtype.F64:
		return makeF64(nil, []float64{v})
	case d.IsFloat():
		return makeF32(d, nil, []float32{float32(v)})
	}
	return makeInts(d, nil, []int64{int64(v)})
}
