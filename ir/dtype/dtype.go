// Package dtype names the element types that a value may have.
package dtype

import "fmt"

// Type is an element type. The zero value is Invalid.
type Type uint8

// The element types. Key is the state of the counter-based random generator
// (see docs/numerics.md): 16 bytes, seed u64, step u32, micro-batch u32.
const (
	Invalid Type = iota
	Bool
	I8
	I16
	I32
	I64
	U8
	U16
	U32
	U64
	F16
	BF16
	F32
	F64
	Key
	numTypes
)

// row is what is known of one element type.
type row struct {
	name string
	size int64
}

func (t Type) row() row {
	switch t {
	case Bool:
		return row{"bool", 1}
	case I8:
		return row{"i8", 1}
	case I16:
		return row{"i16", 2}
	case I32:
		return row{"i32", 4}
	case I64:
		return row{"i64", 8}
	case U8:
		return row{"u8", 1}
	case U16:
		return row{"u16", 2}
	case U32:
		return row{"u32", 4}
	case U64:
		return row{"u64", 8}
	case F16:
		return row{"f16", 2}
	case BF16:
		return row{"bf16", 2}
	case F32:
		return row{"f32", 4}
	case F64:
		return row{"f64", 8}
	case Key:
		return row{"key", 16}
	}
	return row{"invalid", 0}
}

// Size is the number of bytes that one element takes in memory.
func (t Type) Size() int64 { return t.row().size }

// String is the name in the text form, e.g. "f32".
func (t Type) String() string { return t.row().name }

// IsFloat reports whether t is f16, bf16, f32 or f64.
func (t Type) IsFloat() bool { return t >= F16 && t <= F64 }

// IsSigned reports whether t is i8 to i64.
func (t Type) IsSigned() bool { return t >= I8 && t <= I64 }

// IsUnsigned reports whether t is u8 to u64.
func (t Type) IsUnsigned() bool { return t >= U8 && t <= U64 }

// IsInt reports whether t is a signed or unsigned integer; bool is not one.
func (t Type) IsInt() bool { return t >= I8 && t <= U64 }

// Parse is the inverse of String.
func Parse(name string) (Type, error) {
	for _, t := range All() {
		if t.String() == name {
			return t, nil
		}
	}
	return Invalid, fmt.Errorf("unknown element type %q: want one of %v", name, All())
}

// All lists the element types in order.
func All() []Type {
	ts := make([]Type, 0, numTypes-1)
	for t := Bool; t < numTypes; t++ {
		ts = append(ts, t)
	}
	return ts
}

// Accum is the type in which sums and contractions of t are accumulated:
// f32 for f16 and bf16, t itself otherwise (design: Numerics).
func (t Type) Accum() Type {
	if t == F16 || t == BF16 {
		return F32
	}
	return t
}
