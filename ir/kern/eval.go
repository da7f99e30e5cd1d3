package kern

import (
	"fmt"
	"math"
	"math/bits"

	"reprise/ir/dtype"
	"reprise/ir/kern/scalar"
)

func f32(b uint64) float32 { return math.Float32frombits(uint32(b)) }
func b32(x float32) uint64 { return uint64(math.Float32bits(x)) }
func f64(b uint64) float64 { return math.Float64frombits(b) }
func b64(x float64) uint64 { return math.Float64bits(x) }

func truth(x bool) uint64 {
	if x {
		return 1
	}
	return 0
}

// signed extends the bits of a value of type t to an int64.
func signed(t dtype.Type, b uint64) int64 {
	s := 64 - 8*uint(t.Size())
	return int64(b<<s) >> s
}

// evalOp evaluates an operation without memory on the raw bits of its operands.
func evalOp(e *Expr, a []uint64) uint64 {
	t := e.Args[0].DType // the operands' type, where it matters
	switch e.Op {
	case OpSelect:
		if a[0] != 0 {
			return a[1]
		}
		return a[2]
	case OpConvert:
		return convert(t, e.DType, a[0])
	case OpBitcast:
		return a[0]
	case OpPhilox:
		c := [4]uint32{uint32(a[0]), uint32(a[1]), uint32(a[2]), uint32(a[3])}
		return uint64(scalar.Philox4x32(c, [2]uint32{uint32(a[4]), uint32(a[5])})[e.Bits&3])
	case OpRandom:
		k := scalar.Key{Seed: a[1]<<32 | a[0], Step: uint32(a[2]), Micro: uint32(a[3])}
		return uint64(scalar.Random(k, uint32(e.Bits), int64(a[4]), int64(a[5])))
	}
	switch {
	case t == dtype.F32:
		return evalF32(e.Op, a)
	case t == dtype.F64:
		return evalF64(e.Op, a)
	}
	return evalInt(e.Op, t, a)
}

func evalF32(op Op, a []uint64) uint64 {
	x := f32(a[0])
	var y float32
	if len(a) > 1 {
		y = f32(a[1])
	}
	switch op {
	case OpNeg:
		return a[0] ^ 1<<31
	case OpAbs:
		return a[0] &^ (1 << 31)
	case OpAdd:
		return b32(x + y)
	case OpSub:
		return b32(x - y)
	case OpMul:
		return b32(float32(x * y))
	case OpDiv:
		return b32(x / y)
	case OpFma:
		return b32(scalar.Fma32(x, y, f32(a[2])))
	case OpFmaFlush:
		return b32(scalar.FmaFlush32(x, y, f32(a[2])))
	case OpSqrt:
		return b32(scalar.Sqrt32(x))
	case OpFloor:
		return b32(float32(math.Floor(float64(x))))
	case OpCeil:
		return b32(float32(math.Ceil(float64(x))))
	case OpRint:
		return b32(float32(math.RoundToEven(float64(x))))
	case OpTrunc:
		return b32(float32(math.Trunc(float64(x))))
	case OpMin:
		if x < y || x != x {
			return a[0]
		}
		return a[1]
	case OpMax:
		if x > y || x != x {
			return a[0]
		}
		return a[1]
	}
	return compare(op, x, y)
}

func evalF64(op Op, a []uint64) uint64 {
	x := f64(a[0])
	var y float64
	if len(a) > 1 {
		y = f64(a[1])
	}
	switch op {
	case OpNeg:
		return a[0] ^ 1<<63
	case OpAbs:
		return a[0] &^ (1 << 63)
	case OpAdd:
		return b64(x + y)
	case OpSub:
		return b64(x - y)
	case OpMul:
		return b64(float64(x * y))
	case OpDiv:
		return b64(x / y)
	case OpFma:
		return b64(scalar.Fma64(x, y, f64(a[2])))
	case OpSqrt:
		return b64(math.Sqrt(x))
	case OpFloor:
		return b64(math.Floor(x))
	case OpCeil:
		return b64(math.Ceil(x))
	case OpRint:
		return b64(math.RoundToEven(x))
	case OpTrunc:
		return b64(math.Trunc(x))
	case OpMin:
		if x < y || x != x {
			return a[0]
		}
		return a[1]
	case OpMax:
		if x > y || x != x {
			return a[0]
		}
		return a[1]
	}
	return compare(op, x, y)
}

func compare[T float32 | float64 | int64 | uint64](op Op, x, y T) uint64 {
	switch op {
	case OpEq:
		return truth(x == y)
	case OpNe:
		return truth(x != y)
	case OpLt:
		return truth(x < y)
	case OpLe:
		return truth(x <= y)
	case OpGt:
		return truth(x > y)
	case OpGe:
		return truth(x >= y)
	}
	panic(fmt.Sprintf("BUG: operation %v", op))
}

// evalInt evaluates an operation on integers or bools.
func evalInt(op Op, t dtype.Type, a []uint64) uint64 {
	m, width := mask(t), uint64(8*t.Size())
	x := a[0]
	var y uint64
	if len(a) > 1 {
		y = a[1]
	}
	sx, sy := signed(t, x), signed(t, y)
	switch op {
	case OpNeg:
		return -x & m
	case OpAbs:
		if t.IsSigned() && sx < 0 {
			return -x & m
		}
		return x
	case OpAdd:
		return (x + y) & m
	case OpSub:
		return (x - y) & m
	case OpMul:
		return (x * y) & m
	case OpDiv:
		switch {
		case y == 0:
			return m
		case t.IsSigned() && sy == -1:
			return -x & m // also the least value, whose quotient wraps
		case t.IsSigned():
			return uint64(sx/sy) & m
		}
		return x / y
	case OpRem:
		switch {
		case y == 0:
			return x
		case t.IsSigned() && sy == -1:
			return 0
		case t.IsSigned():
			return uint64(sx%sy) & m
		}
		return x % y
	case OpMin:
		if t.IsSigned() && sx < sy || !t.IsSigned() && x < y {
			return x
		}
		return y
	case OpMax:
		if t.IsSigned() && sx > sy || !t.IsSigned() && x > y {
			return x
		}
		return y
	case OpAnd:
		return x & y
	case OpOr:
		return x | y
	case OpXor:
		return x ^ y
	case OpNot:
		return ^x & m
	case OpShl:
		if y >= width {
			return 0
		}
		return x << y & m
	case OpShr:
		if t.IsSigned() {
			return uint64(sx>>min(y, 63)) & m
		}
		if y >= width {
			return 0
		}
		return x >> y
	case OpPopcnt:
		return uint64(bits.OnesCount64(x))
	case OpClz:
		return uint64(bits.LeadingZeros64(x)) - (64 - width)
	case OpMulHi:
		if t == dtype.U32 {
			return x * y >> 32
		}
		hi, _ := bits.Mul64(x, y)
		return hi
	}
	if t.IsSigned() {
		return compare(op, sx, sy)
	}
	return compare(op, x, y)
}

// convert is OpConvert.
func convert(from, to dtype.Type, b uint64) uint64 {
	if from == to {
		return b
	}
	if !from.IsFloat() {
		switch {
		case to == dtype.Bool:
			return truth(b != 0)
		case to.IsInt():
			if from.IsSigned() {
				b = uint64(signed(from, b))
			}
			return b & mask(to)
		case to == dtype.F64 && from.IsSigned():
			return b64(float64(signed(from, b)))
		case to == dtype.F64:
			return b64(float64(b))
		}
		f := float32(b)
		if from.IsSigned() {
			f = float32(signed(from, b))
		}
		return from32(to, f)
	}
	if from == dtype.F64 {
		x := f64(b)
		switch {
		case to == dtype.F16 || to == dtype.BF16:
			return from32(to, scalar.Odd32(x))
		case to == dtype.F32:
			return b32(float32(x))
		}
		return toInt(to, x)
	}
	x := f32(b)
	switch from {
	case dtype.F16:
		x = scalar.FromF16(uint16(b))
	case dtype.BF16:
		x = scalar.FromBF16(uint16(b))
	}
	switch {
	case to == dtype.F64:
		return b64(float64(x))
	case to.IsFloat():
		return from32(to, x)
	}
	return toInt(to, float64(x))
}

// from32 is x as a value of the float type t, f64 apart.
func from32(t dtype.Type, x float32) uint64 {
	switch t {
	case dtype.F16:
		return uint64(scalar.F16(x))
	case dtype.BF16:
		return uint64(scalar.BF16(x))
	}
	return b32(x)
}

// toInt truncates x, saturating at the limits of t; NaN gives 0 (for bool: true).
func toInt(t dtype.Type, x float64) uint64 {
	if t == dtype.Bool {
		return truth(x != 0)
	}
	width := 8 * t.Size()
	if t.IsSigned() {
		lim := math.Ldexp(1, int(width-1))
		switch {
		case x != x:
			return 0
		case x >= lim:
			return mask(t) >> 1
		case x < -lim:
			return mask(t)>>1 + 1
		}
		return uint64(int64(x)) & mask(t)
	}
	lim := math.Ldexp(1, int(width))
	switch {
	case x != x || x <= 0:
		return 0
	case x >= lim:
		return mask(t)
	}
	if x >= 0x1p63 {
		return uint64(x-0x1p63) + 1<<63
	}
	return uint64(x)
}
