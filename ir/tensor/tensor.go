// Package tensor holds host arrays: dense, row-major, little-endian.
package tensor

import (
	"encoding/binary"
	"fmt"
	"math"
	"unsafe"

	"reprise/ir/dtype"
)

// Tensor is a dense row-major array. Data holds Len()·DType.Size() bytes.
type Tensor struct {
	DType dtype.Type
	Shape []int64
	Data  []byte
}

// Len is the number of elements of a shape: the product of its sizes, 1 for rank 0.
func Len(shape []int64) int64 {
	n := int64(1)
	for _, d := range shape {
		n *= d
	}
	return n
}

// New makes a tensor of zeros, aligned to eight bytes.
func New(t dtype.Type, shape ...int64) *Tensor {
	n := Len(shape) * t.Size()
	words := make([]uint64, (n+7)/8)
	var data []byte
	if n > 0 {
		data = unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), n)
	}
	return &Tensor{DType: t, Shape: append([]int64{}, shape...), Data: data}
}

// Len is the number of elements.
func (t *Tensor) Len() int64 { return Len(t.Shape) }

// Clone copies t.
func (t *Tensor) Clone() *Tensor {
	c := New(t.DType, t.Shape...)
	copy(c.Data, t.Data)
	return c
}

// Reshaped shares t's data under another shape of equal length.
func (t *Tensor) Reshaped(shape ...int64) *Tensor {
	if Len(shape) != t.Len() {
		panic(fmt.Sprintf("BUG: reshape %v to %v", t.Shape, shape))
	}
	return &Tensor{DType: t.DType, Shape: append([]int64{}, shape...), Data: t.Data}
}

// Bits is element i's raw bits, zero-extended. Not for keys.
func (t *Tensor) Bits(i int64) uint64 {
	switch t.DType.Size() {
	case 1:
		return uint64(t.Data[i])
	case 2:
		return uint64(binary.LittleEndian.Uint16(t.Data[2*i:]))
	case 4:
		return uint64(binary.LittleEndian.Uint32(t.Data[4*i:]))
	case 8:
		return binary.LittleEndian.Uint64(t.Data[8*i:])
	}
	panic("BUG: Bits of " + t.DType.String())
}

// SetBits is the inverse of Bits; upper bits are dropped.
func (t *Tensor) SetBits(i int64, b uint64) {
	switch t.DType.Size() {
	case 1:
		t.Data[i] = byte(b)
	case 2:
		binary.LittleEndian.PutUint16(t.Data[2*i:], uint16(b))
	case 4:
		binary.LittleEndian.PutUint32(t.Data[4*i:], uint32(b))
	case 8:
		binary.LittleEndian.PutUint64(t.Data[8*i:], b)
	default:
		panic("BUG: SetBits of " + t.DType.String())
	}
}

func view[E any](t *Tensor, want dtype.Type) []E {
	if t.DType != want {
		panic(fmt.Sprintf("BUG: %v tensor read as %v", t.DType, want))
	}
	if len(t.Data) == 0 {
		return nil
	}
	return unsafe.Slice((*E)(unsafe.Pointer(&t.Data[0])), t.Len())
}

// F32 views the data of an f32 tensor.
func (t *Tensor) F32() []float32 { return view[float32](t, dtype.F32) }

// F64 views the data of an f64 tensor.
func (t *Tensor) F64() []float64 { return view[float64](t, dtype.F64) }

// I32 views the data of an i32 tensor.
func (t *Tensor) I32() []int32 { return view[int32](t, dtype.I32) }

// I64 views the data of an i64 tensor.
func (t *Tensor) I64() []int64 { return view[int64](t, dtype.I64) }

// Of makes a tensor from Go values; len(vals) must equal the shape's length.
func Of[E float32 | float64 | int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64 | bool](vals []E, shape ...int64) *Tensor {
	var zero E
	t := New(dtypeOf(any(zero)), shape...)
	if int64(len(vals)) != t.Len() {
		panic(fmt.Sprintf("BUG: %d values for shape %v", len(vals), shape))
	}
	if len(vals) > 0 {
		copy(t.Data, unsafe.Slice((*byte)(unsafe.Pointer(&vals[0])), len(t.Data)))
	}
	return t
}

func dtypeOf(v any) dtype.Type {
	switch v.(type) {
	case float32:
		return dtype.F32
	case float64:
		return dtype.F64
	case int8:
		return dtype.I8
	case int16:
		return dtype.I16
	case int32:
		return dtype.I32
	case int64:
		return dtype.I64
	case uint8:
		return dtype.U8
	case uint16:
		return dtype.U16
	case uint32:
		return dtype.U32
	case uint64:
		return dtype.U64
	}
	return dtype.Bool
}

// Key makes a generator key (see dtype.Key).
func Key(seed uint64, step, micro uint32) *Tensor {
	t := New(dtype.Key)
	binary.LittleEndian.PutUint64(t.Data, seed)
	binary.LittleEndian.PutUint32(t.Data[8:], step)
	binary.LittleEndian.PutUint32(t.Data[12:], micro)
	return t
}

// Equal reports whether a and b have the same type, shape and bytes.
func Equal(a, b *Tensor) bool {
	return a.DType == b.DType && fmt.Sprint(a.Shape) == fmt.Sprint(b.Shape) && string(a.Data) == string(b.Data)
}

// Float is element i as float64, for messages and tolerant comparison; not for f16 and key.
func (t *Tensor) Float(i int64) float64 {
	b := t.Bits(i)
	switch t.DType {
	case dtype.F32:
		return float64(math.Float32frombits(uint32(b)))
	case dtype.F64:
		return math.Float64frombits(b)
	case dtype.BF16:
		return float64(math.Float32frombits(uint32(b) << 16))
	case dtype.I8:
		return float64(int8(b))
	case dtype.I16:
		return float64(int16(b))
	case dtype.I32:
		return float64(int32(b))
	case dtype.I64:
		return float64(int64(b))
	}
	return float64(b)
}
